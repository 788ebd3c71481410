//! `x-kubernetes-validations`: the CEL rules of a schema, compiled once, and asked wherever an object has the part
//! they are about.
//! Used by `behavior`; the values rules see come from `typed`, the language is `cel`.
//! A part of a schema without rules costs nothing; a rule that cannot be evaluated refuses the object.

use std::{collections::HashMap, ops::ControlFlow};

use serde_json::Value;

use api::field::{ErrorList, ErrorType, Path};

use super::{check::key_of, field_path, typed};
use crate::cel::{self, CelError, Expression, Variables};

/// The longest text a `messageExpression` may make.
const MESSAGE_BYTES_MAX: usize = 5 * 1024;
pub const OLD_SELF: &str = "oldSelf";

pub struct Rules {
    schema: Value,
    root: Node,
}

/// The part of a schema that has rules, or parts with rules.
struct Node {
    rules: Vec<Rule>,
    properties: Vec<(String, Node)>,
    /// Of the items of a list, or the values of a map.
    elements: Option<Box<Node>>,
}

struct Rule {
    expression: Result<Expression, CelError>,
    message_expression: Option<Expression>,
    /// The message without its expression.
    message: String,
    /// How errors name the rule.
    name: String,
    field_path: Option<Path>,
    reason: ErrorType,
    /// Whether it speaks of the object before.
    transition: bool,
    optional_old: bool,
}

impl Rules {
    /// `None` if the schema has no rules.
    pub fn compile(schema: &Value) -> Option<Self> {
        Node::compile(schema).map(|root| Self { schema: schema.clone(), root })
    }

    pub fn check(&self, object: &Value, old: Option<&Value>, errors: &mut ErrorList) {
        let place = Location { path: Path::default(), schema: &self.schema, value: object, old, nearest: None };
        // An early end has said why.
        let _ = Walk { errors, budget: cel::COST_BUDGET }.visit(&self.root, place);
    }
}

impl Node {
    fn compile(schema: &Value) -> Option<Self> {
        let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
        let rules: Vec<_> = rules.filter_map(|rule| Rule::compile(rule, schema)).collect();
        let properties = schema["properties"].as_object().into_iter().flatten();
        let properties: Vec<_> = properties.filter_map(|(name, s)| Some((name.clone(), Self::compile(s)?))).collect();
        let elements = [&schema["items"], &schema["additionalProperties"]].into_iter().filter(|s| s.is_object());
        let elements = elements.filter_map(Self::compile).next();
        let empty = rules.is_empty() && properties.is_empty() && elements.is_none();
        (!empty).then(|| Self { rules, properties, elements: elements.map(Box::new) })
    }
}

impl Rule {
    fn compile(rule: &Value, schema: &Value) -> Option<Self> {
        let text = |name: &str| rule[name].as_str().map(str::trim).filter(|text| !text.is_empty());
        let source = text("rule")?;
        let expression = Expression::compile(source);
        let message = text("message");
        Some(Self {
            transition: expression.as_ref().is_ok_and(|e| e.names(OLD_SELF)),
            expression,
            message_expression: text("messageExpression").and_then(|e| Expression::compile(e).ok()),
            message: message.map_or_else(|| format!("failed rule: {source}"), str::to_string),
            name: message.unwrap_or(source).to_string(),
            field_path: text("fieldPath").and_then(|path| field_path::shown(path, schema)),
            reason: match text("reason") {
                Some("FieldValueRequired") => ErrorType::Required,
                Some("FieldValueForbidden") => ErrorType::Forbidden,
                Some("FieldValueDuplicate") => ErrorType::Duplicate,
                _ => ErrorType::Invalid,
            },
            optional_old: rule["optionalOldSelf"] == true,
        })
    }

    /// What its own expression says, if that is a message.
    fn own_message(&self, variables: &Variables, budget: &mut u64) -> Option<String> {
        let expression = self.message_expression.as_ref()?;
        let (text, cost) = expression.text(variables);
        cel::spend(budget, cost).ok()?;
        let text = text.ok()?;
        let text = text.trim();
        (!text.is_empty() && text.len() <= MESSAGE_BYTES_MAX && !text.contains('\n')).then(|| text.to_string())
    }
}

struct Location<'a> {
    path: Path,
    schema: &'a Value,
    value: &'a Value,
    /// What was here before, where that can be told.
    old: Option<&'a Value>,
    /// The nearest place around this one of which it could be told, as it is and as it was.
    nearest: Option<(&'a Value, &'a Value)>,
}

impl<'a> Location<'a> {
    fn known(&self) -> Option<(&'a Value, &'a Value)> {
        self.old.map(|old| (self.value, old)).or(self.nearest)
    }

    fn inner(&self, path: Path, schema: &'a Value, value: &'a Value, old: Option<&'a Value>) -> Self {
        Self { path, schema, value, old: old.filter(|old| !old.is_null()), nearest: self.known() }
    }

    /// What errors about the rule itself show: the type that is expected here.
    fn expected(&self) -> &'a Value {
        &self.schema["type"]
    }

    /// What upstream shows of the offending value: its type for structures, itself otherwise.
    fn shown(&self) -> Value {
        match self.value {
            Value::Object(_) => "object".into(),
            Value::Array(_) => "array".into(),
            other => other.clone(),
        }
    }
}

struct Walk<'e> {
    errors: &'e mut ErrorList,
    budget: u64,
}

impl Walk<'_> {
    fn visit(&mut self, node: &Node, place: Location<'_>) -> ControlFlow<()> {
        if !node.rules.is_empty() && !place.value.is_null() {
            self.evaluate(&node.rules, &place)?;
        }
        let (schema, path) = (place.schema, &place.path);
        match (place.value, &node.elements) {
            (Value::Array(items), Some(inner)) => {
                let keys = list_keys(schema);
                let key = |item: &Value| keys.as_ref().map(|keys| key_of(keys, item));
                let old = place.old.and_then(Value::as_array).into_iter().flatten();
                let before: HashMap<String, &Value> = old.filter_map(|item| Some((key(item)?, item))).collect();
                for (index, item) in items.iter().enumerate() {
                    let old = key(item).and_then(|key| before.get(&key).copied());
                    self.visit(inner, place.inner(path.index(index), &schema["items"], item, old))?;
                }
            }
            (Value::Object(fields), elements) => {
                let old = |name: &str| place.old.and_then(|old| old.get(name));
                for (name, inner) in &node.properties {
                    let Some(value) = fields.get(name) else { continue };
                    let schema = &schema["properties"][name];
                    self.visit(inner, place.inner(path.child(name), schema, value, old(name)))?;
                }
                let Some(inner) = elements else { return ControlFlow::Continue(()) };
                for (key, value) in fields {
                    let schema = &schema["additionalProperties"];
                    self.visit(inner, place.inner(path.key(key), schema, value, old(key)))?;
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn evaluate(&mut self, rules: &[Rule], place: &Location<'_>) -> ControlFlow<()> {
        let mut variables = Variables::default();
        variables.set_value("self", typed::value_of(place.value, place.schema));
        let speaks_of_old = rules.iter().any(|rule| rule.transition);
        let old = place.old.filter(|_| speaks_of_old).map(|old| typed::value_of(old, place.schema));
        for rule in rules {
            let expression = match &rule.expression {
                Ok(expression) => expression,
                Err(e) => {
                    self.errors.invalid(&place.path, place.expected().clone(), format!("rule compile error: {e}"));
                    continue;
                }
            };
            match (&old, rule.optional_old) {
                _ if !rule.transition => {}
                (_, true) => variables.set_value(OLD_SELF, typed::optional(old.clone())),
                (Some(old), false) => variables.set_value(OLD_SELF, old.clone()),
                // Nothing to compare with.
                (None, false) => continue,
            }
            let (held, cost) = expression.holds(&variables);
            let interrupted = held.as_ref().err().filter(|e| e.is_interruption()).cloned();
            self.spend(rule, interrupted.map_or(Ok(cost), Err), place)?;
            match held {
                Ok(true) => {}
                Ok(false) if !rule.transition && place.known().is_some_and(|(new, old)| new == old) => {}
                Ok(false) => {
                    let message = rule.own_message(&variables, &mut self.budget);
                    let message = message.unwrap_or_else(|| rule.message.clone());
                    self.broken(rule, message, place);
                }
                Err(e) => {
                    self.errors.invalid(&place.path, place.expected().clone(), failure(&e.to_string(), &rule.name))
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Ends the validation where a rule was interrupted or the budget is used up.
    fn spend(&mut self, rule: &Rule, cost: Result<u64, CelError>, place: &Location<'_>) -> ControlFlow<()> {
        let detail = match cost {
            Ok(cost) if cost <= self.budget => {
                self.budget -= cost;
                return ControlFlow::Continue(());
            }
            Ok(_) => CelError::OutOfBudget.to_string(),
            Err(e) => format!(
                "'{e}': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                rule.name
            ),
        };
        self.errors.invalid(&place.path, place.expected().clone(), detail);
        ControlFlow::Break(())
    }

    fn broken(&mut self, rule: &Rule, message: String, place: &Location<'_>) {
        let path = rule.field_path.as_ref().map_or_else(|| place.path.clone(), |p| place.path.child(&p.to_string()));
        // A duplicate says it all.
        let message = if rule.reason == ErrorType::Duplicate { String::new() } else { message };
        self.errors.push(rule.reason, &path, place.shown(), message);
    }
}

/// Why a rule could not be evaluated.
fn failure(error: &str, rule: &str) -> String {
    let mut signs = error.chars();
    let error: String = signs.next().into_iter().flat_map(char::to_lowercase).chain(signs).collect();
    if error.starts_with("no such overload") {
        return format!(
            "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {rule}"
        );
    }
    format!("{error} evaluating rule: {rule}")
}

/// The keys of a list's items. Non-map lists can't be correlated, so oldSelf is unset.
fn list_keys(schema: &Value) -> Option<Vec<String>> {
    let keys = schema["x-kubernetes-list-map-keys"].as_array()?;
    let keys = keys.iter().filter_map(|key| key.as_str().map(str::to_string)).collect();
    (schema["x-kubernetes-list-type"] == "map").then_some(keys)
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
