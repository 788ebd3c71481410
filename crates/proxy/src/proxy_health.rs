//! Whether the proxy keeps up: `/healthz` and `/livez` on a port of its own, in upstream's form.
//! Told by `run` when work waits and when it is done; load balancers ask it whether to use this node.
//! Invariant: a change that waits for longer than a minute makes it unhealthy, whatever the reason (test:
//! `a_change_that_waits_too_long_is_unhealthy`).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use client::{EventRecorder, Informer};
use env::Env;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use metrics::{
    Metrics,
    http::{listen, response, serve},
};
use parking_lot::Mutex;
use serde_json::json;

use crate::proxy_metrics::{HEALTHZ, LIVEZ};

/// Twice upstream's period of full syncs.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(60);
/// The cluster autoscaler's mark of a node that will go.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Cheap to clone; every clone sees the same.
#[derive(Clone)]
pub struct ProxyHealth {
    env: Env,
    metrics: Metrics,
    times: Arc<Mutex<Times>>,
}

#[derive(Debug, Clone, Copy)]
struct Times {
    pending_since: Option<Duration>,
    last_updated: Timestamp,
}

impl ProxyHealth {
    pub fn new(env: Env, metrics: Metrics) -> Self {
        let times = Times { pending_since: None, last_updated: env.now() };
        Self { env, metrics, times: Arc::new(Mutex::new(times)) }
    }

    /// There is something to write.
    pub fn queued(&self) {
        self.times.lock().pending_since.get_or_insert(self.env.monotonic());
    }

    /// Everything is written.
    pub fn updated(&self) {
        *self.times.lock() = Times { pending_since: None, last_updated: self.env.now() };
    }

    pub fn is_healthy(&self) -> bool {
        let pending = self.times.lock().pending_since;
        pending.is_none_or(|since| self.env.monotonic().saturating_sub(since) < UNHEALTHY_AFTER)
    }

    /// `eligible` is left out where upstream leaves it out.
    fn answer(&self, eligible: Option<bool>) -> String {
        let (healthy, now) = (self.is_healthy(), self.env.now());
        let good = healthy && eligible.unwrap_or(true);
        // Load balancers of old releases read it as "recent while healthy".
        let last = if good { now } else { self.times.lock().last_updated };
        let family = json!({ "lastUpdated": self.times.lock().last_updated.to_string(), "healthy": healthy });
        let mut body = json!({
            "lastUpdated": last.to_string(), "currentTime": now.to_string(), "healthy": healthy,
            "status": { "IPv4": family, "IPv6": family },
        });
        if let Some(eligible) = eligible {
            body["nodeEligible"] = eligible.into();
        }
        let family = if eligible.is_some() { &HEALTHZ } else { &LIVEZ };
        self.metrics.count(family, &[if good { "200" } else { "503" }]);
        response(good, &[], &body.to_string())
    }
}

/// Whether a load balancer should use the node at all.
fn is_eligible(node: Option<&Node>) -> bool {
    node.is_some_and(|node| {
        let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        node.metadata.deletion_timestamp.is_none() && !taints.into_iter().any(|taint| taint.key == TO_BE_DELETED)
    })
}

/// Serves until it is dropped. A port in use is told to the Node, and taken when it is free: it may be that of a proxy
/// that is just ending.
pub async fn serve_proxy_health(
    address: SocketAddr,
    proxy_health: ProxyHealth,
    nodes: Informer<Node>,
    node_name: String,
    recorder: EventRecorder,
) {
    let env = proxy_health.env.clone();
    let about = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(node_name.clone()),
        uid: Some(node_name.clone()),
        ..ObjectReference::default()
    };
    let refused = |error: &std::io::Error| {
        tracing::warn!(%address, %error, "failed to serve the proxy's health: choose another --proxy-healthz-port");
        let message = format!("failed to start proxy healthz on {address}: {error}");
        recorder.warning(&about, "FailedToStartProxierHealthcheck", message);
    };
    let listener = listen(&env, address, refused).await;
    serve(&env, listener, move |path| match path {
        "/healthz" => Some(proxy_health.answer(Some(is_eligible(nodes.get(&node_name).as_deref())))),
        "/livez" => Some(proxy_health.answer(None)),
        _ => None,
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_that_waits_too_long_is_unhealthy() {
        let proxy_health =
            ProxyHealth::new(Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1), Metrics::default());
        assert!(proxy_health.is_healthy(), "starting up");
        proxy_health.queued();
        proxy_health.env.sleep(UNHEALTHY_AFTER / 2).await;
        proxy_health.queued();
        assert!(proxy_health.is_healthy());
        proxy_health.env.sleep(UNHEALTHY_AFTER / 2).await;
        assert!(!proxy_health.is_healthy(), "the oldest counts");
        assert!(proxy_health.answer(None).starts_with("HTTP/1.1 503"));
        proxy_health.updated();
        assert!(proxy_health.is_healthy());
        let answer = proxy_health.answer(Some(false));
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"nodeEligible\":false"), "{answer}");
        assert!(proxy_health.answer(Some(true)).starts_with("HTTP/1.1 200 OK"));
    }

    #[test]
    fn nodes_that_go_are_not_eligible() {
        let node = |value| -> Node { serde_json::from_value(value).unwrap() };
        let tainted =
            json!({ "metadata": {}, "spec": { "taints": [{ "key": TO_BE_DELETED, "effect": "NoSchedule" }] } });
        assert!(!is_eligible(Some(&node(tainted))));
        assert!(!is_eligible(Some(&node(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })))));
        assert!(!is_eligible(None));
        assert!(is_eligible(Some(&node(json!({ "metadata": {} })))));
    }
}
