"""Drives a cluster with the PyPI client: typed objects, watches, patches, exec, logs. Exits non-zero on any surprise."""
import sys
import time

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward, stream

kubeconfig, namespace, image = sys.argv[1:]
config.load_kube_config(kubeconfig)
core, apps = client.CoreV1Api(), client.AppsV1Api()

assert client.VersionApi().get_code().minor.startswith("35")
node = core.list_node().items[0]
assert node.status.capacity["cpu"], "the node has a capacity"

# Objects: create, conflict, patch, list with a selector, delete.
meta = client.V1ObjectMeta(name="settings", labels={"part": "one"})
created = core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=meta, data={"a": "1"}))
try:
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=meta))
    raise AssertionError("created twice")
except ApiException as error:
    assert error.status == 409, error
patched = core.patch_namespaced_config_map("settings", namespace, {"data": {"b": "2"}})
assert patched.data == {"a": "1", "b": "2"}, patched.data
stale = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="settings", resource_version=created.metadata.resource_version))
try:
    core.replace_namespaced_config_map("settings", namespace, stale)
    raise AssertionError("an old version was accepted")
except ApiException as error:
    assert error.status == 409, error
assert len(core.list_namespaced_config_map(namespace, label_selector="part=one").items) == 1
assert len(core.list_namespaced_config_map(namespace, label_selector="part!=one,part").items) == 0

# Paged lists are whole.
for i in range(7):
    core.create_namespaced_secret(namespace, client.V1Secret(metadata=client.V1ObjectMeta(generate_name="s-"), string_data={"k": str(i)}))
names, token = [], None
while True:
    page = core.list_namespaced_secret(namespace, limit=3, _continue=token)
    names += [s.metadata.name for s in page.items]
    token = page.metadata._continue
    if not token:
        break
assert len(names) == 7 and len(set(names)) == 7, names

# A pod, watched until it is ready.
pod = client.V1Pod(
    metadata=client.V1ObjectMeta(name="worker"),
    spec=client.V1PodSpec(
        termination_grace_period_seconds=0,
        containers=[client.V1Container(name="c", image=image, command=["sh", "-c", "httpd -p 8080 -h /etc; echo hello; sleep 1000"])],
    ),
)
core.create_namespaced_pod(namespace, pod)
for event in watch.Watch().stream(core.list_namespaced_pod, namespace, timeout_seconds=180):
    conditions = event["object"].status.conditions or []
    if any(c.type == "Ready" and c.status == "True" for c in conditions):
        break
else:
    raise AssertionError("the pod did not become ready")
# It is ready once it runs; what it says comes a moment later.
for _ in range(180):
    said = core.read_namespaced_pod_log("worker", namespace).strip()
    if said:
        break
    time.sleep(1)
assert said == "hello", said
answer = stream(core.connect_get_namespaced_pod_exec, "worker", namespace, command=["echo", "through exec"],
                stdout=True, stderr=True, stdin=False, tty=False)
assert answer.strip() == "through exec", answer
forward = portforward(core.connect_get_namespaced_pod_portforward, "worker", namespace, ports="8080")
connection = forward.socket(8080)
connection.setblocking(True)
connection.sendall(b"GET /hostname HTTP/1.0\r\n\r\n")
answer = b""
while part := connection.recv(4096):
    answer += part
connection.close()
assert answer.strip().endswith(b"worker"), answer
assert forward.error(8080) is None, forward.error(8080)
core.delete_namespaced_pod("worker", namespace, grace_period_seconds=0)

# Scale.
labels = {"app": "scaled"}
apps.create_namespaced_deployment(namespace, client.V1Deployment(
    metadata=client.V1ObjectMeta(name="scaled"),
    spec=client.V1DeploymentSpec(
        replicas=0, selector=client.V1LabelSelector(match_labels=labels),
        template=client.V1PodTemplateSpec(
            metadata=client.V1ObjectMeta(labels=labels),
            spec=client.V1PodSpec(containers=[client.V1Container(name="c", image=image)])))))
scale = apps.patch_namespaced_deployment_scale("scaled", namespace, {"spec": {"replicas": 0}})
# A zero is left out of a Scale, as upstream leaves it out.
assert scale.spec.replicas is None and scale.status.replicas == 0
assert apps.read_namespaced_deployment("scaled", namespace).spec.replicas == 0
print("python client: ok")
