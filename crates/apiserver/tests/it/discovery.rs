//! What the server says it serves: group by group, and all at once in the aggregated form.
//! Compared with each other here; `make test-reference` compares them with the published documents.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{DEFINITIONS, Server, any_object, definition, server};

/// As the raw request of a script asks, and as client-go does, which would take the plain form too.
const ACCEPTS: [&str; 2] = [
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
];

/// One resource of each group that every cluster has.
const SOME: [(&str, &str, &str); 21] = [
    ("", "v1", "namespaces"),
    ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "v1", "apiservices"),
    ("apps", "v1", "deployments"),
    ("authentication.k8s.io", "v1", "tokenreviews"),
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews"),
    ("autoscaling", "v1", "horizontalpodautoscalers"),
    ("autoscaling", "v2", "horizontalpodautoscalers"),
    ("batch", "v1", "jobs"),
    ("certificates.k8s.io", "v1", "certificatesigningrequests"),
    ("coordination.k8s.io", "v1", "leases"),
    ("discovery.k8s.io", "v1", "endpointslices"),
    ("events.k8s.io", "v1", "events"),
    ("flowcontrol.apiserver.k8s.io", "v1", "flowschemas"),
    ("networking.k8s.io", "v1", "ingresses"),
    ("node.k8s.io", "v1", "runtimeclasses"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "v1", "roles"),
    ("scheduling.k8s.io", "v1", "priorityclasses"),
    ("storage.k8s.io", "v1", "csinodes"),
];

/// Group, version, name, kind, scope and verbs of a resource or subresource.
type Row = (String, String, String, String, bool, BTreeSet<String>);

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn verbs(value: &Value) -> BTreeSet<String> {
    value["verbs"].as_array().into_iter().flatten().map(text).collect()
}

/// By the plain documents, one after the other.
async fn plain(s: &Server) -> BTreeSet<Row> {
    let mut paths = vec![(String::new(), "v1".to_string(), "/api/v1".to_string())];
    for group in s.get("/apis").await.expect(200)["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let path = format!("/apis/{}", text(&version["groupVersion"]));
            paths.push((text(&group["name"]), text(&version["version"]), path));
        }
    }
    let mut rows = BTreeSet::new();
    for (group, version, path) in paths {
        let list = s.get(&path).await.expect(200);
        let name = path.trim_start_matches("/apis/").trim_start_matches("/api/");
        assert_eq!((&list["kind"], &list["groupVersion"]), (&json!("APIResourceList"), &json!(name)));
        for r in list["resources"].as_array().unwrap() {
            let namespaced = r["namespaced"] == true;
            rows.insert((group.clone(), version.clone(), text(&r["name"]), text(&r["kind"]), namespaced, verbs(r)));
        }
    }
    rows
}

/// By the two aggregated documents.
async fn aggregated(s: &Server, accept: &str) -> BTreeSet<Row> {
    let mut rows = BTreeSet::new();
    for path in ["/api", "/apis"] {
        let answer = s.send("GET", path, &[("accept", accept)], Vec::new()).await;
        let form = answer.headers["content-type"].to_str().unwrap().to_string();
        assert_eq!(form, ACCEPTS[0], "{path}");
        let list = answer.expect(200);
        assert_eq!(
            (&list["kind"], &list["apiVersion"]),
            (&json!("APIGroupDiscoveryList"), &json!("apidiscovery.k8s.io/v2"))
        );
        for group in list["items"].as_array().unwrap() {
            for version in group["versions"].as_array().unwrap() {
                assert_eq!(version["freshness"], "Current");
                let (group, version_name) = (text(&group["metadata"]["name"]), text(&version["version"]));
                for r in version["resources"].as_array().unwrap() {
                    let (namespaced, resource) = (r["scope"] == "Namespaced", text(&r["resource"]));
                    let row = |name: String, r: &Value| {
                        let kind = text(&r["responseKind"]["kind"]);
                        (group.clone(), version_name.clone(), name, kind, namespaced, verbs(r))
                    };
                    for sub in r["subresources"].as_array().into_iter().flatten() {
                        rows.insert(row(format!("{resource}/{}", text(&sub["subresource"])), sub));
                    }
                    rows.insert(row(resource, r));
                }
            }
        }
    }
    rows
}

fn has(rows: &BTreeSet<Row>, (group, version, resource): (&str, &str, &str)) -> bool {
    rows.iter().any(|(g, v, r, ..)| (g.as_str(), v.as_str(), r.as_str()) == (group, version, resource))
}

#[tokio::test]
async fn both_forms_say_the_same() {
    let s = server().await;
    let plain = plain(&s).await;
    for wanted in SOME {
        assert!(has(&plain, wanted), "{wanted:?}");
    }
    for accept in ACCEPTS {
        let aggregated = aggregated(&s, accept).await;
        let only = |a: &BTreeSet<Row>, b: &BTreeSet<Row>| a.difference(b).cloned().collect::<Vec<_>>();
        assert_eq!((only(&plain, &aggregated), only(&aggregated, &plain)), (vec![], vec![]), "{accept}");
    }
}

#[tokio::test]
async fn custom_resources_are_in_both_forms_and_leave_them() {
    let s = server().await;
    let noxu = ("example.com", "v1", "noxus");
    let crd = definition(noxu.0, "Noxu", "Namespaced", &["v1"], &any_object());
    let tag = async || {
        let answer = s.send("GET", "/apis", &[("accept", ACCEPTS[0])], Vec::new()).await;
        answer.headers["etag"].to_str().unwrap().to_string()
    };
    let before = tag().await;
    s.define(&crd).await;
    assert_ne!(tag().await, before, "clients that keep it must learn of it");
    let found = plain(&s).await;
    assert!(has(&found, noxu));
    for accept in ACCEPTS {
        assert_eq!(aggregated(&s, accept).await, found);
    }
    s.delete(&format!("{DEFINITIONS}/noxus.example.com"), Value::Null).await.expect(200);
    s.until("/apis/example.com", |a| a.code == 404).await;
    for accept in ACCEPTS {
        assert!(!has(&aggregated(&s, accept).await, noxu));
    }
}

#[tokio::test]
async fn every_group_prefers_a_version_it_has() {
    let s = server().await;
    let list = s.get("/apis/").await.expect(200);
    let groups = list["groups"].as_array().unwrap();
    assert!(groups.len() >= 18, "{list}");
    for group in groups {
        let own = s.get(&format!("/apis/{}/", text(&group["name"]))).await.expect(200);
        assert_eq!((&own["name"], &own["kind"]), (&group["name"], &json!("APIGroup")));
        assert_eq!(own["versions"], group["versions"]);
        let versions = own["versions"].as_array().unwrap();
        assert!(versions.iter().any(|v| *v == own["preferredVersion"]), "{own}");
    }
    let definitions = groups.iter().find(|g| g["name"] == "apiextensions.k8s.io").unwrap();
    assert_eq!(definitions["preferredVersion"]["groupVersion"], "apiextensions.k8s.io/v1");
}

#[tokio::test]
async fn the_version_is_two_numbers() {
    let s = server().await;
    let version = s.get("/version").await.expect(200);
    for (field, expected) in [("major", 1), ("minor", 35)] {
        assert_eq!(text(&version[field]).parse::<u32>().ok(), Some(expected), "{version}");
    }
    assert!(text(&version["gitVersion"]).starts_with("v1.35."), "{version}");
}

#[tokio::test]
async fn what_has_no_metadata_is_no_table() {
    let s = server().await;
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "nonResourceAttributes": { "path": "/", "verb": "get" } } });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let headers = [("content-type", "application/json"), ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let refused = s.send("POST", path, &headers, review.to_string().into_bytes()).await;
    refused.refused(406, "NotAcceptable", "only the following media types are accepted");
    s.post(path, review).await.expect(201);
}
