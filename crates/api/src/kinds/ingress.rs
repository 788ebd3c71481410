//! Ingresses and IngressClasses: defaults, strategy, columns, validation.
//! Neighbours: ingress controllers write the status.
//! Invariant: the controller of a class never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, existing_mut, is_set, items, part, part_mut, text},
    columns::{age, age_of, load_balancer, name, name_of, string},
};

#[derive(Default)]
pub struct Ingress;

impl Behavior for Ingress {
    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({ "loadBalancer": {} });
    }

    fn has_status(&self) -> bool {
        true
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 6] = [
            name(),
            string("Class", "Which controller serves it."),
            string("Hosts", "Hosts of its rules."),
            string("Address", "Where it is reached."),
            string("Ports", "Ports that are open."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name_of(object),
            json!(spec["ingressClassName"].as_str().unwrap_or("<none>")),
            json!(hosts(items(spec, "rules"))),
            json!(load_balancer(&object["status"])),
            json!(if is_set(spec, "tls") { "80, 443" } else { "80" }),
            age_of(object, now),
        ]
    }
}

fn hosts(rules: &[Value]) -> String {
    const SHOWN: usize = 3;
    let mut shown = Vec::new();
    let mut more = false;
    for rule in rules {
        more |= shown.len() == SHOWN;
        if !more && is_set(rule, "host") {
            shown.push(text(rule, "host"));
        }
    }
    match (shown.is_empty(), more) {
        (true, _) => "*".to_string(),
        (false, true) => format!("{} + {} more...", shown.join(","), rules.len() - SHOWN),
        (false, false) => shown.join(","),
    }
}

#[derive(Default)]
pub struct IngressClass;

impl Behavior for IngressClass {
    fn default(&self, object: &mut Value) {
        if let Some(parameters) = part_mut(object, "spec").and_then(|spec| existing_mut(spec, "parameters")) {
            default_to(parameters, "scope", "Cluster");
        }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] = [
            name(),
            string("Controller", "Who serves this class."),
            string("Parameters", "Where its settings are."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let parameters = part(spec, "parameters").map(|p| {
            let group = p["apiGroup"].as_str().map(|group| format!(".{group}")).unwrap_or_default();
            format!("{}{group}/{}", text(p, "kind"), text(p, "name"))
        });
        vec![
            name_of(object),
            json!(text(spec, "controller")),
            json!(parameters.as_deref().unwrap_or("<none>")),
            age_of(object, now),
        ]
    }
}
