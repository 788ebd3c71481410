//! Finds the scale subresource of whatever kind an autoscaler names, and reads and writes it.
//! Asked by `mod` and, for described objects, by `metrics_client`.
//! Kinds of the table and of custom resource definitions are known; those of aggregated servers are asked for.

use std::{collections::HashMap, time::Duration};

use api::ApiError;
use client::{Client, percent_encode};
use env::Env;
use http::Method;
use k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use super::{
    metrics_client::parse,
    plan::{Failure, Scale},
};
use crate::common::resources::Resources;

/// How long the kinds of an aggregated server are believed, as upstream's.
const DISCOVERY_TTL: Duration = Duration::from_secs(30);
const CONFLICTS_MAX: usize = 5;

pub struct ScaleTargets {
    client: Client,
    env: Env,
    resources: Resources,
    /// By group and kind: those that are neither in the table nor custom resources.
    discovered: Mutex<HashMap<(String, String), (Duration, Vec<ResourcePath>)>>,
}

/// Where the objects of a resource are.
#[derive(Debug, Clone, PartialEq)]
struct ResourcePath {
    /// `/apis/<group>/<version>`.
    root: String,
    group: String,
    plural: String,
}

impl ResourcePath {
    fn scale(&self, namespace: &str, name: &str) -> String {
        format!("{}/namespaces/{namespace}/{}/{}/scale", self.root, self.plural, percent_encode(name))
    }
}

#[derive(Deserialize)]
struct GroupList {
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
}

#[derive(Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<ApiResource>,
}

#[derive(Deserialize)]
struct ApiResource {
    name: String,
    kind: String,
}

/// The scale of a target, as it was read.
pub struct FoundScale {
    pub scale: Scale,
    path: String,
    object: Value,
}

impl ScaleTargets {
    pub fn new(client: Client, env: Env, resources: Resources) -> Self {
        Self { client, env, resources, discovered: Mutex::default() }
    }

    /// The scale that a reference leads to; else what people are told, and what is wrong.
    pub async fn find(
        &self,
        namespace: &str,
        reference: &CrossVersionObjectReference,
    ) -> Result<FoundScale, (String, Failure)> {
        let api_version = reference.api_version.as_deref().unwrap_or_default();
        if api_version.matches('/').count() > 1 {
            let error = format!("unexpected GroupVersion string: {api_version}");
            let message = format!("invalid API version in scale target reference: {error}");
            return Err((error, Failure { message, is_spec: true }));
        }
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let paths = self.paths(group, &reference.kind).await.map_err(|error| {
            let message = format!("unable to determine resource for scale target reference: {error}");
            (error, Failure { message, is_spec: false })
        })?;
        let mut first = None;
        for path in paths {
            match self.read(path.scale(namespace, &reference.name)).await {
                Ok(found) => return Ok(found),
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        let error = first.map_or_else(|| "unrecognized resource".to_string(), |error| error.message.clone());
        let whole = format!("{}/{namespace}/{}", reference.kind, reference.name);
        let message = format!("failed to query scale subresource for {whole}: {error}");
        Err((error, Failure { message, is_spec: false }))
    }

    async fn read(&self, path: String) -> Result<FoundScale, ApiError> {
        let body = self.client.get(&path).await?;
        let object: Value = serde_json::from_slice(&body)
            .map_err(|error| ApiError::internal(format!("couldn't read the scale: {error}")))?;
        let replicas = |part: &str| {
            let number = object[part]["replicas"].as_i64().unwrap_or_default();
            i32::try_from(number).unwrap_or(i32::MAX)
        };
        let scale = Scale {
            spec_replicas: replicas("spec"),
            status_replicas: replicas("status"),
            selector: object["status"]["selector"].as_str().unwrap_or_default().to_string(),
        };
        Ok(FoundScale { scale, path, object })
    }

    /// Writes a new size. Who else writes the target meanwhile keeps what they wrote.
    pub async fn rescale(&self, mut found: FoundScale, replicas: i32) -> Result<(), ApiError> {
        let mut attempts = 0;
        loop {
            found.object["spec"]["replicas"] = replicas.into();
            let body = found.object.to_string();
            attempts += 1;
            match self.client.call(Method::PUT, &found.path, "application/json", body).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() && attempts < CONFLICTS_MAX => {
                    found = self.read(found.path).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// `deployments.apps`, `pods`.
    pub async fn group_resource(&self, group: &str, kind: &str) -> Result<String, String> {
        let paths = self.paths(group, kind).await?;
        let found = paths.first().ok_or("unrecognized resource")?;
        Ok(if group.is_empty() { found.plural.clone() } else { format!("{}.{}", found.plural, found.group) })
    }

    async fn paths(&self, group: &str, kind: &str) -> Result<Vec<ResourcePath>, String> {
        if let Some(known) = self.resources.find_group_kind(group, kind) {
            let whole = known.path(None, None);
            let root = whole.strip_suffix(&format!("/{}", known.plural)).unwrap_or(&whole).to_string();
            return Ok(vec![ResourcePath { root, group: known.group.clone(), plural: known.plural.clone() }]);
        }
        let (key, now) = ((group.to_string(), kind.to_string()), self.env.monotonic());
        let believed = |(at, _): &(Duration, Vec<ResourcePath>)| now.saturating_sub(*at) < DISCOVERY_TTL;
        if let Some((_, paths)) = self.discovered.lock().get(&key).filter(|found| believed(found)) {
            return Ok(paths.clone());
        }
        let paths = self.discover(group, kind).await;
        if paths.is_empty() {
            return Err(format!("no matches for kind {kind:?} in group {group:?}"));
        }
        let mut discovered = self.discovered.lock();
        discovered.retain(|_, found| believed(found));
        discovered.insert(key, (now, paths.clone()));
        Ok(paths)
    }

    /// What an aggregated server says of itself; of one that does not answer, nothing is known.
    async fn discover(&self, group: &str, kind: &str) -> Vec<ResourcePath> {
        let mut paths = Vec::new();
        if group.is_empty() {
            return paths;
        }
        let answer = self.client.get(&format!("/apis/{}", percent_encode(group))).await;
        let Ok(list) = answer.map_err(|error| error.message.clone()).and_then(|body| parse::<GroupList>(&body)) else {
            return paths;
        };
        for version in list.versions {
            let root = format!("/apis/{}", version.group_version);
            let answer = self.client.get(&root).await;
            let Ok(list) = answer.map_err(|error| error.message.clone()).and_then(|body| parse::<ResourceList>(&body))
            else {
                continue;
            };
            let found = list.resources.into_iter().find(|found| found.kind == kind && !found.name.contains('/'));
            paths.extend(found.map(|found| ResourcePath { root, group: group.into(), plural: found.name }));
        }
        paths
    }
}
