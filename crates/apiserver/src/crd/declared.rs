//! Whether the rules a definition declares can be accepted: syntax, fields, estimated cost.
//! Called by `registry` when a CustomResourceDefinition is written.
//! A rule that could never run, or never end in time, is refused before any object meets it.

use std::sync::Arc;

use serde_json::Value;

use ::cel::{escape::escape, openapi_types};
use api::{
    field::{ErrorList, Path},
    kinds::internal_form,
};

use super::{default_values, field_path, rules::OLD_SELF};
use crate::cel::{Expression, cost_estimate::DeclType, types::Type};

/// What one rule may cost by estimate, over all places where it applies.
const RULE_COST_MAX: u64 = 10_000_000;
/// What all rules of one version may cost together.
const TOTAL_COST_MAX: u64 = 100_000_000;
/// How many of the dearest rules are named when the total is too high, and from which part of it on.
const NAMED_RULES_MAX: usize = 4;
const NAMED_RULE_COST_MIN: u64 = TOTAL_COST_MAX / 100;

/// Of a definition that is in order otherwise.
pub fn validate(definition: &Value, errors: &mut ErrorList) {
    if !errors.is_empty() {
        return;
    }
    for (path, schema, _) in internal_form::schemas(&definition["spec"]) {
        let before = errors.len();
        default_values::validate(&path, schema, errors);
        if errors.len() > before {
            continue;
        }
        let mut total = TotalCost::default();
        let root = Part {
            path: path.clone(),
            schema,
            resource: true,
            declared: None,
            cardinality: Some(1),
            uncorrelated: None,
        };
        root.visit(&mut total, errors);
        total.check(&path, errors);
    }
}

/// What the rules of one version cost together.
#[derive(Default)]
struct TotalCost {
    cost: u64,
    dearest: Vec<(u64, Path)>,
}

impl TotalCost {
    fn add(&mut self, at: &Path, cost: u64) {
        self.cost = self.cost.saturating_add(cost);
        if cost >= NAMED_RULE_COST_MIN {
            self.dearest.push((cost, at.clone()));
            self.dearest.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
            self.dearest.truncate(NAMED_RULES_MAX);
        }
    }

    fn check(&self, path: &Path, errors: &mut ErrorList) {
        if self.cost <= TOTAL_COST_MAX {
            return;
        }
        for (_, at) in &self.dearest {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.forbidden(at, detail);
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.forbidden(path, exceeds(what, self.cost, TOTAL_COST_MAX));
    }
}

fn exceeds(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        100.0.. if factor > 100.0 => "more than 100x".to_string(),
        ..1.5 => format!("{factor:.6}x"),
        _ => format!("{factor:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

struct Part<'a> {
    path: Path,
    schema: &'a Value,
    /// Whether it has a kind and a name.
    resource: bool,
    /// Known here if a part around it has rules too.
    declared: Option<Arc<DeclType>>,
    /// How often it may occur in one object; `None` inside a list or map without a limit.
    cardinality: Option<u64>,
    /// The list around it whose items cannot be told apart from one version of an object to the next.
    uncorrelated: Option<Path>,
}

impl Part<'_> {
    fn visit(&self, total: &mut TotalCost, errors: &mut ErrorList) {
        let schema = self.schema;
        let rules = schema["x-kubernetes-validations"].as_array().filter(|rules| !rules.is_empty());
        let declared =
            self.declared.clone().or_else(|| rules.and_then(|_| DeclType::from_schema(schema, self.resource)));
        for (index, rule) in rules.into_iter().flatten().enumerate() {
            let at = self.path.child("x-kubernetes-validations").index(index);
            self.check(&at, rule, declared.as_ref(), total, errors);
        }
        let declared = declared.as_deref();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let inner = declared.zip(escape(name)).and_then(|(declared, name)| declared.field(&name));
            let path = self.path.child("properties").key(name);
            self.inner(path, property, inner.cloned(), None).visit(total, errors);
        }
        for (word, limit) in [("items", "maxItems"), ("additionalProperties", "maxProperties")] {
            if schema[word].is_object() {
                let inner = declared.and_then(DeclType::element).cloned();
                self.inner(self.path.child(word), &schema[word], inner, Some(limit)).visit(total, errors);
            }
        }
    }

    fn inner<'a>(
        &self,
        path: Path,
        schema: &'a Value,
        declared: Option<Arc<DeclType>>,
        limit: Option<&str>,
    ) -> Part<'a> {
        let times = limit.map_or(Some(1), |limit| self.schema[limit].as_i64().map(|limit| limit.max(0) as u64));
        let loses_track = limit == Some("maxItems") && self.schema["x-kubernetes-list-type"] != "map";
        Part {
            path,
            schema,
            resource: schema["x-kubernetes-embedded-resource"] == true,
            declared,
            cardinality: self.cardinality.zip(times).map(|(around, times)| around.saturating_mul(times)),
            uncorrelated: self.uncorrelated.clone().or(loses_track.then(|| self.path.clone())),
        }
    }

    fn check(
        &self,
        path: &Path,
        rule: &Value,
        declared: Option<&Arc<DeclType>>,
        total: &mut TotalCost,
        errors: &mut ErrorList,
    ) {
        let text = |name: &str| rule[name].as_str().unwrap_or_default();
        let at = path.child("rule");
        if text("rule").trim().is_empty() {
            return errors.required(&at, "rule is not specified");
        }
        let own = openapi_types::type_of(self.schema, self.resource).unwrap_or(Type::Dyn);
        let old = if rule["optionalOldSelf"] == true { Type::Dyn } else { own.clone() };
        let scope = [("self", own), (OLD_SELF, old)];
        let mut check_cost = |what: &str, at: &Path, expression: &Expression, times, errors: &mut ErrorList| {
            let Some(declared) = declared else { return };
            let own = Type::from_decl_type(declared);
            let old = if rule["optionalOldSelf"] == true { own.clone().optional() } else { own.clone() };
            let cost = expression.max_cost(declared, &[("self", own), (OLD_SELF, old)]).saturating_mul(times);
            if cost > RULE_COST_MAX {
                errors.forbidden(at, exceeds(&format!("estimated {what} cost"), cost, RULE_COST_MAX));
            }
            total.add(at, cost);
        };
        let unbounded = declared.map_or(1, |declared| declared.max_cardinality());
        match compile(text("rule"), &scope, &Type::Bool, "cel expression must evaluate to a bool") {
            Err(e) => errors.invalid_shown(&at, internal_form::shown_rule(rule), e),
            Ok(expression) => {
                check_cost("rule", &at, &expression, self.cardinality.unwrap_or(unbounded), errors);
                if !expression.names(OLD_SELF) {
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
                Err(e) => {
                    errors.invalid_shown(&at, internal_form::shown_rule(rule), format!("messageExpression {e}"));
                }
                Ok(expression) => check_cost("messageExpression", &at, &expression, 1, errors),
            }
        }
        if !text("fieldPath").is_empty() && field_path::shown(text("fieldPath"), self.schema).is_none() {
            errors.invalid(&path.child("fieldPath"), text("fieldPath"), "must be a valid path");
        }
    }
}

/// An expression of this type, or why it is none.
fn compile(source: &str, scope: &[(&str, Type)], expected: &Type, otherwise: &str) -> Result<Expression, String> {
    let expression = Expression::compile(source).map_err(|e| e.to_string())?;
    let found = expression.check(scope).map_err(|e| e.to_string())?;
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
