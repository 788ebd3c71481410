//! Files of `--authorization-config` (AuthorizationConfiguration): a chain of authorizers, several webhooks among them.
//! Read by `authz` at start and at every change of the file; the `--authorization-*` flags make the same.
//! A file with an error is refused whole, and the error names the line or the field.

use std::{
    collections::HashSet,
    path::{Path as FilePath, PathBuf},
    time::Duration,
};

use serde::Deserialize;

use api::{
    field::{ErrorList, Path},
    names,
};

use super::webhook::{MatchConditions, WebhookSettings};
use crate::server::{config::Authorization, config_document};

const KIND: &str = "AuthorizationConfiguration";
const GROUP: &str = "apiserver.config.k8s.io";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
const TYPES: [&str; 6] = ["ABAC", "AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"];
const AUTHORIZED_TTL: Duration = Duration::from_secs(300);
const UNAUTHORIZED_TTL: Duration = Duration::from_secs(30);
pub const WEBHOOK_TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// One link of the chain.
#[derive(Debug)]
pub struct AuthorizerConfiguration {
    /// `Node`, `RBAC`, `Webhook` …
    pub kind: String,
    pub name: String,
    /// Of a webhook.
    pub settings: Option<Box<WebhookSettings>>,
}

/// What upstream calls the one webhook that flags can ask for.
const FLAGS_WEBHOOK: &str = "default";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    authorizers: Vec<AuthorizerFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthorizerFile {
    #[serde(rename = "type", default)]
    of: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    webhook: Option<WebhookFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WebhookFile {
    #[serde(rename = "authorizedTTL", default)]
    authorized_ttl: String,
    #[serde(default = "yes")]
    cache_authorized_requests: bool,
    #[serde(rename = "unauthorizedTTL", default)]
    unauthorized_ttl: String,
    #[serde(default = "yes")]
    cache_unauthorized_requests: bool,
    #[serde(default)]
    timeout: String,
    #[serde(default)]
    subject_access_review_version: String,
    #[serde(default)]
    match_condition_subject_access_review_version: String,
    #[serde(default)]
    failure_policy: String,
    #[serde(default)]
    connection_info: ConnectionInfo,
    #[serde(default)]
    match_conditions: Vec<MatchConditionFile>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ConnectionInfo {
    #[serde(rename = "type")]
    of: String,
    kube_config_file: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchConditionFile {
    #[serde(default)]
    expression: String,
}

fn yes() -> bool {
    true
}

/// The chain that `--authorization-mode` and its companions ask for.
pub fn from_flags(modes: &[String], flags: &Authorization) -> Result<Vec<AuthorizerConfiguration>, String> {
    let link = |mode: &String| match mode.as_str() {
        "Webhook" => {
            let webhook = flags.webhook.as_ref();
            let webhook = webhook.ok_or("authorization mode Webhook's authorization config file not passed")?;
            let settings = WebhookSettings {
                kubeconfig: webhook.kubeconfig.clone(),
                allowed_for: webhook.allowed_for,
                refused_for: webhook.refused_for,
                timeout: WEBHOOK_TIMEOUT_MAX,
                review_version: "v1",
                denies_on_failure: false,
                conditions: MatchConditions::default(),
            };
            let (kind, name) = (mode.clone(), FLAGS_WEBHOOK.to_string());
            Ok(AuthorizerConfiguration { kind, name, settings: Some(Box::new(settings)) })
        }
        known if TYPES.contains(&known) => {
            Ok(AuthorizerConfiguration { kind: mode.clone(), name: mode.to_lowercase(), settings: None })
        }
        other => Err(format!("authorization mode \"{other}\" is not a valid mode")),
    };
    modes.iter().map(link).collect()
}

pub fn load(path: &FilePath) -> Result<Vec<AuthorizerConfiguration>, String> {
    let attempt = |e: String| format!("failed to read authorization configuration {}: {e}", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| attempt(e.to_string()))?;
    parse(&text).map_err(attempt)
}

fn parse(text: &str) -> Result<Vec<AuthorizerConfiguration>, String> {
    let file: File = config_document::read(text)?;
    let version = file.api_version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/'));
    if file.kind != KIND || !version.is_some_and(|v| VERSIONS.contains(&v)) {
        return Err(format!("no kind {:?} is registered for version {:?}", file.kind, file.api_version));
    }
    let mut errors = ErrorList::new();
    let root = Path::new("authorizers");
    if file.authorizers.is_empty() {
        errors.required(&root, "at least one authorization mode must be defined");
    }
    let (mut types, mut seen_names) = (HashSet::new(), HashSet::new());
    let mut links = Vec::new();
    for (index, authorizer) in file.authorizers.iter().enumerate() {
        let path = root.index(index);
        let of = authorizer.of.as_str();
        if of.is_empty() {
            errors.required(&path.child("type"), "");
            continue;
        }
        if !TYPES.contains(&of) {
            errors.not_supported(&path.child("type"), of, &TYPES);
            continue;
        }
        if !types.insert(of) && of != "Webhook" {
            errors.duplicate(&path.child("type"), of);
            continue;
        }
        let name = authorizer.name.as_str();
        let wrong = names::dns_subdomain(name, false);
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        } else if !seen_names.insert(name) {
            errors.duplicate(&path.child("name"), name);
        } else if !wrong.is_empty() {
            let detail = format!("authorizer name is invalid: {}", wrong.join(", "));
            errors.invalid(&path.child("name"), name, detail);
        }
        let mut link =
            |settings| links.push(AuthorizerConfiguration { kind: of.to_string(), name: name.to_string(), settings });
        match (&authorizer.webhook, of) {
            (None, "Webhook") => errors.required(&path.child("webhook"), "required when type=Webhook"),
            (Some(webhook), "Webhook") => {
                if let Some(settings) = webhook.settings(&path, &mut errors) {
                    link(Some(Box::new(settings)));
                }
            }
            (Some(_), _) => {
                errors.invalid(&path.child("webhook"), "non-null", "may only be specified when type=Webhook");
            }
            (None, _) => link(None),
        }
    }
    match errors.is_empty() {
        true => Ok(links),
        false => Err(config_document::mistakes(text, &errors)),
    }
}

fn duration(text: &str, path: &Path, errors: &mut ErrorList) -> Option<Duration> {
    match api::codec::parse_duration(text).map(u64::try_from) {
        Ok(Ok(nanos)) => Some(Duration::from_nanos(nanos)),
        Ok(Err(_)) => {
            errors.invalid(path, text, "must be > 0s");
            None
        }
        Err(e) => {
            errors.invalid(path, text, e.to_string());
            None
        }
    }
}

impl WebhookFile {
    fn settings(&self, path: &Path, errors: &mut ErrorList) -> Option<WebhookSettings> {
        let before = errors.len();
        let timeout = path.child("timeout");
        let timeout = match self.timeout.as_str() {
            "" => {
                errors.required(&timeout, "");
                None
            }
            text => duration(text, &timeout, errors).filter(|found| {
                let fits = !found.is_zero() && *found <= WEBHOOK_TIMEOUT_MAX;
                if !fits {
                    errors.invalid(&timeout, text, "must be > 0s and <= 30s");
                }
                fits
            }),
        };
        let mut ttl = |field: &str, text: &str, usual: Duration, cached: bool| {
            let found = if text.is_empty() { Some(usual) } else { duration(text, &path.child(field), errors) };
            let found = found.map(|found| if found.is_zero() { usual } else { found });
            found.map(|found| if cached { found } else { Duration::ZERO })
        };
        let allowed_for = ttl("authorizedTTL", &self.authorized_ttl, AUTHORIZED_TTL, self.cache_authorized_requests);
        let refused_for =
            ttl("unauthorizedTTL", &self.unauthorized_ttl, UNAUTHORIZED_TTL, self.cache_unauthorized_requests);
        let review_version = match self.subject_access_review_version.as_str() {
            "v1beta1" => "v1beta1",
            other => {
                let path = path.child("subjectAccessReviewVersion");
                match other {
                    "v1" => {}
                    "" => errors.required(&path, ""),
                    other => errors.not_supported(&path, other, &["v1", "v1beta1"]),
                }
                "v1"
            }
        };
        let conditions_path = path.child("matchConditionSubjectAccessReviewVersion");
        match self.match_condition_subject_access_review_version.as_str() {
            "" if self.match_conditions.is_empty() => {}
            "" => errors.required(&conditions_path, "required if match conditions are specified"),
            "v1" => {}
            other => errors.not_supported(&conditions_path, other, &["v1"]),
        }
        match self.failure_policy.as_str() {
            "" => errors.required(&path.child("failurePolicy"), ""),
            "NoOpinion" | "Deny" => {}
            other => errors.not_supported(&path.child("failurePolicy"), other, &["NoOpinion", "Deny"]),
        }
        let kubeconfig = self.connection_info.kubeconfig(&path.child("connectionInfo"), errors);
        let sources: Vec<&str> = self.match_conditions.iter().map(|c| c.expression.as_str()).collect();
        let conditions = MatchConditions::compile(&sources, &path.child("matchConditions"), errors);
        if errors.len() > before {
            return None;
        }
        Some(WebhookSettings {
            kubeconfig: kubeconfig?,
            allowed_for: allowed_for?,
            refused_for: refused_for?,
            timeout: timeout?,
            review_version,
            denies_on_failure: self.failure_policy == "Deny",
            conditions,
        })
    }
}

impl ConnectionInfo {
    fn kubeconfig(&self, path: &Path, errors: &mut ErrorList) -> Option<PathBuf> {
        let file = path.child("kubeConfigFile");
        match (self.of.as_str(), self.kube_config_file.as_deref().unwrap_or_default()) {
            ("", _) => errors.required(&path.child("type"), ""),
            ("KubeConfigFile", "") => errors.required(&file, ""),
            ("KubeConfigFile", name) if !name.starts_with('/') => {
                errors.invalid(&file, name, "must be an absolute path");
            }
            ("KubeConfigFile", name) => match std::fs::metadata(name) {
                Err(e) => errors.invalid(&file, name, format!("error loading file: {e}")),
                Ok(found) if !found.is_file() => errors.invalid(&file, name, "must be a regular file"),
                Ok(_) => return Some(name.into()),
            },
            ("InClusterConfig", "") => {
                let detail = "this server runs in no pod and has no in-cluster configuration";
                errors.invalid(&path.child("type"), "InClusterConfig", detail);
            }
            ("InClusterConfig", name) => {
                errors.invalid(&file, name, "can only be set when type=KubeConfigFile");
            }
            (other, _) => errors.not_supported(&path.child("type"), other, &["InClusterConfig", "KubeConfigFile"]),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("k");
        std::fs::write(&file, "").unwrap();
        let webhook = format!(
            "timeout: 3s\n    subjectAccessReviewVersion: v1\n    matchConditionSubjectAccessReviewVersion: v1\n    \
             failurePolicy: Deny\n    connectionInfo: {{type: KubeConfigFile, kubeConfigFile: {}}}\n    \
             matchConditions:\n    - expression: has(request.resourceAttributes)\n",
            file.display()
        );
        let whole = |rest: &str| {
            format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n{rest}")
        };
        let hook = |text: &str| whole(&format!("- type: Webhook\n  name: a\n  webhook:\n    {text}"));
        let check = |text: &str, expected: &str| match parse(text) {
            Ok(_) => assert_eq!("", expected, "{text}"),
            Err(e) => assert!(!expected.is_empty() && e.contains(expected), "{text}: {e}"),
        };
        check(&hook(&webhook), "");
        check(&whole("- {type: Node, name: n}\n- {type: RBAC, name: r}\n"), "");
        check("a: [", "line 1");
        check(&hook(&webhook.replace("timeout: 3s", "timeout: 31s")), "line 7: authorizers[0].timeout: Invalid value");
        check("apiVersion: v1\nkind: Pod\n", "no kind \"Pod\" is registered");
        check(&whole("  []"), "authorizers: Required value: at least one");
        check(&whole("- {name: a}"), "authorizers[0].type: Required value");
        check(&whole("- {type: Maybe, name: a}"), "authorizers[0].type: Unsupported value: \"Maybe\"");
        check(&whole("- {type: RBAC, name: a}\n- {type: RBAC, name: b}"), "authorizers[1].type: Duplicate value");
        check(&whole("- {type: RBAC, name: a}\n- {type: Node, name: a}"), "authorizers[1].name: Duplicate value");
        check(&whole("- {type: RBAC, name: A}"), "authorizer name is invalid");
        check(&whole("- {type: RBAC, name: a, webhook: {}}"), "may only be specified when type=Webhook");
        check(&whole("- {type: Webhook, name: a}"), "authorizers[0].webhook: Required value");
        let replaced = |from: &str, to: &str| hook(&webhook.replace(from, to));
        check(&replaced("timeout: 3s", "timeout: 31s"), "must be > 0s and <= 30s");
        check(&replaced("timeout: 3s", "timeout: soon"), "timeout: Invalid value");
        check(&replaced("timeout: 3s", "authorizedTTL: 1s"), "timeout: Required value");
        check(&replaced("Version: v1\n    match", "Version: v2\n    match"), "subjectAccessReviewVersion: Unsupported");
        check(&replaced("Deny", "Perhaps"), "failurePolicy: Unsupported value");
        check(&replaced("KubeConfigFile,", "InClusterConfig,"), "can only be set when type=KubeConfigFile");
        check(&replaced("/k}", "/none}"), "error loading file");
        check(
            &replaced("has(request.resourceAttributes)", "request.("),
            "matchConditions[0].expression: Invalid value",
        );
        check(&replaced("has(request.resourceAttributes)", "request.what == ''"), "matchConditions[0].expression");
        check(&replaced("has(request.resourceAttributes)", "request.user"), "must evaluate to bool");
        check(&replaced("has(request.resourceAttributes)", "''"), "matchConditions[0].expression: Required value");
    }
}
