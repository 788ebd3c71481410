//! `--runtime-config`: which of the built-in groups, versions and resources are served.
//! Read by `served`, which hides the others from clients.
//! What is hidden is still stored and kept: the server's own requests find it.

use std::collections::{BTreeMap, BTreeSet};

use api::Resource;

const ALL: &str = "api/all";
/// Those that stand for many, in the order in which they are applied.
const MASKS: [&str; 4] = ["api/all", "api/ga", "api/beta", "api/alpha"];

/// What the flag says: `api/beta=false`, `apps/v1=true`, `resource.k8s.io/v1/resourceslices=false`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeConfig(BTreeMap<String, bool>);

fn is_prerelease(version: &str, stage: &str) -> bool {
    version.starts_with('v') && version.contains(stage)
}

fn matches_mask(mask: &str, version: &str) -> bool {
    let (alpha, beta) = (is_prerelease(version, "alpha"), is_prerelease(version, "beta"));
    match mask {
        "api/ga" => !alpha && !beta,
        "api/beta" => beta,
        "api/alpha" => alpha,
        _ => true,
    }
}

/// The group, version and resource (if there is one) that a key names.
fn parts(key: &str) -> Option<(&str, &str, Option<&str>)> {
    let mut parts = key.split('/');
    let (group, version, resource) = (parts.next()?, parts.next()?, parts.next());
    let group = if group == "api" { "" } else { group };
    (parts.next().is_none() && !version.is_empty()).then_some((group, version, resource))
}

impl RuntimeConfig {
    pub fn parse<'a>(pairs: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut found = BTreeMap::new();
        let mut unknown = BTreeSet::new();
        for pair in pairs.into_iter().map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let on = match value.to_ascii_lowercase().as_str() {
                "" | "1" | "t" | "true" => true,
                "0" | "f" | "false" => false,
                _ if MASKS.contains(&key) => return Err(format!("invalid value {key}={value}")),
                _ => return Err(format!("invalid value of {key}: {value}, err: it must be true or false")),
            };
            if !MASKS.contains(&key) {
                let (group, version, resource) =
                    parts(key).ok_or_else(|| format!("runtime-config invalid key {key}"))?;
                if !api::kinds::is_known_group(group) {
                    unknown.insert(group.to_string());
                } else if !api::kinds::is_known_version(group, version) {
                    return Err(format!("group version {group}/{version} that has not been registered"));
                }
                if let Some(resource) = resource.filter(|r| r.to_lowercase() != **r) {
                    return Err(format!(
                        "invalid key {key}: group/version/resource and resource is always lowercase plural, not \
                         {resource:?}"
                    ));
                }
            }
            found.insert(key.to_string(), on);
        }
        if !unknown.is_empty() {
            return Err(format!("unknown api groups {}", unknown.into_iter().collect::<Vec<_>>().join(",")));
        }
        if found.len() == 1 && found.get(ALL) == Some(&false) {
            return Err("invalid key with only api/all=false".into());
        }
        let config = Self(found);
        // Namespaces, Secrets and ServiceAccounts are what the server itself works with.
        match config.serves("", "v1", "namespaces") {
            true => Ok(config),
            false => Err("api/v1 can not be turned off: add api/v1=true".into()),
        }
    }

    /// Unless the flag says otherwise: what is generally available.
    pub fn serves_resource(&self, resource: &Resource) -> bool {
        self.serves(&resource.group, &resource.version, &resource.plural)
    }

    fn serves(&self, group: &str, version: &str, plural: &str) -> bool {
        // Its gate alone turns it on: no other server has it.
        let default = matches_mask("api/ga", version) || plural == "initializerconfigurations";
        let group = if group.is_empty() { "api" } else { group };
        let exact = [format!("{group}/{version}/{plural}"), format!("{group}/{version}")];
        if let Some(on) = exact.iter().find_map(|key| self.0.get(key)) {
            return *on;
        }
        let masks = MASKS.iter().filter(|mask| matches_mask(mask, version));
        masks.filter_map(|mask| self.0.get(*mask)).next_back().copied().unwrap_or(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_serve_and_hide() {
        let check = |text: &str, expected: &str| {
            let shown = match RuntimeConfig::parse(text.split(',')) {
                Err(e) => e,
                Ok(config) => {
                    let of = |group, version, plural| u8::from(config.serves(group, version, plural));
                    format!(
                        "{}{}{}{}{}",
                        of("", "v1", "pods"),
                        of("apps", "v1", "deployments"),
                        of("apps", "v1", "daemonsets"),
                        of("x", "v1beta1", "y"),
                        of("x", "v2alpha1", "y")
                    )
                }
            };
            assert_eq!(shown, expected, "{text}");
        };
        check("", "11100");
        check("api/all=true", "11111");
        check("api/all=false,api/v1=true", "10000");
        check("api/beta=false,api/alpha=true", "11101");
        check("api/alpha=false,api/beta", "11110");
        check("api/all=false,api/ga=true", "11100");
        check("apps/v1=false", "10000");
        check("apps/v1=false,apps/v1/deployments=true", "11000");
        check("apps/v1/daemonsets=false", "11000");
        check("certificates.k8s.io/v1beta1=true", "11100");
        check("api/all=false", "invalid key with only api/all=false");
        check("api/v1=false", "api/v1 can not be turned off: add api/v1=true");
        check("nothing/v1=true", "unknown api groups nothing");
        check("apps/v9=true", "group version apps/v9 that has not been registered");
        check("apps=true", "runtime-config invalid key apps");
        check("apps/v1=maybe", "invalid value of apps/v1: maybe, err: it must be true or false");
        check("api/all=maybe", "invalid value api/all=maybe");
        let capital = "invalid key apps/v1/Deployments: group/version/resource and resource is always lowercase plural, \
                       not \"Deployments\"";
        check("apps/v1/Deployments=false", capital);
    }
}
