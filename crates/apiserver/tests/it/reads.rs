//! Get, list, tables, forms, discovery.

use serde_json::{Value, json};

use crate::harness::{config_map, server, widgets};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn pages_show_one_moment() {
    let s = server().await;
    for i in 0..5 {
        s.create_config_map(&format!("m{i}")).await.expect(201);
    }
    let first = s.get(&format!("{MAPS}?limit=2")).await.expect(200);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let token = first["metadata"]["continue"].as_str().unwrap().to_string();
    // Neither a new object nor a deleted one shows up in the later pages.
    s.create_config_map("m2a").await.expect(201);
    s.delete(&format!("{MAPS}/m3"), json!(null)).await.expect(200);
    let second = s.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    let third = second["metadata"]["continue"].as_str().unwrap();
    let last = s.get(&format!("{MAPS}?limit=2&continue={third}")).await.expect(200);
    let names = |v: &serde_json::Value| -> Vec<String> {
        v["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!([names(&first), names(&second), names(&last)].concat(), ["m0", "m1", "m2", "m3", "m4"]);
    assert_eq!(last["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert!(last["metadata"]["continue"].is_null());
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = s.get(&format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact")).await.expect(200);
    assert_eq!(names(&exact).len(), 5);
    // Not older than the first page is a promise; a read of the newest state makes it more than that.
    s.get(MAPS).await.expect(200);
    let newer = s.get(&format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=NotOlderThan")).await.expect(200);
    assert_eq!(names(&newer), ["m0", "m1", "m2", "m2a", "m4"]);
}

#[tokio::test]
async fn selectors_narrow_lists() {
    let s = server().await;
    for (name, app) in [("a", "x"), ("b", "y")] {
        let mut map = config_map(name);
        map["metadata"]["labels"] = json!({ "app": app });
        s.post(MAPS, map).await.expect(201);
    }
    let count = |query: &'static str| {
        let s = &s;
        async move { s.get(&format!("/api/v1/configmaps?{query}")).await.expect(200)["items"].as_array().unwrap().len() }
    };
    assert_eq!(count("labelSelector=app%3Dx").await, 1);
    assert_eq!(count("labelSelector=app%20in%20(x,y)").await, 2);
    assert_eq!(count("fieldSelector=metadata.name%3Da").await, 1);
    assert_eq!(count("fieldSelector=metadata.name%3Da,metadata.namespace%21%3Ddefault").await, 0);
}

#[tokio::test]
async fn forms_of_an_answer() {
    let s = server().await;
    s.create_config_map("a").await.expect(201);
    let path = format!("{MAPS}/a");
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let one = s.send("GET", &path, &[("accept", table)], Vec::new()).await.expect(200);
    assert_eq!((one["kind"].as_str(), one["rows"][0]["cells"][0].as_str()), (Some("Table"), Some("a")));
    assert_eq!(one["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let columns = one["columnDefinitions"].as_array().unwrap().len();
    assert_eq!(one["rows"][0]["cells"].as_array().unwrap().len(), columns);
    let bare = s.send("GET", &format!("{MAPS}?includeObject=None"), &[("accept", table)], Vec::new()).await.expect(200);
    assert!(bare["rows"][0]["object"].is_null());
    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let list = s.send("GET", MAPS, &[("accept", partial)], Vec::new()).await.expect(200);
    assert!(list["items"][0]["data"].is_null() && list["items"][0]["metadata"]["name"] == "a");
    let yaml = s.send("GET", &path, &[("accept", "application/yaml")], Vec::new()).await;
    assert!(String::from_utf8_lossy(&yaml.bytes).contains("kind: ConfigMap"), "{:?}", yaml.bytes);
    let protobuf = s.send("GET", &path, &[("accept", "application/vnd.kubernetes.protobuf")], Vec::new()).await;
    assert!(protobuf.bytes.starts_with(b"k8s\0"), "{:?}", protobuf.headers);
    let kind = ("content-type", "application/vnd.kubernetes.protobuf");
    s.delete(&path, json!(null)).await.expect(200);
    let lists = s.send("GET", MAPS, &[("accept", "application/vnd.kubernetes.protobuf")], Vec::new()).await;
    assert!(lists.bytes.starts_with(b"k8s\0"));
    // What came out as protobuf goes in again, once the version is gone.
    let decoded = api::codec::decode(&protobuf.bytes, api::codec::ContentType::Protobuf, None).unwrap().value;
    let mut fresh = decoded;
    fresh["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let bytes = api::codec::encode(&fresh, api::codec::ContentType::Protobuf).unwrap();
    assert_eq!(s.send("POST", MAPS, &[kind], bytes).await.expect(201)["data"]["k"], "v");
}

/// Upstream's lists of built-in kinds say once what their items are; those of custom resources say it of each.
#[tokio::test]
async fn items_of_built_in_kinds_leave_their_type_to_the_list() {
    let s = server().await;
    s.create_config_map("a").await.expect(201);
    s.create_config_map("b").await.expect(201);
    let event = json!({
        "metadata": { "name": "e" }, "reason": "Because", "involvedObject": { "kind": "Pod", "namespace": "default" },
    });
    s.post("/api/v1/namespaces/default/events", event).await.expect(201);
    let autoscaler = json!({
        "metadata": { "name": "h" },
        "spec": { "maxReplicas": 2, "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "d" } },
    });
    s.post("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", autoscaler).await.expect(201);
    let widgets = &*widgets(&s).await;
    let check = async |path: &str, accept: &str, of: [Option<&str>; 2]| {
        let answer = s.send("GET", path, &[("accept", accept)], Vec::new()).await;
        let list: Value = match accept {
            "application/json" => answer.expect(200),
            _ => api::codec::decode(&answer.bytes, api::codec::ContentType::Yaml, None).unwrap().value,
        };
        let items = list["items"].as_array().unwrap();
        assert!(!items.is_empty() && items.iter().all(|i| i["metadata"]["name"].is_string()), "{path}: {list}");
        for item in items {
            assert_eq!(["kind", "apiVersion"].map(|f| item[f].as_str()), of, "{path} {accept}");
        }
    };
    for accept in ["application/json", "application/yaml"] {
        for path in [
            MAPS,
            "/api/v1/namespaces/default/configmaps?pretty=1",
            "/api/v1/configmaps?limit=1",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "/api/v1/events",
            "/apis/events.k8s.io/v1/events",
            "/apis/autoscaling/v1/horizontalpodautoscalers",
            "/apis/autoscaling/v2/horizontalpodautoscalers",
            "/api/v1/componentstatuses",
        ] {
            check(path, accept, [None, None]).await;
        }
        check(widgets, accept, [Some("Widget"), Some("example.com/v1")]).await;
    }
    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let list = s.send("GET", MAPS, &[("accept", partial)], Vec::new()).await.expect(200);
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let path = format!("{MAPS}?includeObject=Object");
    let rows = s.send("GET", &path, &[("accept", table)], Vec::new()).await.expect(200);
    assert_eq!(rows["rows"][0]["object"]["kind"], "ConfigMap");
    let protobuf = s.send("GET", MAPS, &[("accept", "application/vnd.kubernetes.protobuf")], Vec::new()).await;
    let list = api::codec::decode(&protobuf.bytes, api::codec::ContentType::Protobuf, None).unwrap().value;
    assert_eq!(
        (list["kind"].as_str(), list["items"][0]["metadata"]["name"].as_str()),
        (Some("ConfigMapList"), Some("a"))
    );
    let gone = s.delete(MAPS, json!(null)).await.expect(200);
    assert!(gone["items"][0]["kind"].is_null() && gone["kind"] == "ConfigMapList", "{gone}");
}

#[tokio::test]
async fn events_and_autoscalers_are_seen_in_two_versions() {
    let s = server().await;
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "e" }, "reason": "Because", "message": "text",
        "involvedObject": { "kind": "Pod", "name": "p", "namespace": "default" }, "type": "Normal",
        "source": { "component": "c" }, "count": 3,
    });
    s.post("/api/v1/namespaces/default/events", event).await.expect(201);
    let other = s.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.expect(200);
    assert_eq!(other["apiVersion"], "events.k8s.io/v1");
    assert_eq!((other["note"].as_str(), other["regarding"]["name"].as_str()), (Some("text"), Some("p")), "{other}");
    // Each form by its own names, in whatever order they are asked.
    for path in [
        "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp",
        "/apis/events.k8s.io/v1/namespaces/default/events?fieldSelector=regarding.name%3Dp",
    ] {
        assert_eq!(s.get(path).await.expect(200)["items"].as_array().unwrap().len(), 1, "{path}");
    }
    let foreign = s.get("/apis/events.k8s.io/v1/events?fieldSelector=involvedObject.name%3Dp").await;
    foreign.refused(400, "BadRequest", "field label not supported: involvedObject.name");
}

#[tokio::test]
async fn discovery_names_what_is_served() {
    let s = server().await;
    let core = s.get("/api/v1").await.expect(200);
    let pods = core["resources"].as_array().unwrap().iter().find(|r| r["name"] == "pods").unwrap().clone();
    assert_eq!((pods["shortNames"][0].as_str(), pods["namespaced"].as_bool()), (Some("po"), Some(true)));
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let all = s.send("GET", "/apis", &[("accept", accept)], Vec::new()).await;
    let tag = all.headers["etag"].to_str().unwrap().to_string();
    let apps = all.value["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "apps").unwrap().clone();
    assert_eq!(apps["versions"][0]["freshness"], "Current");
    let again = s.send("GET", "/apis", &[("accept", accept), ("if-none-match", &tag)], Vec::new()).await;
    assert_eq!((again.code, again.bytes.len()), (304, 0));
    let autoscaling = s.get("/apis/autoscaling").await.expect(200);
    assert_eq!(autoscaling["preferredVersion"]["version"], "v2");
    assert_eq!(s.get("/version").await.expect(200)["minor"], "35");
    for path in ["/healthz", "/livez", "/readyz", "/readyz/ping"] {
        assert_eq!(&s.get(path).await.bytes[..], b"ok", "{path}");
    }
    assert!(String::from_utf8_lossy(&s.get("/metrics").await.bytes).contains("apiserver_request_total{"));
    let passed = "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"livez\"} 1\n";
    assert!(String::from_utf8_lossy(&s.get("/metrics/slis").await.bytes).contains(passed));
    let index = s.get("/openapi/v3").await.expect(200);
    let address = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().to_string();
    assert!(s.get(&address).await.expect(200)["components"]["schemas"]["io.k8s.api.core.v1.Pod"].is_object());
}

/// Below a built-in group its router says that there is nothing; everywhere else nobody is responsible.
#[tokio::test]
async fn paths_that_nobody_serves_are_not_found_in_upstreams_words() {
    let s = server().await;
    let widgets = widgets(&s).await;
    for path in [
        "/api/v2",
        "/api/v2/pods",
        "/api/v1/nothing",
        "/api/v1/namespaces/default/nothing/x",
        "/api/v1/namespaces/default/nodes",
        "/api/v1/namespaces/default/pods/x/nothing",
        "/apis/apps/v9",
        "/apis/apps/v9/deployments",
        "/apis/apps/v1/nothing",
        "/version/x",
    ] {
        let answer = s.get(path).await;
        let expected = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound",
            "message": "the server could not find the requested resource", "details": {}, "code": 404,
        });
        assert_eq!((answer.code, &answer.value), (404, &expected), "{path}");
    }
    for path in [
        "/nonexistent",
        "/nonexistent/x",
        "/apis/nogroup",
        "/apis/nogroup/v1",
        "/apis/nogroup/v1/things",
        "/apis/nogroup/v1/namespaces/default/things/x",
        "/apis/example.com/v9",
        "/apis/example.com/v9/widgets",
        "/apis/example.com/v1/nothing",
        "/healthz/nothing",
        "/openid/v1/nothing",
        "/openapi/v4",
        "/debug/nothing",
    ] {
        let answer = s.get(path).await;
        assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{path}");
        answer.said(404, "404 page not found\n");
        let nobody = s.anonymous().get(path).await;
        nobody.refused(403, "Forbidden", "User \"system:anonymous\" cannot ");
    }
    // A custom resource is not there without its namespace; what it has no part for is told as of the object.
    s.post("/apis/example.com/v1/widgets", json!({})).await.said(404, "404 page not found\n");
    s.get(&format!("{widgets}/w/status")).await.refused(404, "NotFound", "widgets.example.com \"w\" not found");
    s.get("/openapi/v3/apis/nogroup/v1").await.said(404, "");
    assert_eq!(s.send("HEAD", "/nonexistent", &[], Vec::new()).await.headers["content-length"], "19");
}

#[tokio::test]
async fn strangers_learn_nothing() {
    let s = server().await;
    let nobody = s.anonymous();
    nobody.get(MAPS).await.refused(403, "Forbidden", "User \"system:anonymous\" cannot list resource \"configmaps\"");
    assert_eq!(nobody.get("/healthz").await.code, 200);
    let forged = s.send("GET", MAPS, &[("authorization", "Bearer nonsense")], Vec::new()).await;
    assert_eq!(forged.code, 200, "the certificate wins over the token");
    let token = nobody.send("GET", MAPS, &[("authorization", "Bearer nonsense")], Vec::new()).await;
    token.refused(401, "Unauthorized", "Unauthorized");
}

#[tokio::test]
async fn options_that_do_not_go_together_are_refused() {
    let s = server().await;
    let check = async |query: &str, code: u16, reason: &str, words: &str| {
        s.get(&format!("{MAPS}?{query}")).await.refused(code, reason, words);
    };
    check("resourceVersionMatch=Exact", 422, "Invalid", "forbidden unless resourceVersion is provided").await;
    let words = "resourceVersionMatch is forbidden when continue is provided";
    check("resourceVersionMatch=Exact&resourceVersion=5&continue=x", 422, "Invalid", words).await;
    let words = "Unsupported value: \"Most\": supported values: \"\", \"Exact\", \"NotOlderThan\"";
    check("resourceVersionMatch=Most&resourceVersion=5", 422, "Invalid", words).await;
    check("resourceVersionMatch=Exact&resourceVersion=0", 422, "Invalid", "is forbidden for resourceVersion").await;
    check("sendInitialEvents=true", 422, "Invalid", "sendInitialEvents is forbidden for list").await;
    let words = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
    check("watch=1&sendInitialEvents=true", 422, "Invalid", words).await;
    let words = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
    check("watch=1&resourceVersionMatch=NotOlderThan", 422, "Invalid", words).await;
    let words = "Unsupported value: \"Exact\": supported values: \"NotOlderThan\"";
    check("watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", 422, "Invalid", words).await;
    check("limit=many", 400, "BadRequest", "strconv.ParseInt: parsing \"many\": invalid syntax").await;
    let selector = s.get(&format!("{MAPS}?labelSelector=a%20b")).await;
    let message = "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt";
    assert_eq!((selector.code, &selector.value["message"]), (400, &json!(message)));
}

#[tokio::test]
async fn methods_fit_their_paths() {
    let s = server().await;
    s.create_config_map("a").await.expect(201);
    let one = format!("{MAPS}/a");
    for (method, path) in [("PUT", MAPS), ("PATCH", MAPS), ("POST", &one), ("OPTIONS", &one)] {
        let refused = s.send(method, path, &[("content-type", "application/json")], b"{}".to_vec()).await;
        refused.refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource");
    }
    let whole = s.get(&one).await;
    let head = s.send("HEAD", &one, &[], Vec::new()).await;
    assert_eq!((head.code, head.bytes.len()), (405, 0), "as upstream's");
    // Every answer can be found again.
    let named = s.send("GET", &one, &[("audit-id", "mine")], Vec::new()).await;
    assert_eq!(named.headers["audit-id"], "mine");
    assert_eq!(whole.headers["audit-id"].len(), 36);
}

#[tokio::test]
async fn component_statuses_say_who_is_there() {
    let s = server().await;
    let statuses = async || {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let shown = s.send("GET", "/api/v1/componentstatuses", &[("accept", table)], Vec::new()).await.expect(200);
        let cells = shown["rows"].as_array().unwrap().iter().map(|row| row["cells"].clone());
        Value::from_iter(cells)
    };
    let absent = |name: &str| json!([name, "Unhealthy", "", format!("nobody holds the Lease kube-system/kube-{name}")]);
    let store = json!(["etcd-0", "Healthy", "ok", ""]);
    assert_eq!(statuses().await, json!([absent("controller-manager"), absent("scheduler"), store]));
    let spec =
        json!({ "holderIdentity": "a", "leaseDurationSeconds": 3600, "renewTime": "2999-01-01T00:00:00.000000Z" });
    let lease = json!({ "metadata": { "name": "kube-scheduler" }, "spec": spec });
    s.post("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease).await.expect(201);
    let scheduler = json!(["scheduler", "Healthy", "ok", ""]);
    assert_eq!(statuses().await, json!([absent("controller-manager"), scheduler, store]));
    let one = s.get("/api/v1/componentstatuses/scheduler").await.expect(200);
    assert_eq!((&one["kind"], &one["conditions"][0]["status"]), (&json!("ComponentStatus"), &json!("True")));
    s.get("/api/v1/componentstatuses/other").await.expect(404);
}
