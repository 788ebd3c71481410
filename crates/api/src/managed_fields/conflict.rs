//! The 409 of server-side apply, with the owners named.
//! Used by `apply`.
//! One cause per field.

use serde_json::{Value, json};

use super::{
    managers::{Identity, Manager, Operation},
    set::Set,
};
use crate::{ApiError, Reason};

/// The fields of another manager that an apply would change.
pub struct Conflict {
    pub who: Identity,
    pub set: Set,
}

impl Conflict {
    pub fn new(manager: &Manager, set: Set) -> Self {
        Self { who: manager.who.clone(), set }
    }
}

fn named(who: &Identity) -> String {
    let mut text = format!("{:?}", who.manager);
    if !who.subresource.is_empty() {
        text += &format!(" with subresource {:?}", who.subresource);
    }
    if who.operation == Operation::Update {
        text += &format!(" using {}", who.api_version);
    }
    text
}

pub fn error(mut conflicts: Vec<Conflict>) -> ApiError {
    conflicts.sort_by(|a, b| a.who.cmp(&b.who));
    let causes: Vec<Value> = conflicts
        .iter()
        .flat_map(|c| {
            let message = format!("conflict with {}", named(&c.who));
            c.set
                .paths()
                .into_iter()
                .map(move |path| json!({ "reason": "FieldManagerConflict", "message": message, "field": path }))
        })
        .collect();
    let message = match (&conflicts[..], causes.len()) {
        ([one], 1) => {
            format!("Apply failed with 1 conflict: conflict with {}: {}", named(&one.who), one.set.paths().concat())
        }
        (_, count) => {
            let mut lines = Vec::new();
            for conflict in &conflicts {
                lines.push(format!("conflicts with {}:", named(&conflict.who)));
                lines.extend(conflict.set.paths().iter().map(|path| format!("- {path}")));
            }
            format!("Apply failed with {count} conflicts: {}", lines.join("\n"))
        }
    };
    ApiError::new(Reason::Conflict, message).with_details(json!({ "causes": causes }))
}
