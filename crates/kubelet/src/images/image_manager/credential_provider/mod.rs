//! Image credential providers: programs beside the kubelet that know credentials for a registry (exec protocol
//! credentialprovider.kubelet.k8s.io/v1).
//! Asked by `image_manager` before a pull, after the pod's own secrets.
//! A program that fails, hangs or prints nonsense gives no credentials; the pod says so and the pull goes on.

mod config;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    time::Duration,
};

use client::Client;
use config::{ProviderConfig, TokenCacheType};
use cri::v1;
use env::Env;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use metrics::Metrics;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    PodIdentity,
    credentials::{self, Credential, CredentialSource},
    in_flight::InFlightKeys,
    reference::registry_and_path,
};
use crate::{
    configuration::parse_duration,
    exec_plugin::{ExecPlugin, ExecPluginError},
    node::node_metrics::{CREDENTIAL_PROVIDER_DURATION, CREDENTIAL_PROVIDER_ERRORS},
};

const PLUGIN_TIMEOUT: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: u64 = 1 << 20;
const CACHED_ANSWERS_MAX: usize = 4096;
/// No image or registry is called so.
const GLOBAL: &str = "<global>";

#[derive(Debug, thiserror::Error)]
pub enum CredentialProviderConfigError {
    #[error("unable to access path {path:?}: {source}")]
    Access { path: PathBuf, source: std::io::Error },
    #[error("no configuration files found in directory {0:?}")]
    Empty(PathBuf),
    #[error("error decoding config {path:?}: {message}")]
    Decode { path: PathBuf, message: String },
    #[error("failed to validate credential provider config: {0}")]
    Invalid(String),
    #[error("plugin binary directory {} did not exist", .0.display())]
    NoDirectory(PathBuf),
    #[error("plugin binary executable {} did not exist", .0.display())]
    NoProgram(PathBuf),
    #[error("--image-credential-provider-config and --image-credential-provider-bin-dir must be given together")]
    Half,
}

/// What was read at the start.
#[derive(Debug, Clone, Default)]
pub struct CredentialProviderSettings {
    providers: Vec<(PathBuf, ProviderConfig)>,
}

impl CredentialProviderSettings {
    /// `config` is a file or a directory of them.
    pub fn load(config: &Path, programs: &Path) -> Result<Self, CredentialProviderConfigError> {
        if !programs.is_dir() {
            return Err(CredentialProviderConfigError::NoDirectory(programs.into()));
        }
        let access = |source| CredentialProviderConfigError::Access { path: config.into(), source };
        let mut files = vec![config.to_path_buf()];
        if std::fs::metadata(config).map_err(access)?.is_dir() {
            let known = |path: &PathBuf| path.extension().is_some_and(|e| e == "json" || e == "yaml" || e == "yml");
            let entries = std::fs::read_dir(config).map_err(access)?.flatten().map(|entry| entry.path());
            files = entries.filter(|path| known(path) && path.is_file()).collect();
            files.sort();
            if files.is_empty() {
                return Err(CredentialProviderConfigError::Empty(config.into()));
            }
        }
        let mut configs = Vec::new();
        for path in files {
            let text = std::fs::read_to_string(&path);
            let text = text.map_err(|source| CredentialProviderConfigError::Access { path: path.clone(), source })?;
            let parsed = config::parse(&text);
            configs.extend(parsed.map_err(|message| CredentialProviderConfigError::Decode { path, message })?);
        }
        config::check(&configs).map_err(CredentialProviderConfigError::Invalid)?;
        let mut providers = Vec::new();
        for config in configs {
            let program = programs.join(&config.name);
            if !program.is_file() {
                return Err(CredentialProviderConfigError::NoProgram(program));
            }
            providers.push((program, config));
        }
        Ok(Self { providers })
    }
}

#[derive(Debug, thiserror::Error)]
enum ProviderError {
    #[error("failed to get service account: {0}")]
    ServiceAccount(api::ApiError),
    #[error("failed to get service account token: {0}")]
    Token(String),
    #[error("failed to get credential from external registry credential provider: {0}")]
    Program(#[from] ExecPluginError),
    #[error("failed to get credential from external registry credential provider: error decoding response: {0}")]
    Decode(#[from] serde_json::Error),
    #[error(
        "failed to get credential from external registry credential provider: it answered with {kind} of {version}"
    )]
    Kind { kind: String, version: String },
    #[error("credential provider plugin did not return a valid cacheKeyType: {0}")]
    CacheKeyType(String),
    #[error("credential provider plugin did not return a valid cacheDuration: {0}")]
    CacheDuration(String),
    #[error(
        "credential provider plugin returned the service account token as the password which is not allowed when \
         service account cache type is not set to 'Token'"
    )]
    EchoedToken,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Answer {
    kind: String,
    api_version: String,
    #[serde(default)]
    cache_key_type: String,
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<BTreeMap<String, AuthEntry>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AuthEntry {
    username: String,
    password: String,
}

type Auth = BTreeMap<String, AuthEntry>;

/// For whom a program is asked, where it wants to know.
#[derive(Debug, Default)]
struct ServiceAccountContext {
    token: String,
    annotations: BTreeMap<String, String>,
    /// Distinguishes what was learnt for one from what was learnt for another.
    cache_key: String,
    source: Option<CredentialSource>,
}

struct Provider {
    program: PathBuf,
    config: ProviderConfig,
    /// By the image, the registry or everything, and by whom it was learnt for; until when.
    cache: Mutex<HashMap<(String, String), (Auth, Timestamp)>>,
    /// The same image is asked about once at a time.
    asking: InFlightKeys,
}

pub struct CredentialProviders {
    providers: Vec<Provider>,
    client: Client,
    env: Env,
    metrics: Metrics,
}

impl CredentialProviders {
    pub fn new(settings: CredentialProviderSettings, client: Client, env: Env, metrics: Metrics) -> Self {
        let provider =
            |(program, config)| Provider { program, config, cache: Mutex::default(), asking: InFlightKeys::default() };
        Self { providers: settings.providers.into_iter().map(provider).collect(), client, env, metrics }
    }

    /// Credentials for this image, and what went wrong with programs that should have some.
    pub async fn credentials(&self, image: &str, pod: &PodIdentity<'_>) -> (Vec<Credential>, Vec<String>) {
        let (registry, path) = registry_and_path(image);
        let name = format!("{registry}/{path}");
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for provider in &self.providers {
            let matches = |pattern: &String| credentials::matches(pattern, registry, &path);
            if !provider.config.match_images.iter().any(matches) {
                continue;
            }
            match self.provide(provider, &name, registry, pod).await {
                Ok((auth, source)) => {
                    let mut own: Vec<(usize, Credential)> = auth
                        .into_iter()
                        .filter(|(pattern, _)| credentials::matches(pattern, registry, &path))
                        .map(|(pattern, entry)| {
                            let auth = v1::AuthConfig {
                                username: entry.username,
                                password: entry.password,
                                ..Default::default()
                            };
                            (pattern.len(), Credential::new(auth, source.clone()))
                        })
                        .collect();
                    own.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
                    found.extend(own.into_iter().map(|(_, credential)| credential));
                }
                Err(error) => {
                    let name = &provider.config.name;
                    tracing::warn!(provider = name, image, %error, "failed to provide credentials for an image");
                    problems
                        .push(format!("Failed to provide credentials for image {image:?}: provider {name}: {error}"));
                }
            }
        }
        (found, problems)
    }

    async fn provide(
        &self,
        provider: &Provider,
        image: &str,
        registry: &str,
        pod: &PodIdentity<'_>,
    ) -> Result<(Auth, CredentialSource), ProviderError> {
        let context = match self.service_account(provider, pod).await? {
            Some(context) => context,
            None => return Ok((Auth::new(), CredentialSource::Node)),
        };
        let source = context.source.clone().unwrap_or(CredentialSource::Node);
        if let Some(auth) = provider.cached(image, registry, &context.cache_key, self.env.now()) {
            return Ok((auth, source));
        }
        let _asking = provider.asking.enter(&format!("{image} {}", context.cache_key)).await;
        // Whoever was before us may have learnt it for us.
        if let Some(auth) = provider.cached(image, registry, &context.cache_key, self.env.now()) {
            return Ok((auth, source));
        }
        let began = self.env.monotonic();
        let answer = self.ask(provider, image, &context).await;
        let took = self.env.monotonic().saturating_sub(began).as_secs_f64();
        self.metrics.observe(&CREDENTIAL_PROVIDER_DURATION, &[&provider.config.name], took);
        let answer =
            answer.inspect_err(|_| self.metrics.count(&CREDENTIAL_PROVIDER_ERRORS, &[&provider.config.name]))?;
        Ok((provider.keep(answer, image, registry, &context, self.env.now())?, source))
    }

    async fn ask(
        &self,
        provider: &Provider,
        image: &str,
        context: &ServiceAccountContext,
    ) -> Result<Answer, ProviderError> {
        let config = &provider.config;
        let mut request =
            json!({"kind": "CredentialProviderRequest", "apiVersion": config.api_version, "image": image});
        if !context.token.is_empty() {
            request["serviceAccountToken"] = json!(context.token);
        }
        if !context.annotations.is_empty() {
            request["serviceAccountAnnotations"] = json!(context.annotations);
        }
        let plugin = ExecPlugin {
            program: &provider.program,
            arguments: &config.arguments,
            environment: &config.environment,
            limit: PLUGIN_TIMEOUT,
            output_bytes_max: ANSWER_BYTES_MAX,
        };
        let output = plugin.run(&self.env, request.to_string().into_bytes()).await?;
        let answer: Answer = serde_json::from_slice(&output)?;
        match answer.kind == "CredentialProviderResponse" && answer.api_version == config.api_version {
            true => Ok(answer),
            false => Err(ProviderError::Kind { kind: answer.kind, version: answer.api_version }),
        }
    }

    /// `None` where the program is not to be asked for this pod.
    async fn service_account(
        &self,
        provider: &Provider,
        pod: &PodIdentity<'_>,
    ) -> Result<Option<ServiceAccountContext>, ProviderError> {
        let Some(attributes) = &provider.config.token_attributes else {
            return Ok(Some(ServiceAccountContext::default()));
        };
        if pod.service_account.is_empty() {
            return Ok((!attributes.require_service_account).then(ServiceAccountContext::default));
        }
        let account = self.client.namespaced::<ServiceAccount>(pod.namespace).get(pod.service_account).await;
        let account = account.map_err(ProviderError::ServiceAccount)?;
        let all = account.metadata.annotations.clone().unwrap_or_default();
        // A missing annotation is how a ServiceAccount stays out of it.
        let Ok(annotations) = attributes.annotations(&all) else { return Ok(None) };
        let uid = account.metadata.uid.clone().unwrap_or_default();
        let token = self.token(&attributes.audience, &uid, pod).await?;
        let mut cache_key = json!([pod.namespace, pod.service_account, uid, annotations]).to_string();
        if attributes.cache_type == TokenCacheType::Token {
            cache_key.push_str(&json!([pod.name, pod.uid, hash(&token)]).to_string());
        }
        let source =
            CredentialSource::ServiceAccount { namespace: pod.namespace.into(), name: pod.service_account.into(), uid };
        Ok(Some(ServiceAccountContext { token, annotations, cache_key, source: Some(source) }))
    }

    async fn token(&self, audience: &str, account_uid: &str, pod: &PodIdentity<'_>) -> Result<String, ProviderError> {
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid});
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "metadata": {"uid": account_uid}, "spec": {"audiences": [audience], "boundObjectRef": bound}});
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", pod.namespace, pod.service_account);
        let failed = |why: String| ProviderError::Token(why);
        let answer = self.client.call(Method::POST, &path, "application/json", body.to_string()).await;
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        let answer: Value = serde_json::from_slice(&answer)?;
        let token = answer["status"]["token"].as_str().filter(|token| !token.is_empty());
        token.map(str::to_string).ok_or_else(|| failed("the server's answer has no token".into()))
    }
}

impl Provider {
    fn cached(&self, image: &str, registry: &str, context: &str, now: Timestamp) -> Option<Auth> {
        let cache = self.cache.lock();
        [image, registry, GLOBAL].into_iter().find_map(|key| {
            let (auth, until) = cache.get(&(key.to_string(), context.to_string()))?;
            (*until > now).then(|| auth.clone())
        })
    }

    fn keep(
        &self,
        answer: Answer,
        image: &str,
        registry: &str,
        context: &ServiceAccountContext,
        now: Timestamp,
    ) -> Result<Auth, ProviderError> {
        let auth = answer.auth.unwrap_or_default();
        let by_token = self.config.token_attributes.as_ref().is_some_and(|t| t.cache_type == TokenCacheType::Token);
        if !context.token.is_empty() && !by_token && auth.values().any(|entry| entry.password == context.token) {
            return Err(ProviderError::EchoedToken);
        }
        let key = match answer.cache_key_type.as_str() {
            "Image" => image,
            "Registry" => registry,
            "Global" => GLOBAL,
            other => return Err(ProviderError::CacheKeyType(other.into())),
        };
        let life = match answer.cache_duration {
            None => self.config.default_cache_duration,
            Some(text) => parse_duration(&text).ok_or(ProviderError::CacheDuration(text))?,
        };
        if !life.is_zero()
            && let Ok(until) = now.checked_add(life)
        {
            let mut cache = self.cache.lock();
            if cache.len() >= CACHED_ANSWERS_MAX {
                cache.retain(|_, (_, until)| *until > now);
            }
            if cache.len() < CACHED_ANSWERS_MAX {
                cache.insert((key.into(), context.cache_key.clone()), (auth.clone(), until));
            }
        }
        Ok(auth)
    }
}

fn hash(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{test_api::UnreachableApi, test_programs};

    const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n\
        - name: helper\n  matchImages: [\"*.example.com\"]\n  defaultCacheDuration: 1h\n  \
        apiVersion: credentialprovider.kubelet.k8s.io/v1\n";

    fn providers(directory: &Path, config: &str, program: &str) -> CredentialProviders {
        let file = directory.join("config.yaml");
        std::fs::write(&file, config).unwrap();
        let log = directory.join("log");
        test_programs::write(directory, "helper", &format!("echo asked >> {}\n{program}", log.display()));
        let settings = CredentialProviderSettings::load(&file, directory).unwrap();
        CredentialProviders::new(settings, Client::new(UnreachableApi), Env::real(), Metrics::default())
    }

    fn answer(cache_key_type: &str, more: &str) -> String {
        format!(
            "cat > /dev/null; echo '{{\"kind\": \"CredentialProviderResponse\", \"apiVersion\": \
             \"credentialprovider.kubelet.k8s.io/v1\", \"cacheKeyType\": \"{cache_key_type}\", {more} \"auth\": \
             {{\"a.example.com/team\": {{\"username\": \"u\", \"password\": \"p\"}}, \"*.example.com\": {{\"username\": \
             \"v\", \"password\": \"q\"}}}}}}'"
        )
    }

    const POD: PodIdentity<'static> =
        PodIdentity { uid: "uid", namespace: "default", name: "web", service_account: "default" };

    #[tokio::test]
    async fn programs_are_asked_for_their_images_and_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let asked = || std::fs::read_to_string(directory.path().join("log")).unwrap_or_default().lines().count();
        let check = async |program: &str, images: &[(&str, &[&str])], times: usize| {
            let _ = std::fs::remove_file(directory.path().join("log"));
            let providers = providers(directory.path(), CONFIG, program);
            for (image, users) in images {
                let (found, problems) = providers.credentials(image, &POD).await;
                let found: Vec<&str> = found.iter().map(|credential| credential.auth.username.as_str()).collect();
                assert_eq!((found.as_slice(), problems.as_slice()), (*users, &[][..]), "{image}");
            }
            assert_eq!(asked(), times, "{program}");
        };
        let (team, other): ((&str, &[&str]), (&str, &[&str])) =
            (("a.example.com/team/x:1", &["u", "v"]), ("b.example.com/y:1", &["v"]));
        check(&answer("Image", ""), &[team, team, other], 2).await;
        check(&answer("Registry", ""), &[team, ("a.example.com/z:2", &["v"]), other], 2).await;
        check(&answer("Global", ""), &[team, other], 1).await;
        check(&answer("Global", "\"cacheDuration\": \"0s\","), &[team, team], 2).await;
        check(&answer("Global", ""), &[("busybox:1", &[]), ("a.b.example.com/x:1", &[])], 0).await;
    }

    #[tokio::test]
    async fn programs_that_fail_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let token =
            "  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true}\n";
        for (config, program, part) in [
            (CONFIG, "echo garbage", "error decoding response"),
            (CONFIG, "echo no >&2; exit 7", "exit status: 7: no"),
            (CONFIG, "echo '{\"kind\": \"Pod\", \"apiVersion\": \"v1\"}'", "it answered with Pod of v1"),
            (CONFIG, &answer("Planet", ""), "did not return a valid cacheKeyType: Planet"),
            (CONFIG, &answer("Image", "\"cacheDuration\": \"soon\","), "did not return a valid cacheDuration: soon"),
            (&format!("{CONFIG}{token}"), "exit 1", "failed to get service account: "),
        ] {
            let providers = providers(directory.path(), config, program);
            let (found, problems) = providers.credentials("a.example.com/x:1", &POD).await;
            assert!(found.is_empty());
            assert!(problems.len() == 1 && problems[0].contains(part), "{program}: {problems:?}");
        }
        let without = PodIdentity { service_account: "", ..POD };
        let providers = providers(directory.path(), &format!("{CONFIG}{token}"), "exit 1");
        let (found, problems) = providers.credentials("a.example.com/x:1", &without).await;
        assert!(found.is_empty() && problems.is_empty());
    }

    #[test]
    fn what_is_not_there_is_said_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        let check = |config: &Path, programs: &Path, part: &str| {
            let error = CredentialProviderSettings::load(config, programs).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check(&file, &directory.path().join("bin"), "plugin binary directory");
        check(&file, directory.path(), "unable to access path");
        check(directory.path(), directory.path(), "no configuration files found in directory");
        std::fs::write(&file, CONFIG).unwrap();
        check(directory.path(), directory.path(), "plugin binary executable");
    }
}
