//! Which kinds of feature gates the server has: both sides need the gate, and beta versions are served only where
//! `--runtime-config` says so.
//! Asked once by `runner`, before any controller is made.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::{ApiError, Resource, feature_gates::FeatureGates, kinds};
use client::Client;
use env::Env;
use http::Method;
use serde_json::Value;

use super::objects;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A kind with the gate it is behind.
pub type GatedKind = (&'static str, Arc<Resource>);

/// Those of gates that are on, as far as discovery shows them. Waits for the server's answer.
pub async fn served(client: &Client, env: &Env, gates: &FeatureGates) -> Vec<GatedKind> {
    let of_gates = kinds::gated().iter().filter(|(gate, _)| gates.enabled(gate));
    let wanted: Vec<_> = of_gates.filter(|(_, resource)| !kinds::is_older_form(resource)).cloned().collect();
    let versions: BTreeSet<String> = wanted.iter().map(|(_, resource)| resource.api_version()).collect();
    let mut found = Vec::new();
    for version in versions {
        let names = loop {
            match resources(client, &version).await {
                Ok(names) => break names,
                Err(error) => tracing::warn!(version, %error, "failed to ask which resources there are"),
            }
            env.sleep(RETRY_INTERVAL).await;
        };
        let of_version = wanted.iter().filter(|(_, resource)| resource.api_version() == version);
        found.extend(of_version.filter(|(_, resource)| names.contains(&resource.plural)).cloned());
    }
    found
}

async fn resources(client: &Client, version: &str) -> Result<BTreeSet<String>, ApiError> {
    let list =
        match objects::call(client, Method::GET, format!("/apis/{version}"), "application/json", Vec::new()).await {
            Err(error) if error.is_not_found() => return Ok(BTreeSet::new()),
            other => other?,
        };
    let names = list["resources"].as_array().into_iter().flatten().filter_map(|found| found["name"].as_str());
    Ok(names.map(str::to_string).collect())
}

/// The kind of this name, in the version that is stored where the server has several.
pub fn find<'a>(gated: &'a [GatedKind], plural: &str) -> Option<&'a Arc<Resource>> {
    let named = || gated.iter().map(|(_, resource)| resource).filter(|resource| resource.plural == plural);
    named().find(|resource| resource.behavior.storage_version().is_none()).or_else(|| named().next())
}

/// A status of an object as it is to become, for `PUT`.
pub async fn replace_status(client: &Client, resource: &Resource, object: &Value) -> Result<Value, ApiError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("{}/status", resource.path(None, Some(name)));
    objects::call(client, Method::PUT, path, "application/json", object.to_string().into_bytes()).await
}
