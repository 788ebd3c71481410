//! The parts of an expression, for whoever walks one.
//! Used by `metering`, `optionals` and `Expression::compile`.
//! Every part is visited once.

use kube_cel::cel::{
    IdedExpr,
    common::ast::{EntryExpr, Expr},
};

/// The parts of an expression.
pub fn children_mut(expression: &mut Expr) -> Vec<&mut IdedExpr> {
    match expression {
        Expr::Select(select) => vec![&mut select.operand],
        Expr::Call(call) => call.target.as_deref_mut().into_iter().chain(call.args.iter_mut()).collect(),
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Comprehension(c) => {
            vec![&mut c.iter_range, &mut c.accu_init, &mut c.loop_cond, &mut c.loop_step, &mut c.result]
        }
        Expr::Map(map) => map.entries.iter_mut().flat_map(|e| entry_mut(&mut e.expr)).collect(),
        Expr::Struct(value) => value.entries.iter_mut().flat_map(|e| entry_mut(&mut e.expr)).collect(),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => Vec::new(),
    }
}

fn entry_mut(entry: &mut EntryExpr) -> Vec<&mut IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&mut field.value],
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
    }
}
