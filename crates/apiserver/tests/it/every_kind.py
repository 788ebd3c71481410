"""Every verb on every kind with the Python client. Run by `clients.rs`: SERVER CA CERTIFICATE KEY OBJECTS."""
import json
import os
import sys
import tempfile

from kubernetes import client, dynamic

server, ca, certificate, key, objects = sys.argv[1:]
configuration = client.Configuration()
configuration.host = server
configuration.ssl_ca_cert = ca
configuration.cert_file = certificate
configuration.key_file = key
cache = os.path.join(tempfile.mkdtemp(), "discovery.json")
api = dynamic.DynamicClient(client.ApiClient(configuration), cache_file=cache)

count = 0
for body in json.load(open(objects)):
    where = f"{body['apiVersion']} {body['kind']}"
    resource = api.resources.get(api_version=body["apiVersion"], kind=body["kind"])
    place = {"namespace": body["metadata"]["namespace"]} if resource.namespaced else {}
    name = body["metadata"]["name"]
    made = resource.create(body=body, **place)
    assert made.metadata.uid, where
    assert resource.get(name=name, **place).metadata.uid == made.metadata.uid, where
    listed = resource.get(label_selector="every=kind", **place)
    assert name in [item.metadata.name for item in listed.items], where
    for event in resource.watch(resource_version=0, timeout=10, **place):
        assert event["type"] == "ADDED", (where, event)
        break
    for content, patch in (
        ("application/json-patch+json", [{"op": "add", "path": "/metadata/annotations", "value": {"json": "yes"}}]),
        ("application/merge-patch+json", {"metadata": {"annotations": {"merge": "yes"}}}),
        ("application/strategic-merge-patch+json", {"metadata": {"annotations": {"strategic": "yes"}}}),
    ):
        resource.patch(body=patch, name=name, content_type=content, **place)
    applied = {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": {"name": name, "annotations": {"applied": "yes"}}}
    found = resource.server_side_apply(body=applied, name=name, field_manager="python", **place)
    assert len(found.metadata.annotations.to_dict()) >= 4, where
    for attempt in range(10):
        newest = resource.get(name=name, **place).to_dict()
        newest["metadata"]["annotations"]["updated"] = "yes"
        try:
            resource.replace(body=newest, **place)
            break
        except dynamic.exceptions.ConflictError:
            assert attempt < 9, where
    resource.delete(name=name, body={"gracePeriodSeconds": 0}, **place)
    if "deletecollection" in resource.verbs:
        resource.delete(label_selector="every=kind", body={"gracePeriodSeconds": 0}, **place)
    count += 1
assert count >= 58, count
print(f"{count} kinds")
