//! Whether the rules a definition declares can be accepted: syntax, fields, estimated cost.
//! Called by `registry` when a CustomResourceDefinition is written.
//! Invariant: a rule that could never run, or never end in time, is refused before any object meets it.

use serde_json::Value;

use api::field::{ErrorList, Path};

use super::{field_path, rules::OLD, typed};
use crate::cel::{Expression, types::Type};

const BUDGET: u64 = 10_000_000;
const UNBOUNDED: u64 = 1_500_000;

pub fn validate(definition: &Value, errors: &mut ErrorList) {
    let versions = definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
    for (index, version) in versions.iter().enumerate() {
        let path = Path::new("spec").child("versions").index(index).child("schema").child("openAPIV3Schema");
        let schema = &version["schema"]["openAPIV3Schema"];
        Part { path, schema, resource: true, times: 1, uncorrelated: None }.visit(errors);
    }
}

struct Part<'a> {
    path: Path,
    schema: &'a Value,
    /// Whether it has a kind and a name.
    resource: bool,
    /// How often it may occur in one object.
    times: u64,
    /// The list around it whose items cannot be told apart from one version of an object to the next.
    uncorrelated: Option<Path>,
}

impl Part<'_> {
    fn visit(&self, errors: &mut ErrorList) {
        let schema = self.schema;
        for (index, rule) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
            self.check(&self.path.child("x-kubernetes-validations").index(index), rule, errors);
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            self.inner(self.path.child("properties").key(name), property, None).visit(errors);
        }
        for (word, limit) in [("items", "maxItems"), ("additionalProperties", "maxProperties")] {
            if schema[word].is_object() {
                self.inner(self.path.child(word), &schema[word], Some(limit)).visit(errors);
            }
        }
    }

    fn inner<'a>(&self, path: Path, schema: &'a Value, limit: Option<&str>) -> Part<'a> {
        let times = limit.map_or(1, |limit| self.schema[limit].as_u64().unwrap_or(UNBOUNDED));
        let loses_track = limit == Some("maxItems") && self.schema["x-kubernetes-list-type"] != "map";
        Part {
            path,
            schema,
            resource: schema["x-kubernetes-embedded-resource"] == true,
            times: self.times.saturating_mul(times),
            uncorrelated: self.uncorrelated.clone().or(loses_track.then(|| self.path.clone())),
        }
    }

    fn check(&self, path: &Path, rule: &Value, errors: &mut ErrorList) {
        let text = |name: &str| rule[name].as_str().unwrap_or_default();
        let at = path.child("rule");
        if text("rule").trim().is_empty() {
            return errors.required(&at, "rule is not specified");
        }
        let own = typed::type_of(self.schema, self.resource).unwrap_or(Type::Dyn);
        let old = if rule["optionalOldSelf"] == true { Type::Dyn } else { own.clone() };
        let scope = [("self", own), (OLD, old)];
        match compile(text("rule"), &scope, &Type::Bool, "cel expression must evaluate to a bool") {
            Err(e) => errors.invalid(&at, text("rule"), e),
            Ok(expression) => {
                self.check_cost("rule", &at, &expression, self.times, errors);
                if !expression.names(OLD) {
                    if let Some(flag) = rule.get("optionalOldSelf").filter(|flag| !flag.is_null()) {
                        let words = "may not be set if oldSelf is not used in rule";
                        errors.invalid(&path.child("optionalOldSelf"), flag.clone(), words);
                    }
                } else if let Some(list) = &self.uncorrelated {
                    let words =
                        format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
                    errors.invalid(&at, text("rule"), words);
                }
            }
        }
        if !text("messageExpression").trim().is_empty() {
            let at = path.child("messageExpression");
            match compile(text("messageExpression"), &scope, &Type::String, "must evaluate to a string") {
                Err(e) => errors.invalid(&at, text("messageExpression"), format!("messageExpression {e}")),
                Ok(expression) => self.check_cost("messageExpression", &at, &expression, 1, errors),
            }
        }
        if !text("fieldPath").is_empty() && field_path::shown(text("fieldPath"), self.schema).is_none() {
            errors.invalid(&path.child("fieldPath"), text("fieldPath"), "must be a valid path");
        }
    }

    fn check_cost(&self, what: &str, at: &Path, expression: &Expression, times: u64, errors: &mut ErrorList) {
        let cost = expression.highest_cost(&[("self", self.schema), (OLD, self.schema)]).saturating_mul(times);
        if cost > BUDGET {
            let factor = cost as f64 / BUDGET as f64;
            let factor = if cost / BUDGET > 100 { "more than 100x".into() } else { format!("{factor:.1}x") };
            let detail = format!(
                "estimated {what} cost exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, \
                 maxProperties, and maxLength where arrays, maps, and strings are declared)"
            );
            errors.forbidden(at, detail);
        }
    }
}

/// An expression of this type, or why it is none.
fn compile(source: &str, scope: &[(&str, Type)], expected: &Type, otherwise: &str) -> Result<Expression, String> {
    let expression = Expression::compile(source)?;
    let found = expression.check(scope)?;
    if found.fits(expected) { Ok(expression) } else { Err(otherwise.to_string()) }
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
        check(with_rule("self.?x.orValue(1) > 0 && self.?list[?0].optMap(a, a + 1).orValue(0) > 0"), None);
        check(with_rule("self.metadata.name.size() < 10 && self.kind != ''"), None);
        check(with_rule("self.x > '1'"), Some("compilation failed: ERROR: <input>:1:8: found no matching overload"));
        check(with_rule("self.x"), Some("cel expression must evaluate to a bool"));
        check(with_rule("self.metadata.labels.size() > 1"), Some("undefined field 'labels'"));
        check(
            with_rule("self.?list.orValue([]).all(a, self.list.all(b, self.list.all(c, a + b == c)))"),
            Some("exceeds budget"),
        );
        let with = |rule: Value| {
            json!({ "type": "object", "properties": { "x": { "type": "integer" } },
            "x-kubernetes-validations": [rule] })
        };
        check(with(json!({ "rule": "!oldSelf.hasValue() || oldSelf.value() == self", "optionalOldSelf": true })), None);
        check(
            with(json!({ "rule": "self.x > 0", "optionalOldSelf": true })),
            Some("optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule"),
        );
        check(
            with(json!({ "rule": "self.x > 0", "messageExpression": "self.x" })),
            Some("messageExpression must evaluate to a string"),
        );
        check(
            with(json!({ "rule": "self.x > 0", "messageExpression": "'x' +" })),
            Some("messageExpression compilation failed"),
        );
        check(with(json!({ "rule": "self.x > 0", "fieldPath": ".y" })), Some("must be a valid path"));
        let list = |kind: &str| {
            json!({ "type": "array", "maxItems": 9, "x-kubernetes-list-type": kind, "items": {
            "type": "object", "properties": { "x": { "type": "integer" } },
            "x-kubernetes-validations": [{ "rule": "self.x == oldSelf.x" }] } })
        };
        check(list("map"), None);
        check(list("set"), Some("oldSelf cannot be used on the uncorrelatable portion of the schema within spec"));
    }
}
