//! What an expression costs with the data it is about to see.
//! Used by `cel`; what rules may cost by their schema is in `cel::cost_estimate`.
//! Invariant: never evaluates anything.

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use serde_json::Value;

use super::escape::unescape;
use crate::cel::authorizer::CHECK_COST;

/// What an expression refers to.
#[derive(Clone, Copy)]
pub enum Shape<'a> {
    Data(&'a Value),
    /// A list written out in the expression.
    Items(u64),
    Unknown,
}

impl<'a> Shape<'a> {
    fn length(self) -> u64 {
        match self {
            Shape::Data(Value::Array(items)) => items.len() as u64,
            Shape::Data(Value::Object(map)) => map.len() as u64,
            Shape::Items(length) => length,
            _ => 1,
        }
    }

    fn item(self) -> Self {
        match self {
            // The keys of a map are plain text.
            Shape::Data(Value::Array(items)) => items.first().map_or(Shape::Unknown, Shape::Data),
            _ => Shape::Unknown,
        }
    }

    /// The length of a text, as far as it is bounded.
    fn text(self) -> u64 {
        match self {
            Shape::Data(Value::String(text)) => text.len() as u64,
            _ => 0,
        }
    }

    fn field(self, name: &str) -> Self {
        match self {
            Shape::Data(data) => data.get(unescape(name)).map_or(Shape::Unknown, Shape::Data),
            Shape::Items(_) | Shape::Unknown => Shape::Unknown,
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

fn literal(expression: &Expr) -> &str {
    match expression {
        Expr::Literal(LiteralValue::String(text)) => text.inner(),
        _ => "",
    }
}

pub struct Estimate<'a> {
    pub cost: u64,
    scope: Vec<(String, Shape<'a>)>,
}

impl<'a> Estimate<'a> {
    /// Of an expression that can name what is in `scope`.
    pub fn within(expression: &IdedExpr, scope: Vec<(String, Shape<'a>)>) -> Self {
        let mut estimate = Self { cost: 0, scope };
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
                (cost.saturating_add(1), operand.field(&select.field))
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
                let target = target.map(|(_, shape)| shape);
                cost = cost.saturating_add(function_cost(&call.func_name, target));
                let shape = match (call.func_name.as_str(), shapes.as_slice(), target) {
                    (operators::INDEX | operators::OPT_INDEX, [of, ..], _) => of.item(),
                    (operators::OPT_SELECT, [of, _], _) => of.field(literal(&call.args[1].expr)),
                    ("or" | "orValue" | "value", _, Some(optional)) => optional,
                    _ => Shape::Unknown,
                };
                (cost, shape)
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
