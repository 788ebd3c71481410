//! ComponentStatuses: deprecated, answered from health checks and never stored.
//! Made by the API server when asked.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::{
    Behavior, Column, Handler,
    common::{
        access::{items, text},
        columns::{name, name_of, string},
    },
};

#[derive(Default)]
pub struct ComponentStatus;

impl Behavior for ComponentStatus {
    fn handler(&self) -> Handler {
        Handler::ComponentStatus
    }

    fn deprecation(&self) -> Option<&'static str> {
        Some("v1 ComponentStatus is deprecated in v1.19+")
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 4] = [
            name(),
            string("Status", "Whether it is healthy."),
            string("Message", "What it says."),
            string("Error", "What is wrong."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let healthy = items(object, "conditions").iter().find(|c| text(c, "type") == "Healthy");
        let status = match healthy.map(|c| text(c, "status")) {
            Some("True") => "Healthy",
            Some(_) => "Unhealthy",
            None => "Unknown",
        };
        let said = |field: &str| json!(healthy.map_or("", |c| text(c, field)));
        vec![name_of(object), json!(status), said("message"), said("error")]
    }
}
