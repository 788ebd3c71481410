//! Validating admission policies and what their expressions get wrong, told in their status.
//! Run by the cluster of `main`.

use k8s_openapi::{
    api::admissionregistration::v1::ValidatingAdmissionPolicy,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use serde_json::{Value, json};

use crate::{Cluster, config};

fn policy(name: &str, group: &str, resource: &str, validations: &Value) -> Value {
    json!({ "metadata": { "name": name }, "spec": {
        "matchConstraints": { "resourceRules": [
            { "apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource] },
        ] },
        "validations": validations,
    } })
}

#[tokio::test(start_paused = true)]
async fn what_expressions_get_wrong_is_told() {
    let cluster = Cluster::start(config()).await;
    let schema = json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
        "replicas": { "type": "integer" },
    } } } });
    cluster
        .create::<CustomResourceDefinition>(json!({ "metadata": { "name": "crontabs.example.com" }, "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "crontabs", "singular": "crontab", "kind": "CronTab", "listKind": "CronTabList" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        } }))
        .await;
    cluster.settle().await;
    // Per policy what its expressions are about, and the warnings of each.
    let rows = [
        ("good", "apps", "deployments", json!([{ "expression": "object.spec.replicas > 1" }]), vec![]),
        (
            "confused",
            "apps",
            "deployments",
            json!([{
                "expression": "object.spec.replicas > '1'", "messageExpression": "'got ' + object.spec.replicas",
            }]),
            vec![
                ("spec.validations[0].expression", "no matching overload for '_>_' applied to '(int, string)'"),
                ("spec.validations[0].messageExpression", "no matching overload for '_+_' applied to '(string, int)'"),
            ],
        ),
        (
            "custom",
            "example.com",
            "crontabs",
            json!([
                { "expression": "object.spec.replicas > '1'" }, { "expression": "object.spec.maxRetries < 10" },
                { "expression": "object.metadata.labels['a'] == 'b' && object.kind == 'CronTab'" },
            ]),
            vec![
                ("spec.validations[0].expression", "no matching overload for '_>_' applied to '(int, string)'"),
                ("spec.validations[1].expression", "undefined field 'maxRetries'"),
            ],
        ),
        ("unknown", "example.com", "nothing", json!([{ "expression": "object.x == 1" }]), vec![]),
    ];
    for (name, group, resource, validations, _) in &rows {
        cluster.create::<ValidatingAdmissionPolicy>(policy(name, group, resource, validations)).await;
    }
    cluster.settle().await;
    for (name, _, _, _, expected) in rows {
        let stored = cluster.api::<ValidatingAdmissionPolicy>().get(name).await.unwrap();
        let status = stored.status.unwrap_or_default();
        assert_eq!(status.observed_generation, stored.metadata.generation, "{name}");
        let warnings = status.type_checking.and_then(|t| t.expression_warnings).unwrap_or_default();
        assert_eq!(warnings.len(), expected.len(), "{name}: {warnings:?}");
        for (warning, (field, text)) in warnings.iter().zip(expected) {
            assert!(warning.field_ref == field && warning.warning.contains(text), "{name}: {warning:?}");
        }
    }
    let stored = cluster.api::<ValidatingAdmissionPolicy>().get("good").await.unwrap();
    let managers: Vec<_> = stored.metadata.managed_fields.unwrap_or_default().into_iter().map(|m| m.manager).collect();
    assert!(managers.contains(&Some("validatingadmissionpolicy-status".into())), "{managers:?}");
}
