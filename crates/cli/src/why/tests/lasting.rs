//! Trouble that lasts: admission, restarts, silent nodes, deadlines, endpoints and claims that do not come.

use serde_json::{Value, json};

use super::{EARLIER, Expected, check, event, pod};

fn silent_node() -> (&'static str, Value) {
    let node = json!({ "kind": "Node", "metadata": { "name": "n1" }, "status": { "conditions": [
        { "type": "Ready", "status": "Unknown", "lastTransitionTime": EARLIER, "reason": "NodeStatusUnknown" }] } });
    ("nodes", node)
}

#[test]
fn pods_that_admission_refuses() {
    let refused = |message: &str| {
        json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": { "replicas": 2 },
            "metadata": { "name": "web", "namespace": "shop", "uid": "u", "generation": 1 },
            "status": { "observedGeneration": 1, "replicas": 0, "conditions": [
                { "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message }] } })
    };
    let said = |message: &str, cause: &str, command: &str| {
        check(
            &refused(message),
            vec![event("ReplicaSet", "FailedCreate", message)],
            Expected { wrong: true, reason: "ReplicaFailure", cause, evidence: "event FailedCreate", command },
        );
    };
    said(
        "admission webhook \"images.example.com\" denied the request: no signature",
        "Its pods are not created because an admission webhook refuses them: admission webhook \"images.example.com\" denied the request: no signature.",
        "kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations",
    );
    said(
        "pods \"web-1\" is forbidden: violates PodSecurity \"restricted:latest\": privileged",
        "Its pods are not created because the namespace's Pod Security level refuses them: violates PodSecurity \"restricted:latest\": privileged.",
        "kubectl get namespace shop --show-labels",
    );
    said(
        "pods \"web-1\" is forbidden: error looking up service account shop/robot: serviceaccount \"robot\" not found",
        "Its pods are not created because their service account does not exist: error looking up service account shop/robot: serviceaccount \"robot\" not found.",
        "kubectl create serviceaccount robot -n shop",
    );
    said(
        "pods \"web-1\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1",
        "Its pods are not created because a quota is used up: small, requested: pods=1, used: pods=1, limited: pods=1.",
        "kubectl describe quota -n shop",
    );
    said(
        "pods \"web-1\" is forbidden: odd",
        "Its pods are not created: odd.",
        "kubectl describe replicaset web -n shop",
    );
}

#[test]
fn pods_that_restart() {
    let spec = json!({ "nodeName": "n1", "containers": [{ "name": "app", "image": "i" }] });
    let last = json!({ "terminated": { "exitCode": 1, "reason": "Error", "finishedAt": EARLIER, "message": "no database\n" } });
    let looping = json!({ "phase": "Running", "containerStatuses": [{ "name": "app", "ready": false, "restartCount": 4,
        "state": { "waiting": { "reason": "CrashLoopBackOff" } }, "lastState": last }] });
    check(
        &pod(spec.clone(), looping),
        vec![],
        Expected {
            wrong: true,
            reason: "CrashLoop",
            cause: "Container app keeps ending and is restarted with growing pauses; last time it exited with 1: no database.",
            evidence: "last ended 5m ago with exit code 1 (Error); restarted 4 times",
            command: "kubectl logs web -n shop --previous",
        },
    );
    let back = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }], "containerStatuses": [
        { "name": "app", "ready": true, "restartCount": 4, "state": { "running": { "startedAt": EARLIER } }, "lastState": last }] });
    check(
        &pod(spec, back),
        vec![],
        Expected {
            wrong: false,
            reason: "Restarted",
            cause: "It runs and is ready now, but container app was restarted 4 times; last time it exited with 1: no database.",
            evidence: "restarted 4 times",
            command: "kubectl logs web -n shop --previous",
        },
    );
}

#[test]
fn pods_whose_network_or_node_does_not_answer() {
    let spec = json!({ "nodeName": "n1", "containers": [{ "name": "app", "image": "i" }] });
    let pending = pod(spec.clone(), json!({ "phase": "Pending" }));
    check(
        &pending,
        vec![event("Pod", "NetworkNotReady", "network is not ready: cni plugin not initialized")],
        Expected {
            wrong: true,
            reason: "NetworkNotReady",
            cause: "The network of node n1 is not ready: network is not ready: cni plugin not initialized.",
            evidence: "event NetworkNotReady",
            command: "minke why node/n1",
        },
    );
    let running = json!({ "phase": "Running", "containerStatuses": [{ "name": "app", "state": { "running": {} } }] });
    let mut leaving = pod(spec, running);
    leaving["metadata"]["deletionTimestamp"] = json!(EARLIER);
    leaving["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    check(
        &leaving,
        vec![silent_node()],
        Expected {
            wrong: true,
            reason: "NodeSilent",
            cause: "It is deleted, but its node n1 does not report, so nobody confirms that its containers have ended.",
            evidence: "condition Ready is Unknown for 5m",
            command: "kubectl delete pod web -n shop --force --grace-period=0",
        },
    );
    let (_, node) = silent_node();
    check(
        &node,
        vec![],
        Expected {
            wrong: true,
            reason: "NodeSilent",
            cause: "Its kubelet stopped reporting (5m ago): the machine, its network or the kubelet is down.",
            evidence: "it has no lease in kube-node-lease",
            command: "journalctl -u kubelet",
        },
    );
}

#[test]
fn deployments_past_their_deadline() {
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "web", "namespace": "shop", "uid": "u", "generation": 1 },
        "spec": { "replicas": 1, "progressDeadlineSeconds": 60, "selector": { "matchLabels": { "app": "web" } } },
        "status": { "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "conditions": [
            { "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "lastTransitionTime": EARLIER }] } });
    check(
        &deployment,
        vec![("pods", super::waiting("ErrImageNeverPull", ""))],
        Expected {
            wrong: true,
            reason: "ImagePull",
            cause: "0 of 1 replicas are available. Pod web: Image shop/web:2 is not on the node, and its pull policy is Never. It made no progress for longer than 60s.",
            evidence: "condition Progressing is False for 5m: ProgressDeadlineExceeded",
            command: "kubectl rollout undo deployment/web -n shop",
        },
    );
}

#[test]
fn services_whose_pods_are_not_ready_or_have_no_such_port() {
    let service = json!({ "kind": "Service", "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": "http" }] } });
    check(
        &service,
        vec![("pods", super::waiting("ErrImageNeverPull", ""))],
        Expected {
            wrong: true,
            reason: "NoReadyPods",
            cause: "Its selector finds 1 pod, and none is ready. Pod web: Image shop/web:2 is not on the node, and its pull policy is Never.",
            evidence: "waits (ErrImageNeverPull)",
            command: "minke why pod/web -n shop",
        },
    );
    let ready = pod(
        json!({ "nodeName": "n1", "containers": [{ "name": "app", "ports": [{ "name": "web", "containerPort": 80 }] }] }),
        json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] }),
    );
    check(
        &service,
        vec![("pods", ready)],
        Expected {
            wrong: true,
            reason: "NoSuchPort",
            cause: "Its target port http is a name that no container of its pods has.",
            evidence: "containers of pod web have web",
            command: "kubectl describe service web -n shop",
        },
    );
}

#[test]
fn claims_whose_provisioner_or_volume_does_not_come() {
    let claim = |spec: Value| {
        json!({ "kind": "PersistentVolumeClaim", "metadata": { "name": "web", "namespace": "shop", "uid": "u" },
            "spec": spec, "status": { "phase": "Pending" } })
    };
    check(
        &claim(json!({ "storageClassName": "slow" })),
        vec![event("PersistentVolumeClaim", "ProvisioningFailed", "quota of the array is used up.")],
        Expected {
            wrong: true,
            reason: "ProvisioningFailed",
            cause: "The provisioner cannot make a volume for it: quota of the array is used up.",
            evidence: "event ProvisioningFailed",
            command: "kubectl describe pvc web -n shop",
        },
    );
    check(
        &claim(json!({ "volumeName": "gone" })),
        vec![],
        Expected {
            wrong: true,
            reason: "VolumeMissing",
            cause: "It asks for the volume gone, and there is no such volume.",
            evidence: "spec.volumeName: gone",
            command: "kubectl get pv",
        },
    );
}

#[test]
fn pods_held_by_a_finalizer_are_named_with_its_setter() {
    let mut held = pod(json!({ "nodeName": "n1", "containers": [] }), json!({ "phase": "Succeeded" }));
    held["metadata"]["deletionTimestamp"] = json!(EARLIER);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    held["metadata"]["managedFields"] = json!([{ "manager": "holder", "time": EARLIER,
        "fieldsV1": { "f:metadata": { "f:finalizers": { "v:\"example.com/hold\"": {} } } } }]);
    check(
        &held,
        vec![],
        Expected {
            wrong: true,
            reason: "Finalizers",
            cause: "It was deleted 5m ago and waits for the finalizer example.com/hold.",
            evidence: "finalizer example.com/hold was set by holder, 5m ago",
            command: "kubectl get pod web -n shop -o yaml --show-managed-fields",
        },
    );
}

#[test]
fn pods_whose_volume_is_still_in_use() {
    let mut gone = pod(json!({ "nodeName": "n1", "containers": [{ "name": "app" }] }), json!({ "phase": "Running" }));
    gone["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:56:00Z");
    check(
        &gone,
        vec![event("Pod", "FailedUnmount", "UnmountVolume.TearDown failed for volume \"data\": device is busy")],
        Expected {
            wrong: true,
            reason: "VolumeInUse",
            cause: "Its containers have ended, but its node cannot unmount a volume of it: UnmountVolume.TearDown failed for volume \"data\": device is busy.",
            evidence: "event FailedUnmount",
            command: "minke why node/n1",
        },
    );
}

#[test]
fn nodes_that_no_kubelet_took_up() {
    let node = json!({ "kind": "Node", "metadata": { "name": "n1" }, "status": { "conditions": [{ "type": "Ready", "status": "Unknown",
        "reason": "NodeStatusNeverUpdated", "message": "Kubelet never posted node status.", "lastTransitionTime": EARLIER }] } });
    check(
        &node,
        vec![],
        Expected {
            wrong: true,
            reason: "NeverReported",
            cause: "Its kubelet has never reported a status.",
            evidence: "it has no lease in kube-node-lease",
            command: "journalctl -u kubelet",
        },
    );
}
