//! Who may do what: a chain of authorizers, the first with an opinion decides.
//! Called by `pipeline`, by impersonation and by the access reviews.
//! Invariant: nobody has an opinion means no.

use std::sync::Arc;

use async_trait::async_trait;

use api::ApiError;

use crate::{authn::User, cluster::Cluster, config::Config, request_info::RequestInfo};

/// What is to be decided.
#[derive(Debug, Clone, Default)]
pub struct Attributes {
    pub user: User,
    pub verb: String,
    pub is_resource: bool,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub path: String,
}

impl Attributes {
    pub fn new(user: &User, info: &RequestInfo) -> Self {
        Self {
            user: user.clone(),
            verb: info.verb.clone(),
            is_resource: info.is_resource,
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            path: info.path.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allow(String),
    Deny(String),
    /// With the reason, which may be empty.
    NoOpinion(String),
}

#[async_trait]
pub trait Authorizer: Send + Sync {
    async fn authorize(&self, attributes: &Attributes) -> Decision;

    /// What SelfSubjectRulesReview shows: resource rules and non-resource rules of a user in a namespace.
    async fn rules(&self, _user: &User, _namespace: &str) -> (Vec<serde_json::Value>, Vec<serde_json::Value>) {
        Default::default()
    }
}

#[derive(Default)]
pub struct Chain(pub Vec<Arc<dyn Authorizer>>);

impl Chain {
    pub async fn authorize(&self, attributes: &Attributes) -> Decision {
        let mut reasons = Vec::new();
        for authorizer in &self.0 {
            match authorizer.authorize(attributes).await {
                Decision::NoOpinion(reason) => reasons.extend(Some(reason).filter(|r| !r.is_empty())),
                decided => return decided,
            }
        }
        Decision::NoOpinion(reasons.join("\n"))
    }
}

/// The chain a configuration asks for.
pub fn chain(config: &Config, _cluster: &Arc<Cluster>) -> Chain {
    let mut chain: Vec<Arc<dyn Authorizer>> = vec![Arc::new(PrivilegedGroups)];
    if config.authorization_modes.iter().any(|m| m == "AlwaysAllow") {
        chain.push(Arc::new(AlwaysAllow));
    }
    chain.push(Arc::new(SystemComponents));
    Chain(chain)
}

pub struct AlwaysAllow;

#[async_trait]
impl Authorizer for AlwaysAllow {
    async fn authorize(&self, _: &Attributes) -> Decision {
        Decision::Allow(String::new())
    }
}

/// `system:masters` may do everything, whatever else is configured.
pub struct PrivilegedGroups;

#[async_trait]
impl Authorizer for PrivilegedGroups {
    async fn authorize(&self, attributes: &Attributes) -> Decision {
        match attributes.user.in_group("system:masters") {
            true => Decision::Allow(String::new()),
            false => Decision::NoOpinion(String::new()),
        }
    }
}

/// Fixed rules for the system's own components and for what everybody may see, until RBAC objects decide.
pub struct SystemComponents;

const COMPONENTS: [&str; 4] =
    ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"];
const PUBLIC: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];
const DISCOVERY: [&str; 4] = ["/api", "/apis", "/openapi", "/.well-known"];

#[async_trait]
impl Authorizer for SystemComponents {
    async fn authorize(&self, a: &Attributes) -> Decision {
        let below = |roots: &[&str]| {
            roots.iter().any(|r| a.path == *r || a.path.strip_prefix(r).is_some_and(|rest| rest.starts_with('/')))
        };
        let component = COMPONENTS.contains(&a.user.name.as_str())
            || a.user.name.starts_with("system:serviceaccount:kube-system:")
            || a.user.in_group("system:nodes");
        let authenticated = a.user.in_group("system:authenticated");
        let allowed = component
            || (!a.is_resource && a.verb == "get" && below(&PUBLIC))
            || (authenticated && !a.is_resource && a.verb == "get" && below(&DISCOVERY))
            || (authenticated && a.verb == "create" && a.resource.starts_with("selfsubject"));
        if allowed { Decision::Allow(String::new()) } else { Decision::NoOpinion(String::new()) }
    }
}

/// The 403 of a refused request, in upstream's words.
pub fn refusal(a: &Attributes, reason: &str) -> ApiError {
    let why = match a.is_resource {
        true => {
            let resource = match a.subresource.as_str() {
                "" => a.resource.clone(),
                sub => format!("{}/{sub}", a.resource),
            };
            let place = match a.namespace.as_str() {
                "" => " at the cluster scope".to_string(),
                namespace => format!(" in the namespace \"{namespace}\""),
            };
            format!(
                "User \"{}\" cannot {} resource \"{resource}\" in API group \"{}\"{place}",
                a.user.name, a.verb, a.group
            )
        }
        false => format!("User \"{}\" cannot {} path \"{}\"", a.user.name, a.verb, a.path),
    };
    let why = if reason.is_empty() { why } else { format!("{why}: {reason}") };
    ApiError::forbidden(&a.group, &a.resource, &a.name, &why)
}
