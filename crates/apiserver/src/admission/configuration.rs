//! Settings of single plugins, from the file of `--admission-control-config-file`.
//! Read once by the chain in `admission`.
//! A setting nobody would follow is an error, not a comment.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{
    event_rate_limit, image_policy_webhook, limited_resources, pod_node_selector, pod_security,
    pod_security_checks::Level, pod_toleration_restriction,
};
use crate::{server::config_document, transport::webhook_client::WebhookIdentities};

#[derive(Debug, Default)]
pub struct Configuration {
    pub pod_security: pod_security::Settings,
    pub event_rate_limit: event_rate_limit::Settings,
    pub image_policy_webhook: Option<image_policy_webhook::Settings>,
    pub pod_node_selector: pod_node_selector::Settings,
    pub pod_toleration_restriction: pod_toleration_restriction::Settings,
    pub limited_resources: limited_resources::Settings,
    /// Who we are to webhooks.
    pub mutating_webhooks: WebhookIdentities,
    pub validating_webhooks: WebhookIdentities,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    plugins: Vec<PluginFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginFile {
    name: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    configuration: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WebhookFile {
    api_version: String,
    kind: String,
    #[serde(default)]
    kube_config_file: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodSecurityFile {
    api_version: String,
    kind: String,
    #[serde(default)]
    defaults: pod_security::Defaults,
    #[serde(default)]
    exemptions: pod_security::Exemptions,
}

/// What upstream's example files say that name no version of our own.
const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];
const POD_SECURITY_VERSIONS: [&str; 3] = [
    "pod-security.admission.config.k8s.io/v1",
    "pod-security.admission.config.k8s.io/v1beta1",
    "pod-security.admission.config.k8s.io/v1alpha1",
];
const WEBHOOK_VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1alpha1"];

/// Whether a document is what it should be.
pub fn check_kind(api_version: &str, kind: &str, versions: &[&str], expected: &str) -> Result<(), String> {
    match kind == expected && versions.contains(&api_version) {
        true => Ok(()),
        false => Err(format!("no kind {kind:?} is registered for version {api_version:?}")),
    }
}

impl Configuration {
    pub fn load(path: &Path) -> Result<Self, String> {
        let attempt = |e: String| format!("failed to read admission configuration {}: {e}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| attempt(e.to_string()))?;
        Self::parse(&text, path.parent().unwrap_or(Path::new("."))).map_err(attempt)
    }

    /// `folder`: where files that it names are.
    fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        let file: File = config_document::read(text)?;
        check_kind(&file.api_version, &file.kind, &VERSIONS, "AdmissionConfiguration")?;
        let mut found = Self::default();
        for (index, plugin) in file.plugins.into_iter().enumerate() {
            let name = plugin.name.as_str();
            let at = |field: &str, why: &str| {
                config_document::mistake(text, &format!("plugins[{index}].{field}"), &format!("plugin {name:?}: "), why)
            };
            match (plugin.configuration, plugin.path.as_str()) {
                (Some(settings), _) => found.take(name, settings, folder).map_err(|why| at("configuration", &why))?,
                (None, "") => {}
                (None, path) => {
                    let inner = |why: String| at("path", &format!("{path}: {why}"));
                    let text = std::fs::read_to_string(folder.join(path)).map_err(|e| inner(e.to_string()))?;
                    let settings = config_document::read(&text).map_err(inner)?;
                    let taken = found.take(name, settings, folder);
                    taken.map_err(|why| inner(config_document::mistake(&text, "", "", &why)))?;
                }
            }
        }
        Ok(found)
    }

    /// The settings of one plugin. A mistake begins with its field.
    fn take(&mut self, plugin: &str, settings: Value, folder: &Path) -> Result<(), String> {
        match plugin {
            "PodSecurity" => self.pod_security = pod_security(settings)?,
            "EventRateLimit" => self.event_rate_limit = event_rate_limit::Settings::read(settings)?,
            "ImagePolicyWebhook" => {
                self.image_policy_webhook = Some(image_policy_webhook::Settings::read(settings, folder)?);
            }
            "PodNodeSelector" => self.pod_node_selector = pod_node_selector::Settings::read(settings)?,
            "PodTolerationRestriction" => {
                self.pod_toleration_restriction = pod_toleration_restriction::Settings::read(settings)?;
            }
            "ResourceQuota" => self.limited_resources = limited_resources::Settings::read(settings)?,
            "MutatingAdmissionWebhook" => self.mutating_webhooks = webhook_identities(settings)?,
            "ValidatingAdmissionWebhook" => self.validating_webhooks = webhook_identities(settings)?,
            _ => return Err("it takes no configuration here".into()),
        }
        Ok(())
    }
}

fn webhook_identities(settings: Value) -> Result<WebhookIdentities, String> {
    let file: WebhookFile = serde_json::from_value(settings).map_err(|e| e.to_string())?;
    let kind =
        if file.api_version == WEBHOOK_VERSIONS[0] { "WebhookAdmissionConfiguration" } else { "WebhookAdmission" };
    check_kind(&file.api_version, &file.kind, &WEBHOOK_VERSIONS, kind)?;
    let path = file.kube_config_file;
    if !Path::new(&path).is_absolute() {
        return Err(format!("kubeConfigFile: Invalid value: {path:?}: must be an absolute file path"));
    }
    WebhookIdentities::load(Path::new(&path)).map_err(|e| format!("kubeConfigFile: {e}"))
}

fn pod_security(settings: Value) -> Result<pod_security::Settings, String> {
    let file: PodSecurityFile = serde_json::from_value(settings).map_err(|e| e.to_string())?;
    check_kind(&file.api_version, &file.kind, &POD_SECURITY_VERSIONS, "PodSecurityConfiguration")?;
    let defaults = &file.defaults;
    for (mode, level, version) in [
        ("enforce", &defaults.enforce, &defaults.enforce_version),
        ("audit", &defaults.audit, &defaults.audit_version),
        ("warn", &defaults.warn, &defaults.warn_version),
    ] {
        if !level.is_empty() && Level::parse(level).is_none() {
            let expected = "must be one of privileged, baseline, restricted";
            return Err(format!("defaults.{mode}: Invalid value: {level:?}: {expected}"));
        }
        if !version.is_empty() && !pod_security::is_version(version) {
            return Err(format!("defaults.{mode}-version: Invalid value: {version:?}: must be \"latest\" or \"v1.x\""));
        }
    }
    Ok(pod_security::Settings { defaults: file.defaults, exemptions: file.exemptions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_mistakes_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let whole = |plugins: &str| {
            format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n{plugins}\n")
        };
        let settings = "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n\
                        defaults: {enforce: baseline, enforce-version: v1.30}\nexemptions: {namespaces: [kube-system], \
                        usernames: [robot], runtimeClasses: [vm]}\n";
        std::fs::write(folder.path().join("ps.yaml"), settings).unwrap();
        let found = Configuration::parse(&whole("- {name: PodSecurity, path: ps.yaml}"), folder.path()).unwrap();
        let found = found.pod_security;
        assert_eq!((found.defaults.enforce.as_str(), found.defaults.enforce_version.as_str()), ("baseline", "v1.30"));
        assert_eq!(found.exemptions.namespaces, ["kube-system"]);
        assert_eq!(found.exemptions.runtime_classes, ["vm"]);

        let check = |text: &str, expected: &str| {
            let error = Configuration::parse(text, folder.path()).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("a: [", "line 1");
        check(
            &whole("- {nom: PodSecurity}"),
            "unknown field `nom`, expected one of name, path, configuration at line 4",
        );
        check("apiVersion: v1\nkind: Pod\n", "no kind \"Pod\" is registered");
        check(&whole("- {name: PodSecurity, path: none.yaml}"), "none.yaml");
        check(
            &whole("- {name: LimitRanger, configuration: {a: b}}"),
            "plugin \"LimitRanger\": it takes no configuration",
        );
        let own = |defaults: &str| {
            let kind = "apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration";
            whole(&format!("- {{name: PodSecurity, configuration: {{{kind}, defaults: {{{defaults}}}}}}}"))
        };
        check(&own("enforce: tight"), "line 4: plugin \"PodSecurity\": defaults.enforce: Invalid value: \"tight\"");
        let long = "- name: PodSecurity\n  configuration:\n    apiVersion: pod-security.admission.config.k8s.io/v1\n    \
                    kind: PodSecurityConfiguration\n    defaults:\n      warn: loose\n";
        check(&whole(long), "line 9: plugin \"PodSecurity\": defaults.warn: Invalid value: \"loose\"");
        std::fs::write(folder.path().join("bad.yaml"), settings.replace("baseline", "tight")).unwrap();
        let named = "line 4: plugin \"PodSecurity\": bad.yaml: line 3: defaults.enforce: Invalid value";
        check(&whole("- {name: PodSecurity, path: bad.yaml}"), named);
        let quota = |rest: &str| {
            let kind = "apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration";
            whole(&format!("- name: ResourceQuota\n  configuration: {{{kind}, limitedResources: [{{{rest}}}]}}"))
        };
        assert!(!Configuration::parse(&quota("resource: pods"), folder.path()).unwrap().limited_resources.is_empty());
        check(&quota("apiGroup: a"), "line 5: plugin \"ResourceQuota\": limitedResources[0].resource: Required value");
        let webhooks = |file: &str| {
            let kind = "apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration";
            whole(&format!("- name: MutatingAdmissionWebhook\n  configuration: {{{kind}, kubeConfigFile: {file}}}"))
        };
        check(&webhooks("relative"), "line 5: plugin \"MutatingAdmissionWebhook\": kubeConfigFile: Invalid value");
        check(&webhooks("/nowhere"), "kubeConfigFile: failed to read webhook identities /nowhere: ");
        check(&own("warn-version: v2"), "defaults.warn-version");
        check(&own("enforced: baseline"), "unknown field");
    }
}
