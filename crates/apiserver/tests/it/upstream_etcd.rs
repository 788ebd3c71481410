//! A real etcd as upstream's API server leaves and changes it: its keys, its protobuf and JSON, its bookkeeping.
//! What upstream would write is put there as bytes; what ours writes is read back as upstream would read it.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use api::{WatchKind, codec::protobuf, kinds};
use apiserver::storage::{self, StorageMediaType};
use bytes::Bytes;
use env::Env;
use futures::StreamExt;
use serde_json::{Value, json};
use store::{Operation, Record, Store, Transaction};

use crate::{
    etcd_server::EtcdServer,
    harness::{Server, config_map, server_on},
};

/// Far beyond what any of it takes; a slow machine must not fail.
const PATIENCE: Duration = Duration::from_secs(120);
const SERVICES: &str = "/api/v1/namespaces/default/services";

async fn server(etcd: &EtcdServer) -> Server {
    server_on(Arc::new(etcd.connect("").await), Env::real(), |config| {
        config.advertise_address = [192, 0, 2, 1].into();
        config.service_cidrs = vec!["10.7.0.0/28".parse().unwrap()];
        config.node_ports = 30000..=30003;
    })
    .await
}

async fn write(store: &dyn Store, key: &str, value: impl Into<Bytes>) {
    let put = Operation::Put { key: key.into(), value: value.into(), ttl_seconds: None };
    store.transact(Transaction { compare: Vec::new(), operations: vec![put] }).await.unwrap();
}

async fn read(store: &dyn Store, key: &str) -> Record {
    store.get(key).await.unwrap().unwrap_or_else(|| panic!("nothing at {key}"))
}

fn object(api_version: &str, kind: &str, name: &str, namespace: &str, more: Value) -> Value {
    let mut object = json!({ "kind": kind, "apiVersion": api_version, "metadata": {
        "name": name, "uid": format!("uid-{name}"), "creationTimestamp": "2026-01-01T00:00:00Z" } });
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

fn proto(object: &Value) -> Vec<u8> {
    protobuf::encode_object(object).unwrap()
}

/// What upstream keeps where, and where it serves it.
fn laid_down() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let service = json!({ "spec": { "type": "ClusterIP", "clusterIP": "10.7.0.9", "clusterIPs": ["10.7.0.9"],
        "ports": [{ "port": 80, "protocol": "TCP", "targetPort": 80 }], "sessionAffinity": "None" } });
    let selector = json!({ "spec": { "replicas": 0, "selector": { "a": "b" }, "template": {
        "metadata": { "labels": { "a": "b" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } } } });
    let definition = json!({ "spec": { "group": "example.com", "scope": "Namespaced",
        "names": { "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList" },
        "version": "v1", "conversion": { "strategy": "None" }, "preserveUnknownFields": false,
        "validation": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
        "versions": [{ "name": "v1", "served": true, "storage": true }] },
        "status": { "acceptedNames": { "plural": "widgets", "kind": "Widget" }, "storedVersions": ["v1"],
            "conditions": [{ "type": "Established", "status": "True", "reason": "InitialNamesAccepted",
                             "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
    let definition =
        object("apiextensions.k8s.io/v1beta1", "CustomResourceDefinition", "widgets.example.com", "", definition);
    let extension = json!({ "spec": { "service": null, "groupPriorityMinimum": 17, "versionPriority": 15,
        "group": "x.example.com", "version": "v1" }, "status": {} });
    let extension = object("apiregistration.k8s.io/v1", "APIService", "v1.x.example.com", "", extension);
    let widget = json!({ "apiVersion": "example.com/v1", "data": { "metadata": { "x": 1 } }, "kind": "Widget",
        "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z", "name": "w", "namespace": "default",
            "uid": "uid-w" } });
    let class =
        object("storage.k8s.io/v1", "VolumeAttributesClass", "gold", "", json!({ "driverName": "d.example.com" }));
    let id = api::schema::builtin().find_kind("storage.k8s.io", "v1", "VolumeAttributesClass").unwrap();
    let class = protobuf::encode(api::schema::builtin(), id, &class).unwrap();
    let lines = |value: &Value| format!("{value}\n").into_bytes();
    vec![
        (
            "/registry/services/specs/default/s",
            "/api/v1/namespaces/default/services/s",
            proto(&object("v1", "Service", "s", "default", service)),
        ),
        (
            "/registry/services/endpoints/default/s",
            "/api/v1/namespaces/default/endpoints/s",
            proto(&object("v1", "Endpoints", "s", "default", json!({}))),
        ),
        ("/registry/minions/n", "/api/v1/nodes/n", proto(&object("v1", "Node", "n", "", json!({})))),
        (
            "/registry/controllers/default/r",
            "/api/v1/namespaces/default/replicationcontrollers/r",
            proto(&object("v1", "ReplicationController", "r", "default", selector)),
        ),
        (
            "/registry/ingress/default/i",
            "/apis/networking.k8s.io/v1/namespaces/default/ingresses/i",
            proto(&object("networking.k8s.io/v1", "Ingress", "i", "default", json!({}))),
        ),
        (
            "/registry/configmaps/default/m",
            "/api/v1/namespaces/default/configmaps/m",
            proto(&object("v1", "ConfigMap", "m", "default", json!({ "data": { "k": "v" } }))),
        ),
        (
            "/registry/volumeattributesclasses/gold",
            "/apis/storage.k8s.io/v1/volumeattributesclasses/gold",
            protobuf::envelope("storage.k8s.io/v1beta1", "VolumeAttributesClass", &class),
        ),
        (
            "/registry/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com",
            lines(&definition),
        ),
        (
            "/registry/apiregistration.k8s.io/apiservices/v1.x.example.com",
            "/apis/apiregistration.k8s.io/v1/apiservices/v1.x.example.com",
            lines(&extension),
        ),
        (
            "/registry/example.com/widgets/default/w",
            "/apis/example.com/v1/namespaces/default/widgets/w",
            lines(&widget),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_upstream_left_in_etcd_is_served_and_kept() {
    let etcd = EtcdServer::start().await;
    let raw = etcd.connect("").await;
    for (key, _, value) in laid_down() {
        write(&raw, key, value).await;
    }
    // Of kinds and versions that are not known here.
    let foreign: BTreeMap<&str, Vec<u8>> = [
        (
            "/registry/clustertrustbundles/x",
            protobuf::envelope("certificates.k8s.io/v1beta1", "ClusterTrustBundle", b"\x0a\x03\x0a\x01x\xff\x01"),
        ),
        ("/registry/pods/default/newer", protobuf::envelope("v2", "Pod", b"\x0a\x07\x0a\x05newer")),
        ("/registry/leases/default/odd", b"\xff\xfe".to_vec()),
        // A known kind with a field of a newer version.
        (
            "/registry/configmaps/default/more",
            protobuf::envelope(
                "v1",
                "ConfigMap",
                b"\x0a\x13\x0a\x04more\x12\x00\x1a\x07default\x22\x00\xca\x3e\x03new",
            ),
        ),
    ]
    .into();
    for (key, value) in &foreign {
        write(&raw, key, value.clone()).await;
    }
    let s = server(&etcd).await;
    for (key, path, _) in laid_down() {
        let revision = read(&raw, key).await.mod_revision.to_string();
        // The definition has to be read first.
        let found = s.until(path, |answer| answer.code == 200).await;
        assert!(found["metadata"]["uid"].as_str().unwrap().starts_with("uid-"), "{path}: {found}");
        let kept_by_loops = ["services/s", "/apiservices/", "/customresourcedefinitions/"];
        if !kept_by_loops.iter().any(|part| path.contains(part)) {
            assert_eq!(found["metadata"]["resourceVersion"], revision, "{path}: nothing was written");
        }
    }
    let widget = s.get("/apis/example.com/v1/namespaces/default/widgets/w").await.expect(200);
    assert_eq!(widget["data"], json!({ "metadata": { "x": 1 } }));
    // An object that can't be read is an error for whoever asks, and for no other.
    s.get("/api/v1/namespaces/default/pods/newer").await.refused(500, "InternalError", "/registry/pods/default/newer");
    s.get("/api/v1/pods").await.refused(500, "InternalError", "no kind \"Pod\" is registered for version \"v2\"");
    s.get("/api/v1/namespaces/kube-system/pods").await.expect(200);
    let map = s.get("/api/v1/namespaces/default/configmaps/more").await.expect(200);
    assert_eq!(map["metadata"]["name"], "more");
    // A write that changes nothing writes nothing.
    s.patch("merge-patch", "/api/v1/namespaces/default/configmaps/more", json!({})).await.expect(200);
    for (key, value) in &foreign {
        assert_eq!(read(&raw, key).await.value, value, "{key} is kept byte for byte");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_and_ours_see_each_others_changes() {
    let etcd = EtcdServer::start().await;
    let raw = etcd.connect("").await;
    let s = server(&etcd).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let mut events = s.watch(&format!("{maps}?watch=1&fieldSelector=metadata.name%3Dm")).await;
    let key = "/registry/configmaps/default/m";
    let changed = |value: &str| object("v1", "ConfigMap", "m", "default", json!({ "data": { "k": value } }));
    for (kind, value) in [(WatchKind::Added, "1"), (WatchKind::Modified, "2")] {
        write(&raw, key, proto(&changed(value))).await;
        let event = env::timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
        assert_eq!((event.kind, &event.object.value()["data"]["k"]), (kind, &json!(value)));
    }
    // Ours writes as upstream reads: its bytes, with no version inside.
    let ours = s.patch("merge-patch", &format!("{maps}/m"), json!({ "data": { "k": "3" } })).await.expect(200);
    let record = read(&raw, key).await;
    assert_eq!(ours["metadata"]["resourceVersion"], record.mod_revision.to_string());
    let mut inside = ours.clone();
    inside["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(protobuf::decode(&record.value, None).unwrap(), inside);
    assert_eq!(record.value, proto(&inside));
    let event = env::timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(event.object.value(), ours, "as it was answered");
    raw.transact(Transaction { compare: Vec::new(), operations: vec![Operation::Delete { key: key.into() }] })
        .await
        .unwrap();
    let event = env::timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((event.kind, &event.object.value()["data"]["k"]), (WatchKind::Deleted, &json!("3")));

    // Every server says where it lives, in upstream's way.
    write(
        &raw,
        "/registry/masterleases/192.0.2.7",
        proto(&json!({ "kind": "Endpoints", "apiVersion": "v1", "metadata": {},
        "subsets": [{ "addresses": [{ "ip": "192.0.2.7" }] }] })),
    )
    .await;
    let own = protobuf::decode(&read(&raw, "/registry/masterleases/192.0.2.1").await.value, None).unwrap();
    assert_eq!(own["subsets"][0]["addresses"][0]["ip"], "192.0.2.1");
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    s.until(slice, |answer| answer.value["endpoints"].as_array().is_some_and(|all| all.len() == 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_ports_are_shared_with_upstream() {
    let etcd = EtcdServer::start().await;
    let raw = etcd.connect("").await;
    let range = "/registry/ranges/servicenodeports";
    let allocation = |data: &str| {
        proto(&json!({ "kind": "RangeAllocation", "apiVersion": "v1", "metadata": {},
        "range": "30000-30003", "data": data }))
    };
    // Upstream took the second and third port for Services that are on their way.
    write(&raw, range, allocation("Bg==")).await;
    let s = server(&etcd).await;
    let service = |name: &str, port: Option<u16>| {
        let mut entry = json!({ "port": 80 });
        if let Some(port) = port {
            entry["nodePort"] = port.into();
        }
        json!({ "metadata": { "name": name }, "spec": { "type": "NodePort", "ports": [entry] } })
    };
    s.post(SERVICES, service("asked", Some(30001))).await.refused(422, "Invalid", "provided port is already allocated");
    let bits = async || {
        let value = protobuf::decode(&read(&raw, range).await.value, None).unwrap();
        value["data"].as_str().unwrap().to_string()
    };
    let mut taken = Vec::new();
    for name in ["a", "b"] {
        let made = s.until_created(SERVICES, service(name, None)).await;
        taken.push(made["spec"]["ports"][0]["nodePort"].as_u64().unwrap());
    }
    taken.sort_unstable();
    assert_eq!((taken, bits().await.as_str()), (vec![30000, 30003], "Dw=="));
    for name in ["a", "b"] {
        s.delete(&format!("{SERVICES}/{name}"), Value::Null).await.expect(200);
    }
    assert_eq!(bits().await, "Bg==");
}

impl Server {
    /// Ports are drawn at random: where most are taken, it may need more than one try.
    async fn until_created(&self, path: &str, object: Value) -> Value {
        let asking = async {
            loop {
                let answer = self.post(path, object.clone()).await;
                if answer.code == 201 {
                    return answer.value;
                }
            }
        };
        env::timeout(PATIENCE, asking).await.expect("a free port")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_older_versions_are_found_by_servers_that_start_together() {
    let etcd = EtcdServer::start().await;
    let raw = etcd.connect("").await;
    let old = |key: &str, object: Value| (key.to_string(), storage::encode(&object));
    let mut laid = vec![
        old("/registry/nodes/n", object("v1", "Node", "n", "", json!({}))),
        old("/registry/endpoints/default/e", object("v1", "Endpoints", "e", "default", json!({}))),
        old(
            "/registry/configmaps/default/m",
            object("v1", "ConfigMap", "m", "default", json!({ "data": { "k": "v" } })),
        ),
    ];
    laid.extend((0..40).map(|n| {
        let name = format!("many-{n}");
        old(&format!("/registry/nodes/{name}"), object("v1", "Node", &name, "", json!({})))
    }));
    for (key, value) in laid {
        write(&raw, &key, value).await;
    }
    let (a, b) = tokio::join!(server(&etcd), server(&etcd));
    for s in [&a, &b] {
        assert_eq!(s.get("/api/v1/nodes").await.expect(200)["items"].as_array().unwrap().len(), 41);
        s.get("/api/v1/namespaces/default/endpoints/e").await.expect(200);
        assert_eq!(s.get("/api/v1/namespaces/default/configmaps/m").await.expect(200)["data"]["k"], "v");
    }
    assert!(raw.get("/registry/nodes/n").await.unwrap().is_none());
    // What is still JSON is written anew as soon as somebody writes it, changed or not.
    a.patch("merge-patch", "/api/v1/namespaces/default/configmaps/m", json!({})).await.expect(200);
    assert!(read(&raw, "/registry/configmaps/default/m").await.value.starts_with(b"k8s\0"));
    // A copy that is not whole is not served.
    write(&raw, storage::UNFINISHED_MIGRATION, "{}").await;
    let mut config = apiserver::Config::in_process(rcgen::KeyPair::generate().unwrap().serialize_pem());
    config.advertise_address = [192, 0, 2, 3].into();
    let refused = apiserver::ApiServer::new(config, Arc::new(raw), Env::real()).await.err().unwrap();
    assert!(refused.message.contains("half-done migration"), "{}", refused.message);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_form_that_is_asked_for_is_written() {
    let etcd = EtcdServer::start().await;
    let raw = etcd.connect("").await;
    let s = server_on(Arc::new(etcd.connect("").await), Env::real(), |config| {
        config.storage_media_type = Some(StorageMediaType::Json);
    })
    .await;
    s.post("/api/v1/namespaces/default/configmaps", config_map("m")).await.expect(201);
    assert!(read(&raw, "/registry/configmaps/default/m").await.value.starts_with(b"{\"kind\":\"ConfigMap\""));
}

/// Every golden object of a kind that is stored: read as upstream wrote it, and written as upstream would.
#[test]
#[ignore = "needs MINKE_REFERENCE; run by make test-reference"]
fn conformance_of_stored_objects() {
    let reference = std::env::var("MINKE_REFERENCE").expect("MINKE_REFERENCE names a checkout of the published API");
    let golden = Path::new(&reference).join("golden");
    let (mut count, mut problems) = (0, Vec::new());
    for resource in kinds::builtin().iter().filter(|r| r.stored() && r.behavior.storage_version().is_none()) {
        let group = if resource.group.is_empty() { "core" } else { &resource.group };
        let stem = golden.join(format!("{group}.{}.{}", resource.version, resource.kind));
        let file = |ending: &str| std::fs::read(format!("{}.{ending}", stem.display()));
        let (Ok(json), Ok(pb)) = (file("json"), file("pb")) else { continue };
        count += 1;
        let key = format!("{}x/y", storage::prefix(resource));
        let mut wanted: Value = serde_json::from_slice(&json).unwrap();
        wanted["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        let mut problem = |what: &str| problems.push(format!("{} {what}", resource.kind));
        let read = match storage::to_json(&key, pb.into()) {
            Ok(read) => read,
            Err(why) => {
                problem(&why);
                continue;
            }
        };
        if serde_json::from_slice::<Value>(&read).unwrap() != wanted {
            problem("is read as something else");
        }
        if resource.storage.json_only {
            continue;
        }
        let stored = storage::to_stored(&key, &read, StorageMediaType::Protobuf);
        let mut named = wanted.clone();
        named["apiVersion"] = resource.storage.api_version.as_str().into();
        let id = api::schema::builtin().find_kind(&resource.group, &resource.version, &resource.kind).unwrap();
        let message = protobuf::encode(api::schema::builtin(), id, &named).unwrap();
        let expected = protobuf::envelope(&resource.storage.api_version, &resource.kind, &message);
        if stored != expected {
            problem("is written as something else");
        }
    }
    assert!(count > 50, "only {count} golden objects");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
