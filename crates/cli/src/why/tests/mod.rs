//! What is said about objects in each kind of trouble; `lasting` has what keeps an object from moving on.

mod endings;
mod lasting;

use futures::executor::block_on;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::why;
use crate::object_reader::MapReader;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

const EARLIER: &str = "2026-01-01T00:55:00Z";

fn pod(spec: Value, status: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "spec": spec, "status": status, "metadata": {
        "name": "web", "namespace": "shop", "uid": "u", "creationTimestamp": EARLIER, "labels": { "app": "web" } } })
}

fn event(kind: &str, reason: &str, message: &str) -> (&'static str, Value) {
    let event = json!({ "kind": "Event", "type": "Warning", "reason": reason, "message": message, "count": 3,
        "metadata": { "namespace": "shop", "name": "e" }, "lastTimestamp": EARLIER, "source": { "component": "kubelet" },
        "involvedObject": { "kind": kind, "namespace": "shop", "name": "web", "uid": "u" } });
    ("events", event)
}

struct Expected<'a> {
    wrong: bool,
    reason: &'a str,
    cause: &'a str,
    /// Something that must stand in the evidence.
    evidence: &'a str,
    command: &'a str,
}

fn check(object: &Value, objects: Vec<(&'static str, Value)>, expected: Expected) {
    check_with(object, MapReader { objects, ..MapReader::default() }, expected);
}

fn check_with(object: &Value, reader: MapReader, expected: Expected) {
    let verdict = block_on(why(object, &reader, now()));
    assert_eq!(verdict.cause, expected.cause);
    assert_eq!((verdict.wrong, verdict.reason.as_str()), (expected.wrong, expected.reason), "{verdict:#?}");
    assert!(verdict.evidence.join("\n").contains(expected.evidence), "{verdict:#?}");
    assert!(verdict.commands.join("\n").contains(expected.command), "{verdict:#?}");
    assert_eq!(verdict.exit_code(), u8::from(expected.wrong));
}

fn waiting(reason: &str, message: &str) -> Value {
    pod(
        json!({ "nodeName": "n1", "containers": [{ "name": "app", "image": "shop/web:2" }] }),
        json!({ "phase": "Pending", "containerStatuses": [
            { "name": "app", "ready": false, "restartCount": 0, "state": { "waiting": { "reason": reason, "message": message } } }] }),
    )
}

#[test]
fn pods_that_are_not_scheduled() {
    let containers = json!([{ "name": "app", "image": "i", "resources": { "requests": { "cpu": "4" } } }]);
    let gated = pod(
        json!({ "containers": containers, "schedulingGates": [{ "name": "example.com/quota" }] }),
        json!({ "phase": "Pending" }),
    );
    check(
        &gated,
        vec![],
        Expected {
            wrong: true,
            reason: "SchedulingGated",
            cause: "The scheduler leaves it alone until its scheduling gate example.com/quota is removed by whoever set it.",
            evidence: "spec.schedulingGates: example.com/quota",
            command: "--show-managed-fields",
        },
    );
    let message = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. preemption: 0/2 nodes are available: 2 No preemption victims found.";
    let full = pod(
        json!({ "containers": containers }),
        json!({ "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastTransitionTime": EARLIER }] }),
    );
    check(
        &full,
        vec![],
        Expected {
            wrong: true,
            reason: "Unschedulable",
            cause: "None of the 2 nodes can take it: 1 Insufficient cpu, 1 node(s) were unschedulable.",
            evidence: "container app requests cpu 4",
            command: "kubectl describe nodes",
        },
    );
    let verdict = json!({ "message": "0/2 nodes are available", "nodes": {
        "small": { "plugin": "NodeResourcesFit", "reasons": ["Insufficient cpu"] },
        "closed": { "plugin": "NodeUnschedulable", "reasons": ["node(s) were unschedulable"] } } });
    let documents = vec![("/debug/scheduling/shop/web".to_string(), verdict)];
    check_with(
        &full,
        MapReader { documents, ..MapReader::default() },
        Expected {
            wrong: true,
            reason: "Unschedulable",
            cause: "None of the nodes can take it: of 2 nodes, 1 insufficient cpu, 1 node(s) were unschedulable.",
            evidence: "NodeResourcesFit: Insufficient cpu: small",
            command: "kubectl describe nodes",
        },
    );
    let nobody = pod(json!({ "containers": containers, "schedulerName": "mine" }), json!({ "phase": "Pending" }));
    check(
        &nobody,
        vec![],
        Expected {
            wrong: true,
            reason: "NoScheduler",
            cause: "No scheduler has looked at it. It asks for the scheduler mine: is one of that name running?",
            evidence: "no condition PodScheduled",
            command: "kubectl get leases",
        },
    );
    let claiming = pod(
        json!({ "containers": containers, "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "data" } }] }),
        json!({ "phase": "Pending" }),
    );
    let claim = json!({ "kind": "PersistentVolumeClaim", "metadata": { "name": "data", "namespace": "shop" },
        "spec": { "storageClassName": "fast" }, "status": { "phase": "Pending" } });
    check(
        &claiming,
        vec![("persistentvolumeclaims", claim)],
        Expected {
            wrong: true,
            reason: "ClaimUnbound",
            cause: "It waits for its claim data to be bound. It asks for the storage class fast, and there is no such class.",
            evidence: "storage classes of the cluster: none",
            command: "minke why pvc/data -n shop",
        },
    );
}

#[test]
fn pods_that_do_not_start() {
    let pull = "rpc error: code = NotFound desc = failed to pull and unpack image: not found";
    check(
        &waiting("ImagePullBackOff", "Back-off pulling image"),
        vec![event("Pod", "Failed", &format!("Failed to pull image: {pull}"))],
        Expected {
            wrong: true,
            reason: "ImagePull",
            cause: "Image shop/web:2 does not exist in its registry, or this cluster may not see it.",
            evidence: "event Failed from kubelet, 5m ago, 3 times",
            command: "app=IMAGE",
        },
    );
    check(
        &waiting("ErrImagePull", "pull access denied"),
        vec![],
        Expected {
            wrong: true,
            reason: "ImagePull",
            cause: "The registry of image shop/web:2 refuses the pull: credentials are missing or wrong.",
            evidence: "waits (ErrImagePull)",
            command: "kubectl create secret docker-registry",
        },
    );
    check(
        &waiting("CreateContainerConfigError", "secret \"db\" not found"),
        vec![],
        Expected {
            wrong: true,
            reason: "ContainerConfig",
            cause: "Container app cannot be made from its configuration: secret \"db\" not found.",
            evidence: "waits (CreateContainerConfigError)",
            command: "kubectl get configmaps,secrets -n shop",
        },
    );
    let creating = waiting("ContainerCreating", "");
    let mount = "MountVolume.SetUp failed for volume \"c\" : configmap \"settings\" not found";
    check(
        &creating,
        vec![event("Pod", "FailedMount", mount)],
        Expected {
            wrong: true,
            reason: "MountFailed",
            cause: "A volume needs the configmap settings, and there is none of that name in the namespace.",
            evidence: "FailedMount",
            command: "kubectl get configmap -n shop",
        },
    );
    check(
        &creating,
        vec![event("Pod", "FailedCreatePodSandBox", "plugin type=\"bridge\" failed (add): no IP addresses available")],
        Expected {
            wrong: true,
            reason: "SandboxFailed",
            cause: "Node n1 cannot make the pod's sandbox (network and cgroup) since <unknown> ago: plugin type=\"bridge\" failed (add): no IP addresses available.",
            evidence: "FailedCreatePodSandBox",
            command: "minke why node/n1",
        },
    );
    check(
        &creating,
        vec![],
        Expected {
            wrong: false,
            reason: "Starting",
            cause: "It was given to node n1 <unknown> ago and is being started; nothing has failed so far.",
            evidence: "",
            command: "",
        },
    );
}

#[test]
fn pods_that_run_badly() {
    let spec = json!({ "nodeName": "n1", "containers": [
        { "name": "app", "image": "i", "readinessProbe": { "httpGet": { "port": 80 } }, "resources": { "limits": { "memory": "64Mi" } } }] });
    let killed = json!({ "exitCode": 137, "reason": "OOMKilled", "finishedAt": EARLIER });
    let looping = pod(
        spec.clone(),
        json!({ "phase": "Running", "containerStatuses": [{ "name": "app", "ready": false,
        "restartCount": 7, "state": { "waiting": { "reason": "CrashLoopBackOff" } }, "lastState": { "terminated": killed } }] }),
    );
    check(
        &looping,
        vec![],
        Expected {
            wrong: true,
            reason: "OutOfMemory",
            cause: "Container app keeps ending and is restarted with growing pauses; last time it was killed because it used more memory than its limit.",
            evidence: "a memory limit of 64Mi",
            command: "kubectl logs web -n shop --previous",
        },
    );
    let unready = pod(
        spec.clone(),
        json!({ "phase": "Running", "containerStatuses": [
        { "name": "app", "ready": false, "started": true, "restartCount": 0, "state": { "running": { "startedAt": EARLIER } } }] }),
    );
    let probe = "Readiness probe failed: HTTP probe failed with statuscode: 500";
    check(
        &unready,
        vec![event("Pod", "Unhealthy", probe)],
        Expected {
            wrong: true,
            reason: "NotReady",
            cause: "Container app runs, but its readiness probe fails: HTTP probe failed with statuscode: 500.",
            evidence: "spec.readinessProbe",
            command: "kubectl logs web -n shop",
        },
    );
    let node = json!({ "kind": "Node", "metadata": { "name": "n1" }, "status": { "conditions": [
        { "type": "Ready", "status": "Unknown", "lastTransitionTime": EARLIER, "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status." }] } });
    check(
        &unready,
        vec![("nodes", node)],
        Expected {
            wrong: true,
            reason: "NodeSilent",
            cause: "Its node n1 stopped reporting 5m ago, so what the pod does is not known.",
            evidence: "condition Ready is Unknown for 5m",
            command: "minke why node/n1",
        },
    );
    let ready = pod(
        spec.clone(),
        json!({ "phase": "Running", "containerStatuses": [
        { "name": "app", "ready": true, "restartCount": 0, "state": { "running": {} } }], "conditions": [{ "type": "Ready", "status": "True" }] }),
    );
    check(
        &ready,
        vec![],
        Expected {
            wrong: false,
            reason: "Ready",
            cause: "Nothing is wrong: it runs and is ready.",
            evidence: "",
            command: "",
        },
    );
    let evicted = pod(
        spec.clone(),
        json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory. " }),
    );
    check(
        &evicted,
        vec![],
        Expected {
            wrong: true,
            reason: "Evicted",
            cause: "The kubelet of node n1 evicted it: The node was low on resource: memory.",
            evidence: "status.reason is Evicted",
            command: "kubectl describe node n1",
        },
    );
}

#[test]
fn objects_that_do_not_go() {
    let mut pod = pod(
        json!({ "nodeName": "n1", "containers": [{ "name": "app", "lifecycle": { "preStop": { "sleep": { "seconds": 9 } } } }] }),
        json!({ "phase": "Running", "containerStatuses": [{ "name": "app", "state": { "running": {} } }] }),
    );
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T01:00:20Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    check(
        &pod,
        vec![],
        Expected {
            wrong: false,
            reason: "GracePeriod",
            cause: "It is ending: container app may take 20s more of the grace period of 30s (preStop hook of app runs first).",
            evidence: "",
            command: "kubectl logs web",
        },
    );
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:50:00Z");
    check(
        &pod,
        vec![],
        Expected {
            wrong: true,
            reason: "GracePeriodOver",
            cause: "Its grace period of 30s ended 10m ago, and container app still runs: the node could not end it.",
            evidence: "",
            command: "kubectl logs web",
        },
    );
    let claim = json!({ "kind": "PersistentVolumeClaim", "metadata": { "name": "data", "namespace": "shop", "uid": "u",
        "deletionTimestamp": EARLIER, "finalizers": ["kubernetes.io/pvc-protection"], "managedFields": [
            { "manager": "kube-controller-manager", "time": EARLIER, "fieldsV1": { "f:metadata": { "f:finalizers": { "v:\"kubernetes.io/pvc-protection\"": {} } } } }] } });
    let user = json!({ "kind": "Pod", "metadata": { "name": "db", "namespace": "shop" }, "status": { "phase": "Running" },
        "spec": { "volumes": [{ "persistentVolumeClaim": { "claimName": "data" } }] } });
    check(
        &claim,
        vec![("pods", user)],
        Expected {
            wrong: true,
            reason: "Finalizers",
            cause: "It was deleted 5m ago and waits for the finalizer kubernetes.io/pvc-protection (a pod still uses the claim). It is used by pod/db.",
            evidence: "was set by kube-controller-manager, 5m ago",
            command: "kubectl describe pod/db -n shop",
        },
    );
    let namespace = json!({ "kind": "Namespace", "metadata": { "name": "old", "deletionTimestamp": EARLIER }, "spec": { "finalizers": ["kubernetes"] },
        "status": { "phase": "Terminating", "conditions": [
            { "type": "NamespaceContentRemaining", "status": "True", "message": "Some resources are remaining: widgets.example.com has 1 resource instances" },
            { "type": "NamespaceFinalizersRemaining", "status": "True", "message": "Some content in the namespace has finalizers remaining: example.com/x in 1 resource instances" }] } });
    check(
        &namespace,
        vec![],
        Expected {
            wrong: true,
            reason: "FinalizersRemaining",
            cause: "It was deleted 5m ago and does not go because objects in it have finalizers that nobody removes: Some content in the namespace has finalizers remaining: example.com/x in 1 resource instances.",
            evidence: "widgets.example.com has 1 resource instances",
            command: "kubectl get widgets.example.com -n old -o custom-columns=",
        },
    );
}

#[test]
fn workloads_services_claims_and_nodes() {
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web", "namespace": "shop", "uid": "u", "generation": 1 },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "web" } } }, "status": { "observedGeneration": 1, "replicas": 0, "conditions": [
            { "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
              "message": "pods \"web-1\" is forbidden: exceeded quota: small, requested: cpu=1, used: cpu=2, limited: cpu=2" }] } });
    check(
        &deployment,
        vec![],
        Expected {
            wrong: true,
            reason: "ReplicaFailure",
            cause: "Its pods are not created because a quota is used up: small, requested: cpu=1, used: cpu=2, limited: cpu=2.",
            evidence: "replicas: 2 wanted",
            command: "kubectl describe quota -n shop",
        },
    );
    let mut stuck = deployment.clone();
    stuck["status"] = json!({ "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2 });
    check(
        &stuck,
        vec![("pods", waiting("InvalidImageName", "couldn't parse"))],
        Expected {
            wrong: true,
            reason: "ImagePull",
            cause: "0 of 2 replicas are available. Pod web: shop/web:2 is not a valid image name.",
            evidence: "2 up to date",
            command: "minke why pod/web -n shop",
        },
    );
    let service = json!({ "kind": "Service", "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "selector": { "app": "shop", "tier": "front" }, "ports": [{ "port": 80, "targetPort": "http" }] } });
    let other = json!({ "kind": "Pod", "metadata": { "name": "p", "namespace": "shop", "labels": { "app": "shop", "tier": "frontend" } } });
    check(
        &service,
        vec![("pods", other)],
        Expected {
            wrong: true,
            reason: "NoMatchingPods",
            cause: "No pod in namespace shop has the labels app=shop,tier=front that it selects. Pod p comes nearest with app=shop,tier=frontend.",
            evidence: "1 pod in the namespace",
            command: "kubectl get pods -n shop --show-labels",
        },
    );
    let claim = json!({ "kind": "PersistentVolumeClaim", "metadata": { "name": "web", "namespace": "shop", "uid": "u" },
        "spec": { "storageClassName": "slow" }, "status": { "phase": "Pending" } });
    let class =
        json!({ "metadata": { "name": "slow" }, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer" });
    check(
        &claim,
        vec![("storageclasses", class)],
        Expected {
            wrong: false,
            reason: "WaitForFirstConsumer",
            cause: "It is bound when a pod that uses it is scheduled; no pod in namespace shop uses it.",
            evidence: "WaitForFirstConsumer",
            command: "",
        },
    );
    let node = json!({ "kind": "Node", "metadata": { "name": "n1" }, "status": { "conditions": [
        { "type": "Ready", "status": "False", "message": "container runtime network not ready: cni config uninitialized", "lastTransitionTime": EARLIER }] } });
    check(
        &node,
        vec![],
        Expected {
            wrong: true,
            reason: "NotReady",
            cause: "Its kubelet runs, but its network is not ready: container runtime network not ready: cni config uninitialized.",
            evidence: "condition Ready is False for 5m",
            command: "kubectl describe node n1",
        },
    );
}

#[test]
fn a_verdict_prints_for_people_and_programs() {
    let pod = waiting("InvalidImageName", "");
    let verdict = block_on(why(&pod, &MapReader::default(), now()));
    let text = verdict.to_text(&pod);
    assert!(
        text.starts_with(
            "pod/web in namespace shop: shop/web:2 is not a valid image name.\n\nEvidence:\n  - container app waits"
        ),
        "{text}"
    );
    assert!(text.contains("\nTry:\n  kubectl set image pod/web -n shop app=IMAGE\n"), "{text}");
    let json = verdict.to_json(&pod);
    assert_eq!(
        (&json["wrong"], &json["reason"], &json["object"]["name"]),
        (&json!(true), &json!("ImagePull"), &json!("web"))
    );
}
