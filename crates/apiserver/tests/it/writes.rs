//! Create, update, patch, delete.

use futures::StreamExt;
use serde_json::{Value, json};

use crate::harness::{config_map, default_account, pod, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn create_completes_metadata_and_refuses_twins() {
    let s = server().await;
    let made = s.create_config_map("a").await.expect(201);
    let meta = &made["metadata"];
    for field in ["uid", "creationTimestamp", "resourceVersion", "managedFields"] {
        assert!(!meta[field].is_null(), "{field} in {meta}");
    }
    assert_eq!(meta["namespace"], "default");
    s.create_config_map("a").await.refused(409, "AlreadyExists", "configmaps \"a\" already exists");
    let generated = s.post(MAPS, json!({ "metadata": { "generateName": "gen-" } })).await.expect(201);
    let name = generated["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("gen-") && name.len() == 9, "{name}");
    s.post("/api/v1/namespaces/none/configmaps", config_map("a")).await.refused(404, "NotFound", "namespaces \"none\"");
    s.post(MAPS, config_map("Bad_Name")).await.refused(422, "Invalid", "metadata.name: Invalid value: \"Bad_Name\"");
    s.post(MAPS, json!({ "metadata": {} })).await.refused(422, "Invalid", "name or generateName is required");
    let mut other = config_map("b");
    other["metadata"]["namespace"] = "kube-system".into();
    s.post(MAPS, other).await.refused(400, "BadRequest", "the namespace of the provided object does not match");
    let mut wrong = config_map("b");
    wrong["kind"] = "Secret".into();
    assert_eq!(s.post(MAPS, wrong).await.code, 400);
    s.post("/api/v1/configmaps", config_map("b")).await.refused(405, "MethodNotAllowed", "does not allow this method");
    s.post("/api/v1/namespaces/default/nothings", json!({})).await.refused(404, "NotFound", "could not find");
}

/// As upstream's storage does: after admission and validation, without a reason, and not in a dry run.
#[tokio::test]
async fn a_resource_version_is_refused_when_the_object_is_stored() {
    let s = server().await;
    let versioned = |name: &str, version: &str| {
        let mut object = config_map(name);
        object["metadata"]["resourceVersion"] = version.into();
        object
    };
    let refusal = "resourceVersion should not be set on objects to be created";
    s.post(MAPS, versioned("a", "5")).await.refused(500, "", refusal);
    let missing = "/api/v1/namespaces/none/configmaps";
    s.post(missing, versioned("a", "5")).await.refused(404, "NotFound", "namespaces \"none\"");
    s.post(MAPS, versioned("Bad_Name", "5")).await.refused(422, "Invalid", "metadata.name: Invalid value");
    s.post(&format!("{MAPS}?dryRun=All"), versioned("a", "5")).await.expect(201);
    s.get(&format!("{MAPS}/a")).await.expect(404);
    let made = s.post(MAPS, versioned("a", "none")).await.expect(201);
    assert_ne!(made["metadata"]["resourceVersion"], "none");
    s.post(MAPS, versioned("b", "0")).await.expect(201);
}

#[tokio::test]
async fn field_validation_refuses_warns_or_ignores() {
    let s = server().await;
    let strange = |name: &str| json!({ "metadata": { "name": name }, "strange": 1 });
    let strict = s.post(&format!("{MAPS}?fieldValidation=Strict"), strange("a")).await;
    strict.refused(400, "BadRequest", "strict decoding error: unknown field \"strange\"");
    let warned = s.post(MAPS, strange("a")).await;
    assert_eq!(warned.code, 201);
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"strange\\\"\"");
    let ignored = s.post(&format!("{MAPS}?fieldValidation=Ignore"), strange("b")).await;
    assert!(ignored.code == 201 && !ignored.headers.contains_key("warning"));
    s.post(&format!("{MAPS}?fieldValidation=Perhaps"), strange("c")).await.refused(422, "Invalid", "fieldValidation");
}

#[tokio::test]
async fn dry_run_writes_nothing() {
    let s = server().await;
    s.post(&format!("{MAPS}?dryRun=All"), config_map("a")).await.expect(201);
    s.get(&format!("{MAPS}/a")).await.refused(404, "NotFound", "configmaps \"a\" not found");
    s.create_config_map("a").await.expect(201);
    s.patch("merge-patch", &format!("{MAPS}/a?dryRun=All"), json!({ "data": { "k": "w" } })).await.expect(200);
    s.delete(&format!("{MAPS}/a?dryRun=All"), Value::Null).await.expect(200);
    assert_eq!(s.get(&format!("{MAPS}/a")).await.expect(200)["data"]["k"], "v");
    s.post(&format!("{MAPS}?dryRun=Some"), config_map("b")).await.refused(422, "Invalid", "dryRun");
}

#[tokio::test]
async fn update_checks_versions_and_keeps_what_is_the_servers() {
    let s = server().await;
    let path = format!("{MAPS}/a");
    let first = s.create_config_map("a").await.expect(201);
    let mut second = first.clone();
    second["data"]["k"] = "w".into();
    second["metadata"]["uid"] = first["metadata"]["uid"].clone();
    second["metadata"]["creationTimestamp"] = "2000-01-01T00:00:00Z".into();
    let stored = s.put(&path, second.clone()).await.expect(200);
    assert_eq!(stored["metadata"]["creationTimestamp"], first["metadata"]["creationTimestamp"]);
    assert_ne!(stored["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    s.put(&path, second).await.refused(409, "Conflict", "the object has been modified; please apply your changes");
    let same = s.put(&path, stored.clone()).await.expect(200);
    assert_eq!(same["metadata"]["resourceVersion"], stored["metadata"]["resourceVersion"]);
    let mut unconditional = config_map("a");
    unconditional["data"]["k"] = "x".into();
    assert_eq!(s.put(&path, unconditional.clone()).await.expect(200)["data"]["k"], "x");
    unconditional["metadata"]["uid"] = "other".into();
    s.put(&path, unconditional).await.refused(409, "Conflict", "Precondition failed: UID in precondition: other");
    s.put(&path, config_map("b")).await.refused(400, "BadRequest", "does not match the name on the URL");
    s.put(&format!("{MAPS}/none"), config_map("none")).await.refused(404, "NotFound", "");
}

#[tokio::test]
async fn patches_of_all_types() {
    let s = server().await;
    let path = format!("{MAPS}/a");
    s.create_config_map("a").await.expect(201);
    let merged = s.patch("merge-patch", &path, json!({ "data": { "k": null, "m": "1" } })).await.expect(200);
    assert_eq!(merged["data"], json!({ "m": "1" }));
    let patched =
        s.patch("json-patch", &path, json!([{ "op": "add", "path": "/data/j", "value": "2" }])).await.expect(200);
    assert_eq!(patched["data"], json!({ "m": "1", "j": "2" }));
    let strategic = s.patch("strategic-merge-patch", &path, json!({ "data": { "s": "3" } })).await.expect(200);
    assert_eq!(strategic["data"], json!({ "m": "1", "j": "2", "s": "3" }));
    let mistyped = s.patch("strategic-merge-patch", &path, json!({ "metadata": { "labels": "x" } })).await;
    let told = "patch: Invalid value: \"map[metadata:map[labels:x]]\": cannot restore map from string";
    mistyped.refused(422, "Invalid", told);
    assert_eq!(s.patch("unknown-patch", &path, json!({})).await.code, 415);
    s.patch("apply", &path, json!({})).await.refused(422, "Invalid", "fieldManager: Required value");
    let applied = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "z" }, "data": { "a": "1" } });
    s.patch("apply", &format!("{MAPS}/z?fieldManager=one"), applied.clone()).await.expect(201);
    let mut other = applied;
    other["data"]["a"] = "2".into();
    let conflict = s.patch("apply", &format!("{MAPS}/z?fieldManager=two"), other.clone()).await;
    conflict.refused(409, "Conflict", "conflict with \"one\"");
    let forced = s.patch("apply", &format!("{MAPS}/z?fieldManager=two&force=true"), other).await.expect(200);
    assert_eq!(forced["data"]["a"], "2");
}

#[tokio::test]
async fn concurrent_patches_all_land() {
    let s = server().await;
    s.create_config_map("a").await.expect(201);
    let path = format!("{MAPS}/a");
    let patches = (0..20).map(|i| {
        let (s, path) = (&s, &path);
        async move { s.patch("merge-patch", path, json!({ "data": { format!("k{i}"): "v" } })).await.expect(200) }
    });
    futures::future::join_all(patches).await;
    assert_eq!(s.get(&path).await.expect(200)["data"].as_object().unwrap().len(), 21);
}

#[tokio::test]
async fn deletion_waits_for_finalizers_and_checks_preconditions() {
    let s = server().await;
    let path = format!("{MAPS}/a");
    let mut held = config_map("a");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let made = s.post(MAPS, held).await.expect(201);
    let wrong = json!({ "preconditions": { "uid": "wrong" } });
    let words = "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (wrong) does not match";
    s.delete(&path, wrong).await.refused(409, "Conflict", words);
    let marked = s.delete(&path, Value::Null).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    assert_eq!(marked["metadata"]["uid"], made["metadata"]["uid"]);
    s.patch("merge-patch", &path, json!({ "metadata": { "finalizers": null } })).await.expect(200);
    s.get(&path).await.refused(404, "NotFound", "");
    s.create_config_map("b").await.expect(201);
    let status = s.delete(&format!("{MAPS}/b"), Value::Null).await.expect(200);
    assert_eq!((status["kind"].as_str(), status["details"]["kind"].as_str()), (Some("Status"), Some("configmaps")));
    s.create_config_map("c").await.expect(201);
    let foreground = json!({ "propagationPolicy": "Foreground" });
    let marked = s.delete(&format!("{MAPS}/c"), foreground).await.expect(200);
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
}

#[tokio::test]
async fn pods_go_gracefully() {
    let s = server().await;
    default_account(&s).await;
    let pods = "/api/v1/namespaces/default/pods";
    let mut bound = pod("a");
    bound["spec"]["nodeName"] = "n".into();
    let made = s.post(pods, bound).await.expect(201);
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    assert_eq!(made["spec"]["priority"], 0);
    assert!(made["spec"]["volumes"][0]["name"].as_str().unwrap().starts_with("kube-api-access-"));
    let marked = s.delete(&format!("{pods}/a"), Value::Null).await.expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let shorter = s.delete(&format!("{pods}/a"), json!({ "gracePeriodSeconds": 5 })).await.expect(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    s.delete(&format!("{pods}/a"), json!({ "gracePeriodSeconds": 0 })).await.expect(200);
    s.get(&format!("{pods}/a")).await.refused(404, "NotFound", "");
}

#[tokio::test]
async fn a_forced_deletion_says_so_in_its_answer_and_to_whoever_watches() {
    let s = server().await;
    default_account(&s).await;
    let pods = "/api/v1/namespaces/default/pods";
    let grace = |pod: &Value| pod["metadata"]["deletionGracePeriodSeconds"].clone();
    for first in [None, Some(600)] {
        let mut bound = pod("a");
        bound["spec"]["nodeName"] = "n".into();
        let made = s.post(pods, bound).await.expect(201);
        if let Some(seconds) = first {
            s.delete(&format!("{pods}/a"), json!({ "gracePeriodSeconds": seconds })).await.expect(200);
        }
        let version = s.get(&format!("{pods}/a")).await.expect(200)["metadata"]["resourceVersion"].clone();
        let mut watch = s.watch(&format!("{pods}?watch=1&resourceVersion={}", version.as_str().unwrap())).await;
        let preconditions = json!({ "uid": made["metadata"]["uid"], "resourceVersion": version });
        let options = json!({ "gracePeriodSeconds": 0, "preconditions": preconditions });
        let mut dry = options.clone();
        dry["dryRun"] = json!(["All"]);
        let tried = s.delete(&format!("{pods}/a"), dry).await.expect(200);
        assert_eq!(grace(&tried), 0);
        let gone = s.delete(&format!("{pods}/a"), options).await.expect(200);
        assert!(gone["metadata"]["deletionTimestamp"].is_string(), "{gone}");
        assert_eq!((grace(&gone), &gone["metadata"]["generation"]), (0.into(), &json!(2)));
        s.get(&format!("{pods}/a")).await.refused(404, "NotFound", "");
        for kind in [api::WatchKind::Modified, api::WatchKind::Deleted] {
            let event = watch.next().await.unwrap().unwrap();
            assert_eq!((event.kind, grace(&event.object.value())), (kind, 0.into()));
        }
    }
}

#[tokio::test]
async fn collections_go_by_selector() {
    let s = server().await;
    for (name, label) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut map = config_map(name);
        map["metadata"]["labels"] = json!({ "l": label });
        s.post(MAPS, map).await.expect(201);
    }
    let gone = s.delete(&format!("{MAPS}?labelSelector=l%3Dx&limit=1"), Value::Null).await.expect(200);
    assert_eq!(gone["items"].as_array().unwrap().len(), 1);
    // Less than no time counts as some.
    let hasty = json!({ "gracePeriodSeconds": -1 });
    let gone = s.delete(&format!("{MAPS}?labelSelector=l%3Dx"), hasty).await.expect(200);
    assert_eq!(gone["items"].as_array().unwrap().len(), 1);
    let left = s.get(MAPS).await.expect(200);
    let names: Vec<_> =
        left["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["c"]);
}

#[tokio::test]
async fn bad_bodies_are_refused_precisely() {
    let s = server().await;
    let json = "application/json";
    let check = |answer: crate::harness::Answer, code: u16| assert_eq!(answer.code, code, "{}", answer.value);
    check(s.send("POST", MAPS, &[("content-type", json)], b"{".to_vec()).await, 400);
    check(s.send("POST", MAPS, &[("content-type", json)], b"[]".to_vec()).await, 400);
    check(s.send("POST", MAPS, &[("content-type", json)], vec![0xff, 0xfe]).await, 400);
    check(s.send("POST", MAPS, &[("content-type", json)], Vec::new()).await, 400);
    check(s.send("POST", MAPS, &[("content-type", "text/plain")], b"{}".to_vec()).await, 415);
    check(s.send("POST", MAPS, &[("content-type", json)], vec![b' '; 3 << 20 | 1]).await, 413);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    check(s.send("POST", MAPS, &[("content-type", json)], deep.into_bytes()).await, 400);
    check(s.get(&format!("{MAPS}?continue=junk")).await, 400);
    check(s.get(&format!("{MAPS}?labelSelector=a%3D%3D%3D")).await, 400);
    check(s.get(&format!("{MAPS}?fieldSelector=data%3Dx")).await, 400);
    check(s.get(&format!("{MAPS}?limit=x")).await, 400);
    check(s.send("GET", MAPS, &[("accept", "text/html")], Vec::new()).await, 406);
}

#[tokio::test]
async fn a_job_selects_its_pods_by_its_uid() {
    let s = server().await;
    let template = json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] } });
    let job = json!({ "metadata": { "name": "j" }, "spec": { "template": template } });
    let made = s.post("/apis/batch/v1/namespaces/default/jobs", job).await.expect(201);
    let uid = &made["metadata"]["uid"];
    assert_eq!(&made["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"], uid);
    assert_eq!(&made["spec"]["template"]["metadata"]["labels"]["controller-uid"], uid);
}

#[tokio::test]
async fn an_apply_with_unknown_fields_is_refused() {
    let s = server().await;
    let unknown = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a", "unknownMeta": "x" }, "data": { "k": "v" },
    });
    let path = "/api/v1/namespaces/default/configmaps/a?fieldManager=m";
    let refused = s.patch("apply", path, unknown).await;
    refused.refused(500, "", ".metadata.unknownMeta: field not declared in schema");
    let twice = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: v\n  k: w\n".to_vec();
    let yaml = [("content-type", "application/apply-patch+yaml")];
    let strict = s.send("PATCH", &format!("{path}&fieldValidation=Strict"), &yaml, twice).await;
    strict.refused(400, "BadRequest", "line 7: key \"k\" already set in map");
}

#[tokio::test]
async fn nothing_is_added_to_what_was_sent() {
    let s = server().await;
    let mut made = s.create_config_map("a").await.expect(201);
    made.as_object_mut().unwrap().remove("metadata");
    let mut sent = crate::harness::config_map("a");
    sent.as_object_mut().unwrap().remove("metadata");
    assert_eq!(made, sent);
}

#[tokio::test]
async fn whoever_deletes_a_job_is_told_of_its_pods() {
    let s = server().await;
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    for (options, warned) in [(Value::Null, true), (json!({ "propagationPolicy": "Background" }), false)] {
        let spec = json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] });
        let job = json!({ "metadata": { "name": "j" }, "spec": { "template": { "spec": spec } } });
        s.post(jobs, job).await.expect(201);
        let deleted = s.delete(&format!("{jobs}/j"), options.clone()).await;
        let warning = deleted.headers.get("warning").map(|text| text.to_str().unwrap());
        assert_eq!(warning.is_some_and(|text| text.contains("child pods are preserved by default")), warned);
        let finalizers = deleted.expect(200)["metadata"]["finalizers"].clone();
        assert_eq!(finalizers.to_string().contains("orphan"), warned, "{options}");
        s.patch("merge-patch", &format!("{jobs}/j"), json!({ "metadata": { "finalizers": null } })).await;
    }
}

#[tokio::test]
async fn a_request_may_say_how_long_it_may_take() {
    let s = server().await;
    for fine in ["0s", "3m", "1.5s", ""] {
        assert_eq!(s.get(&format!("/version?timeout={fine}")).await.code, 200, "{fine}");
    }
    let words = "invalid timeout specified in the request URL - time: invalid duration \"invalid\"";
    s.get("/version?timeout=invalid").await.refused(400, "BadRequest", words);
}
