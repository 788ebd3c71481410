//! `x-kubernetes-validations`: the CEL rules of a schema, compiled once.
//! Used by `behavior`; the language and its Kubernetes functions are `kube-cel`.
//! Invariant: a schema without rules costs nothing; a rule that cannot be evaluated refuses the object.

use kube_cel::{CompiledSchema, Validator, cel::Program, compile_schema};
use parking_lot::Mutex;
use serde_json::Value;

use api::field::{ErrorList, ErrorType, Path};

use super::cost::{Estimate, Shape};

/// What one rule may cost on one object.
const CALL_LIMIT: u64 = 1_000_000;

pub struct Rules {
    schema: CompiledSchema,
    /// The rules of parts that occur once per object, by JSON pointer, for their cost.
    loops: Vec<(String, Program)>,
    /// Evaluation needs a context that is `Send` but not `Sync`.
    validator: Mutex<Validator>,
}

impl Rules {
    /// `None` if the schema has no rules.
    pub fn compile(schema: &Value) -> Option<Self> {
        has_rules(schema).then(|| {
            let mut loops = Vec::new();
            find_rules(schema, String::new(), &mut loops);
            Self { schema: compile_schema(schema), loops, validator: Mutex::new(Validator::new()) }
        })
    }

    /// Refuses what would take too long before it is begun.
    fn too_expensive(&self, object: &Value, errors: &mut ErrorList) -> bool {
        let mut found = false;
        for (pointer, program) in &self.loops {
            let Some(part) = object.pointer(pointer) else { continue };
            if Estimate::of(program.expression(), Shape::Data(part)).cost > CALL_LIMIT {
                let path = Path::new(&pointer.trim_start_matches('/').replace('/', "."));
                let detail = "call cost exceeds limit, no further validation rules will be run";
                errors.invalid(&path, at(object, &path.to_string()), format!("validation failed due to {detail}"));
                found = true;
            }
        }
        found
    }

    pub fn check(&self, object: &Value, old: Option<&Value>, errors: &mut ErrorList) {
        if self.too_expensive(object, errors) {
            return;
        }
        let Err(found) = self.validator.lock().validate_compiled(&self.schema, object, old) else { return };
        for error in found.into_vec() {
            let path = Path::new(error.field_path.trim_start_matches('.'));
            let value = at(object, &error.field_path);
            let kind = match error.reason.as_deref() {
                Some("FieldValueRequired") => ErrorType::Required,
                Some("FieldValueForbidden") => ErrorType::Forbidden,
                Some("FieldValueDuplicate") => ErrorType::Duplicate,
                _ => ErrorType::Invalid,
            };
            errors.push(kind, &path, value, error.message.clone());
        }
    }
}

/// What upstream shows of the offending value: its type for structures, itself otherwise.
fn at(object: &Value, path: &str) -> Value {
    let pointer: String = path.trim_start_matches('.').replace('[', ".").replace(']', "");
    let pointer = if pointer.is_empty() { pointer } else { format!("/{}", pointer.replace('.', "/")) };
    match object.pointer(&pointer) {
        Some(Value::Object(_)) | None => "object".into(),
        Some(Value::Array(_)) => "array".into(),
        Some(other) => other.clone(),
    }
}

fn find_rules(schema: &Value, pointer: String, found: &mut Vec<(String, Program)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        if let Some(program) = rule["rule"].as_str().and_then(|r| Program::compile(r).ok()) {
            found.push((pointer.clone(), program));
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        find_rules(property, format!("{pointer}/{name}"), found);
    }
}

fn has_rules(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => map.contains_key("x-kubernetes-validations") || map.values().any(has_rules),
        Value::Array(items) => items.iter().any(has_rules),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_see_the_object_and_its_past() {
        let schema = json!({
            "type": "object",
            "properties": { "spec": {
                "type": "object",
                "properties": { "min": { "type": "integer" }, "max": { "type": "integer" }, "kind": { "type": "string",
                    "x-kubernetes-validations": [{ "rule": "self == oldSelf", "message": "kind is immutable" }] } },
                "x-kubernetes-validations": [{ "rule": "self.min <= self.max", "message": "min must not exceed max" }],
            } },
        });
        let rules = Rules::compile(&schema).unwrap();
        let check = |object: Value, old: Option<Value>, expected: &[&str]| {
            let mut errors = ErrorList::new();
            rules.check(&object, old.as_ref(), &mut errors);
            let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{object}");
        };
        let good = json!({ "spec": { "min": 1, "max": 2, "kind": "a" } });
        check(good.clone(), None, &[]);
        check(
            json!({ "spec": { "min": 3, "max": 2, "kind": "a" } }),
            None,
            &["spec: Invalid value: \"object\": min must not exceed max"],
        );
        let other = json!({ "spec": { "min": 1, "max": 2, "kind": "b" } });
        check(other, Some(good), &["spec.kind: Invalid value: \"b\": kind is immutable"]);
        assert!(Rules::compile(&json!({ "type": "object" })).is_none());
    }
}
