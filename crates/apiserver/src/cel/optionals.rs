//! Makes chains over optional values work as the language says: `a.?b.c` is nothing where `b` is not, and a field of
//! something that has none is an error.
//! Used by `Expression::compile`. The evaluator does all that for `a[?'b']['c']`, so fields become keys.
//! Invariant: what is estimated and checked is the expression as it was written; only what is evaluated is changed.

use kube_cel::cel::{
    IdedExpr,
    common::{
        ast::{CallExpr, Expr, LiteralValue, operators},
        types::CelString,
    },
};

use super::types::children_mut;

pub fn fields_to_keys(expression: &mut IdedExpr) {
    children_mut(&mut expression.expr).into_iter().for_each(fields_to_keys);
    match &mut expression.expr {
        Expr::Call(call) if call.func_name == operators::OPT_SELECT => call.func_name = operators::OPT_INDEX.into(),
        Expr::Select(select) if !select.test => {
            let key = Expr::Literal(LiteralValue::String(CelString::from(select.field.as_str())));
            let args = vec![std::mem::take(&mut *select.operand), IdedExpr { id: expression.id, expr: key }];
            expression.expr = Expr::Call(CallExpr { func_name: operators::INDEX.into(), target: None, args });
        }
        _ => {}
    }
}
