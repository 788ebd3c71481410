//! Role-based access control: roles and bindings as objects decide.
//! A row of the modes in `authz`; `bootstrap` writes the roles every cluster has, `escalation` guards their changes.
//! Rules only ever add; RBAC never denies, it has no opinion.

pub mod bootstrap;
pub mod escalation;

mod grants;
mod rule;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use super::{Attributes, Authorizer, Decision, Rules};
use crate::{
    authn::User,
    storage::{cluster::Cluster, index::Indexed},
};

pub use grants::{Grants, RoleRef};
pub use rule::{Rule, missing, quoted};

pub struct Rbac {
    grants: Indexed<Grants>,
}

impl Rbac {
    pub fn new(cluster: &Cluster) -> Self {
        Self { grants: Indexed::new(cluster) }
    }

    pub fn decide(&self, attributes: &Attributes) -> Decision {
        let grants = self.grants.read();
        let mut lost: Vec<String> = Vec::new();
        for (grant, rules) in grants.of(&attributes.user, &attributes.namespace) {
            match rules {
                Some(rules) if rules.iter().any(|r| r.allows(attributes)) => {
                    return Decision::Allow(format!("RBAC: allowed by {grant}"));
                }
                Some(_) => {}
                None => {
                    let text = grants::not_found(grant);
                    if !lost.contains(&text) {
                        lost.push(text);
                    }
                }
            }
        }
        Decision::NoOpinion(match lost.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        })
    }

    /// Everything `user` is granted in `namespace`, and what could not be found out.
    pub fn rules_of(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let grants = self.grants.read();
        let (mut all, mut lost) = (Vec::new(), Vec::new());
        for (grant, rules) in grants.of(user, namespace) {
            match rules {
                Some(rules) => all.extend(rules.iter().cloned()),
                None => lost.push(grants::not_found(grant)),
            }
        }
        (all, lost)
    }

    pub fn rules_of_role(&self, role: &RoleRef, namespace: &str) -> Option<Arc<[Rule]>> {
        self.grants.read().rules(role, namespace).cloned()
    }
}

#[async_trait]
impl Authorizer for Rbac {
    async fn authorize(&self, attributes: &Attributes) -> Decision {
        self.decide(attributes)
    }

    async fn rules(&self, user: &User, namespace: &str) -> Rules {
        let (rules, lost) = self.rules_of(user, namespace);
        let mut found = Rules { error: lost.join(", "), incomplete: false, ..Rules::default() };
        for rule in rules {
            if !rule.resources.is_empty() {
                let mut shown =
                    json!({ "verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources });
                if !rule.resource_names.is_empty() {
                    shown["resourceNames"] = json!(rule.resource_names);
                }
                found.resources.push(shown);
            }
            if !rule.non_resource_urls.is_empty() {
                found.paths.push(json!({ "verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls }));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
