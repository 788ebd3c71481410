//! What custom resources do beyond being stored, in the shape of the built-in kinds' behaviour.
//! Built by `definition`, one per version.
//! A rule that an unchanged part of an object already broke does not block other changes.

use serde_json::Value;

use api::{
    field::{ErrorList, ErrorType, Path},
    kinds::Behavior,
};

use super::{check::Check, rules::Rules};
use crate::registry::custom::ScalePaths;

pub struct CustomBehavior {
    pub check: Check,
    pub rules: Option<Rules>,
    pub status: bool,
    /// Where it keeps what a Scale shows, if it can be scaled.
    pub scale: Option<ScalePaths>,
    /// `spec.color`, as selectors name it.
    pub selectable: Vec<String>,
    /// What every use of a deprecated version is warned of.
    pub deprecation: Option<String>,
}

/// Rules assume a shape; where these are wrong with it, no rule is asked.
const BLOCKING: [ErrorType; 5] =
    [ErrorType::NotSupported, ErrorType::Required, ErrorType::TooLong, ErrorType::TooMany, ErrorType::TypeInvalid];

impl CustomBehavior {
    /// Adds to what was found wrong before, with the metadata.
    fn judge(&self, object: &Value, old: Option<&Value>, whole: bool, errors: &mut ErrorList) {
        self.check.check(&Path::default(), object, old, errors);
        if let Some(scale) = &self.scale {
            check_scale(scale, object, whole, errors);
        }
        let Some(rules) = &self.rules else { return };
        if errors.iter().any(|e| BLOCKING.contains(&e.kind)) {
            let words = "some validation rules were not checked because the object was invalid; \
                         correct the existing errors to complete validation";
            // Upstream names no place at all.
            errors.invalid(&Path::new("<nil>"), Value::Null, words);
            return;
        }
        rules.check(object, old, errors);
    }
}

/// What a Scale shows must be what it can show; the spec is looked at only with a `whole` object.
fn check_scale(scale: &ScalePaths, object: &Value, whole: bool, errors: &mut ErrorList) {
    let spec = whole.then_some(&scale.spec_replicas);
    for path in spec.into_iter().chain([&scale.status_replicas]) {
        let at = Path::new(path);
        match at_path(object, path, "int64", Value::as_i64) {
            Err(why) => errors.invalid(&at, 0, why),
            Ok(Some(number)) if number < 0 => errors.invalid(&at, number, "should be a non-negative integer"),
            Ok(Some(number)) if number > i64::from(i32::MAX) => {
                errors.invalid(&at, number, format!("should be less than or equal to {}", i32::MAX));
            }
            Ok(_) => {}
        }
    }
    if let Some(path) = &scale.label_selector
        && let Err(why) = at_path(object, path, "string", |found| found.as_str().map(drop))
    {
        errors.invalid(&Path::new(path), "", why);
    }
}

/// What is at a path such as `.spec.replicas`, if there is anything; what is in the way is told as Go prints it.
fn at_path<T>(
    object: &Value,
    path: &str,
    wanted: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, String> {
    let mismatch = |seen: &str, found: &Value, wanted: &str| {
        let kind = api::patch::go_type(found);
        let shown = api::patch::go_text(found);
        format!("{seen} accessor error: {shown} is of the type {kind}, expected {wanted}")
    };
    let mut place = object;
    let mut seen = String::new();
    for step in path.trim_start_matches('.').split('.') {
        match place {
            Value::Object(fields) => match fields.get(step) {
                Some(found) => place = found,
                None => return Ok(None),
            },
            Value::Null => return Ok(None),
            other => return Err(mismatch(&format!("{seen}.{step}"), other, "map[string]interface{}")),
        }
        seen = format!("{seen}.{step}");
    }
    read(place).map(Some).ok_or_else(|| mismatch(path, place, wanted))
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
        self.judge(object, None, true, errors);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.judge(object, Some(old), true, errors);
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.judge(object, Some(old), false, errors);
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
