//! The subcommands of `create`, and `run`, `expose`, `autoscale` and `set`: objects from flags.
//! Rows of `create` and of `verbs::ROOT`; the objects are made in `generate`.
//! Here flags are read, and what was made is sent and printed.

mod access;
pub mod autoscale;
mod data;
pub mod expose;
mod policies;
pub mod run;
mod services;
pub mod set;
mod workloads;

use std::rc::Rc;

use serde_json::Value;

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, string},
    printers::{Operation, operation::DryRun},
    resource::{Info, files::local_resource, metadata},
    session::Session,
    verbs::change::create::create_one,
};

pub static CREATE: &[&Command] = &[
    &access::CLUSTER_ROLE,
    &access::CLUSTER_ROLE_BINDING,
    &data::CONFIG_MAP,
    &workloads::CRON_JOB,
    &workloads::DEPLOYMENT,
    &services::INGRESS,
    &workloads::JOB,
    &data::NAMESPACE,
    &policies::POD_DISRUPTION_BUDGET,
    &policies::PRIORITY_CLASS,
    &policies::QUOTA,
    &access::ROLE,
    &access::ROLE_BINDING,
    &data::SECRET,
    &services::SERVICE,
    &data::SERVICE_ACCOUNT,
    &access::TOKEN,
];

pub const MANAGER: &[Flag] = &[string("field-manager", "kubectl-create", "Name of the field manager")];

/// The only argument.
pub fn name(matches: &Matches) -> Result<&str> {
    match matches.args.as_slice() {
        [name] => Ok(name),
        args => Err(Failure::usage(format!("exactly one NAME is required, got {}", args.len()))),
    }
}

/// The name, and the words behind `--`.
pub fn name_and_command(matches: &Matches) -> Result<(&str, &[String])> {
    match matches.args.split_first() {
        Some((name, command)) => Ok((name, command)),
        None => Err(Failure::usage("exactly one NAME is required, got 0")),
    }
}

/// The namespace, only if a flag said it.
pub fn given_namespace(session: &Session) -> Result<Option<String>> {
    let (namespace, given) = session.namespace()?;
    Ok(given.then_some(namespace))
}

/// Sends what was made, and prints it.
pub async fn create(session: &Session, matches: &Matches, made: std::result::Result<Value, String>) -> Result<()> {
    let object = made.map_err(Failure::Message)?;
    let mut operation = Operation::of(session, matches)?.typed();
    let info = info_of(session, object, operation.dry_run).await?;
    let what = match info.resource.kind.as_str() {
        "Namespace" | "Role" | "ClusterRole" => String::new(),
        "ResourceQuota" => "quota".to_string(),
        "PodDisruptionBudget" => "poddisruptionbudgets".to_string(),
        "Service" => format!("{} service", info.object["spec"]["type"].as_str().unwrap_or_default()),
        kind => kind.to_lowercase(),
    };
    create_one(session, matches, &mut operation, info).await.map_err(|failure| match failure {
        Failure::Status(status) if !what.is_empty() => {
            // Upstream's words for a secret have no colon.
            let colon = if what == "secret" { "" } else { ":" };
            Failure::message(format!("failed to create {what}{colon} {}", status.message))
        }
        other => other,
    })
}

/// The place of an object that was made here.
pub async fn info_of(session: &Session, object: Value, dry_run: DryRun) -> Result<Info> {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_string();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let resource = match dry_run {
        DryRun::Client => Rc::new(local_resource(&version, &kind)),
        _ => session
            .resource_of_kind(&version, &kind)
            .await?
            .ok_or_else(|| Failure::message(format!("no matches for kind {kind:?} in version {version:?}")))?,
    };
    let (namespace, _) = session.namespace()?;
    let namespace = if resource.namespaced { namespace } else { String::new() };
    let name = metadata(&object, "name").to_string();
    Ok(Info { resource, namespace, name, source: String::new(), object })
}
