//! Settings of single plugins, from the file of `--admission-control-config-file`.
//! Read once by the chain in `admission`.
//! A setting nobody would follow is an error, not a comment.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{
    event_rate_limit, image_policy_webhook, pod_node_selector, pod_security, pod_security_checks::Level,
    pod_toleration_restriction,
};

#[derive(Debug, Default)]
pub struct Configuration {
    pub pod_security: pod_security::Settings,
    pub event_rate_limit: event_rate_limit::Settings,
    pub image_policy_webhook: Option<image_policy_webhook::Settings>,
    pub pod_node_selector: pod_node_selector::Settings,
    pub pod_toleration_restriction: pod_toleration_restriction::Settings,
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
struct PodSecurityFile {
    api_version: String,
    kind: String,
    #[serde(default)]
    defaults: pod_security::Defaults,
    #[serde(default)]
    exemptions: pod_security::Exemptions,
}

impl Configuration {
    pub fn load(path: &Path) -> Result<Self, String> {
        let attempt = |e: String| format!("failed to read admission configuration {}: {e}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| attempt(e.to_string()))?;
        Self::parse(&text, path.parent().unwrap_or(Path::new("."))).map_err(attempt)
    }

    /// `folder`: where files that it names are.
    fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        // The error of the reader names line and column.
        let file: File = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
        if (file.api_version.as_str(), file.kind.as_str()) != ("apiserver.config.k8s.io/v1", "AdmissionConfiguration") {
            return Err(format!("no kind {:?} is registered for version {:?}", file.kind, file.api_version));
        }
        let mut found = Self::default();
        for plugin in file.plugins {
            let attempt = |e: String| format!("plugin {:?}: {e}", plugin.name);
            let settings = match (&plugin.configuration, plugin.path.as_str()) {
                (Some(value), _) => value.clone(),
                (None, "") => continue,
                (None, path) => {
                    let text =
                        std::fs::read_to_string(folder.join(path)).map_err(|e| attempt(format!("{path}: {e}")))?;
                    serde_saphyr::from_str(&text).map_err(|e| attempt(format!("{path}: {e}")))?
                }
            };
            match plugin.name.as_str() {
                "PodSecurity" => found.pod_security = pod_security(settings).map_err(attempt)?,
                "EventRateLimit" => {
                    found.event_rate_limit = event_rate_limit::Settings::read(settings).map_err(attempt)?;
                }
                "ImagePolicyWebhook" => {
                    let read = image_policy_webhook::Settings::read(settings, folder).map_err(attempt)?;
                    found.image_policy_webhook = Some(read);
                }
                "PodNodeSelector" => {
                    found.pod_node_selector = pod_node_selector::Settings::read(settings).map_err(attempt)?;
                }
                "PodTolerationRestriction" => {
                    found.pod_toleration_restriction =
                        pod_toleration_restriction::Settings::read(settings).map_err(attempt)?;
                }
                _ => return Err(attempt("it takes no configuration here".into())),
            }
        }
        Ok(found)
    }
}

fn pod_security(settings: Value) -> Result<pod_security::Settings, String> {
    let file: PodSecurityFile = serde_json::from_value(settings).map_err(|e| e.to_string())?;
    if file.kind != "PodSecurityConfiguration" || file.api_version != "pod-security.admission.config.k8s.io/v1" {
        return Err(format!("no kind {:?} is registered for version {:?}", file.kind, file.api_version));
    }
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
        check(&own("enforce: tight"), "defaults.enforce: Invalid value: \"tight\"");
        check(&own("warn-version: v2"), "defaults.warn-version");
        check(&own("enforced: baseline"), "unknown field");
    }
}
