//! Keeps the priority levels and flow schemas that every cluster has, says which schemas name a level that is not there, and
//! tells `flow_control` what is in force.
//! What an administrator changed stays, except where upstream does not allow changes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::future::try_join_all;
use http::Method;
use serde_json::{Value, json};

use api::{
    ApiError, Reason,
    kinds::flow_control_bootstrap::{AUTOUPDATE, is_mandatory, objects},
};

use super::ControlLoop;
use crate::{
    registry::timestamp,
    server::{loopback, pipeline::ApiServer},
};

const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";

/// Writes what is missing and what must follow the server's own.
async fn ensure(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    // Side by side, so that the store commits them in groups.
    try_join_all(objects().into_iter().map(|(path, object)| ensure_one(server, path, object))).await.map(drop)
}

async fn ensure_one(server: &Arc<ApiServer>, path: String, object: Value) -> Result<(), ApiError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let plural = path.rsplit('/').next().unwrap_or_default();
    let (method, path, object) = match server.cluster.get(plural, "", name) {
        None => (Method::POST, path, object),
        Some(current) => match revised(&current.value(), &object) {
            Some(revised) => (Method::PUT, format!("{path}/{name}"), revised),
            None => return Ok(()),
        },
    };
    match loopback::send(server, method, &path, &object).await {
        // Somebody else was faster; the change wakes us again.
        Err(e) if matches!(e.reason, Reason::AlreadyExists | Reason::Conflict | Reason::NotFound) => Ok(()),
        other => other.map(drop),
    }
}

/// What `current` is to become, given how a new cluster has it.
fn revised(current: &Value, founding: &Value) -> Option<Value> {
    let name = founding["metadata"]["name"].as_str().unwrap_or_default();
    let annotation = current["metadata"]["annotations"][AUTOUPDATE].as_str().and_then(api::codec::parse_bool);
    let follows = match annotation {
        _ if is_mandatory(name) => true,
        Some(follows) => follows,
        None => current["metadata"]["generation"] == 1,
    };
    let mut wanted = founding["spec"].clone();
    if name == "exempt" && current["spec"]["exempt"].is_object() {
        // How much it lends is for administrators to say.
        wanted["exempt"] = current["spec"]["exempt"].clone();
    }
    let mut new = current.clone();
    if follows && wanted != current["spec"] {
        new["spec"] = wanted;
    }
    if annotation != Some(follows) {
        new["metadata"]["annotations"][AUTOUPDATE] = follows.to_string().into();
    }
    (new != *current).then_some(new)
}

pub const WATCHES: &[&str] = &["prioritylevelconfigurations", "flowschemas"];

pub struct FlowControl;

#[async_trait]
impl ControlLoop for FlowControl {
    async fn prepare(&mut self, server: &Arc<ApiServer>) -> Result<(), ApiError> {
        ensure(server).await?;
        configure(server);
        Ok(())
    }

    async fn sync(&mut self, server: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError> {
        configure(server);
        ensure(server).await?;
        tell_dangling(server).await?;
        Ok(None)
    }
}

fn configure(server: &Arc<ApiServer>) {
    let [levels, schemas] =
        ["prioritylevelconfigurations", "flowschemas"].map(|plural| server.cluster.list(plural, ""));
    server.flow_control.configure(&schemas, &levels);
}

async fn tell_dangling(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let cluster = &server.cluster;
    let now = timestamp(cluster.env.now());
    for schema in cluster.list("flowschemas", "") {
        let schema = schema.value();
        let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default();
        let exists = cluster.get("prioritylevelconfigurations", "", level).is_some();
        let Some(new) = with_dangling(&schema, level, exists, &now) else { continue };
        let name = schema["metadata"]["name"].as_str().unwrap_or_default();
        match loopback::send(server, Method::PUT, &format!("{SCHEMAS}/{name}/status"), &new).await {
            Err(e) if matches!(e.reason, Reason::Conflict | Reason::NotFound) => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// The schema with its condition put right; `None` if it is.
fn with_dangling(schema: &Value, level: &str, exists: bool, now: &str) -> Option<Value> {
    let (status, reason, rest) = match exists {
        true => ("False", "Found", "and it exists"),
        false => ("True", "NotFound", "but there is no such object"),
    };
    let message = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} {rest}");
    let conditions = schema["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let old = conditions.iter().find(|c| c["type"] == "Dangling");
    if old.is_some_and(|c| c["status"] == status && c["reason"] == reason && c["message"] == message.as_str()) {
        return None;
    }
    let mut conditions: Vec<Value> = conditions.into_iter().filter(|c| c["type"] != "Dangling").collect();
    conditions.push(json!({
        "type": "Dangling", "status": status, "reason": reason, "message": message, "lastTransitionTime": now,
    }));
    let mut new = schema.clone();
    new["status"]["conditions"] = conditions.into();
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrators_keep_what_they_may_change() {
        let check =
            |name: &str, annotation: Option<&str>, generation: i64, spec: Value, expected: Option<(Value, &str)>| {
                let (_, founding) =
                    objects().into_iter().find(|(p, o)| p.contains("level") && o["metadata"]["name"] == name).unwrap();
                let mut current = founding.clone();
                current["metadata"]["generation"] = generation.into();
                current["metadata"]["annotations"] = annotation.map_or(json!({}), |a| json!({ AUTOUPDATE: a }));
                let own = if spec.is_null() { founding["spec"].clone() } else { spec };
                current["spec"] = own;
                let found = revised(&current, &founding);
                let found = found.map(|f| (f["spec"].clone(), f["metadata"]["annotations"][AUTOUPDATE].clone()));
                let expected = expected.map(|(spec, annotation)| {
                    (if spec.is_null() { founding["spec"].clone() } else { spec }, json!(annotation))
                });
                assert_eq!(found, expected, "{name} {annotation:?} {generation}");
            };
        let own = json!({ "type": "Limited", "limited": { "nominalConcurrencyShares": 1 } });
        check("system", Some("true"), 1, Value::Null, None);
        check("system", Some("true"), 2, own.clone(), Some((Value::Null, "true")));
        check("system", Some("false"), 2, own.clone(), None);
        check("system", None, 1, own.clone(), Some((Value::Null, "true")));
        check("system", None, 2, own.clone(), Some((own.clone(), "false")));
        check("catch-all", Some("false"), 2, own.clone(), Some((Value::Null, "true")));
        let lending = json!({ "type": "Exempt", "exempt": { "nominalConcurrencyShares": 5, "lendablePercent": 9 } });
        check("exempt", Some("true"), 2, lending, None);
        let none = json!({ "type": "Exempt" });
        check("exempt", Some("true"), 2, none, Some((Value::Null, "true")));
    }
}
