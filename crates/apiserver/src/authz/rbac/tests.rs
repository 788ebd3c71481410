//! Decisions over objects in a cache, and their speed.

use env::Env;
use http::{Method, Request};
use serde_json::{Value, json};

use super::*;
use crate::{ApiServer, Config, request::body};

async fn server() -> Arc<ApiServer> {
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let env = Env::real();
    let store = Arc::new(store::MemoryStore::new(env.clone()));
    ApiServer::new(Config::in_process(key), store, env).await.unwrap()
}

async fn send(server: &Arc<ApiServer>, user: &User, method: Method, path: &str, object: Value) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let body = if object.is_null() { body::empty() } else { body::full(object.to_string()) };
    let request = ApiServer::in_process_request(user.clone(), request.body(body).unwrap());
    let response = server.handle(request).await;
    let code = response.status().as_u16();
    let bytes = body::read_all(response.into_body(), 1 << 22).await.unwrap();
    // What was written is to be seen by the next decision.
    server.cluster.cache.wait_until_fresh().await.unwrap();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

#[tokio::test]
async fn roles_and_bindings_decide_and_guard_themselves() {
    let server = server().await;
    let admin = User::new("admin", &["system:masters"]);
    let alice = User::new("alice", &[]);
    let list = |user: &User| {
        let (server, user) = (server.clone(), user.clone());
        async move { send(&server, &user, Method::GET, "/api/v1/namespaces/default/pods", Value::Null).await }
    };
    let (code, refusal) = list(&alice).await;
    assert_eq!(code, 403);
    let expected = "pods is forbidden: User \"alice\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"";
    assert_eq!(refusal["message"], expected);

    let binding = |name: &str, kind: &str, role: &str, user: &str| {
        json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        })
    };
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let (code, _) = send(&server, &admin, Method::POST, &bindings, binding("a", "ClusterRole", "admin", "alice")).await;
    assert_eq!(code, 201);
    assert_eq!(list(&alice).await.0, 200);

    // A binding to a role that is not there is named in the refusal.
    let bob = User::new("bob", &[]);
    send(&server, &admin, Method::POST, &bindings, binding("b", "Role", "none", "bob")).await;
    let (_, refusal) = list(&bob).await;
    let message = refusal["message"].as_str().unwrap();
    assert!(message.ends_with(": RBAC: role.rbac.authorization.k8s.io \"none\" not found"), "{message}");

    // An admin of a namespace hands out what they hold, and nothing more.
    let roles = format!("{RBAC}/namespaces/default/roles");
    let role = |name: &str, group: &str, resource: &str, verb: &str| json!({ "metadata": { "name": name }, "rules": [{ "apiGroups": [group], "resources": [resource], "verbs": [verb] }] });
    let (code, _) = send(&server, &alice, Method::POST, &roles, role("held", "", "pods", "get")).await;
    assert_eq!(code, 201);
    let (code, refusal) = send(&server, &alice, Method::POST, &roles, role("more", "", "nodes", "get")).await;
    let expected = "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"alice\" \
                    (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n\
                    {APIGroups:[\"\"], Resources:[\"nodes\"], Verbs:[\"get\"]}";
    assert_eq!((code, refusal["message"].as_str()), (403, Some(expected)));
    let take = binding("c", "ClusterRole", "cluster-admin", "alice");
    let (code, refusal) = send(&server, &alice, Method::POST, &bindings, take).await;
    assert_eq!(code, 403, "{refusal}");
    let (code, _) = send(&server, &alice, Method::POST, &bindings, binding("d", "Role", "held", "carol")).await;
    assert_eq!(code, 201);
    assert_eq!(list(&User::new("carol", &[])).await.0, 403);
}

/// Whatever made a role unreadable here, a reader that bears with it would find more than its author holds.
#[tokio::test]
async fn rules_that_cannot_be_read_are_not_taken_for_none() {
    let server = server().await;
    let metrics = crate::server::reload::ReloadMetrics::new("");
    let authorizer = Arc::new(crate::authz::chain(&server.config, &server.cluster, &metrics).unwrap());
    let guard = escalation::Escalation { rbac: Arc::new(Rbac::new(&server.cluster)), authorizer };
    let (alice, all) = (User::new("alice", &[]), json!({ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }));
    let check = async |plural: &str, object: Value, expected: Result<(), (u16, &str)>| {
        let resource = api::kinds::builtin().iter().find(|resource| resource.plural == plural).unwrap();
        let attributes = crate::admission::Attributes {
            user: &alice,
            operation: crate::admission::Operation::Create,
            resource,
            subresource: "",
            namespace: "",
            name: "r",
            object: object.clone(),
            old: Value::Null,
            dry_run: false,
            options: Value::Null,
            warnings: Vec::new(),
        };
        let found = guard.check(&attributes).await;
        match (&found, expected) {
            (Ok(()), Ok(())) => {}
            (Err(error), Err((code, part))) => {
                assert!(error.code == code && error.message.contains(part), "{object}: {error:?}");
            }
            _ => panic!("{object}: {found:?}, expected {expected:?}"),
        }
    };
    check("clusterroles", json!({ "rules": [all] }), Err((403, "not currently held"))).await;
    let mut odd = all.clone();
    odd["resourceNames"] = Value::Null;
    for rules in [json!([odd]), json!([all, "odd"]), json!({ "0": all })] {
        check("clusterroles", json!({ "rules": rules }), Err((403, "can't be read"))).await;
    }
    check("clusterroles", json!({ "rules": null }), Ok(())).await;
    let role = json!({ "kind": "ClusterRole", "name": ["cluster-admin"] });
    check("clusterrolebindings", json!({ "roleRef": role }), Err((403, "can't be read"))).await;
}

#[tokio::test]
async fn components_may_do_their_work_and_no_more() {
    let server = server().await;
    let check = |user: User, method: Method, path: &str, code: u16| {
        let (server, path) = (server.clone(), path.to_string());
        async move {
            let object = if method == Method::GET { Value::Null } else { json!({}) };
            let (found, answer) = send(&server, &user, method, &path, object).await;
            // Whatever the handler thinks of the request, permission was given or not.
            assert_eq!(found == 403, code == 403, "{} {path}: {answer}", user.name);
        }
    };
    let scheduler = User::new("system:kube-scheduler", &[]);
    let controllers = User::new("system:kube-controller-manager", &[]);
    let proxy = User::new("system:kube-proxy", &[]);
    let node = User::new("system:node:n1", &["system:nodes"]);
    check(scheduler.clone(), Method::GET, "/api/v1/pods", 200).await;
    check(scheduler.clone(), Method::POST, "/api/v1/namespaces/default/pods/x/binding", 200).await;
    check(scheduler, Method::GET, "/api/v1/secrets", 403).await;
    check(controllers.clone(), Method::POST, "/apis/apps/v1/namespaces/default/replicasets", 200).await;
    check(controllers, Method::POST, "/apis/rbac.authorization.k8s.io/v1/clusterroles", 403).await;
    check(proxy.clone(), Method::GET, "/apis/discovery.k8s.io/v1/endpointslices", 200).await;
    check(proxy.clone(), Method::GET, "/api/v1/pods", 200).await;
    check(proxy, Method::GET, "/api/v1/secrets", 403).await;
    let ingress = User::new("minke:ingress", &[]);
    check(ingress.clone(), Method::GET, "/api/v1/secrets", 200).await;
    check(ingress.clone(), Method::PATCH, "/apis/networking.k8s.io/v1/namespaces/default/ingresses/i/status", 200)
        .await;
    check(ingress.clone(), Method::PATCH, "/apis/networking.k8s.io/v1/namespaces/default/ingresses/i", 403).await;
    check(ingress.clone(), Method::POST, "/api/v1/namespaces/default/secrets", 403).await;
    check(ingress, Method::PATCH, "/apis/gateway.networking.k8s.io/v1/namespaces/default/gateways/g", 403).await;
    check(node.clone(), Method::GET, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", 200).await;
    check(node.clone(), Method::GET, "/api/v1/pods", 403).await;
    check(node.clone(), Method::GET, "/api/v1/nodes/n1", 200).await;
    check(node.clone(), Method::GET, "/api/v1/nodes/n2", 403).await;
    check(node.clone(), Method::GET, "/api/v1/namespaces/default/secrets/s", 403).await;
    check(node.clone(), Method::PUT, "/api/v1/namespaces/kube-system/services/kube-dns", 403).await;
    check(node.clone(), Method::PUT, "/api/v1/namespaces/kube-system/services/other", 403).await;
    check(node.clone(), Method::GET, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1", 200).await;
    let admin = User::new("admin", &["system:masters"]);
    let pod = json!({
        "metadata": { "name": "p" },
        "spec": {
            "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }],
            "volumes": [{ "name": "v", "secret": { "secretName": "s" } }],
        },
    });
    let account = json!({ "metadata": { "name": "default" } });
    send(&server, &admin, Method::POST, "/api/v1/namespaces/default/serviceaccounts", account).await;
    let (code, made) = send(&server, &admin, Method::POST, "/api/v1/namespaces/default/pods", pod).await;
    assert_eq!(code, 201, "{made}");
    check(node.clone(), Method::GET, "/api/v1/namespaces/default/secrets/s", 200).await;
    check(node.clone(), Method::GET, "/api/v1/namespaces/default/secrets/t", 403).await;
    let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"] });
    let request = json!({ "spec": { "boundObjectRef": bound } });
    let token = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let (code, answer) = send(&server, &node, Method::POST, token, request.clone()).await;
    assert_eq!(code, 201, "{answer}");
    let other = User::new("system:node:n2", &["system:nodes"]);
    assert_eq!(send(&server, &other, Method::POST, token, request).await.0, 403);
    check(other, Method::GET, "/api/v1/namespaces/default/secrets/s", 403).await;
    check(User::anonymous(), Method::GET, "/version", 200).await;
    check(User::anonymous(), Method::GET, "/api", 403).await;
    check(User::new("x", &[]), Method::GET, "/api", 200).await;
}

/// Not a benchmark, but it fails if a decision starts to cost by the number of bindings.
#[test]
fn decisions_do_not_grow_with_the_cluster() {
    use crate::storage::index::Index;
    let mut grants = Grants::default();
    let object = |value: Value| api::Object::from_value(&value).unwrap();
    for i in 0..1000 {
        let role = json!({
            "metadata": { "name": format!("r{i}") },
            "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }],
        });
        grants.apply("clusterroles", None, Some(&object(role)));
    }
    for i in 0..5000 {
        let binding = json!({
            "metadata": { "name": format!("b{i}"), "namespace": format!("n{}", i % 500) },
            "roleRef": { "kind": "ClusterRole", "name": format!("r{}", i % 1000) },
            "subjects": [{ "kind": "User", "name": format!("u{}", i % 100) }, { "kind": "Group", "name": "everybody" }],
        });
        grants.apply("rolebindings", None, Some(&object(binding)));
    }
    let user = User::new("u7", &["everybody"]);
    assert_eq!(grants.of(&user, "n7").count(), 20);
    assert_eq!(grants.of(&user, "other").count(), 0);
}

#[tokio::test]
async fn exec_attach_and_port_forward_by_get_need_create_as_well() {
    let server = server().await;
    let admin = User::new("admin", &["system:masters"]);
    let alice = User::new("alice", &[]);
    let roles = format!("{RBAC}/namespaces/default/roles");
    let role = |verbs: &[&str]| {
        let resources = ["pods/exec", "pods/attach", "pods/portforward", "pods/log"];
        json!({ "metadata": { "name": "streams" }, "rules": [{ "apiGroups": [""], "resources": resources, "verbs": verbs }] })
    };
    assert_eq!(send(&server, &admin, Method::POST, &roles, role(&["get"])).await.0, 201);
    let binding = json!({
        "metadata": { "name": "streams" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "streams" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice" }],
    });
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    assert_eq!(send(&server, &admin, Method::POST, &bindings, binding).await.0, 201);
    let get = async |subresource: &str| {
        let path = format!("/api/v1/namespaces/default/pods/p/{subresource}?command=ls&stdout=1");
        let (code, answer) = send(&server, &alice, Method::GET, &path, Value::Null).await;
        (code, answer["message"].as_str().unwrap_or_default().to_string())
    };
    for subresource in ["exec", "attach", "portforward"] {
        assert_eq!(get(subresource).await, (403, "pods \"p\" is forbidden: ".into()), "{subresource}");
    }
    assert_eq!(get("log").await.0, 404, "there is no such pod");
    assert_eq!(send(&server, &admin, Method::PUT, &format!("{roles}/streams"), role(&["get", "create"])).await.0, 200);
    for subresource in ["exec", "attach", "portforward"] {
        assert_eq!(get(subresource).await.0, 404, "{subresource}");
    }
}
