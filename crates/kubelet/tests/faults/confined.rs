//! What a pod asks of the runtime and the machine for its safety: given by its own handler, or refused.
//! What the default handler can do says nothing of another.

use cri::v1;
use serde_json::{Value, json};

use crate::harness::{Node, condition, pod, waits};

/// A runtime whose handler "other" can do all that the default one can't.
fn two_handlers() -> v1::StatusResponse {
    let handler = |name: &str, able: bool| v1::RuntimeHandler {
        name: name.into(),
        features: Some(v1::RuntimeHandlerFeatures { recursive_read_only_mounts: able, user_namespaces: able }),
    };
    v1::StatusResponse {
        runtime_handlers: vec![handler("", false), handler("other", true)],
        features: Some(v1::RuntimeFeatures { supplemental_groups_policy: false }),
        ..Default::default()
    }
}

fn of_class(class: Option<&str>, mut spec: Value) -> Value {
    if let Some(class) = class {
        spec["runtimeClassName"] = class.into();
    }
    spec
}

#[tokio::test(start_paused = true)]
async fn the_handler_of_the_pods_class_is_asked() {
    let Some(node) = Node::start_on("handlers", |runtime| runtime.say(two_handlers())) else { return };
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "able"},
        "handler": "other"});
    node.api.put("/apis/node.k8s.io/v1/runtimeclasses/able", class);
    let shown = || node.api.get("/api/v1/nodes/node").unwrap_or_default()["status"].clone();
    node.until("the node tells of its handlers", || shown()["runtimeHandlers"].as_array().is_some()).await;
    assert_eq!(
        shown()["runtimeHandlers"][1],
        json!({"name": "other",
        "features": {"recursiveReadOnlyMounts": true, "userNamespaces": true}})
    );
    assert_eq!(shown()["features"], json!({"supplementalGroupsPolicy": false}));

    let mut users = pod(json!({}));
    users["hostUsers"] = false.into();
    node.api.create_pod("users", of_class(None, users.clone()));
    node.event("FailedCreatePodSandBox", "can't set `spec.hostUsers: false`, runtime does not support").await;
    node.api.create_pod("able-users", of_class(Some("able"), users));
    node.wait("able-users", "ready", |pod| condition(pod, "Ready") == "True").await;

    let mount = json!([{"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "IfPossible"}]);
    let mut mounts = pod(json!({"name": "reader", "volumeMounts": mount}));
    mounts["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    for (name, class, able) in [("usual", None, false), ("able-mounts", Some("able"), true)] {
        node.api.create_pod(name, of_class(class, mounts.clone()));
        node.wait(name, "ready", |pod| condition(pod, "Ready") == "True").await;
        let mounts = node.runtime.mounts("reader");
        let found = mounts.iter().find(|mount| mount.container_path == "/v").map(|mount| mount.recursive_read_only);
        assert_eq!(found, Some(able), "{name}");
        let said = if able { "Enabled" } else { "Disabled" };
        let status = node.api.pod(name).unwrap()["status"]["containerStatuses"][0]["volumeMounts"][0].clone();
        assert_eq!(status["recursiveReadOnly"], said, "{name}");
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_enforced_is_refused() {
    let Some(node) = Node::start_on("confined", |runtime| runtime.say(two_handlers())) else { return };
    let with = |context: Value| {
        let mut spec = pod(json!({}));
        spec["securityContext"] = context;
        spec
    };
    node.api.create_pod("refused", with(json!({"supplementalGroupsPolicy": "Strict"})));
    node.wait("refused", "refused", |pod| pod["status"]["phase"] == "Failed").await;
    let status = node.api.pod("refused").unwrap()["status"].clone();
    let message = "Pod was rejected: SupplementalGroupsPolicy=Strict is not supported in this node";
    assert_eq!(
        (&status["reason"], &status["message"]),
        (&json!("SupplementalGroupsPolicyNotSupported"), &json!(message))
    );
    if !std::path::Path::new("/sys/kernel/security/apparmor").exists() {
        node.api.create_pod("waits", with(json!({"appArmorProfile": {"type": "RuntimeDefault"}})));
        let why = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        node.wait("waits", "blocked", |pod| waits(pod, "Blocked", why)).await;
        let status = node.api.pod("waits").unwrap()["status"].clone();
        assert_eq!((&status["phase"], &status["reason"]), (&json!("Pending"), &json!("AppArmor")));
        node.event("AppArmor", why).await;
    }
    node.others_go_on().await;
    node.stop().await;
}
