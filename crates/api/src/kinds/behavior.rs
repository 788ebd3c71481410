//! What a kind does beyond being stored: defaults, strategy, validation, columns, selectable fields.
//! Implemented by one file per kind beside this one, and by `custom resources` at run time.
//! Invariant: pure; sees one object (and its old version), never the store.

use serde_json::{Value, json};

use crate::field::ErrorList;

/// One column of `kubectl get`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// OpenAPI type: `string`, `integer`, `date`, …
    pub kind: &'static str,
    /// OpenAPI format: `name` for the name column, usually empty.
    pub format: &'static str,
    pub description: &'static str,
    /// 0 always shown, 1 with `-o wide`.
    pub priority: i32,
}

/// Upstream calls this a strategy. Every method has the meaning that fits a plain kind by default.
/// The order in a request is: schema defaults -> `default` -> `prepare_*` -> `validate_*`.
pub trait Behavior: Send + Sync {
    /// Defaults that a schema cannot express. The schema's own defaults are already in place.
    fn default(&self, _object: &mut Value) {}

    /// Before a create: drop what a client may not set. By default the status is emptied where the kind has one.
    fn prepare_create(&self, object: &mut Value) {
        if self.has_status() {
            drop_field(object, "status");
        }
    }

    /// Before an update of the main resource: the status stays as it was.
    fn prepare_update(&self, object: &mut Value, old: &Value) {
        if self.has_status() {
            keep_field(object, old, "status");
        }
    }

    /// Before an update of `status`: everything but the status and managed metadata stays as it was.
    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        let status = object.get("status").cloned();
        let metadata = object.get("metadata").cloned();
        *object = old.clone();
        if let Some(metadata) = metadata {
            keep_status_metadata(object, &metadata);
        }
        match status {
            Some(status) => object["status"] = status,
            None => drop_field(object, "status"),
        }
    }

    fn validate_create(&self, _object: &Value, _errors: &mut ErrorList) {}

    fn validate_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
    }

    fn validate_status_update(&self, _object: &Value, _old: &Value, _errors: &mut ErrorList) {}

    /// Texts for `Warning` headers.
    fn warnings(&self, _object: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Whether the kind has a `status` that only its subresource writes.
    fn has_status(&self) -> bool {
        false
    }

    /// Whether `metadata.generation` is kept: starts at 1 and grows when anything but metadata and status changes.
    fn has_generation(&self) -> bool {
        self.has_status()
    }

    /// Whether a PUT to a name that does not exist creates it.
    fn allow_create_on_update(&self) -> bool {
        false
    }

    /// Whether an update without a resourceVersion is accepted.
    fn allow_unconditional_update(&self) -> bool {
        true
    }

    /// How metadata.name is checked: `None` is a valid name, `Some(text)` says why not.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        crate::names::dns_subdomain(name, prefix)
    }

    /// Grace period of a deletion: `Some(seconds)` for kinds that terminate gracefully (pods), from what the client
    /// asked for. `None`: the object goes at once.
    fn grace_period_seconds(&self, _object: &Value, _asked: Option<i64>) -> Option<i64> {
        None
    }

    fn columns(&self) -> &'static [Column] {
        &PLAIN_COLUMNS
    }

    /// The cells of one object, in the order of `columns`. `now` is for ages.
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let meta = &object["metadata"];
        vec![meta["name"].clone(), json!(crate::printing::age(meta["creationTimestamp"].as_str(), now))]
    }

    /// Fields that a field selector may name beyond `metadata.name` and `metadata.namespace`, with their values.
    fn selectable_fields(&self, _object: &Value) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The names of those fields, for the error on any other. Must agree with `selectable_fields`.
    fn selectable_field_names(&self) -> Vec<String> {
        Vec::new()
    }
}

pub const PLAIN_COLUMNS: [Column; 2] = [
    Column {
        name: "Name",
        kind: "string",
        format: "name",
        description: "Name must be unique within a namespace.",
        priority: 0,
    },
    Column { name: "Age", kind: "date", format: "", description: "When the object was created.", priority: 0 },
];

/// A kind without behaviour of its own.
pub struct Plain;

impl Behavior for Plain {}

pub fn drop_field(object: &mut Value, field: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(field);
    }
}

pub fn keep_field(object: &mut Value, old: &Value, field: &str) {
    match old.get(field) {
        Some(value) => object[field] = value.clone(),
        None => drop_field(object, field),
    }
}

/// What an update of `status` may change in the metadata: only what the server itself manages.
fn keep_status_metadata(object: &mut Value, metadata: &Value) {
    for field in ["managedFields", "resourceVersion"] {
        match metadata.get(field) {
            Some(value) => object["metadata"][field] = value.clone(),
            None => drop_field(&mut object["metadata"], field),
        }
    }
}
