//! Checks in which order statuses reach an API server that answers when the test says so.
//! Next to `status_manager`.
//! No real time passes.

use bytes::Bytes;
use client::{ListParams, ObjectList, Transport, WatchStream};
use http::{Request, Response};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::*;
use crate::test_api::UnreachableApi;

/// Keeps what was asked, and answers once for each permit.
#[derive(Default)]
struct Gated {
    requests: Mutex<Vec<String>>,
    permits: Permits,
}

struct Permits(Semaphore);

impl Default for Permits {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

#[derive(Clone, Default)]
struct Server(Arc<Gated>);

impl Server {
    /// Lets one request be answered, and lets everything that follows happen.
    async fn answer(&self) {
        self.0.permits.0.add_permits(1);
        settle().await;
    }

    fn requests(&self) -> Vec<String> {
        self.0.requests.lock().clone()
    }
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[async_trait::async_trait]
impl Transport for Server {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        let words = format!("{} {}", request.method(), body["status"]["phase"].as_str().unwrap_or_default());
        self.0.requests.lock().push(words.trim().into());
        self.0.permits.0.acquire().await.unwrap().forget();
        let answer = json!({"metadata": {"resourceVersion": "7"}, "status": body["status"]});
        Ok(Response::new(Bytes::from(answer.to_string())))
    }

    async fn list(&self, r: &api::Resource, n: Option<&str>, p: &ListParams) -> Result<ObjectList, ApiError> {
        UnreachableApi.list(r, n, p).await
    }

    async fn watch(
        &self,
        resource: &api::Resource,
        namespace: Option<&str>,
        params: &ListParams,
        version: &str,
    ) -> Result<WatchStream, ApiError> {
        UnreachableApi.watch(resource, namespace, params, version).await
    }
}

fn manager(server: &Server) -> Arc<StatusManager> {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    Arc::new(StatusManager::new(Client::new(server.clone()), env, Arc::default(), Metrics::default()))
}

fn pod() -> Arc<Pod> {
    let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"containers": []}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn status(phase: &str) -> PodStatus {
    PodStatus { phase: Some(phase.into()), ..PodStatus::default() }
}

#[tokio::test(start_paused = true)]
async fn one_request_at_a_time_and_only_the_newest_after_it() {
    let server = Server::default();
    let (manager, pod) = (manager(&server), pod());
    for phase in ["Pending", "Unknown", "Running"] {
        assert!(manager.set(&pod, status(phase)));
        settle().await;
    }
    assert!(!manager.set(&pod, status("Running")), "the same status again");
    assert_eq!(server.requests(), ["PATCH Pending"]);
    server.answer().await;
    assert_eq!(server.requests(), ["PATCH Pending", "PATCH Running"], "none is sent that is old by now");
    let mut finalize = Box::pin(manager.finalize(&pod));
    assert!(futures::poll!(&mut finalize).is_pending());
    assert_eq!(server.requests().len(), 2, "the object stays until its newest status was sent");
    server.answer().await;
    assert!(futures::poll!(&mut finalize).is_pending());
    assert_eq!(server.requests()[2..], ["DELETE"]);
}

/// A static pod that comes back has the UID that it had.
#[tokio::test(start_paused = true)]
async fn a_late_answer_about_a_forgotten_pod_says_nothing_about_its_successor() {
    let server = Server::default();
    let (manager, pod) = (manager(&server), pod());
    for phase in ["Pending", "Unknown", "Running"] {
        manager.set(&pod, status(phase));
    }
    settle().await;
    manager.forget("u");
    manager.set(&pod, status("Pending"));
    settle().await;
    assert_eq!(server.requests(), ["PATCH Running", "PATCH Pending"]);
    server.answer().await;
    server.answer().await;
    manager.set(&pod, status("Running"));
    settle().await;
    assert_eq!(server.requests()[2..], ["PATCH Running"]);
}
