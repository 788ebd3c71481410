//! CustomResourceDefinitions: defaults, strategy, validation.
//! Neighbours: the API server's custom resources, which serve what these define.
//! Invariant: a name is `plural.group`.

use serde_json::{Value, json};

use super::{
    Behavior,
    access::{default_to, existing_mut, flag, is_set, items, part_mut, text},
};

#[derive(Default)]
pub struct CustomResourceDefinition;

impl Behavior for CustomResourceDefinition {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        if let Some(names) = part_mut(spec, "names") {
            let kind = text(names, "kind").to_string();
            default_to(names, "singular", kind.to_lowercase());
            if !kind.is_empty() {
                default_to(names, "listKind", format!("{kind}List"));
            }
        }
        if let Some(conversion) = part_mut(spec, "conversion") {
            default_to(conversion, "strategy", "None");
            if let Some(service) = existing_mut(conversion, "webhook")
                .and_then(|webhook| existing_mut(webhook, "clientConfig"))
                .and_then(|config| existing_mut(config, "service"))
            {
                default_to(service, "port", 443);
            }
        }
        let stored: Vec<Value> = items(spec, "versions")
            .iter()
            .filter(|version| flag(version, "storage"))
            .map(|version| json!(text(version, "name")))
            .collect();
        if let Some(status) = part_mut(object, "status")
            && !is_set(status, "storedVersions")
        {
            status["storedVersions"] = Value::Array(stored);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        let stored: Vec<Value> = items(&object["spec"], "versions")
            .iter()
            .filter(|version| flag(version, "storage"))
            .map(|version| json!(text(version, "name")))
            .collect();
        object["status"] = json!({ "storedVersions": stored });
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        super::behavior::keep_field(object, old, "status");
        let Some(stored) = items(&object["spec"], "versions").iter().find(|v| flag(v, "storage")) else { return };
        let stored = json!(text(stored, "name"));
        if let Some(status) = part_mut(object, "status") {
            let mut all = items(status, "storedVersions").to_vec();
            if !all.contains(&stored) {
                all.push(stored);
                status["storedVersions"] = Value::Array(all);
            }
        }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}
