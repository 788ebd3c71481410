//! Autoscalers: how long a look at all of them takes, and what it costs.
//! Rows `autoscalers` of `main`.
//! What pods use is made up here: nodes on paper measure nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use api::{ApiError, Resource};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, InformerFactory, ListParams, ObjectList, Patch, Transport, WatchStream};
use env::Env;
use http::{Request, Response};
use k8s_openapi::api::{apps::v1::Deployment, autoscaling::v2::HorizontalPodAutoscaler, core::v1::Pod};
use serde_json::json;

use super::{Bench, cpu_seconds};

const NAMESPACE: &str = "scaled";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/scaled/pods";
const BEATS: usize = 4;
/// Between the last change of one beat and the first of the next there is more.
const PAUSE: Duration = Duration::from_secs(5);

/// The API server, with metrics of pods that differ from beat to beat, so that every status is written.
struct MadeUpMetrics {
    server: Client,
    env: Env,
    pods: usize,
    asked: AtomicU64,
}

#[async_trait]
impl Transport for MadeUpMetrics {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        if request.uri().path() != METRICS {
            return self.server.transport().send(request).await;
        }
        let (now, beat) = (self.env.now().to_string(), self.asked.fetch_add(1, Ordering::Relaxed));
        let usage = json!({ "cpu": format!("{}m", 100 + beat % 2 * 2), "memory": "64Mi" });
        let pod = |n| {
            let metadata =
                json!({ "name": format!("p{n}"), "namespace": NAMESPACE, "labels": { "app": format!("d{n}") } });
            json!({ "metadata": metadata, "timestamp": now, "window": "10s",
                "containers": [{ "name": "c", "usage": usage }] })
        };
        let items: Vec<_> = (0..self.pods).map(pod).collect();
        Ok(Response::new(Bytes::from(json!({ "items": items }).to_string())))
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        self.server.transport().list(resource, namespace, params).await
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        self.server.transport().watch(resource, namespace, params, resource_version).await
    }
}

impl Bench {
    /// A Deployment with one running pod, and what scales it.
    async fn scaled(&self, n: usize) {
        let app = format!("d{n}");
        self.deployment(NAMESPACE, app.clone(), 1).await;
        let status = Patch::Merge(json!({ "status": { "replicas": 1, "readyReplicas": 1 } }));
        let deployments = self.admin.namespaced::<Deployment>(NAMESPACE);
        deployments.patch_status(&app, &status).await.expect("a status");
        self.pod(NAMESPACE, format!("p{n}"), &app, &json!({ "nodeName": "paper" })).await;
        let long_ago = "2020-01-01T00:00:00Z";
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": long_ago });
        let status = json!({ "status": { "phase": "Running", "startTime": long_ago, "conditions": [ready] } });
        let pods = self.admin.namespaced::<Pod>(NAMESPACE);
        pods.patch_status(&format!("p{n}"), &Patch::Merge(status)).await.expect("a status");
        let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": app });
        let cpu = json!({ "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 100 } });
        let autoscaler = json!({ "metadata": { "name": app }, "spec": { "scaleTargetRef": target, "maxReplicas": 5,
            "metrics": [{ "type": "Resource", "resource": cpu }] } });
        self.create::<HorizontalPodAutoscaler>(Some(NAMESPACE), autoscaler).await;
    }

    /// The seconds of the slowest beat, from the first status to the last, and the share of a core of everything.
    pub async fn autoscalers(&self, count: usize) -> (f64, f64) {
        self.namespace(NAMESPACE).await;
        self.many(0..count, |n| self.scaled(n)).await;
        let (server, _, shutdown, _guard) = self.component("system:kube-controller-manager");
        let made_up = MadeUpMetrics { server, env: self.env.clone(), pods: count, asked: AtomicU64::new(0) };
        let client = Client::new(made_up);
        let informers = InformerFactory::new(client.clone(), self.env.clone(), shutdown.clone());
        let config = controllers::Config {
            controllers: vec!["horizontal-pod-autoscaler-controller".into()],
            ..controllers::Config::default()
        };
        let mut changes = informers.informer::<HorizontalPodAutoscaler>().subscribe();
        self.env.spawn(controllers::run(config, client, informers, self.env.clone(), shutdown));
        let (mut seen, mut beat, mut slowest) = (0, None::<(Duration, Duration)>, Duration::ZERO);
        let mut used = cpu_seconds();
        let mut began = self.env.monotonic();
        // The first beat sees every autoscaler for the first time.
        while seen <= BEATS {
            let Some(change) = changes.next().await else { break };
            let told = |a: &Option<Arc<HorizontalPodAutoscaler>>| a.as_ref().and_then(|a| a.status.clone());
            if change.old.is_none() || told(&change.old) == told(&change.new) {
                continue;
            }
            let now = self.env.monotonic();
            match &mut beat {
                Some((_, last)) if now - *last < PAUSE => *last = now,
                _ => {
                    if let Some((first, last)) = beat.filter(|_| seen > 1) {
                        slowest = slowest.max(last - first);
                    }
                    beat = Some((now, now));
                    seen += 1;
                    if seen == 2 {
                        (used, began) = (cpu_seconds(), now);
                    }
                }
            }
        }
        let share = (cpu_seconds() - used) / (self.env.monotonic() - began).as_secs_f64() * 100.0;
        (slowest.as_secs_f64(), share)
    }
}
