//! What custom resources do beyond being stored, in the shape of the built-in kinds' behaviour.
//! Built by `definition`, one per version.
//! Invariant: a rule that an unchanged part of an object already broke does not block other changes.

use serde_json::Value;

use api::{
    field::{ErrorList, Path},
    kinds::Behavior,
};

use super::{check::Check, rules::Rules};

pub struct CustomBehavior {
    pub check: Check,
    pub rules: Option<Rules>,
    pub status: bool,
    /// `spec.color`, as selectors name it.
    pub selectable: Vec<String>,
}

impl CustomBehavior {
    fn errors(&self, object: &Value, old: Option<&Value>) -> ErrorList {
        let mut errors = ErrorList::new();
        self.check.check(&Path::default(), object, &mut errors);
        // Rules assume the shape that was just checked.
        if let (Some(rules), true) = (&self.rules, errors.is_empty()) {
            rules.check(object, old, &mut errors);
        }
        errors
    }

    /// Only what `old` did not already violate in the same way.
    fn new_errors(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        let found = self.errors(object, Some(old));
        if found.is_empty() {
            return;
        }
        let known: Vec<String> = self.errors(old, None).iter().map(ToString::to_string).collect();
        for error in found.iter().filter(|e| !known.contains(&e.to_string())) {
            errors.push(error.kind, &error.path, error.value.clone(), error.detail.clone());
        }
    }
}

impl Behavior for CustomBehavior {
    fn has_status(&self) -> bool {
        self.status
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        errors.append(self.errors(object, None));
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.new_errors(object, old, errors);
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.new_errors(object, old, errors);
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        let value = |path: &String| {
            let found = object.pointer(&format!("/{}", path.replace('.', "/")));
            let text = match found {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Null) | None => String::new(),
                Some(other) => other.to_string(),
            };
            (path.clone(), text)
        };
        self.selectable.iter().map(value).collect()
    }

    fn selectable_field_names(&self) -> Vec<String> {
        self.selectable.clone()
    }
}
