//! Nobody grants what they do not hold: the guard on writes of roles and bindings.
//! Called by `admission` after mutation, whatever plugins are on.
//! Only `system:masters`, and those who may `escalate` or `bind`, are exempt.

use std::sync::Arc;

use serde_json::Value;

use api::ApiError;

use super::{Rbac, RoleRef, Rule, missing, quoted};
use crate::{
    admission::{Attributes, Operation},
    authn::User,
    authz::{self, Chain, Decision},
};

pub struct Escalation {
    pub rbac: Arc<Rbac>,
    pub authorizer: Arc<Chain>,
}

const GROUP: &str = "rbac.authorization.k8s.io";

impl Escalation {
    pub async fn check(&self, a: &Attributes<'_>) -> Result<(), ApiError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if a.resource.group != GROUP || !writes || a.user.in_group("system:masters") {
            return Ok(());
        }
        if a.operation == Operation::Update && only_garbage_collection(&a.object, &a.old) {
            return Ok(());
        }
        match a.resource.plural.as_str() {
            "roles" | "clusterroles" => self.role(a).await,
            "rolebindings" | "clusterrolebindings" => self.binding(a).await,
            _ => Ok(()),
        }
    }

    async fn role(&self, a: &Attributes<'_>) -> Result<(), ApiError> {
        if self.may(a.user, "escalate", &a.resource.plural, a.namespace, a.name).await {
            return Ok(());
        }
        // What can't be read here might be read elsewhere: it is not taken for rules that allow nothing.
        let rules: Option<Vec<Rule>> = serde_json::from_value(a.object["rules"].clone())
            .map_err(|error| self.refuse(a, &format!("the rules can't be read: {error}")))?;
        let rules = rules.unwrap_or_default();
        if let Some(why) = self.exceeds(a.user, a.namespace, &rules) {
            return Err(self.refuse(a, &why));
        }
        let aggregation = &a.object["aggregationRule"];
        if aggregation.is_object() && *aggregation != a.old["aggregationRule"] {
            let star = || vec!["*".to_string()];
            let all = [
                Rule { api_groups: star(), resources: star(), verbs: star(), ..Rule::default() },
                Rule { non_resource_urls: star(), verbs: star(), ..Rule::default() },
            ];
            if self.exceeds(a.user, a.namespace, &all).is_some() {
                return Err(self.refuse(a, "must have cluster-admin privileges to use the aggregationRule"));
            }
        }
        Ok(())
    }

    async fn binding(&self, a: &Attributes<'_>) -> Result<(), ApiError> {
        let role: Option<RoleRef> = serde_json::from_value(a.object["roleRef"].clone())
            .map_err(|error| self.refuse(a, &format!("the reference to a role can't be read: {error}")))?;
        let role = role.unwrap_or_default();
        let plural = if role.kind == "Role" { "roles" } else { "clusterroles" };
        if self.may(a.user, "bind", plural, a.namespace, &role.name).await {
            return Ok(());
        }
        let Some(rules) = self.rbac.rules_of_role(&role, a.namespace) else {
            return Err(ApiError::not_found(GROUP, plural.trim_end_matches('s'), &role.name));
        };
        match self.exceeds(a.user, a.namespace, &rules) {
            Some(why) => Err(self.refuse(a, &why)),
            None => Ok(()),
        }
    }

    fn refuse(&self, a: &Attributes<'_>, why: &str) -> ApiError {
        let name = a.object["metadata"]["name"].as_str().unwrap_or(a.name);
        ApiError::forbidden(GROUP, &a.resource.plural, name, why)
    }

    /// Why `user` may not hand out `rules`.
    fn exceeds(&self, user: &User, namespace: &str, rules: &[Rule]) -> Option<String> {
        let (owned, lost) = self.rbac.rules_of(user, namespace);
        let mut lacking: Vec<_> = missing(&owned, rules).iter().map(Rule::describe).collect();
        if lacking.is_empty() {
            return None;
        }
        lacking.sort();
        lacking.dedup();
        let mut why = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            quoted(&user.groups),
            lacking.join("\n")
        );
        if !lost.is_empty() {
            why.push_str(&format!("; resolution errors: [{}]", lost.join(" ")));
        }
        Some(why)
    }

    async fn may(&self, user: &User, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let attributes = authz::Attributes {
            user: user.clone(),
            verb: verb.into(),
            is_resource: true,
            group: GROUP.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..authz::Attributes::default()
        };
        matches!(self.authorizer.authorize(&attributes).await, Decision::Allow(_))
    }
}

/// The garbage collector may clear owners and finalizers of what it could not have granted.
fn only_garbage_collection(new: &Value, old: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            for field in ["finalizers", "ownerReferences", "managedFields", "resourceVersion"] {
                metadata.remove(field);
            }
        }
        object
    };
    rest(new) == rest(old)
}
