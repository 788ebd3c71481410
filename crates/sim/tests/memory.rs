//! What a load leaves behind in the control plane's heap: two minutes after it, little more than a fresh start on the
//! same data holds. Simulated time, so that the two minutes cost nothing; what the allocator counts, so that nothing
//! depends on pages and the kernel. One test alone in this binary: the heap is the whole process's.

use std::{sync::Arc, time::Duration};

use apiserver::{ApiServer, Config};
use bytes::Bytes;
use client::{Client, InformerFactory, ListParams};
use env::Env;
use futures::{StreamExt, stream};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use store::{MemoryStore, Store};
use tokio_util::sync::CancellationToken;

const MASTERS: &[&str] = &["system:masters"];
/// How soon the memory of a load is back.
const SETTLED_AFTER: Duration = Duration::from_secs(120);
/// How much more than after a fresh start may be held then.
const ALLOWED_FACTOR: f64 = 1.5;

const NAMESPACES: usize = 12;
const OBJECTS_PER_NAMESPACE: usize = 25;
const DEFINITIONS: usize = 12;
const LARGE_OBJECTS: usize = 10;
const WATCHERS: usize = 40;
/// What stays: enough that the figures are not those of an empty cluster.
const KEPT_OBJECTS: usize = 200;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON: &str = "application/json";

/// The control plane in this process; everything of it ends with `stop`.
struct ControlPlane {
    env: Env,
    admin: Client,
    stopped: CancellationToken,
}

impl ControlPlane {
    async fn start(env: &Env, store: &Arc<MemoryStore>, signing_key: &str) -> Self {
        let env = env.part();
        let config = Config::in_process(signing_key.to_string());
        let server = ApiServer::new(config, store.clone(), env.clone()).await.unwrap();
        env.spawn(client::sweep_object_forms(env.clone()));
        let stopped = CancellationToken::new();
        let component = |user: &str| {
            let client = in_process::client(&server, user, MASTERS);
            (client.clone(), InformerFactory::new(client, env.clone(), stopped.clone()))
        };
        let (client, informers) = component("system:kube-controller-manager");
        let config = controllers::Config { root_ca_pem: Some("none".into()), ..controllers::Config::default() };
        env.spawn(controllers::run(config, client, informers, env.clone(), stopped.clone()));
        let (client, informers) = component("system:kube-scheduler");
        let scheduling = scheduler::run(scheduler::Config::default(), client, informers, env.clone(), stopped.clone());
        env.spawn(async move { scheduling.await.map_err(|e| e.to_string()).expect("the scheduler runs") });
        Self { admin: in_process::client(&server, "admin", MASTERS), env, stopped }
    }

    fn stop(self) {
        self.stopped.cancel();
        self.env.crash();
    }

    async fn send(&self, method: Method, path: &str, accept: &str, body: &Value) -> (StatusCode, Bytes) {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let content = if method == Method::PATCH { "application/merge-patch+json" } else { JSON };
        let request = Request::builder().method(method).uri(path).header("accept", accept);
        let request = request.header("content-type", content).body(body).unwrap();
        let answer = self.admin.transport().send(request).await.unwrap();
        (answer.status(), answer.into_body())
    }

    #[track_caller]
    fn done(method: &Method, path: &str, (status, body): (StatusCode, Bytes)) -> Bytes {
        assert!(status.is_success(), "{method} {path}: {status} {}", String::from_utf8_lossy(&body));
        body
    }

    async fn create(&self, path: &str, object: Value) {
        Self::done(&Method::POST, path, self.send(Method::POST, path, JSON, &object).await);
    }

    async fn patch(&self, path: &str, patch: Value) {
        Self::done(&Method::PATCH, path, self.send(Method::PATCH, path, JSON, &patch).await);
    }

    async fn delete(&self, path: &str) {
        Self::done(&Method::DELETE, path, self.send(Method::DELETE, path, JSON, &Value::Null).await);
    }

    async fn get(&self, path: &str, accept: &str) -> Bytes {
        Self::done(&Method::GET, path, self.send(Method::GET, path, accept, &Value::Null).await)
    }

    /// Until nothing is at `path` any more.
    async fn gone(&self, path: &str) {
        while self.send(Method::GET, path, JSON, &Value::Null).await.0 != StatusCode::NOT_FOUND {
            self.env.sleep(Duration::from_secs(1)).await;
        }
    }

    /// A namespace with what tests put into one, read in every form, then deleted.
    async fn use_namespace(&self, number: usize) {
        let name = format!("load-{number}");
        self.create("/api/v1/namespaces", json!({ "metadata": { "name": name } })).await;
        let inside = format!("/api/v1/namespaces/{name}");
        while self.send(Method::GET, &format!("{inside}/serviceaccounts/default"), JSON, &Value::Null).await.0 != 200 {
            self.env.sleep(Duration::from_millis(100)).await;
        }
        for n in 0..OBJECTS_PER_NAMESPACE {
            let text = format!("{n} ").repeat(1000);
            let meta = json!({ "name": format!("o{n}"), "labels": { "app": name, "number": n.to_string() } });
            let data = json!({ "metadata": meta, "data": { "text": text } });
            self.create(&format!("{inside}/configmaps"), data).await;
            let secret = json!({ "metadata": meta, "stringData": { "text": text } });
            self.create(&format!("{inside}/secrets"), secret).await;
            let pod = json!({ "metadata": meta, "spec": { "containers": [{ "name": "c", "image": "i",
                "env": (0..20).map(|e| json!({ "name": format!("E{e}"), "value": "v" })).collect::<Vec<_>>() }] } });
            self.create(&format!("{inside}/pods"), pod).await;
            for phase in ["Pending", "Running", "Succeeded"] {
                self.patch(&format!("{inside}/pods/o{n}/status"), json!({ "status": { "phase": phase } })).await;
            }
            let event = json!({ "metadata": meta, "reason": "Load", "message": text, "type": "Normal",
                "involvedObject": { "kind": "Pod", "namespace": name, "name": format!("o{n}") } });
            self.create(&format!("{inside}/events"), event).await;
        }
        for resource in ["configmaps", "secrets", "pods", "events"] {
            for accept in [JSON, PROTOBUF, TABLE] {
                self.get(&format!("{inside}/{resource}"), accept).await;
                self.get(&format!("{inside}/{resource}/{}", if resource == "events" { "o0" } else { "o1" }), accept)
                    .await;
            }
        }
        self.delete(&inside).await;
        self.gone(&inside).await;
    }

    /// A definition with objects, with the documents that clients fetch after each change of definitions.
    async fn use_definition(&self, number: usize) {
        let (group, plural) = (format!("g{number}.example.com"), "widgets");
        let property = json!({ "type": "object", "description": "what it is ".repeat(20), "properties": {
            "a": { "type": "string", "maxLength": 50 }, "b": { "type": "integer", "minimum": 1 } } });
        let properties: serde_json::Map<_, _> = (0..50).map(|n| (format!("field{n}"), property.clone())).collect();
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let definition = json!({ "metadata": { "name": format!("{plural}.{group}") }, "spec": {
            "group": group, "scope": "Cluster", "names": { "plural": plural, "kind": "Widget", "listKind": "WidgetList",
                "singular": "widget" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "properties": { "spec": { "type": "object", "properties": properties,
                "x-kubernetes-validations": [{ "rule": "!has(self.field1) || self.field1.b > 0" }] } } } } }] } });
        self.create(definitions, definition).await;
        let objects = format!("/apis/{group}/v1/{plural}");
        while self.send(Method::GET, &objects, JSON, &Value::Null).await.0 != 200 {
            self.env.sleep(Duration::from_millis(100)).await;
        }
        for n in 0..OBJECTS_PER_NAMESPACE {
            let spec = json!({ "field1": { "a": "x".repeat(40), "b": 1 } });
            let meta = json!({ "name": format!("w{n}"), "annotations": { "text": "y".repeat(2000) } });
            let widget =
                json!({ "apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": meta, "spec": spec });
            self.create(&objects, widget).await;
            self.patch(&format!("{objects}/w{n}"), json!({ "spec": { "field1": { "b": 2 } } })).await;
        }
        for path in ["/openapi/v2", "/openapi/v3", "/apis", &format!("/openapi/v3/apis/{group}/v1")] {
            self.get(path, JSON).await;
        }
        self.get(&objects, TABLE).await;
        let definition = format!("{definitions}/{plural}.{group}");
        self.delete(&definition).await;
        self.gone(&definition).await;
    }

    async fn keep_objects(&self) {
        for n in 0..KEPT_OBJECTS {
            let kept = json!({ "metadata": { "name": format!("kept-{n}") }, "data": { "text": "k".repeat(20_000) } });
            self.create("/api/v1/namespaces/default/configmaps", kept).await;
        }
    }

    async fn use_large_object(&self, number: usize) {
        let (all, text) = ("/api/v1/namespaces/default/configmaps", "x".repeat(1_000_000));
        let one = format!("{all}/large-{number}");
        self.create(all, json!({ "metadata": { "name": format!("large-{number}") }, "data": { "text": text } })).await;
        for version in 0..3 {
            self.patch(&one, json!({ "data": { "version": version.to_string() } })).await;
        }
        self.delete(&one).await;
    }

    /// Watches by many clients that read nothing for a while, then everything.
    async fn watch_everything(&self, done: CancellationToken) {
        let resources = ["configmaps", "secrets", "pods", "events", "namespaces"];
        let watches = stream::iter(0..WATCHERS).for_each_concurrent(None, |n| {
            let (resource, done) = (resources[n % resources.len()], done.clone());
            async move {
                let resource = api::kinds::find("", "v1", resource).unwrap();
                let watch = self.admin.transport().watch(resource, None, &ListParams::default(), "0").await.unwrap();
                watch.take_until(done.cancelled_owned()).for_each(async |_| {}).await;
            }
        });
        watches.await;
    }

    async fn load(&self) {
        let done = CancellationToken::new();
        let work = async {
            stream::iter(0..NAMESPACES).for_each_concurrent(4, |n| self.use_namespace(n)).await;
            stream::iter(0..DEFINITIONS).for_each_concurrent(4, |n| self.use_definition(n)).await;
            stream::iter(0..LARGE_OBJECTS).for_each_concurrent(2, |n| self.use_large_object(n)).await;
            done.cancel();
        };
        tokio::join!(work, self.watch_everything(done.clone()));
    }
}

fn allocated() -> usize {
    env::memory::heap().expect("the allocator counts").allocated
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

/// What is held once everything that passes has passed. The store's history stands in for the log on disk: it is no
/// memory of the real store.
async fn settled(env: &Env, store: &MemoryStore) -> usize {
    env.sleep(SETTLED_AFTER).await;
    store.compact(store.revision().await.unwrap()).await.unwrap();
    allocated()
}

#[test]
fn memory_returns_within_two_minutes_of_a_load() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let store = Arc::new(MemoryStore::new(env.clone()));
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let plane = ControlPlane::start(&env, &store, &key).await;
        plane.keep_objects().await;
        let before = settled(&env, &store).await;
        plane.load().await;
        let at_end = allocated();
        let after = settled(&env, &store).await;
        plane.stop();
        env.sleep(Duration::from_secs(1)).await;
        let stopped = allocated();
        let plane = ControlPlane::start(&env, &store, &key).await;
        let fresh = settled(&env, &store).await;
        plane.stop();
        let all = [before, at_end, after, stopped, fresh].map(mib);
        println!("MiB held before, at the end of the load, two minutes later, stopped, started again: {all:.1?}");
        assert!(after as f64 <= fresh as f64 * ALLOWED_FACTOR, "{:.1} MiB held, {:.1} when fresh", all[2], all[4]);
    });
}
