//! Pods get the number behind their priority class.
//! A row of the table in `admission`.
//! A pod that is stored has `spec.priority` and `spec.preemptionPolicy`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use api::ApiError;

use super::{Attributes, Operation, Plugin};
use crate::storage::cluster::Cluster;

pub struct Priority(pub Arc<Cluster>);

impl Priority {
    fn default_class(&self) -> Option<Value> {
        let classes = self.0.list("priorityclasses", "");
        let defaults = classes.iter().map(|c| c.value()).filter(|c| c["globalDefault"] == true);
        defaults.min_by_key(|c| c["value"].as_i64().unwrap_or(0))
    }
}

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn validates(&self) -> bool {
        true
    }

    fn mutates(&self) -> bool {
        true
    }

    /// One class at most is the default.
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if !a.is("scheduling.k8s.io", "priorityclasses") || !writes || a.object["globalDefault"] != true {
            return Ok(());
        }
        match self.default_class().and_then(|c| c["metadata"]["name"].as_str().map(str::to_string)) {
            Some(name) if a.object["metadata"]["name"] != name.as_str() => {
                let why = format!("PriorityClass {name} is already marked as default. Only one default can exist");
                Err(a.forbidden(&why))
            }
            _ => Ok(()),
        }
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        if !a.is("", "pods") || !a.subresource.is_empty() {
            return Ok(());
        }
        if a.operation == Operation::Update {
            // What was computed at creation stays even if an old client leaves it out.
            for field in ["priority", "preemptionPolicy"] {
                if a.object["spec"][field].is_null() && !a.old["spec"][field].is_null() {
                    a.object["spec"][field] = a.old["spec"][field].clone();
                }
            }
            return Ok(());
        }
        if a.operation != Operation::Create || !a.object["spec"].is_object() {
            return Ok(());
        }
        let named = a.object["spec"]["priorityClassName"].as_str().filter(|n| !n.is_empty()).map(str::to_string);
        let class = match &named {
            Some(name) => match self.0.fresh_get("priorityclasses", "", name).await? {
                Some(class) => Some(class.value()),
                None => return Err(a.forbidden(&format!("no PriorityClass with name {name} was found"))),
            },
            None => self.default_class(),
        };
        let value = class.as_ref().and_then(|c| c["value"].as_i64()).unwrap_or(0);
        if let (None, Some(class)) = (&named, &class) {
            a.object["spec"]["priorityClassName"] = class["metadata"]["name"].clone();
        }
        match a.object["spec"]["priority"].as_i64() {
            Some(asked) if asked != value => {
                let why = "the integer value of priority must not be provided in pod spec; priority admission \
                           controller computed";
                return Err(a.forbidden(&format!("{why} {value} from the given PriorityClass name")));
            }
            _ => a.object["spec"]["priority"] = json!(value),
        }
        let policy = class.as_ref().and_then(|c| c["preemptionPolicy"].as_str()).unwrap_or("PreemptLowerPriority");
        match a.object["spec"]["preemptionPolicy"].as_str() {
            Some(asked) if asked != policy => {
                let why = "the string value of PreemptionPolicy must not be provided in pod spec; priority admission \
                           controller computed";
                Err(a.forbidden(&format!("{why} {policy} from the given PriorityClass name")))
            }
            _ => {
                a.object["spec"]["preemptionPolicy"] = json!(policy);
                Ok(())
            }
        }
    }
}
