//! Ownership of built-in kinds by the real table, as clusters are known to show it.
//! Neighbour of `update` and `apply`.
//! Every case is data.

use serde_json::{Value, json};

use super::{
    Options, apply,
    fixture::{at, owners},
    track_update,
};
use crate::schema::{Node, TypeId, builtin};

fn root(object: &Value) -> TypeId {
    let api_version = object["apiVersion"].as_str().unwrap();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    builtin().find_kind(group, version, object["kind"].as_str().unwrap()).unwrap()
}

/// What the creator of `object` owns.
fn check(mut object: Value, expected: Value) {
    let api_version = object["apiVersion"].as_str().unwrap().to_string();
    let root = root(&object);
    track_update(builtin(), root, None, &mut object, "kubectl-create", &api_version, "", at(0));
    assert_eq!(owners(&object), [("kubectl-create Update".to_string(), expected)]);
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
        "spec": {
            "progressDeadlineSeconds": 600, "replicas": 1, "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}, "type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "containers": [{
                        "image": "nginx", "imagePullPolicy": "Always", "name": "nginx", "resources": {},
                        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                    }],
                    "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
                    "securityContext": {}, "terminationGracePeriodSeconds": 30,
                },
            },
        },
        "status": {},
    })
}

#[test]
fn creators_own_what_clusters_show() {
    check(
        deployment(),
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:progressDeadlineSeconds": {}, "f:replicas": {}, "f:revisionHistoryLimit": {}, "f:selector": {},
                "f:strategy": {
                    "f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}}, "f:type": {},
                },
                "f:template": {
                    "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                    "f:spec": {
                        "f:containers": {"k:{\"name\":\"nginx\"}": {
                            ".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {}, "f:resources": {},
                            "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {},
                        }},
                        "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {},
                        "f:terminationGracePeriodSeconds": {},
                    },
                },
            },
        }),
    );
    check(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}}),
        json!({"f:data": {".": {}, "f:a": {}}}),
    );
    check(
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {
                "internalTrafficPolicy": "Cluster", "sessionAffinity": "None", "type": "ClusterIP",
                "selector": {"a": "b"}, "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
            },
            "status": {"loadBalancer": {}},
        }),
        json!({"f:spec": {
            "f:internalTrafficPolicy": {}, "f:sessionAffinity": {}, "f:type": {}, "f:selector": {},
            "f:ports": {
                ".": {},
                "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}},
            },
        }}),
    );
}

#[test]
fn a_deployment_can_be_shared() {
    let options =
        |manager, force| Options { manager, force, subresource: "", api_version: "apps/v1", now: at(1), reset: None };
    let mut live = deployment();
    live["metadata"]["uid"] = json!("1");
    track_update(builtin(), root(&live), None, &mut live, "kubectl-client-side-apply", "apps/v1", "", at(0));
    let config = |replicas: i64, image: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": replicas, "template": {"spec": {"containers": [
                {"name": "nginx", "image": image, "ports": [{"containerPort": 80}]},
            ]}}},
        })
    };
    let error = apply(builtin(), root(&live), Some(&live), &config(3, "nginx"), options("me", false)).unwrap_err();
    assert_eq!(
        error.message,
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using apps/v1: .spec.replicas"
    );
    let after = apply(builtin(), root(&live), Some(&live), &config(3, "nginx"), options("me", true)).unwrap();
    assert_eq!(after["spec"]["replicas"], 3);
    assert_eq!(after["spec"]["template"]["spec"]["containers"][0]["ports"], json!([{"containerPort": 80}]));
    assert_eq!(after["spec"]["template"]["spec"]["dnsPolicy"], "ClusterFirst");
    let wrong = apply(builtin(), root(&live), Some(&live), &config(3, "x"), options("other", false)).unwrap_err();
    assert!(wrong.message.starts_with("Apply failed with 2 conflicts:"), "{wrong}");
}

#[test]
fn every_kind_takes_a_bare_object() {
    let schema = builtin();
    for ((group, version, kind), root) in &schema.by_kind {
        let metadata = schema.get(*root).field("metadata").map(|f| &f.node);
        if !matches!(metadata, Some(Node::Struct(id)) if schema.get(*id).name.ends_with(".ObjectMeta")) {
            continue;
        }
        let api_version = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
        let bare = json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"name": "x", "labels": {"a": "b"}},
        });
        let options =
            Options { manager: "m", force: false, subresource: "", api_version: &api_version, now: at(0), reset: None };
        let object = apply(schema, *root, None, &bare, options).unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert_eq!(owners(&object)[0].1, json!({"f:metadata": {"f:labels": {"f:a": {}}}}), "{kind}");
        let again = apply(schema, *root, Some(&object), &bare, options).unwrap();
        assert_eq!(again, object);
    }
}
