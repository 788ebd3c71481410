//! Which objects of a resource a list or watch is about: namespace, labels, fields.
//! Used by `read`, `watch` and `collection`.
//! Field values of an object version are computed at most once for the version that asks first.

use std::borrow::Cow;

use api::{
    ApiError, Object,
    selectors::{FieldSelector, LabelSelector},
};

use crate::{
    discovery::served::Served,
    registry::{custom::Conversion, initializers},
    request::call::Call,
    storage::watch_cache::Entry,
};

pub struct Selection {
    /// Of the keys: `namespace/`, or empty.
    pub prefix: String,
    labels: LabelSelector,
    fields: FieldSelector,
    /// What is asked for can only be seen in the version the client speaks, which a webhook makes: `matches` lets
    /// everything through, and `matches_view` decides.
    late: bool,
    /// Whether objects that wait for initializers are left out.
    hides_uninitialized: bool,
}

/// In the words of the kind: most have none of their own.
fn unknown_field(served: &Served, field: &str) -> String {
    match (served.group.as_str(), served.kind.as_str()) {
        _ if served.custom.is_some() => format!("field label not supported: {field}"),
        ("", "Pod" | "Node" | "ReplicationController" | "Event" | "Namespace" | "Secret" | "Service")
        | ("events.k8s.io" | "certificates.k8s.io", _) => format!("field label not supported: {field}"),
        ("batch", "Job") => format!("field label {field:?} not supported for Job"),
        ("resource.k8s.io", "ResourceSlice") => {
            format!("field label not supported for {}, Kind=ResourceSlice: {field}", served.api_version())
        }
        _ => format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""),
    }
}

/// Whether a selector may name the namespace: of cluster-scoped kinds too, where they leave fields to what is common.
fn knows_namespace(served: &Served) -> bool {
    let field = "metadata.namespace";
    served.namespaced() || unknown_field(served, field).starts_with(&format!("{field:?} is not a known"))
}

impl Selection {
    pub fn from_call(call: &Call, served: &Served) -> Result<Self, ApiError> {
        let wrong = |e: String| ApiError::bad_request(e);
        call.query.number("timeoutSeconds")?;
        let labels = LabelSelector::parse(call.query.get("labelSelector").unwrap_or_default()).map_err(wrong)?;
        let fields = FieldSelector::parse(call.query.get("fieldSelector").unwrap_or_default()).map_err(wrong)?;
        let known = served.selectable_names();
        for requirement in fields.requirements() {
            let field = requirement.field.as_str();
            let common = field == "metadata.name" || (field == "metadata.namespace" && knows_namespace(served));
            if !common && !known.iter().any(|k| k == field) {
                return Err(ApiError::bad_request(unknown_field(served, field)));
            }
        }
        let namespaced = served.namespaced() && !call.info.namespace.is_empty();
        let prefix = if namespaced { format!("{}/", call.info.namespace) } else { String::new() };
        let converted = served.custom.as_ref().is_some_and(|c| matches!(c.conversion, Conversion::Webhook(_)));
        let late = converted && !(labels.is_empty() && fields.is_empty());
        Ok(Self { prefix, labels, fields, late, hides_uninitialized: call.hides_uninitialized })
    }

    /// Narrowed to one object; fields that select others are refused.
    pub fn with_name(mut self, name: &str) -> Result<Self, ApiError> {
        if self.fields.is_empty() {
            self.fields = FieldSelector::one("metadata.name", name);
        } else if self.fields.exact("metadata.name") != Some(name) {
            return Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        Ok(self)
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty() && !self.hides_uninitialized
    }

    /// Whether the labels and fields fit; the prefix is the caller's business.
    pub fn matches(&self, served: &Served, entry: &Entry) -> bool {
        if self.hides_uninitialized && initializers::is_uninitialized(&entry.object) {
            return false;
        }
        self.late || self.fits(&entry.object, || entry.fields(&served.resource))
    }

    /// The same of an object in the version of `served`; decides nothing that `matches` has decided.
    pub fn matches_view(&self, served: &Served, object: &Object) -> bool {
        !self.late || self.fits(object, || Cow::Owned(served.selectable_values(&object.value())))
    }

    pub fn is_late(&self) -> bool {
        self.late
    }

    fn fits<'a>(&self, object: &Object, fields: impl FnOnce() -> Cow<'a, [(String, String)]>) -> bool {
        let meta = &object.meta;
        if !self.labels.is_empty() && !self.labels.matches(&meta.labels) {
            return false;
        }
        if self.fields.is_empty() {
            return true;
        }
        let only_common = self.fields.requirements().iter().all(|r| r.field.starts_with("metadata."));
        let fields = if only_common { Cow::Borrowed(&[][..]) } else { fields() };
        self.fields.matches(|field| match field {
            "metadata.name" => &meta.name,
            "metadata.namespace" => meta.namespace.as_deref().unwrap_or_default(),
            other => fields.iter().find(|(name, _)| name == other).map_or("", |(_, value)| value),
        })
    }

    pub fn in_namespace(&self, entry: &Entry) -> bool {
        self.prefix.is_empty() || entry.object.meta.namespace.as_deref() == self.prefix.strip_suffix('/')
    }
}
