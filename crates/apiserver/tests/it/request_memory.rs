//! What a request makes the server hold at once, as a multiple of the request or its answer, whichever is larger. The
//! table is the declaration: a row that needs more is a bug, or a change of the declaration that says why.
//! Counted is what the thread that handles the request allocates; the request's own bytes and what the cache takes in
//! afterwards are not.

use std::sync::Arc;

use api::codec::{self, ContentType};
use apiserver::ApiServer;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::{Server, any_object, definition, server};

/// Whatever its size, a request may take this much: a few buffers of a piece of a list each.
const BASE_BYTES: u64 = 1 << 20;

/// How many times the larger of request and answer a request may hold at once, beyond `BASE_BYTES`.
#[rustfmt::skip]
const LIMITS: &[(&str, u64)] = &[
    ("create, JSON",                    3),
    ("create, YAML",                    3),
    ("create, protobuf",                3),
    // A number of two bytes is a value of 32, in several versions of the object at once.
    ("create, JSON of small numbers",  36),
    // The densest that `body::refuse_dense` lets through.
    ("create, JSON of empty objects",  25),
    ("update, JSON",                    2),
    ("JSON patch",                      4),
    ("merge patch",                     4),
    ("strategic merge patch",           2),
    ("apply",                           4),
    ("list, JSON",                      1),
    ("list, pretty JSON",               2),
    ("list, YAML",                      2),
    ("list, protobuf",                  3),
    ("list, table",                     3),
    ("list, table in YAML",             1),
    ("list, metadata",                  1),
    ("list, metadata in protobuf",      4),
    ("list, gzip",                      1),
    ("watch from the beginning",        1),
    ("CRD, create",                    18),
    ("SubjectAccessReview",             9),
    // Made once when kinds change, by a thread of its own, and shared by all who ask.
    ("OpenAPI v2",                      1),
    ("OpenAPI v3",                      1),
];

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MANY: &str = "/api/v1/namespaces/many/configmaps";
const MANY_COUNT: usize = 200;

struct Measured {
    request_bytes: u64,
    answer_bytes: u64,
    peak_bytes: u64,
}

/// Waits until the cache has what was written before: over an object that it does not have yet a change is made again,
/// beside the first.
fn settle(s: &Server) {
    let request = s.request("GET", "/api/v1/namespaces/default", &[], Vec::new());
    let (server, runtime) = (s.api.clone(), tokio::runtime::Handle::current());
    let reading = move || runtime.block_on(read(server, request, false, "a read"));
    std::thread::Builder::new().stack_size(8 << 20).spawn(reading).unwrap().join().unwrap();
}

/// Handles one request on a thread of its own, reads the answer as a socket would, and says what that took.
fn measure(s: &Server, method: &str, path: &str, headers: &[(&str, &str)], content: Vec<u8>) -> Measured {
    settle(s);
    let request_bytes = content.len() as u64;
    let request = s.request(method, path, headers, content);
    let (server, runtime) = (s.api.clone(), tokio::runtime::Handle::current());
    let (what, is_watch) = (format!("{method} {path}"), path.contains("watch="));
    let handle = move || {
        let answer_bytes = runtime.block_on(read(server, request, is_watch, &what));
        Measured { request_bytes, answer_bytes, peak_bytes: env::memory::thread_peak_bytes().unwrap() }
    };
    std::thread::Builder::new().stack_size(8 << 20).spawn(handle).unwrap().join().unwrap()
}

async fn read(server: Arc<ApiServer>, request: Request<apiserver::Body>, is_watch: bool, what: &str) -> u64 {
    let response = server.handle(request).await;
    let status = response.status();
    let mut content = response.into_body();
    let (mut bytes, mut events) = (0, 0);
    while let Some(frame) = content.frame().await {
        let data = frame.unwrap().into_data().unwrap_or_default();
        assert!(status.is_success(), "{what}: {status} {}", String::from_utf8_lossy(&data));
        bytes += data.len() as u64;
        events += data.iter().filter(|byte| **byte == b'\n').count();
        if is_watch && events >= MANY_COUNT {
            break;
        }
    }
    bytes
}

fn config_map(name: &str, values: usize, value_bytes: usize) -> Value {
    let data: serde_json::Map<_, _> = (0..values).map(|i| (format!("k{i}"), "x".repeat(value_bytes).into())).collect();
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

fn bag(name: &str, spec: &str) -> Vec<u8> {
    let head = format!(r#"{{"apiVersion":"example.com/v1","kind":"Bag","metadata":{{"name":"{name}"}}"#);
    format!(r#"{head},"spec":{{"list":[{spec}]}}}}"#).into_bytes()
}

fn large_definition() -> Value {
    let properties: serde_json::Map<_, _> = (0..2000)
        .map(|i| (format!("field{i}"), json!({ "type": "string", "description": "d".repeat(200), "maxLength": 20 })))
        .collect();
    let schema = json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": properties } } });
    definition("example.com", "Large", "Namespaced", &["v1"], &schema)
}

fn review() -> Value {
    let groups: Vec<_> = (0..20_000).map(|i| format!("group-{i}")).collect();
    let resource = json!({ "verb": "get", "resource": "pods", "namespace": "default" });
    json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": { "user": "jane", "groups": groups, "resourceAttributes": resource },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_holds_more_than_its_declared_multiple() {
    let s = server().await;
    let json = &[("content-type", "application/json")][..];
    s.post("/api/v1/namespaces", json!({ "metadata": { "name": "many" } })).await.expect(201);
    s.define(&definition("example.com", "Bag", "Namespaced", &["v1"], &any_object())).await;
    for i in 0..MANY_COUNT {
        s.post(MANY, config_map(&format!("m{i}"), 16, 1000)).await.expect(201);
    }
    s.post(MAPS, config_map("base", 100, 5000)).await.expect(201);
    let base = format!("{MAPS}/base");
    let bags = "/apis/example.com/v1/namespaces/default/bags";
    let large = |name: &str| config_map(name, 100, 8000);
    let bytes = |value: Value| value.to_string().into_bytes();
    let yaml = {
        let lines: String = (0..100).map(|i| format!("  k{i}: {}\n", "x".repeat(8000))).collect();
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: yaml\ndata:\n{lines}").into_bytes()
    };
    let update = s.get(&base).await.expect(200);
    let patched = json!({ "data": { "new": "y".repeat(300_000) } });
    let operation = json!([{ "op": "add", "path": "/data/new", "value": "z".repeat(300_000) }]);
    let patch = |kind: &'static str, content: Vec<u8>| {
        measure(&s, "PATCH", &format!("{base}?fieldManager=me"), &[("content-type", kind)], content)
    };
    let list = |accept: &'static str| measure(&s, "GET", MANY, &[("accept", accept)], Vec::new());
    let create = |path: &str, content: Vec<u8>| measure(&s, "POST", path, json, content);
    let created =
        |media: &'static str, content: Vec<u8>| measure(&s, "POST", MAPS, &[("content-type", media)], content);
    let protobuf = codec::encode(&large("protobuf"), ContentType::Protobuf).unwrap();
    let small_numbers = vec!["7"; 200_000].join(",");
    let empty_objects = vec!["{}"; 200_000].join(",");
    let applied = {
        let mut object = large("applied");
        object["metadata"]["namespace"] = "default".into();
        bytes(object)
    };
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let metadata_protobuf = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let review_path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let apply_path = format!("{MAPS}/applied?fieldManager=me");
    let apply_type = [("content-type", "application/apply-patch+yaml")];
    let gzip = [("accept-encoding", "gzip")];
    let get = |path: &str, headers: &[(&str, &str)]| measure(&s, "GET", path, headers, Vec::new());
    let measured = [
        ("create, JSON", create(MAPS, bytes(large("json")))),
        ("create, YAML", created("application/yaml", yaml)),
        ("create, protobuf", created("application/vnd.kubernetes.protobuf", protobuf)),
        ("create, JSON of small numbers", create(bags, bag("numbers", &small_numbers))),
        ("create, JSON of empty objects", create(bags, bag("objects", &empty_objects))),
        ("update, JSON", measure(&s, "PUT", &base, json, bytes(update))),
        ("JSON patch", patch("application/json-patch+json", bytes(operation))),
        ("merge patch", patch("application/merge-patch+json", bytes(patched.clone()))),
        ("strategic merge patch", patch("application/strategic-merge-patch+json", bytes(patched))),
        ("apply", measure(&s, "PATCH", &apply_path, &apply_type, applied)),
        ("list, JSON", list("application/json")),
        ("list, pretty JSON", get(&format!("{MANY}?pretty=true"), &[])),
        ("list, YAML", list("application/yaml")),
        ("list, protobuf", list("application/vnd.kubernetes.protobuf")),
        ("list, table", get(&format!("{MANY}?includeObject=Object"), &[("accept", table)])),
        ("list, table in YAML", list("application/yaml;as=Table;v=v1;g=meta.k8s.io")),
        ("list, metadata", list(metadata)),
        ("list, metadata in protobuf", list(metadata_protobuf)),
        ("list, gzip", get(MANY, &gzip)),
        ("watch from the beginning", get(&format!("{MANY}?watch=true&resourceVersion=0"), &[])),
        ("CRD, create", create(definitions, bytes(large_definition()))),
        ("SubjectAccessReview", create(review_path, bytes(review()))),
        ("OpenAPI v2", get("/openapi/v2", &[])),
        ("OpenAPI v3", get("/openapi/v3/apis/apps/v1", &[])),
    ];
    let mut beyond = Vec::new();
    for ((name, limit), (row, found)) in LIMITS.iter().zip(&measured) {
        assert_eq!(name, row, "the table and the requests are in one order");
        let size = found.request_bytes.max(found.answer_bytes);
        let tenths = found.peak_bytes.saturating_sub(BASE_BYTES) * 10 / size.max(1);
        let line = format!(
            "{name}: {}.{} of {limit} times; request {}, answer {}, held {}",
            tenths / 10,
            tenths % 10,
            found.request_bytes,
            found.answer_bytes,
            found.peak_bytes
        );
        println!("{line}");
        if found.peak_bytes > BASE_BYTES + limit * size {
            beyond.push(line);
        }
    }
    assert_eq!(LIMITS.len(), measured.len());
    assert!(beyond.is_empty(), "{beyond:#?}");
}
