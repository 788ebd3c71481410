//! What users do all day: pods, Services, definitions, namespaces, reads and watches come and go until told to stop.
//! Started by `main`; every request goes through `requests`.
//! Deletes what it made before it ends, whatever happened between.

use std::time::Duration;

use client::ListParams;
use e2e::{BUSYBOX, Kubectl};
use futures::StreamExt;
use http::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::requests::Session;

pub const NAMESPACE: &str = "soak";
/// Everything a cluster promises happens within this, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Between two rounds of one worker.
const PAUSE: Duration = Duration::from_millis(200);

fn inside(resource: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/{resource}")
}

/// Removes one object, however often it takes, and waits until it is gone.
async fn remove(session: &Session, path: &str) {
    // What was asked for while the server was away is asked for again; the wait below tells if it never helps.
    for _ in 0..30 {
        match session.send(Method::DELETE, path, &Value::Null).await {
            Ok((status, _)) if status < 300 || status == 404 || status == 409 => break,
            _ => session.env.sleep(Duration::from_secs(1)).await,
        }
    }
    session.until(path, PATIENCE, "gone", |status, _| status == 404).await.ok();
}

pub async fn pods(session: Session, kubectl: Kubectl, worker: usize, stop: CancellationToken) {
    let mut round = 0;
    while !stop.is_cancelled() {
        round += 1;
        let name = format!("pod-{worker}-{round}");
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": "pod" } },
            "spec": { "terminationGracePeriodSeconds": 1, "volumes": [{ "name": "e", "emptyDir": {} },
                { "name": "s", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }],
                "containers": [{ "name": "c", "image": BUSYBOX, "command": ["sleep", "100000"], "volumeMounts":
                    [{ "name": "e", "mountPath": "/e" }, { "name": "s", "mountPath": "/s" }] }] } });
        let path = inside(&format!("pods/{name}"));
        if session.must(Method::POST, &inside("pods"), &pod, &[409]).await.is_ok() {
            let running = |_, pod: &Value| pod["status"]["phase"] == "Running";
            if session.until(&path, PATIENCE, "Running", running).await.is_ok() {
                session.done("pods started");
                if round % 3 == 0 {
                    exec(&session, &kubectl, &name).await;
                }
            }
        }
        remove(&session, &path).await;
        session.env.sleep(PAUSE).await;
    }
}

async fn exec(session: &Session, kubectl: &Kubectl, name: &str) {
    let (began, kubectl, pod) = (session.env.monotonic(), kubectl.clone(), name.to_string());
    let run = move || {
        let echoed = kubectl.try_run(&["exec", "-n", NAMESPACE, "-i", &pod, "--", "cat"], "through a stream\n");
        let logs = kubectl.try_run(&["logs", "-n", NAMESPACE, &pod], "");
        (echoed.ok && echoed.stdout == "through a stream\n" && logs.ok, echoed, logs)
    };
    match env::spawn_blocking(run).await {
        Ok((true, ..)) => session.done("execs"),
        Ok((_, echoed, logs)) => session.failed(began, format!("exec in {name}: {echoed:?} {logs:?}")),
        Err(error) => session.failed(began, format!("exec in {name}: {error}")),
    }
}

pub async fn services(session: Session, stop: CancellationToken) {
    let mut round = 0;
    while !stop.is_cancelled() {
        round += 1;
        let name = format!("web-{round}");
        let labels = json!({ "app": name });
        let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name }, "spec": {
            "replicas": 2, "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels },
                "spec": { "terminationGracePeriodSeconds": 1, "containers": [
                    { "name": "c", "image": BUSYBOX, "command": ["sleep", "100000"] }] } } } });
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "selector": labels, "ports": [{ "port": 80 }] } });
        let deployments = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments");
        let made = session.must(Method::POST, &deployments, &deployment, &[409]).await.is_ok()
            && session.must(Method::POST, &inside("services"), &service, &[409]).await.is_ok();
        let slices = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices?labelSelector=kubernetes.io/service-name%3D{name}"
        );
        let ready = |_, list: &Value| {
            let slices = list["items"].as_array().into_iter().flatten();
            let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
            endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true).count() == 2
        };
        if made && session.until(&slices, PATIENCE, "two endpoints", ready).await.is_ok() {
            session.done("Services with endpoints");
        }
        remove(&session, &inside(&format!("services/{name}"))).await;
        remove(&session, &format!("{deployments}/{name}")).await;
        let pods = inside(&format!("pods?labelSelector=app%3D{name}"));
        let none = |status, list: &Value| status == 200 && list["items"].as_array().is_some_and(Vec::is_empty);
        session.until(&pods, PATIENCE, "without pods", none).await.ok();
    }
}

pub async fn definitions(session: Session, stop: CancellationToken) {
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut round = 0;
    while !stop.is_cancelled() {
        round += 1;
        let group = format!("g{}.soak.example.com", round % 50);
        let name = format!("widgets.{group}");
        let field = json!({ "type": "object", "description": "about a field ".repeat(10), "properties": {
            "a": { "type": "string" }, "b": { "type": "integer", "minimum": 1 } } });
        let fields: serde_json::Map<_, _> = (0..30).map(|n| (format!("field{n}"), field.clone())).collect();
        let definition = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": name }, "spec": { "group": group, "scope": "Namespaced",
                "names": { "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList" },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": { "type": "object", "properties": fields } } } } }] } });
        let objects = format!("/apis/{group}/v1/namespaces/{NAMESPACE}/widgets");
        if session.must(Method::POST, definitions, &definition, &[409]).await.is_ok()
            && session.until(&objects, PATIENCE, "served", |status, _| status == 200).await.is_ok()
        {
            for n in 0..10 {
                let widget = json!({ "apiVersion": format!("{group}/v1"), "kind": "Widget",
                    "metadata": { "name": format!("w{n}") }, "spec": { "field1": { "a": "x".repeat(500), "b": 1 } } });
                session.must(Method::POST, &objects, &widget, &[409]).await.ok();
            }
            for path in ["/openapi/v2", "/openapi/v3", "/apis"] {
                session.send(Method::GET, path, &Value::Null).await.ok();
            }
            session.done("definitions used");
        }
        remove(&session, &format!("{definitions}/{name}")).await;
        session.env.sleep(PAUSE).await;
    }
}

pub async fn namespaces(session: Session, worker: usize, stop: CancellationToken) {
    let mut round = 0;
    while !stop.is_cancelled() {
        round += 1;
        let name = format!("soak-{worker}-{round}");
        let path = format!("/api/v1/namespaces/{name}");
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        if session.must(Method::POST, "/api/v1/namespaces", &namespace, &[409]).await.is_ok() {
            for n in 0..20 {
                // One of them is large.
                let text = "x".repeat(if n == 0 { 512 << 10 } else { 2 << 10 });
                for (kind, plural, field) in [("ConfigMap", "configmaps", "data"), ("Secret", "secrets", "stringData")]
                {
                    let object = json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": format!("o{n}") },
                        field: { "text": text } });
                    session.must(Method::POST, &format!("{path}/{plural}"), &object, &[409]).await.ok();
                }
                let patch = json!({ "data": { "n": n.to_string() } });
                session.must(Method::PATCH, &format!("{path}/configmaps/o{n}"), &patch, &[404]).await.ok();
            }
            session.done("namespaces used");
        }
        remove(&session, &path).await;
        session.env.sleep(PAUSE).await;
    }
}

pub async fn reads(session: Session, stop: CancellationToken) {
    let forms = [
        "application/json",
        "application/vnd.kubernetes.protobuf",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    ];
    while !stop.is_cancelled() {
        for resource in ["pods", "configmaps", "secrets", "events", "nodes"] {
            for accept in forms {
                session.send_accepting(Method::GET, &format!("/api/v1/{resource}"), &Value::Null, accept).await.ok();
            }
        }
        session.send_accepting(Method::GET, "/metrics", &Value::Null, "text/plain").await.ok();
        session.env.sleep(PAUSE * 5).await;
    }
}

pub async fn watches(session: Session, worker: usize, stop: CancellationToken) {
    let resources = ["pods", "configmaps", "secrets", "namespaces", "events"];
    while !stop.is_cancelled() {
        let name = resources[(worker + session.env.random_u64() as usize % resources.len()) % resources.len()];
        let Some(resource) = api::kinds::find("", "v1", name) else { return };
        let began = session.env.monotonic();
        let listed = session.send(Method::GET, &format!("/api/v1/{name}?limit=1"), &Value::Null).await;
        let Ok((200, list)) = listed else { continue };
        let from = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_string();
        let watch = session.client().transport().watch(resource, None, &ListParams::default(), &from).await;
        let mut watch = match watch {
            Ok(watch) => watch,
            Err(error) => {
                session.failed(began, format!("watch of {name}: {error}"));
                session.env.sleep(PAUSE).await;
                continue;
            }
        };
        let lasts = Duration::from_secs(5 + session.env.random_u64() % 25);
        let mut newest = 0;
        let read = async {
            while let Some(event) = watch.next().await {
                match event {
                    Ok(event) if event.object.meta.resource_version >= newest => {
                        newest = event.object.meta.resource_version;
                        session.done("watch events");
                    }
                    Ok(event) => session.failed(
                        session.env.monotonic(),
                        format!("watch of {name} went back from {newest} to {}", event.object.meta.resource_version),
                    ),
                    Err(error) => return session.failed(began, format!("watch of {name}: {error}")),
                }
            }
        };
        tokio::select! {
            _ = session.env.timeout(lasts, read) => {}
            () = stop.cancelled() => {}
        }
    }
}
