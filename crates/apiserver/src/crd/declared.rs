//! Whether the rules a definition declares can be accepted: syntax, fields, estimated cost.
//! Called by `registry` when a CustomResourceDefinition is written.
//! Invariant: a rule that could never run, or never end in time, is refused before any object meets it.

use kube_cel::cel::Program;
use serde_json::Value;

use api::field::{ErrorList, Path};

use super::cost::{Estimate, Shape};

const BUDGET: u64 = 10_000_000;
const UNBOUNDED: u64 = 1_500_000;

pub fn validate(definition: &Value, errors: &mut ErrorList) {
    let versions = definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
    for (index, version) in versions.iter().enumerate() {
        let path = Path::new("spec").child("versions").index(index).child("schema").child("openAPIV3Schema");
        visit(&path, &version["schema"]["openAPIV3Schema"], 1, errors);
    }
}

/// `times`: how often this part of the schema may occur in one object.
fn visit(path: &Path, schema: &Value, times: u64, errors: &mut ErrorList) {
    for (index, rule) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        let path = path.child("x-kubernetes-validations").index(index).child("rule");
        check(&path, schema, rule["rule"].as_str().unwrap_or_default(), times, errors);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        visit(&path.child("properties").key(name), property, times, errors);
    }
    let inside = |limit: &str| times.saturating_mul(schema[limit].as_u64().unwrap_or(UNBOUNDED));
    if schema["items"].is_object() {
        visit(&path.child("items"), &schema["items"], inside("maxItems"), errors);
    }
    if schema["additionalProperties"].is_object() {
        let path = path.child("additionalProperties");
        visit(&path, &schema["additionalProperties"], inside("maxProperties"), errors);
    }
}

fn check(path: &Path, schema: &Value, rule: &str, times: u64, errors: &mut ErrorList) {
    if rule.trim().is_empty() {
        return errors.required(path, "rule is not specified");
    }
    let program = match Program::compile(rule) {
        Ok(program) => program,
        Err(e) => {
            return errors.invalid(path, rule, format!("compilation failed: ERROR: <input>:1:1: Syntax error: {e}"));
        }
    };
    let estimate = Estimate::of(program.expression(), Shape::Schema(schema));
    for text in &estimate.undefined {
        errors.invalid(path, rule, format!("compilation failed: ERROR: <input>:1:1: {text}"));
    }
    let cost = estimate.cost.saturating_mul(times);
    if cost > BUDGET {
        let factor =
            if cost / BUDGET > 100 { "more than 100x".into() } else { format!("{:.1}x", cost as f64 / BUDGET as f64) };
        let detail = format!(
            "estimated rule cost exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, \
             maxProperties, and maxLength where arrays, maps, and strings are declared)"
        );
        errors.forbidden(path, detail);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_that_cannot_work_are_refused() {
        let check = |schema: Value, expected: Option<&str>| {
            let definition = json!({ "spec": { "versions": [{ "schema": { "openAPIV3Schema": schema } }] } });
            let mut errors = ErrorList::new();
            validate(&definition, &mut errors);
            let found = errors.iter().next().map(ToString::to_string);
            match (expected, &found) {
                (None, None) => {}
                (Some(text), Some(found)) => assert!(found.contains(text), "{found}"),
                _ => panic!("{found:?} instead of {expected:?} for {schema}"),
            }
        };
        let with_rule = |rule: &str| {
            json!({ "type": "object", "properties": {
                "x": { "type": "integer" },
                "list": { "type": "array", "maxItems": 725, "items": { "type": "integer" } },
            }, "x-kubernetes-validations": [{ "rule": rule }] })
        };
        check(with_rule("self.x > 0"), None);
        check(with_rule("self.list.all(a, self.list.all(b, a == b))"), None);
        check(with_rule("self.z == 100"), Some("undefined field 'z'"));
        check(with_rule("self = 42"), Some("Syntax error"));
        let nested = json!({ "type": "array", "items": { "type": "array", "items": { "type": "string" },
            "x-kubernetes-validations": [{ "rule": "self.all(s, s == 'string constant')" }] } });
        check(nested, Some("exceeds budget"));
    }
}
