//! Events of the core group and of events.k8s.io: columns, selectable fields, validation.
//! Neighbours: `convert`, which turns one form into the other; the core form is stored.
//! Both forms show the same cells; each selects by its own names of the same fields.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column, MetadataValidation,
        common::{
            access::{int_at, is_set, part, text, text_at},
            checks,
            columns::{name, name_of, or, string, wide},
        },
    },
    names, printing,
};

/// The core form, or the one of events.k8s.io.
#[derive(Default)]
pub struct Event<const CORE: bool>;

const INVOLVED: [&str; 7] = ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"];

/// The first of some fields that is there: the two forms call the same thing differently.
fn first<'a>(event: &'a Value, fields: [&str; 2]) -> &'a Value {
    fields.iter().filter_map(|field| event.get(*field)).find(|value| !value.is_null()).unwrap_or(&Value::Null)
}

impl<const CORE: bool> Behavior for Event<CORE> {
    fn has_event_ttl(&self) -> bool {
        true
    }

    /// One set of objects, which both groups show.
    fn storage_version(&self) -> Option<(&'static str, &'static str)> {
        (!CORE).then_some(("", "v1"))
    }

    /// Upstream's validation of core events never looks at it.
    fn metadata_validation(&self) -> MetadataValidation {
        if CORE { MetadataValidation::Alone } else { MetadataValidation::Last }
    }

    fn is_counted_by_quota(&self) -> bool {
        false
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate(errors, object, CORE);
        if !CORE {
            validate_new(errors, object);
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validate(errors, object, CORE);
        if CORE {
            return;
        }
        if object["series"] != old["series"] {
            validate_series(errors, object);
        }
        for field in IMMUTABLE {
            checks::immutable(errors, &Path::default(), object, old, field);
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    /// Names of core events are made from the names of anything.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        if CORE { names::path_segment(name, prefix) } else { names::dns_subdomain(name, prefix) }
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 10] = [
            string("Last Seen", "Time since it last happened."),
            string("Type", "Normal, or Warning."),
            string("Reason", "What happened, in a word."),
            string("Object", "What it happened to."),
            wide("Subobject", "Which part of it."),
            wide("Source", "Who reported it."),
            string("Message", "What happened."),
            wide("First Seen", "Time since it first happened."),
            wide("Count", "How often it happened."),
            Column { priority: 1, ..name() },
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let age = |time: Option<&str>| printing::age(time, now);
        let event_time = object["eventTime"].as_str();
        let first_time = first(object, ["firstTimestamp", "deprecatedFirstTimestamp"]).as_str();
        let first_seen = age(first_time.or(event_time));
        let mut last_seen = match first(object, ["lastTimestamp", "deprecatedLastTimestamp"]).as_str() {
            Some(time) => age(Some(time)),
            None => first_seen.clone(),
        };
        let mut count = first(object, ["count", "deprecatedCount"]).as_i64().unwrap_or(0).max(1);
        if let Some(series) = part(object, "series") {
            last_seen = age(series["lastObservedTime"].as_str());
            count = int_at(series, "count");
        }
        let target = first(object, ["involvedObject", "regarding"]);
        let kind = text(target, "kind").to_lowercase();
        let shown = match text(target, "name") {
            "" => kind,
            name => format!("{kind}/{name}"),
        };
        let message = first(object, ["message", "note"]).as_str().unwrap_or("");
        vec![
            json!(last_seen),
            json!(text(object, "type")),
            json!(text(object, "reason")),
            json!(shown),
            json!(text(target, "fieldPath")),
            json!(source(object)),
            json!(message.trim()),
            json!(first_seen),
            json!(count),
            name_of(object),
        ]
    }

    /// Under the names of both forms: a stored event is looked at once for all who ask for either.
    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        let target = first(object, ["involvedObject", "regarding"]);
        let reporter = first(object, ["reportingComponent", "reportingController"]).as_str().unwrap_or("");
        let source = text(first(object, ["source", "deprecatedSource"]), "component");
        let mut fields = Vec::with_capacity(2 * INVOLVED.len() + 5);
        for field in INVOLVED {
            for form in ["involvedObject", "regarding"] {
                fields.push((format!("{form}.{field}"), text(target, field).to_string()));
            }
        }
        for (field, value) in [
            ("reason", text(object, "reason")),
            ("reportingComponent", reporter),
            ("reportingController", reporter),
            ("source", or(source, reporter)),
            ("type", text(object, "type")),
        ] {
            fields.push((field.to_string(), value.to_string()));
        }
        fields
    }

    fn selectable_field_names(&self) -> Vec<String> {
        let (target, rest): (_, &[&str]) = match CORE {
            true => ("involvedObject", &["reason", "reportingComponent", "source", "type"]),
            false => ("regarding", &["reason", "reportingController", "type"]),
        };
        let involved = INVOLVED.iter().map(|field| format!("{target}.{field}"));
        involved.chain(rest.iter().map(|field| field.to_string())).collect()
    }
}

fn source(event: &Value) -> String {
    let source = first(event, ["source", "deprecatedSource"]);
    let controller = first(event, ["reportingComponent", "reportingController"]).as_str().unwrap_or("");
    let component = or(text(source, "component"), controller);
    match or(text(source, "host"), text(event, "reportingInstance")) {
        "" => component.to_string(),
        instance => format!("{component}, {instance}"),
    }
}

const IMMUTABLE: [&str; 13] = [
    "regarding",
    "reason",
    "note",
    "deprecatedSource",
    "deprecatedFirstTimestamp",
    "deprecatedLastTimestamp",
    "deprecatedCount",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingController",
    "reportingInstance",
];

/// What both forms ask for; events of the newer kind say more about their reporter.
fn validate(errors: &mut ErrorList, event: &Value, core: bool) {
    let namespace = text_at(event, "metadata.namespace");
    let involved = text(first(event, ["involvedObject", "regarding"]), "namespace");
    let path = Path::new("involvedObject").child("namespace");
    let has_time = is_set(event, "eventTime");
    let agrees = match (has_time, involved) {
        (false, "") => matches!(namespace, "" | "default"),
        (false, involved) => namespace == involved,
        (true, "") => matches!(namespace, "default" | "kube-system"),
        (true, _) => true,
    };
    if !agrees {
        errors.invalid(&path, involved, "does not match event.namespace");
    }
    if has_time {
        let field = if core { "reportingComponent" } else { "reportingController" };
        let reporter = first(event, ["reportingComponent", "reportingController"]).as_str().unwrap_or("");
        if reporter.is_empty() {
            errors.required(&Path::new(field), "");
        }
        checks::complaints(errors, &Path::new(field), reporter, names::qualified_name(reporter));
        for (field, limit) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
            let value = text(event, field);
            if value.is_empty() {
                errors.required(&Path::new(field), "");
            }
            if value.len() > limit {
                errors.invalid(&Path::new(field), "", format!("can have at most {limit} characters"));
            }
        }
        if first(event, ["message", "note"]).as_str().is_some_and(|message| message.len() > 1024) {
            errors.invalid(&Path::new("message"), "", "can have at most 1024 characters");
        }
    }
}

fn validate_new(errors: &mut ErrorList, event: &Value) {
    validate_series(errors, event);
    if !is_set(event, "eventTime") {
        errors.required(&Path::new("eventTime"), "");
    }
    let kind = text(event, "type");
    if !matches!(kind, "Normal" | "Warning") {
        errors.invalid(&Path::new("type"), "", format!("has invalid value: {kind}"));
    }
    for (field, shown) in [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedSource", "source"),
    ] {
        if is_set(event, field) {
            errors.invalid(&Path::new(shown), "", "needs to be unset");
        }
    }
    if int_at(event, "deprecatedCount") != 0 {
        errors.invalid(&Path::new("count"), "", "needs to be unset");
    }
}

fn validate_series(errors: &mut ErrorList, event: &Value) {
    let Some(series) = part(event, "series") else { return };
    if int_at(series, "count") < 2 {
        errors.invalid(&Path::new("series.count"), "", "should be at least 2");
    }
    if !is_set(series, "lastObservedTime") {
        errors.required(&Path::new("series.lastObservedTime"), "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_selects_by_its_own_names() {
        let core = json!({
            "involvedObject": { "kind": "Pod" }, "reportingComponent": "me", "source": { "component": "src" }, "type": "Normal",
        });
        let new = json!({ "regarding": { "kind": "Pod" }, "reportingController": "me", "type": "Normal" });
        let check = |fields: Vec<(String, String)>, name: &str, value: &str| {
            assert!(fields.contains(&(name.to_string(), value.to_string())), "{name} in {fields:?}");
        };
        check(Event::<true>.selectable_fields(&core), "involvedObject.kind", "Pod");
        check(Event::<true>.selectable_fields(&core), "reportingComponent", "me");
        check(Event::<true>.selectable_fields(&core), "source", "src");
        check(Event::<false>.selectable_fields(&new), "regarding.kind", "Pod");
        check(Event::<false>.selectable_fields(&new), "reportingController", "me");
        check(Event::<false>.selectable_fields(&new), "type", "Normal");
        for name in [Event::<true>.selectable_field_names(), Event::<false>.selectable_field_names()].concat() {
            assert!(Event::<true>.selectable_fields(&core).iter().any(|(field, _)| *field == name), "{name}");
        }
    }
}
