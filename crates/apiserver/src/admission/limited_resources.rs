//! Resources that may be used only where a quota covers them: the configuration of the plugin ResourceQuota.
//! Asked by `resource_quota` before anything is charged.
//! Without a configuration everything may be used that no quota forbids.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::{
    ResourceQuota, ResourceQuotaSpec, ScopeSelector, ScopedResourceSelectorRequirement as Requirement,
};
use serde::Deserialize;
use serde_json::Value;

use api::{ApiError, Reason, pod_resources::Amounts};

use super::{Attributes, configuration::check_kind, resource_quota::Subject};

const VERSIONS: [&str; 4] = [
    "apiserver.config.k8s.io/v1",
    "resourcequota.admission.k8s.io/v1",
    "resourcequota.admission.k8s.io/v1beta1",
    "resourcequota.admission.k8s.io/v1alpha1",
];

#[derive(Debug, Default, Clone)]
pub struct Settings(Vec<LimitedResource>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    limited_resources: Vec<LimitedResource>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LimitedResource {
    #[serde(default)]
    api_group: String,
    #[serde(default)]
    resource: String,
    /// Parts of the names of what is used.
    #[serde(default)]
    match_contains: Vec<String>,
    #[serde(default)]
    match_scopes: Vec<Requirement>,
}

impl Settings {
    pub fn read(settings: Value) -> Result<Self, String> {
        let file: File = serde_json::from_value(settings).map_err(|e| e.to_string())?;
        let kind = if file.api_version == VERSIONS[0] { "ResourceQuotaConfiguration" } else { "Configuration" };
        check_kind(&file.api_version, &file.kind, &VERSIONS, kind)?;
        match file.limited_resources.iter().position(|limited| limited.resource.is_empty()) {
            Some(index) => Err(format!("limitedResources[{index}].resource: Required value")),
            None => Ok(Self(file.limited_resources)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Refuses what no quota of the namespace covers. `usage`: of the whole object.
    pub fn check(
        &self,
        a: &Attributes<'_>,
        subject: &Subject,
        usage: &Amounts,
        quotas: &[Arc<ResourceQuota>],
    ) -> Result<(), ApiError> {
        let mine = self
            .0
            .iter()
            .filter(|limited| limited.api_group == a.resource.group && limited.resource == a.resource.plural);
        let parts: Vec<&String> = mine.flat_map(|limited| &limited.match_contains).collect();
        let is_limited = |name: &&str| parts.iter().any(|part| name.contains(part.as_str()));
        let mut uncovered: BTreeSet<&str> = usage.keys().map(String::as_str).filter(is_limited).collect();
        for quota in quotas.iter().filter(|quota| quota.spec.as_ref().is_none_or(|spec| subject.covered(spec))) {
            let hard = quota.status.iter().flat_map(|status| status.hard.iter().flatten());
            for (name, _) in hard {
                uncovered.remove(name.as_str());
            }
        }
        if !uncovered.is_empty() {
            let names = Vec::from_iter(uncovered).join(",");
            return Err(a.forbidden(&format!("insufficient quota to consume: {names}")));
        }
        let scopes = self.0.iter().flat_map(|limited| &limited.match_scopes);
        let limited: Vec<&Requirement> = scopes.filter(|scope| subject.covered(&only(scope))).collect();
        if limited.is_empty() {
            return Ok(());
        }
        let covered: BTreeSet<String> = quotas
            .iter()
            .filter_map(|quota| quota.spec.as_ref())
            .flat_map(requirements)
            .filter(|scope| subject.covered(&only(scope)))
            .map(|scope| scope.scope_name)
            .collect();
        let left: Vec<String> =
            limited.into_iter().filter(|scope| !covered.contains(&scope.scope_name)).map(shown).collect();
        match left.is_empty() {
            true => Ok(()),
            // Upstream's plugin gives this error without a reason.
            false => Err(ApiError::new(
                Reason::Unknown,
                format!("insufficient quota to match these scopes: [{}]", left.join(" ")),
            )),
        }
    }
}

/// A quota of this one scope.
fn only(scope: &Requirement) -> ResourceQuotaSpec {
    let match_expressions = Some(vec![scope.clone()]);
    ResourceQuotaSpec { scope_selector: Some(ScopeSelector { match_expressions }), ..ResourceQuotaSpec::default() }
}

/// The scopes of a quota, of either form.
fn requirements(spec: &ResourceQuotaSpec) -> Vec<Requirement> {
    let plain = spec.scopes.iter().flatten().map(|scope| Requirement {
        scope_name: scope.clone(),
        operator: "Exists".into(),
        values: None,
    });
    let selected = spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten().cloned());
    plain.chain(selected).collect()
}

/// As Go prints it.
fn shown(scope: &Requirement) -> String {
    let values = scope.values.as_deref().unwrap_or_default().join(" ");
    format!("{{{} {} [{values}]}}", scope.scope_name, scope.operator)
}
