//! What kubectl and generators look for in the documents.

use super::*;
use crate::{Scope, kinds};

fn apps() -> Value {
    v3("apps", "v1", kinds::builtin(), &ExtraSchemas::new())
}

/// Every reference leads somewhere.
fn check_references(document: &Value, value: &Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get("$ref") {
                let pointer = reference.trim_start_matches('#');
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
            }
            map.values().for_each(|v| check_references(document, v));
        }
        Value::Array(items) => items.iter().for_each(|v| check_references(document, v)),
        _ => {}
    }
}

/// Phrases by which upstream's own checks know the document of a server.
#[test]
fn v2_says_what_upstreams_checks_look_for() {
    let document = v2(kinds::builtin(), &ExtraSchemas::new()).to_string();
    for phrase in ["list of returned", "List of services", "Watch for changes to the described resources"] {
        assert!(document.contains(phrase), "{phrase}");
    }
}

/// Kinds behind feature gates are described by their types, as upstream's documents do, not as custom resources.
#[test]
fn gated_kinds_have_their_types() {
    let resources: Vec<_> = kinds::gated().iter().map(|(_, resource)| resource.clone()).collect();
    for (group, version, kind, name) in [
        ("certificates.k8s.io", "v1beta1", "PodCertificateRequestSpec", "io.k8s.api.certificates.v1beta1"),
        ("certificates.k8s.io", "v1alpha1", "ClusterTrustBundleSpec", "io.k8s.api.certificates.v1alpha1"),
        ("storagemigration.k8s.io", "v1beta1", "StorageVersionMigrationSpec", "io.k8s.api.storagemigration.v1beta1"),
        ("internal.apiserver.k8s.io", "v1alpha1", "ServerStorageVersion", "io.k8s.api.apiserverinternal.v1alpha1"),
    ] {
        let document = v3(group, version, &resources, &ExtraSchemas::new());
        let schemas = &document["components"]["schemas"];
        assert!(schemas[format!("{name}.{kind}")]["properties"].is_object(), "{group}/{version} {kind}");
    }
}

#[test]
fn kubectl_finds_what_it_asks_for() {
    let document = apps();
    let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "apps", "version": "v1", "kind": "Deployment"})
    );
    assert_eq!(patch["operationId"], "patchAppsV1NamespacedDeployment");
    for name in ["dryRun", "fieldValidation"] {
        assert!(patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == name && p["in"] == "query"));
    }
    let schemas = &document["components"]["schemas"];
    let deployment = &schemas["io.k8s.api.apps.v1.Deployment"];
    assert_eq!(deployment["x-kubernetes-group-version-kind"][0]["kind"], "Deployment");
    assert!(deployment["description"].as_str().unwrap().starts_with("Deployment enables"));
    let spec = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"];
    assert_eq!(spec["containers"]["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(spec["containers"]["x-kubernetes-list-map-keys"], json!(["name"]));
    assert!(spec["hostNetwork"]["description"].as_str().is_some());
    assert_eq!(schemas["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"]["default"], "TCP");
    check_references(&document, &document);
}

#[test]
fn every_group_version_builds() {
    let groups: BTreeSet<_> = kinds::builtin().iter().map(|r| (r.group.clone(), r.version.clone())).collect();
    for (group, version) in groups {
        let document = v3(&group, &version, kinds::builtin(), &ExtraSchemas::new());
        check_references(&document, &document);
    }
}

#[test]
fn the_v2_document_and_its_protobuf() {
    use crate::codec::protobuf::wire::{Item, Reader};
    let document = v2(kinds::builtin(), &ExtraSchemas::new());
    check_references(&document, &document);
    let bytes = v2_protobuf(&document);
    // Walk down to one definition, by gnostic's numbers.
    let within = |bytes: &[u8], wanted: u32| -> Vec<Vec<u8>> {
        let (mut reader, mut found) = (Reader::new(bytes), Vec::new());
        while let Some((number, item)) = reader.next().unwrap() {
            if let (true, Item::Bytes(inner)) = (number == wanted, item) {
                found.push(inner.to_vec());
            }
        }
        found
    };
    assert_eq!(within(&bytes, 1), [b"2.0"]);
    let definitions = within(&within(&bytes, 9)[0], 1);
    assert_eq!(definitions.len(), document["definitions"].as_object().unwrap().len());
    let pod = definitions.iter().find(|d| within(d, 1) == [b"io.k8s.api.core.v1.Pod"]).unwrap();
    let schema = &within(pod, 2)[0];
    assert!(within(schema, 4)[0].starts_with(b"Pod is a collection"));
    assert_eq!(within(&within(schema, 25)[0], 1).len(), 5);
    let extension = &within(schema, 31)[0];
    assert_eq!(within(extension, 1), [b"x-kubernetes-group-version-kind"]);
    assert_eq!(within(&bytes, 8).len(), 1);
}

#[test]
fn custom_resources() {
    let mut widget = (**kinds::resource_of::<k8s_openapi::api::apps::v1::Deployment>()).clone();
    widget.group = "example.com".into();
    widget.kind = "Widget".into();
    widget.list_kind = "WidgetList".into();
    widget.plural = "widgets".into();
    widget.scope = Scope::Namespaced;
    widget.subresources.clear();
    let key = ("example.com".to_string(), "v1".to_string(), "Widget".to_string());
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer", "nullable": true, "description": "how big"}}}}});
    let extra = ExtraSchemas::from([(key, schema)]);
    let resources = [Arc::new(widget)];
    let document = v3("example.com", "v1", &resources, &extra);
    check_references(&document, &document);
    let published = &document["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(published["properties"]["spec"]["properties"]["size"]["nullable"], true);
    assert_eq!(published["x-kubernetes-group-version-kind"][0]["group"], "example.com");
    let document = v2(&resources, &extra);
    check_references(&document, &document);
    let published = &document["definitions"]["com.example.v1.Widget"];
    assert_eq!(published["properties"]["spec"]["properties"]["size"], json!({"description": "how big"}));
    assert!(published["properties"]["apiVersion"]["description"].as_str().unwrap().starts_with("APIVersion defines"));
    let index = v3_index(&resources, &extra);
    let changed = v3_index(&resources, &ExtraSchemas::new());
    assert!(
        index["paths"]["apis/example.com/v1"]["serverRelativeURL"]
            .as_str()
            .unwrap()
            .starts_with("/openapi/v3/apis/example.com/v1?hash=")
    );
    assert_ne!(index, changed);
    // A root that keeps whatever comes is published without properties, or kubectl would refuse the rest.
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let key = ("example.com".to_string(), "v1".to_string(), "Widget".to_string());
    let document = v2(&resources, &ExtraSchemas::from([(key, open)]));
    let mut published = document["definitions"]["com.example.v1.Widget"].clone();
    published.as_object_mut().unwrap().remove("x-kubernetes-group-version-kind");
    assert_eq!(published, json!({"type": "object"}));
}
