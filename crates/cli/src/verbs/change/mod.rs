//! Verbs that create, change and delete objects.
//! Rows of `verbs::ROOT`; what they share is here.
//! Every change goes through the API server, with the name of the verb as its field manager.

pub mod apply;
mod apply_migration;
mod apply_server_side;
pub mod create;
pub mod delete;
pub mod diff;
pub mod edit;
pub mod last_applied;
pub mod patch;
mod prune;
pub mod record;
pub mod replace;

use http::Method;
use serde_json::Value;

use crate::{
    failure::{Failure, Result},
    flags::{Flag, Matches, string},
    printers::operation::DryRun,
    resource::{Info, suggestion},
    session::Session,
};

pub const VALIDATE: &[Flag] =
    &[string("validate", "strict", "strict, warn or ignore: what unknown and duplicate fields do").bare("strict")];

/// The server's word for `--validate`.
pub fn field_validation(matches: &Matches) -> Result<&'static str> {
    match matches.str("validate") {
        "true" | "strict" => Ok("Strict"),
        "warn" => Ok("Warn"),
        "false" | "ignore" => Ok("Ignore"),
        other => Err(Failure::message(format!(
            "invalid - validate option {other:?}; must be one of: strict (or true), warn, ignore (or false)"
        ))),
    }
}

/// Who changes, how strictly, and whether only to try.
pub struct Change<'a> {
    pub session: &'a Session,
    pub manager: &'a str,
    pub validation: &'a str,
    pub dry_run: DryRun,
}

pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const MERGE: &str = "application/merge-patch+json";
pub const JSON: &str = "application/json-patch+json";

impl Change<'_> {
    async fn send(&self, method: Method, path: String, info: &Info, content: &str, body: Vec<u8>) -> Result<Value> {
        let rest = self.session.rest().await?;
        let answer = rest
            .call(method, path)
            .query_opt("dryRun", self.dry_run.query())
            .query_opt("fieldManager", self.manager)
            .query_opt("fieldValidation", self.validation)
            .body(content, body)
            .about(&info.resource.qualified(), &info.name)
            .value()
            .await;
        answer.inspect_err(|failure| {
            let resource = &info.resource;
            let kind = (resource.group.as_str(), resource.version.as_str(), resource.kind.as_str());
            for meant in suggestion::for_fields(kind, &failure.text()) {
                self.session.output.warn(&meant);
            }
        })
    }

    /// A version in the object is of another one: what is new has none.
    pub async fn create(&self, info: &Info, object: &Value) -> Result<Value> {
        let mut object = object.clone();
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("resourceVersion");
        }
        let path = info.resource.path(&info.namespace, "");
        self.send(Method::POST, path, info, "application/json", object.to_string().into_bytes()).await
    }

    pub async fn update(&self, info: &Info, object: &Value) -> Result<Value> {
        self.send(Method::PUT, info.path()?, info, "application/json", object.to_string().into_bytes()).await
    }

    pub async fn patch(&self, info: &Info, content: &str, patch: &Value) -> Result<Value> {
        self.send(Method::PATCH, info.path()?, info, content, patch.to_string().into_bytes()).await
    }

    pub async fn patch_subresource(&self, info: &Info, sub: &str, content: &str, patch: Vec<u8>) -> Result<Value> {
        let path = match sub {
            "" => info.path()?,
            sub => format!("{}/{sub}", info.path()?),
        };
        self.send(Method::PATCH, path, info, content, patch).await
    }
}

/// Whether the kind is built in, so that strategic patches are known to be served.
pub fn is_builtin(info: &Info) -> bool {
    let resource = &info.resource;
    api::schema::builtin().find_kind(&resource.group, &resource.version, &resource.kind).is_some()
}
