//! Follows renames: a field that names another object gets the name that object has now.
//! Called behind each change of names.
//! A reference is changed only if it names a kustomized object of the right kind by a name it has or had.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Resource;

/// Fields that name an object, by where they stand: the field above, the field itself, the kind it names.
const REFERENCES: &[(&str, &str, &str)] = &[
    ("configMap", "name", "ConfigMap"),
    ("configMapRef", "name", "ConfigMap"),
    ("configMapKeyRef", "name", "ConfigMap"),
    ("secretRef", "name", "Secret"),
    ("secretKeyRef", "name", "Secret"),
    ("imagePullSecrets", "name", "Secret"),
    ("secrets", "name", "Secret"),
    ("secret", "secretName", "Secret"),
    ("secret", "name", "Secret"),
    ("tls", "secretName", "Secret"),
    ("persistentVolumeClaim", "claimName", "PersistentVolumeClaim"),
    ("service", "name", "Service"),
    ("spec", "serviceName", "Service"),
    ("backend", "serviceName", "Service"),
    ("spec", "serviceAccountName", "ServiceAccount"),
    ("spec", "serviceAccount", "ServiceAccount"),
    ("spec", "priorityClassName", "PriorityClass"),
    ("spec", "storageClassName", "StorageClass"),
    ("spec", "volumeName", "PersistentVolume"),
    ("spec", "ingressClassName", "IngressClass"),
    ("spec", "runtimeClassName", "RuntimeClass"),
];
/// References that name their kind beside the name.
const WITH_KIND: &[&str] = &["roleRef", "subjects", "scaleTargetRef", "targetRef", "claimRef", "dataSource"];

/// New names by kind and former name.
type Renames = BTreeMap<(String, String), (String, String)>;

pub fn follow_renames(resources: &mut [Resource]) {
    let mut renames = Renames::new();
    for resource in resources.iter() {
        for former in &resource.former_names {
            let now = (resource.name().to_string(), resource.namespace().to_string());
            renames.insert((resource.kind().to_string(), former.clone()), now);
        }
        // Subjects name the namespace of an account, which may have changed without its name.
        if resource.kind() == "ServiceAccount" {
            let now = (resource.name().to_string(), resource.namespace().to_string());
            renames.entry((resource.kind().to_string(), resource.name().to_string())).or_insert(now);
        }
    }
    if renames.is_empty() {
        return;
    }
    for resource in resources.iter_mut() {
        if let Some(fields) = resource.object.as_object_mut() {
            for (field, value) in fields.iter_mut().filter(|(field, _)| *field != "metadata" && *field != "data") {
                walk(value, field, &renames);
            }
        }
    }
}

fn walk(value: &mut Value, field: &str, renames: &Renames) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| walk(item, field, renames)),
        Value::Object(_) => {
            rename(value, field, renames);
            if let Some(fields) = value.as_object_mut() {
                fields.iter_mut().for_each(|(inner, value)| walk(value, inner, renames));
            }
        }
        _ => {}
    }
}

fn rename(object: &mut Value, field: &str, renames: &Renames) {
    if WITH_KIND.contains(&field) {
        let kind = object["kind"].as_str().unwrap_or_default().to_string();
        let name = object["name"].as_str().unwrap_or_default().to_string();
        if let Some((now, namespace)) = renames.get(&(kind, name)) {
            object["name"] = now.as_str().into();
            if object["namespace"].is_string() && !namespace.is_empty() {
                object["namespace"] = namespace.as_str().into();
            }
        }
        return;
    }
    for (above, own, kind) in REFERENCES {
        if *above != field {
            continue;
        }
        let Some(name) = object.get(*own).and_then(Value::as_str) else { continue };
        if let Some((now, _)) = renames.get(&(kind.to_string(), name.to_string())) {
            object[*own] = now.as_str().into();
        }
    }
}
