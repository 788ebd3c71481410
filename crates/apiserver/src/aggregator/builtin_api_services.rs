//! An APIService for every group version that is served here, so that `kubectl get apiservices` shows all there is.
//! Runs beside `aggregator`, which says of each that it is available.
//! One that names a Service is somebody else's and is left alone; only those it made itself are removed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::Method;
use serde_json::{Value, json};

use api::{ApiError, Reason};

use crate::{
    metrics_api,
    post_start_hooks::ControlLoop,
    server::{loopback, pipeline::ApiServer},
};

const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

const SETTLE_INTERVAL: Duration = Duration::from_millis(200);

/// Upstream's order of groups for clients that have no other: group, priority.
const GROUPS: [(&str, u32); 22] = [
    ("", 18_000),
    ("apps", 17_800),
    ("events.k8s.io", 17_750),
    ("authentication.k8s.io", 17_700),
    ("authorization.k8s.io", 17_600),
    ("autoscaling", 17_500),
    ("batch", 17_400),
    ("certificates.k8s.io", 17_300),
    ("networking.k8s.io", 17_200),
    ("policy", 17_100),
    ("rbac.authorization.k8s.io", 17_000),
    ("storage.k8s.io", 16_800),
    ("apiextensions.k8s.io", 16_700),
    ("admissionregistration.k8s.io", 16_700),
    ("scheduling.k8s.io", 16_600),
    ("coordination.k8s.io", 16_500),
    ("node.k8s.io", 16_300),
    ("discovery.k8s.io", 16_200),
    ("flowcontrol.apiserver.k8s.io", 16_100),
    ("resource.k8s.io", 16_200),
    ("internal.apiserver.k8s.io", 16_000),
    ("storagemigration.k8s.io", 15_800),
];

/// Priorities of a group version and how long its APIService is kept: from the start, or as its definition.
pub fn priorities(group: &str, version: &str, custom: bool) -> (u32, u32, &'static str) {
    if custom {
        return (1000, 100, "true");
    }
    let of_group = GROUPS.iter().find(|(name, _)| *name == group).map_or(100, |(_, priority)| *priority);
    let of_version = match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("flowcontrol.apiserver.k8s.io" | "resource.k8s.io", "v1") => 21,
        (metrics_api::GROUP, _) => 100,
        ("certificates.k8s.io" | "storagemigration.k8s.io", "v1beta1") => 9,
        ("certificates.k8s.io", "v1alpha1") => 1,
        _ if version.contains("alpha") => 9,
        _ if version.contains("beta") => 12,
        _ => 15,
    };
    (of_group, of_version, "onstart")
}

/// What should be there, by name.
fn wanted(server: &ApiServer) -> BTreeMap<String, Value> {
    let set = server.cluster.served.current();
    let own = set.resources.iter().map(|r| (r.group.clone(), r.version.clone(), r.custom.is_some()));
    own.filter(|(group, ..)| group != "apiregistration.k8s.io").map(|(g, v, custom)| object(&g, &v, custom)).collect()
}

fn object(group: &str, version: &str, custom: bool) -> (String, Value) {
    let (of_group, of_version, kept) = priorities(group, version, custom);
    let name = format!("{version}.{group}");
    let object = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": name, "labels": { MANAGED: kept } },
        "spec": {
            "group": group, "version": version,
            "groupPriorityMinimum": of_group, "versionPriority": of_version,
        },
    });
    (name, object)
}

pub struct Registration;

#[async_trait]
impl ControlLoop for Registration {
    async fn sync(&mut self, server: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError> {
        reconcile(server).await;
        Ok(None)
    }

    /// What a definition defines is served a moment after it is stored.
    fn settle_interval(&self) -> Duration {
        SETTLE_INTERVAL
    }
}

async fn reconcile(server: &Arc<ApiServer>) {
    let wanted = wanted(server);
    let existing = server.cluster.list("apiservices", "");
    let made = wanted.iter().filter(|(name, _)| !existing.iter().any(|o| o.meta.name == **name)).map(|(_, object)| {
        // Side by side, so that the store commits them in groups.
        loopback::send(server, Method::POST, PATH, object)
    });
    for result in futures::future::join_all(made).await {
        if let Err(error) = result
            && error.reason != Reason::AlreadyExists
        {
            tracing::warn!(error = %error.message, "failed to make an APIService");
        }
    }
    for object in existing {
        // That of the metrics is for whoever installs a server of them: nothing stands in its way.
        let metrics = object.meta.name == format!("{}.{}", metrics_api::VERSION, metrics_api::GROUP)
            && object.value()["spec"]["service"].is_null();
        let ours = object.meta.labels.get(MANAGED).is_some_and(|kept| kept == "true" || metrics);
        if ours && !wanted.contains_key(&object.meta.name) {
            let path = format!("{PATH}/{}", object.meta.name);
            if let Err(error) = loopback::send(server, Method::DELETE, &path, &Value::Null).await {
                tracing::debug!(error = %error.message, "failed to remove an APIService");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_upstreams() {
        for (group, version, custom, expected) in [
            ("", "v1", false, (18_000, 1, "onstart")),
            ("apps", "v1", false, (17_800, 15, "onstart")),
            ("autoscaling", "v2", false, (17_500, 30, "onstart")),
            ("autoscaling", "v1", false, (17_500, 15, "onstart")),
            ("metrics.k8s.io", "v1beta1", false, (100, 100, "onstart")),
            ("certificates.k8s.io", "v1beta1", false, (17_300, 9, "onstart")),
            ("internal.apiserver.k8s.io", "v1alpha1", false, (16_000, 9, "onstart")),
            ("storagemigration.k8s.io", "v1beta1", false, (15_800, 9, "onstart")),
            ("example.com", "v1", true, (1000, 100, "true")),
        ] {
            assert_eq!(priorities(group, version, custom), expected, "{group}/{version}");
        }
        let (name, object) = object("", "v1", false);
        assert_eq!((name.as_str(), &object["spec"]["group"]), ("v1.", &json!("")));
    }
}
