//! One connection and one namespace out of files, flags and the pod that we may run in.
//! Used by `session`.
//! Flags win over files; files over the pod's own service account.

use std::{path::Path, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderName, HeaderValue, header};
use rustls::sign::CertifiedKey;
use serde_json::Value;

use super::{Config, Entry, Places, exec, from_base64, oidc, prompt, validation};
use crate::{
    failure::{Failure, Result, go_error},
    flags::Matches,
    kuberc::plugin_policy::PluginPolicy,
    output::Output,
    rest::connect::Connection,
};

const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
const POD_CA: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

pub struct Resolved {
    pub context: Value,
    pub cluster: Entry,
    pub user: Entry,
}

fn nothing() -> Entry {
    Entry { name: String::new(), value: Value::Object(Default::default()), file: Default::default() }
}

/// The context, cluster and user that the flags choose.
pub fn choose(config: &Config, matches: &Matches) -> Result<Resolved> {
    let name = matches.opt("context").unwrap_or(&config.current_context);
    let context = match name {
        "" => nothing(),
        name => {
            config.context(name).cloned().ok_or_else(|| Failure::message(format!("context {name:?} does not exist")))?
        }
    };
    let named = |flag: &str, field: &str| {
        matches.opt(flag).map_or_else(|| context.value[field].as_str().unwrap_or_default().to_string(), str::to_string)
    };
    let (cluster_name, user_name) = (named("cluster", "cluster"), named("user", "user"));
    // What a context names and no file has is as if it named none; what a flag names must be there.
    let cluster = match config.cluster(&cluster_name) {
        Some(cluster) => cluster.clone(),
        None if matches.opt("cluster").is_none() => nothing(),
        // Whoever has named a namespace finds it out later, in other words.
        None if matches.opt("namespace").is_some() => {
            return Err(Failure::message(format!("cluster {cluster_name:?} does not exist")));
        }
        None => return Err(Failure::message(format!("no server found for cluster {cluster_name:?}"))),
    };
    let user = match config.user(&user_name) {
        Some(user) => user.clone(),
        None if matches.opt("user").is_none() => Entry { name: user_name, ..nothing() },
        None => return Err(Failure::message(format!("auth info {user_name:?} does not exist"))),
    };
    Ok(Resolved { context: context.value, cluster, user })
}

/// The namespace of the request, and whether a flag said so.
pub fn namespace(config: &Config, matches: &Matches) -> Result<(String, bool)> {
    if let Some(namespace) = matches.opt("namespace") {
        return Ok((namespace.to_string(), true));
    }
    let name = matches.opt("context").unwrap_or(&config.current_context);
    if !name.is_empty() && config.context(name).is_none() {
        return Err(Failure::Plain(format!(
            "Error in configuration: context was not found for specified context: {name}"
        )));
    }
    let resolved = choose(config, matches)?;
    let of_context = resolved.context["namespace"].as_str().unwrap_or_default();
    if !of_context.is_empty() {
        return Ok((of_context.to_string(), false));
    }
    if config.is_empty()
        && in_cluster()
        && let Ok(namespace) = std::fs::read_to_string(POD_NAMESPACE)
    {
        return Ok((namespace.trim().to_string(), false));
    }
    Ok(("default".to_string(), false))
}

fn in_cluster() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
        && std::env::var_os("KUBERNETES_SERVICE_PORT").is_some()
        && Path::new(POD_TOKEN).exists()
}

fn beside(entry: &Entry, path: &str) -> std::path::PathBuf {
    entry.file.parent().unwrap_or(Path::new("")).join(path)
}

/// Bytes of `field-data`, or of the file that `field` names.
fn material(entry: &Entry, field: &str, what: &str) -> Result<Option<Vec<u8>>> {
    if let Some(data) = entry.value[format!("{field}-data")].as_str().filter(|d| !d.is_empty()) {
        return from_base64(data).map(Some).map_err(Failure::Message);
    }
    let Some(path) = entry.value[field].as_str().filter(|p| !p.is_empty()) else { return Ok(None) };
    let path = beside(entry, path);
    std::fs::read(&path).map(Some).map_err(|e| {
        let (path, why) = (path.display(), go_error(&e));
        Failure::message(format!("unable to read {what} {path} for {} due to open {path}: {why}", entry.name))
    })
}

/// An address without a scheme is one of TLS if anything else speaks of TLS.
fn server_address(server: &str, speaks_of_tls: bool) -> String {
    let server = match server.contains("://") {
        true => server.to_string(),
        false => format!("{}://{server}", if speaks_of_tls { "https" } else { "http" }),
    };
    server.trim_end_matches('/').to_string()
}

fn add(headers: &mut Vec<(HeaderName, HeaderValue)>, name: &str, value: &str) -> Result<()> {
    let bad = |e: String| Failure::message(format!("header {name}: {e}"));
    let name: HeaderName = name.parse().map_err(|_| bad("not a header name".into()))?;
    let mut value = HeaderValue::from_str(value).map_err(|e| bad(e.to_string()))?;
    value.set_sensitive(name == header::AUTHORIZATION);
    headers.push((name, value));
    Ok(())
}

/// Everything a connection needs. Programs of the kubeconfig are run here.
pub async fn connection(
    places: &Places,
    config: &Config,
    matches: &Matches,
    plugins: &PluginPolicy,
    output: &Output,
    env: &env::Env,
) -> Result<Connection> {
    let resolved = choose(config, matches)?;
    let (mut cluster, mut user) = (resolved.cluster, resolved.user);
    let here = std::env::current_dir().unwrap_or_default().join("flags");
    for (flag, field) in [("server", "server"), ("tls-server-name", "tls-server-name")] {
        if let Some(value) = matches.opt(flag) {
            cluster.value[field] = value.into();
        }
    }
    if let Some(file) = matches.opt("certificate-authority") {
        cluster.value["certificate-authority"] = here.with_file_name(file).display().to_string().into();
        cluster.value["certificate-authority-data"] = Value::Null;
    }
    if matches.changed("insecure-skip-tls-verify") {
        cluster.value["insecure-skip-tls-verify"] = matches.bool("insecure-skip-tls-verify").into();
        if matches.bool("insecure-skip-tls-verify") {
            cluster.value["certificate-authority"] = Value::Null;
            cluster.value["certificate-authority-data"] = Value::Null;
        }
    }
    override_user(&mut user, matches, &here)?;
    let from_pod = cluster.value["server"].as_str().unwrap_or_default().is_empty() && config.is_empty() && in_cluster();
    if from_pod {
        let part = |name: &str| std::env::var(name).unwrap_or_default();
        let host = part("KUBERNETES_SERVICE_HOST");
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        cluster.value["server"] = format!("https://{host}:{}", part("KUBERNETES_SERVICE_PORT")).into();
        cluster.value["certificate-authority"] = POD_CA.into();
        if user.value["token"].as_str().unwrap_or_default().is_empty() {
            user.value["tokenFile"] = POD_TOKEN.into();
        }
    }
    validation::usable(&user, &cluster)?;
    let insecure = cluster.value["insecure-skip-tls-verify"].as_bool().unwrap_or(false);
    let ca = material(&cluster, "certificate-authority", "certificate-authority")?.unwrap_or_default();
    if insecure && !ca.is_empty() {
        return Err(Failure::message("specifying a root certificates file with the insecure flag is not allowed"));
    }
    let has_certificate =
        ["client-certificate", "client-certificate-data"].iter().any(|field| user.value[*field].is_string());
    let server = match cluster.value["server"].as_str().unwrap_or_default() {
        "" => "http://localhost:8080".to_string(),
        server => server_address(server, insecure || has_certificate || !ca.is_empty()),
    };
    let mut headers = Vec::new();
    add(&mut headers, "user-agent", &user_agent())?;
    // Nobody says who they are to a server that can't prove who it is.
    let certificate = match server.starts_with("https://") {
        true => {
            let files = if matches.has("filename") { matches.list("filename") } else { Vec::new() };
            let stdin_in_use = files.iter().chain(&matches.args).any(|word| word == "-");
            let place = Place { server: &server, ca: &ca, stdin_in_use, plugins, output };
            credentials(places, &user, &cluster, place, env, &mut headers).await?
        }
        false => None,
    };
    impersonation(&user, matches, &mut headers)?;
    Ok(Connection {
        server,
        certificate_authority: ca,
        insecure_skip_tls_verify: insecure,
        tls_server_name: cluster.value["tls-server-name"].as_str().filter(|n| !n.is_empty()).map(str::to_string),
        proxy_url: cluster.value["proxy-url"].as_str().filter(|url| !url.is_empty()).map(str::to_string),
        certificate,
        headers,
    })
}

/// What a credential plugin is told of, and whether it may talk to the person.
struct Place<'a> {
    server: &'a str,
    ca: &'a [u8],
    stdin_in_use: bool,
    plugins: &'a PluginPolicy,
    output: &'a Output,
}

/// Adds the Authorization header; the client certificate, if that is how the user proves who it is.
async fn credentials(
    places: &Places,
    user: &Entry,
    cluster: &Entry,
    place: Place<'_>,
    env: &env::Env,
    headers: &mut Vec<(HeaderName, HeaderValue)>,
) -> Result<Option<Arc<CertifiedKey>>> {
    let mut chain = material(user, "client-certificate", "client-cert")?;
    let mut key = material(user, "client-key", "client-key")?;
    let mut token = token(user)?;
    let named = user.value["username"].as_str().is_some_and(|name| !name.is_empty());
    if token.is_none() && chain.is_none() && !named && user.value["exec"].is_object() {
        let credential =
            exec::credential(user, cluster, place.server, place.ca, place.stdin_in_use, place.plugins).await?;
        token = credential.token;
        chain = credential.certificate_pem.or(chain);
        key = credential.key_pem.or(key);
    }
    if user.value["auth-provider"].is_object() {
        let name = user.value["auth-provider"]["name"].as_str().unwrap_or_default();
        match (name, token.is_none()) {
            ("oidc", true) => token = Some(oidc::id_token(places, user, env).await?),
            ("oidc", false) => {}
            (other, _) => return Err(Failure::message(no_provider(other))),
        }
    }
    let mut basic = named.then(|| {
        let text = |field: &str| user.value[field].as_str().unwrap_or_default().to_string();
        (text("username"), text("password"))
    });
    let asked_elsewhere = user.value["exec"].is_object() || user.value["auth-provider"].is_object();
    if token.is_none() && chain.is_none() && basic.is_none() && !asked_elsewhere {
        basic = Some(prompt::name_and_password(place.output)?);
    }
    match (token, basic) {
        (Some(token), _) => add(headers, "authorization", &format!("Bearer {token}"))?,
        (None, Some((name, password))) => {
            let pair = BASE64_STANDARD.encode(format!("{name}:{password}"));
            add(headers, "authorization", &format!("Basic {pair}"))?;
        }
        (None, None) => {}
    }
    match (chain, key) {
        (Some(chain), Some(key)) => client::certified_key(&chain, &key)
            .map(|key| Some(Arc::new(key)))
            .map_err(|e| Failure::message(format!("tls: failed to find any PEM data in certificate input: {e}"))),
        _ => Ok(None),
    }
}

/// Providers that kubectl once had say what came after them.
fn no_provider(name: &str) -> String {
    let (plugin, page) = match name {
        "gcp" => (
            "\"gke-gcloud-auth-plugin\"",
            "https://cloud.google.com/blog/products/containers-kubernetes/kubectl-auth-changes-in-gke",
        ),
        "azure" => (
            "https://github.com/Azure/kubelogin",
            "https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins",
        ),
        other => return format!("no Auth Provider found for name {other:?}"),
    };
    format!(
        "The {name} auth plugin has been removed.\nPlease use the {plugin} kubectl/client-go credential plugin instead.\nSee {page} for further details"
    )
}

pub fn user_agent() -> String {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("kubectl/{} (linux/{machine}) kubernetes/minke", crate::session::CLIENT_VERSION)
}

fn override_user(user: &mut Entry, matches: &Matches, here: &Path) -> Result<()> {
    if let Some(token) = matches.opt("token") {
        if user.file.as_os_str().is_empty() {
            user.file = here.to_path_buf();
        }
        user.value["token"] = token.into();
        user.value["tokenFile"] = Value::Null;
    }
    for flag in ["client-certificate", "client-key"] {
        if let Some(file) = matches.opt(flag) {
            user.value[flag] = here.with_file_name(file).display().to_string().into();
            user.value[format!("{flag}-data")] = Value::Null;
        }
    }
    for flag in ["username", "password"] {
        if let Some(value) = matches.opt(flag) {
            user.value[flag] = value.into();
            // Both by flags contradict each other.
            if matches.opt("token").is_none() {
                user.value["token"] = Value::Null;
            }
        }
    }
    Ok(())
}

fn token(user: &Entry) -> Result<Option<String>> {
    if let Some(token) = user.value["token"].as_str().filter(|t| !t.is_empty()) {
        return Ok(Some(token.to_string()));
    }
    let Some(file) = user.value["tokenFile"].as_str().filter(|f| !f.is_empty()) else { return Ok(None) };
    let path = beside(user, file);
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Failure::message(format!("open {}: {}", path.display(), go_error(&e))))?;
    Ok(Some(text.trim().to_string()))
}

fn impersonation(user: &Entry, matches: &Matches, headers: &mut Vec<(HeaderName, HeaderValue)>) -> Result<()> {
    let text = |field: &str| user.value[field].as_str().unwrap_or_default().to_string();
    let name = matches.opt("as").map_or_else(|| text("as"), str::to_string);
    let uid = matches.opt("as-uid").map_or_else(|| text("as-uid"), str::to_string);
    let groups: Vec<String> = match matches.changed("as-group") {
        true => matches.list("as-group"),
        false => {
            let listed = user.value["as-groups"].as_array().into_iter().flatten();
            listed.filter_map(Value::as_str).map(str::to_string).collect()
        }
    };
    if name.is_empty() {
        if !groups.is_empty() || !uid.is_empty() || matches.changed("as-user-extra") {
            return Err(Failure::message(format!(
                "requesting uid, groups or user-extra for {} without impersonating a user",
                user.name
            )));
        }
        return Ok(());
    }
    add(headers, "impersonate-user", &name)?;
    if !uid.is_empty() {
        add(headers, "impersonate-uid", &uid)?;
    }
    for group in groups {
        add(headers, "impersonate-group", &group)?;
    }
    for extra in matches.list("as-user-extra") {
        let (key, value) = extra.split_once('=').unwrap_or((&extra, ""));
        add(headers, &format!("impersonate-extra-{}", key.to_lowercase()), value)?;
    }
    for (key, values) in user.value["as-user-extra"].as_object().into_iter().flatten() {
        for value in values.as_array().into_iter().flatten().filter_map(Value::as_str) {
            add(headers, &format!("impersonate-extra-{}", key.to_lowercase()), value)?;
        }
    }
    Ok(())
}
