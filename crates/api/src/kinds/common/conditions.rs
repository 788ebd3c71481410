//! `metav1.Condition` lists: what is checked of them wherever a kind checks them at all.
//! Used by kinds beside this folder.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::{
    access::{int, is_set, text},
    checks,
};
use crate::{
    field::{ErrorList, Path},
    names,
};

const REASON_BYTES_MAX: usize = 1024;
const MESSAGE_BYTES_MAX: usize = 32 * 1024;
const REASON: &str = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?";

pub fn validate(errors: &mut ErrorList, path: &Path, conditions: &[Value]) {
    for (index, condition) in conditions.iter().enumerate() {
        let at = path.index(index);
        let kind = text(condition, "type");
        if conditions[..index].iter().any(|other| text(other, "type") == kind) {
            errors.duplicate(&at.child("type"), kind);
        }
        checks::complaints(errors, &at.child("type"), kind, names::qualified_name(kind));
        if !["True", "False", "Unknown"].contains(&text(condition, "status")) {
            errors.not_supported(&at.child("status"), text(condition, "status"), &["True", "False", "Unknown"]);
        }
        if let Some(generation) = int(condition, "observedGeneration").filter(|generation| *generation < 0) {
            errors.invalid(&at.child("observedGeneration"), generation, "must be greater than or equal to zero");
        }
        if !is_set(condition, "lastTransitionTime") {
            errors.required(&at.child("lastTransitionTime"), "");
        }
        validate_reason(errors, &at.child("reason"), text(condition, "reason"));
        if text(condition, "message").len() > MESSAGE_BYTES_MAX {
            errors.too_long(&at.child("message"), MESSAGE_BYTES_MAX);
        }
    }
}

fn validate_reason(errors: &mut ErrorList, path: &Path, reason: &str) {
    static PATTERN: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(&format!("^{REASON}$")).expect("the pattern of this file is valid"));
    if reason.is_empty() {
        return errors.required(path, "");
    }
    if !PATTERN.is_match(reason) {
        let complaint = format!(
            "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric \
             characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  \
             or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '{REASON}')"
        );
        errors.invalid(path, reason, complaint);
    }
    if reason.len() > REASON_BYTES_MAX {
        errors.too_long(path, REASON_BYTES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_complete() {
        let check = |change: Value, expected: &[&str]| {
            let mut condition =
                json!({ "type": "Ready", "status": "True", "reason": "Fine", "lastTransitionTime": "t" });
            let fields = change.as_object().cloned().unwrap_or_default();
            condition.as_object_mut().unwrap().extend(fields);
            let mut errors = ErrorList::new();
            validate(&mut errors, &Path::new("conditions"), &[condition]);
            let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
            let fits = found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.starts_with(e));
            assert!(fits, "{change}: {found:?}");
        };
        check(json!({}), &[]);
        check(json!({ "reason": "A,B:C_" }), &[]);
        check(json!({ "type": "" }), &["conditions[0].type: Invalid value", "conditions[0].type: Invalid value"]);
        check(json!({ "status": "Yes" }), &["conditions[0].status: Unsupported value: \"Yes\""]);
        check(json!({ "reason": "" }), &["conditions[0].reason: Required value"]);
        check(json!({ "reason": "no words" }), &["conditions[0].reason: Invalid value: \"no words\""]);
        check(json!({ "lastTransitionTime": null }), &["conditions[0].lastTransitionTime: Required value"]);
        check(json!({ "observedGeneration": -1 }), &["conditions[0].observedGeneration: Invalid value: -1"]);
        check(json!({ "message": "m".repeat(40_000) }), &["conditions[0].message: Too long"]);
    }
}
