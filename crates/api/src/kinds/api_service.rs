//! APIServices: defaults, strategy, columns, validation.
//! Neighbours: the aggregation layer, which proxies to their services.
//! Invariant: a name is `version.group`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, existing_mut, part, part_mut, text},
    columns::{age, age_of, condition, name, name_of, string},
};

#[derive(Default)]
pub struct ApiService;

impl Behavior for ApiService {
    fn default(&self, object: &mut Value) {
        if let Some(service) = part_mut(object, "spec").and_then(|spec| existing_mut(spec, "service")) {
            default_to(service, "port", 443);
        }
    }

    // A local group is always there.
    fn prepare_create(&self, object: &mut Value) {
        super::behavior::drop_field(object, "status");
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] =
            [name(), string("Service", "Who serves the group."), string("Available", "Whether it answers."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let service = part(&object["spec"], "service")
            .map(|service| format!("{}/{}", text(service, "namespace"), text(service, "name")));
        let available = match condition(object, "Available") {
            None => "Unknown".to_string(),
            Some(c) if text(c, "status") == "True" => "True".to_string(),
            Some(c) => format!("{} ({})", text(c, "status"), text(c, "reason")),
        };
        vec![name_of(object), json!(service.as_deref().unwrap_or("Local")), json!(available), age_of(object, now)]
    }
}
