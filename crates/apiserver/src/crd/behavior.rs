//! What custom resources do beyond being stored, in the shape of the built-in kinds' behaviour.
//! Built by `definition`, one per version.
//! A rule that an unchanged part of an object already broke does not block other changes.

use serde_json::Value;

use api::{
    field::{ErrorList, ErrorType, Path},
    kinds::Behavior,
};

use super::{check::Check, rules::Rules};

pub struct CustomBehavior {
    pub check: Check,
    pub rules: Option<Rules>,
    pub status: bool,
    /// `spec.color`, as selectors name it.
    pub selectable: Vec<String>,
    /// What every use of a deprecated version is warned of.
    pub deprecation: Option<String>,
}

/// Rules assume a shape; where these are wrong with it, no rule is asked.
const BLOCKING: [ErrorType; 5] =
    [ErrorType::NotSupported, ErrorType::Required, ErrorType::TooLong, ErrorType::TooMany, ErrorType::TypeInvalid];

impl CustomBehavior {
    fn errors(&self, object: &Value, old: Option<&Value>) -> ErrorList {
        let mut errors = ErrorList::new();
        self.check.check(&Path::default(), object, old, &mut errors);
        let Some(rules) = &self.rules else { return errors };
        if errors.iter().any(|e| BLOCKING.contains(&e.kind)) {
            let words = "some validation rules were not checked because the object was invalid; \
                         correct the existing errors to complete validation";
            // Upstream names no place at all.
            errors.invalid(&Path::new("<nil>"), Value::Null, words);
            return errors;
        }
        rules.check(object, old, &mut errors);
        errors
    }
}

impl Behavior for CustomBehavior {
    fn deprecation(&self) -> Option<&str> {
        self.deprecation.as_deref()
    }

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
        errors.append(self.errors(object, Some(old)));
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        errors.append(self.errors(object, Some(old)));
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
