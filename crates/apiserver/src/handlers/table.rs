//! Objects as the rows `kubectl get` prints, and as bare metadata.
//! Used by `respond`; columns and cells come from the kind's `Behavior` or from a CustomResourceDefinition.
//! A row has exactly as many cells as the table has columns.

use serde_json::{Value, json};

use api::{ApiError, Object};
use jiff::Timestamp;

use crate::{discovery::served::Served, request::query::Query};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    pub fn from_query(query: &Query) -> Result<Self, ApiError> {
        match query.text("includeObject") {
            None | Some("Metadata") => Ok(Include::Metadata),
            Some("None") => Ok(Include::None),
            Some("Object") => Ok(Include::Object),
            Some(other) => Err(ApiError::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        }
    }
}

pub fn columns(served: &Served) -> Value {
    if let Some(custom) = &served.custom {
        return custom.column_definitions();
    }
    let column = |c: &api::kinds::Column| json!({ "name": c.name, "type": c.kind, "format": c.format, "description": c.description, "priority": c.priority });
    served.behavior.columns().iter().map(column).collect()
}

/// `version` is of `meta.k8s.io`, here and below.
pub fn row(served: &Served, object: &Object, include: Include, version: &str, now: Timestamp) -> Value {
    let value = object.value();
    let cells = match &served.custom {
        Some(custom) => custom.cells(&value, now),
        None => served.behavior.cells(&value, now),
    };
    let conditions = served.behavior.row_conditions(&value);
    let mut row = match include {
        Include::None => json!({ "cells": cells, "object": null }),
        Include::Metadata => {
            json!({ "cells": cells, "object": partial_of(served, value, version) })
        }
        Include::Object => json!({ "cells": cells, "object": value }),
    };
    if !conditions.is_empty() {
        row["conditions"] = conditions.into();
    }
    row
}

fn hide_annotations(metadata: &mut Value, hidden: &[&str]) {
    if hidden.is_empty() {
        return;
    }
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    annotations.retain(|name, _| !hidden.contains(&name.as_str()));
    if annotations.is_empty()
        && let Some(metadata) = metadata.as_object_mut()
    {
        metadata.remove("annotations");
    }
}

pub fn table(version: &str, metadata: Value, columns: Value, rows: Vec<Value>) -> Value {
    json!({
        "kind": "Table", "apiVersion": version, "metadata": metadata,
        "columnDefinitions": columns, "rows": rows,
    })
}

/// The object reduced to its metadata.
pub fn partial(mut object: Value, version: &str) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": version, "metadata": object["metadata"].take() })
}

/// The same of a kind with annotations that only whole objects show.
pub fn partial_of(served: &Served, object: Value, version: &str) -> Value {
    let mut object = partial(object, version);
    hide_annotations(&mut object["metadata"], served.behavior.annotations_hidden_in_rows());
    object
}

pub fn partial_list(version: &str, metadata: Value, items: Vec<Value>) -> Value {
    json!({ "kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": metadata, "items": items })
}
