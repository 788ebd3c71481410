//! What may be stored: an ordered table of plugins that complete objects and refuse them.
//! Called by `registry` before every write; plugins read the cluster through `cluster::Cluster`.
//! Invariant: mutating comes before validating; a refused request writes nothing.

mod namespace_lifecycle;
mod priority;
mod service_account;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use api::{ApiError, Resource};

use crate::{
    authn::User,
    authz::{self, rbac::escalation::Escalation},
    cluster::Cluster,
    config::Config,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// One write as plugins see it.
pub struct Attributes<'a> {
    pub user: &'a User,
    pub operation: Operation,
    pub resource: &'a Resource,
    /// Empty for the main resource.
    pub subresource: &'a str,
    pub namespace: &'a str,
    /// Empty when the server makes the name.
    pub name: &'a str,
    /// The object to be stored; null for deletions. For subresources with a body of their own (eviction, binding,
    /// scale …) that body.
    pub object: Value,
    /// The object as it is; null for creations.
    pub old: Value,
    pub dry_run: bool,
    /// Create, update or delete options as sent.
    pub options: Value,
    /// Shown to the client as `Warning` headers.
    pub warnings: Vec<String>,
}

impl Attributes<'_> {
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.resource.group == group && self.resource.plural == plural
    }

    pub fn forbidden(&self, why: &str) -> ApiError {
        ApiError::forbidden(&self.resource.group, &self.resource.plural, self.name, why)
    }
}

#[async_trait]
pub trait Plugin: Send + Sync {
    /// Upstream's name, as in `--enable-admission-plugins`.
    fn name(&self) -> &'static str;

    async fn admit(&self, _attributes: &mut Attributes<'_>) -> Result<(), ApiError> {
        Ok(())
    }

    /// Whether `validate` does anything.
    fn validates(&self) -> bool {
        false
    }

    async fn validate(&self, _attributes: &Attributes<'_>) -> Result<(), ApiError> {
        Ok(())
    }
}

type Make = fn(&Arc<Cluster>) -> Arc<dyn Plugin>;

/// In the order they run; the flag says whether it is on by default.
const PLUGINS: &[(Make, bool)] = &[
    (|c| Arc::new(namespace_lifecycle::NamespaceLifecycle(c.clone())), true),
    (|c| Arc::new(service_account::ServiceAccount(c.clone())), true),
    (|c| Arc::new(priority::Priority(c.clone())), true),
];

pub struct Chain {
    plugins: Vec<Arc<dyn Plugin>>,
    /// Not a plugin: it cannot be turned off.
    escalation: Option<Escalation>,
}

impl Chain {
    pub fn new(config: &Config, cluster: &Arc<Cluster>, authorizer: &Arc<authz::Chain>) -> Self {
        let listed = |names: &[String], name: &str| names.iter().any(|n| n == name);
        let plugins = PLUGINS.iter().filter_map(|(make, default)| {
            let plugin = make(cluster);
            let on = (*default || listed(&config.enable_admission_plugins, plugin.name()))
                && !listed(&config.disable_admission_plugins, plugin.name());
            on.then_some(plugin)
        });
        let escalation = authorizer.rbac.clone().map(|rbac| Escalation { rbac, authorizer: authorizer.clone() });
        Self { plugins: plugins.collect(), escalation }
    }

    /// Whether anything is to be asked after mutation, which costs a copy of the object.
    pub fn has_validators(&self) -> bool {
        self.plugins.iter().any(|p| p.validates())
    }

    pub async fn admit(&self, attributes: &mut Attributes<'_>) -> Result<(), ApiError> {
        for plugin in &self.plugins {
            plugin.admit(attributes).await?;
        }
        match &self.escalation {
            Some(escalation) => escalation.check(attributes).await,
            None => Ok(()),
        }
    }

    pub async fn validate(&self, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        for plugin in &self.plugins {
            plugin.validate(attributes).await?;
        }
        Ok(())
    }
}
