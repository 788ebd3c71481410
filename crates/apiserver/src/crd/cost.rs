//! What a CEL rule means to a schema before it runs: fields that do not exist, and what it may cost.
//! Used by `declared` (by schema, when a definition is written) and by `rules` (by data, before evaluation).
//! Invariant: never evaluates anything.

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr};
use serde_json::Value;

use crate::cel::authorizer::CHECK_COST;

/// A list or map without a bound may hold this many: what fits into a request.
const UNBOUNDED: u64 = 1_500_000;

/// What an expression refers to: a part of a schema, or of an object.
#[derive(Clone, Copy)]
pub enum Shape<'a> {
    Schema(&'a Value),
    Data(&'a Value),
    /// A list written out in the expression.
    Items(u64),
    Unknown,
}

impl<'a> Shape<'a> {
    fn length(self) -> u64 {
        match self {
            Shape::Schema(s) => s["maxItems"].as_u64().or(s["maxProperties"].as_u64()).unwrap_or(UNBOUNDED),
            Shape::Data(Value::Array(items)) => items.len() as u64,
            Shape::Data(Value::Object(map)) => map.len() as u64,
            Shape::Items(length) => length,
            _ => 1,
        }
    }

    fn item(self) -> Self {
        match self {
            Shape::Schema(s) if s["items"].is_object() => Shape::Schema(&s["items"]),
            // The keys of a map are plain text.
            Shape::Data(Value::Array(items)) => items.first().map_or(Shape::Unknown, Shape::Data),
            _ => Shape::Unknown,
        }
    }

    /// What an index leads to.
    fn element(self) -> Self {
        match self {
            Shape::Schema(s) if s["additionalProperties"].is_object() => Shape::Schema(&s["additionalProperties"]),
            other => other.item(),
        }
    }

    /// The length of a text, as far as it is bounded.
    fn text(self) -> u64 {
        match self {
            Shape::Data(Value::String(text)) => text.len() as u64,
            Shape::Schema(s) => s["maxLength"].as_u64().unwrap_or(0),
            _ => 0,
        }
    }

    fn field(self, name: &str) -> Result<Self, String> {
        match self {
            Shape::Schema(s) => {
                let name = unescape(name);
                let standard = matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
                match (s["properties"].get(&name), s["additionalProperties"].is_object()) {
                    (Some(found), _) => Ok(Shape::Schema(found)),
                    (None, true) => Ok(Shape::Schema(&s["additionalProperties"])),
                    (None, false) if s["properties"].is_object() && !standard => {
                        Err(format!("undefined field '{name}'"))
                    }
                    _ => Ok(Shape::Unknown),
                }
            }
            Shape::Data(data) => Ok(data.get(unescape(name)).map_or(Shape::Unknown, Shape::Data)),
            Shape::Items(_) | Shape::Unknown => Ok(Shape::Unknown),
        }
    }
}

/// What a call costs beyond being one: asking for a permission is dear, and searching a text costs by its length.
fn function_cost(name: &str, target: Option<Shape<'_>>) -> u64 {
    match (name, target) {
        ("check", Some(_)) => CHECK_COST,
        ("contains" | "matches" | "find" | "findAll" | "split" | "replace", Some(text)) => text.text() / 10,
        _ => 0,
    }
}

/// Names that are no CEL identifiers are written escaped.
pub fn unescape(name: &str) -> String {
    let plain = name.replace("__dash__", "-").replace("__dot__", ".").replace("__slash__", "/");
    let plain = plain.replace("__underscores__", "__");
    plain.strip_prefix("__").and_then(|n| n.strip_suffix("__")).map_or(plain.clone(), str::to_string)
}

pub struct Estimate<'a> {
    pub cost: u64,
    pub undefined: Vec<String>,
    scope: Vec<(String, Shape<'a>)>,
}

impl<'a> Estimate<'a> {
    /// Of an expression over `own`, which it calls `self` (and `oldSelf`).
    pub fn of(expression: &IdedExpr, own: Shape<'a>) -> Self {
        Self::within(expression, vec![("self".to_string(), own), ("oldSelf".to_string(), own)])
    }

    /// Of an expression that can name what is in `scope`.
    pub fn within(expression: &IdedExpr, scope: Vec<(String, Shape<'a>)>) -> Self {
        let mut estimate = Self { cost: 0, undefined: Vec::new(), scope };
        let (cost, _) = estimate.visit(&expression.expr);
        estimate.cost = cost;
        estimate
    }

    fn visit(&mut self, expression: &Expr) -> (u64, Shape<'a>) {
        match expression {
            Expr::Ident(name) => {
                let found = self.scope.iter().rev().find(|(n, _)| n == name);
                (1, found.map_or(Shape::Unknown, |(_, shape)| *shape))
            }
            Expr::Select(select) => {
                let (cost, operand) = self.visit(&select.operand.expr);
                let shape = operand.field(&select.field).unwrap_or_else(|e| {
                    self.undefined.push(e);
                    Shape::Unknown
                });
                (cost.saturating_add(1), shape)
            }
            Expr::Call(call) => {
                let target = call.target.as_ref().map(|t| self.visit(&t.expr));
                let mut cost = target.map_or(1, |(cost, _)| cost.saturating_add(1));
                let mut shapes = Vec::new();
                for argument in &call.args {
                    let (more, shape) = self.visit(&argument.expr);
                    cost = cost.saturating_add(more);
                    shapes.push(shape);
                }
                cost = cost.saturating_add(function_cost(&call.func_name, target.map(|(_, shape)| shape)));
                let indexed = call.func_name == "_[_]";
                (cost, shapes.first().filter(|_| indexed).map_or(Shape::Unknown, |s| s.element()))
            }
            Expr::Comprehension(loops) => {
                let (range, shape) = self.visit(&loops.iter_range.expr);
                let (init, _) = self.visit(&loops.accu_init.expr);
                self.scope.push((loops.iter_var.clone(), shape.item()));
                let (step, _) = self.visit(&loops.loop_step.expr);
                let (condition, _) = self.visit(&loops.loop_cond.expr);
                self.scope.pop();
                let (result, _) = self.visit(&loops.result.expr);
                let around = step.saturating_add(condition).saturating_mul(shape.length());
                (range.saturating_add(init).saturating_add(around).saturating_add(result), Shape::Unknown)
            }
            Expr::List(list) => {
                let costs: Vec<u64> = list.elements.iter().map(|e| self.visit(&e.expr).0).collect();
                (costs.into_iter().fold(10, u64::saturating_add), Shape::Items(list.elements.len() as u64))
            }
            Expr::Map(map) => {
                let mut cost = 30u64;
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        cost = cost.saturating_add(self.visit(&entry.key.expr).0);
                        cost = cost.saturating_add(self.visit(&entry.value.expr).0);
                    }
                }
                (cost, Shape::Unknown)
            }
            _ => (0, Shape::Unknown),
        }
    }
}
