//! What a kind does beyond being stored: defaults, strategy, validation, columns, selectable fields.
//! Implemented by one file per kind in the folders beside this one, and by custom resources at run time.
//! Invariant: pure; sees one object (and its old version), never the store (tidy: `pure_files`).

use serde_json::Value;

use super::common::access::set;
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

/// What a deletion does to the objects that its object owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Foreground,
    Background,
}

/// Who answers requests for a kind: the store, or code of the API server's that keeps no objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handler {
    Storage,
    Binding,
    ComponentStatus,
    LocalSubjectAccessReview,
    SelfSubjectAccessReview,
    SelfSubjectReview,
    SelfSubjectRulesReview,
    SubjectAccessReview,
    TokenReview,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataValidation {
    /// Before the rest.
    First,
    /// After the rest.
    Last,
    /// Only where nothing else is wrong.
    Alone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocates {
    Nothing,
    /// Cluster IPs, node ports and the health check port of a Service.
    ServiceAddressesAndPorts,
}

/// Upstream calls this a strategy. Every method has the meaning that fits a plain kind by default.
/// The order in a request is: schema defaults -> `default` -> `prepare_*` -> `validate_*`.
pub trait Behavior: Send + Sync {
    /// Defaults that a schema cannot express. The schema's own defaults are already in place.
    fn default(&self, _object: &mut Value) {}

    /// Before a create: drop what a client may not set. By default the status is emptied where the kind has one.
    /// Expects `metadata.name` and `metadata.uid` to be in place: a job selects its pods by uid.
    fn prepare_create(&self, object: &mut Value) {
        if self.has_status() {
            set(object, "status", self.initial_status());
        }
    }

    /// The status of a new object; null for none.
    fn initial_status(&self) -> Value {
        Value::Null
    }

    /// Before an update of the main resource: the status stays as it was.
    fn prepare_update(&self, object: &mut Value, old: &Value) {
        if self.has_status() {
            keep_field(object, old, "status");
        }
    }

    /// Before an update of `status`: everything but the status and some metadata stays as it was.
    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        reset_to_old(object, old, self.status_update_resets());
    }

    /// Notes in the new status when it changed, where the client did not. After `prepare_status_update`.
    fn stamp_status_update(&self, _object: &mut Value, _old: &Value, _now: jiff::Timestamp) {}

    /// Metadata that an update of `status` leaves as it was, beyond what only the server writes. Most built-in kinds
    /// let labels and annotations through; the others, and custom resources, do not.
    fn status_update_resets(&self) -> &'static [&'static str] {
        &ALL_METADATA
    }

    fn validate_create(&self, _object: &Value, _errors: &mut ErrorList) {}

    fn validate_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
    }

    fn validate_status_update(&self, _object: &Value, _old: &Value, _errors: &mut ErrorList) {}

    /// An update through a subresource other than `status` that takes the whole object: `ephemeralcontainers`,
    /// `resize`, `approval`, `finalize`. Keeps everything as it was but the part the subresource is for.
    fn prepare_subresource_update(&self, _subresource: &str, _object: &mut Value, _old: &Value) {}

    /// Notes the time in it, where the client did not. After `prepare_subresource_update`.
    fn stamp_subresource_update(&self, _subresource: &str, _object: &mut Value, _old: &Value, _now: jiff::Timestamp) {}

    fn validate_subresource_update(&self, _subresource: &str, _object: &Value, _old: &Value, _errors: &mut ErrorList) {}

    /// The warning that every use of a deprecated kind gives.
    fn deprecation(&self) -> Option<&str> {
        None
    }

    /// Texts for `Warning` headers about a new object, of what `prepare_create` is about to change.
    fn warnings_before_prepare(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }

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

    /// Whether the generation grows; some kinds only begin with one.
    fn generation_grows(&self) -> bool {
        true
    }

    /// When the metadata of a new object is checked.
    fn metadata_validation(&self) -> MetadataValidation {
        MetadataValidation::First
    }

    /// Whether a new object, as it was sent, has the very labels of its template: what becomes of those becomes of its own.
    fn shares_template_labels(&self, _object: &Value) -> bool {
        false
    }

    /// Metadata whose changes count for the generation too.
    fn generation_metadata(&self) -> &'static [&'static str] {
        &[]
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

    /// Whether the name that another is generated from is checked too, beside what comes of it.
    fn validates_generate_name(&self) -> bool {
        true
    }

    /// Grace period of a deletion: `Some(seconds)` for kinds that terminate gracefully (pods), from what the client
    /// asked for. `None`: the object goes at once.
    fn grace_period_seconds(&self, _object: &Value, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// Whether objects go by themselves after the server's `--event-ttl`.
    fn has_event_ttl(&self) -> bool {
        false
    }

    /// What becomes of dependents unless a deletion says: upstream's `DefaultGarbageCollectionPolicy`.
    fn default_propagation(&self) -> Propagation {
        Propagation::Background
    }

    /// The warning for a deletion that does not say what becomes of dependents.
    fn unsaid_propagation_warning(&self) -> Option<&'static str> {
        None
    }

    /// Whether a deletion is answered with what was deleted; most are with a Status.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// The finalizer that a deletion adds, for what has to go first.
    fn deletion_finalizer(&self) -> Option<&'static str> {
        None
    }

    /// What else the first deletion notes, where there is such a finalizer. `now` is a timestamp.
    fn prepare_deletion(&self, _object: &mut Value, _now: &str) {}

    /// Whether `spec.finalizers` keeps a deleted object, as it does a namespace that is not empty yet.
    fn has_spec_finalizers(&self) -> bool {
        false
    }

    /// Group and version that objects are stored in, where that is not the served one.
    fn storage_version(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Who answers requests for the kind.
    fn handler(&self) -> Handler {
        Handler::Storage
    }

    /// What a write has to reserve beside the object itself.
    fn allocates(&self) -> Allocates {
        Allocates::Nothing
    }

    /// Whether an update in this namespace is one of many heartbeats, which may wait for each other.
    fn is_heartbeat(&self, _namespace: &str) -> bool {
        false
    }

    /// Whether the quota controller counts objects of the kind by number alone (`count/configmaps`).
    fn is_counted_by_quota(&self) -> bool {
        true
    }

    /// Annotations that stand for what upstream keeps elsewhere, and so does not show with a row's metadata.
    fn annotations_hidden_in_rows(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        &PLAIN_COLUMNS
    }

    /// The cells of one object, in the order of `columns`, wide ones included. `now` is for ages.
    fn cells(&self, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        let meta = &object["metadata"];
        vec![meta["name"].clone(), meta["creationTimestamp"].clone()]
    }

    /// `conditions` of the table row: says that a pod has completed.
    fn row_conditions(&self, _object: &Value) -> Vec<Value> {
        Vec::new()
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

/// What upstream shows of a kind without a printer of its own.
pub const PLAIN_COLUMNS: [Column; 2] = [
    super::common::columns::name(),
    Column { name: "Created At", kind: "date", format: "", description: "When the object was created.", priority: 0 },
];

/// For kinds of old: a status whose writers may change the metadata too, and no generation.
macro_rules! status_without_generation {
    () => {
        fn has_status(&self) -> bool {
            true
        }

        fn has_generation(&self) -> bool {
            false
        }

        fn status_update_resets(&self) -> &'static [&'static str] {
            &[]
        }
    };
}
pub(crate) use status_without_generation;

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

pub const ALL_METADATA: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];
const SERVER_METADATA: [&str; 4] = ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"];

/// Keeps the new status, and of the new metadata what is neither in `resets` nor the server's own.
pub fn reset_to_old(object: &mut Value, old: &Value, resets: &[&str]) {
    let mut status = Value::Null;
    let mut metadata = Value::Null;
    if let Some(map) = object.as_object_mut() {
        status = map.remove("status").unwrap_or_default();
        metadata = map.remove("metadata").unwrap_or_default();
    }
    for field in SERVER_METADATA.iter().chain(resets) {
        set(&mut metadata, field, old["metadata"].get(*field).cloned().unwrap_or_default());
    }
    if let (Some(map), Some(old)) = (object.as_object_mut(), old.as_object()) {
        map.retain(|field, _| old.contains_key(field));
        for (field, value) in old.iter().filter(|(field, _)| !matches!(field.as_str(), "metadata" | "status")) {
            map.insert(field.clone(), value.clone());
        }
    }
    set(object, "metadata", metadata);
    set(object, "status", status);
}
