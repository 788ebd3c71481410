//! Makes chains over optional values work as the language says: `a.?b.c` is nothing where `b` is not, and a field of
//! something that has none is an error.
//! Used by `Expression::compile`. The evaluator does all that for `a[?'b']['c']`, so fields become keys.
//! Fields are estimated and checked as they were written; only what is evaluated is changed.

use kube_cel::cel::{
    IdedExpr,
    common::{
        ast::{CallExpr, ComprehensionExpr, Expr, ListExpr, LiteralValue, operators},
        types::CelString,
    },
};

use super::traversal::children_mut;

/// The body with the value as `name`: a loop that never runs names a value.
fn bind(id: u64, name: &str, value: IdedExpr, body: IdedExpr) -> Expr {
    let at = |expr: Expr| IdedExpr { id, expr };
    Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: at(Expr::List(ListExpr::default())),
        iter_var: "#unused".into(),
        iter_var2: None,
        accu_var: name.into(),
        accu_init: value,
        loop_cond: at(Expr::Literal(LiteralValue::Boolean(false.into()))),
        loop_step: at(Expr::Ident(name.into())),
        result: body,
    }))
}

/// Spells out `target.optMap(name, body)` and `optFlatMap`: nothing for nothing, else the body with the value as `name`;
/// and `cel.bind(name, value, body)`.
pub fn expand_macros(expression: &mut IdedExpr) {
    children_mut(&mut expression.expr).into_iter().for_each(expand_macros);
    let Expr::Call(call) = &mut expression.expr else { return };
    let in_cel =
        matches!(call.target.as_deref(), Some(IdedExpr { expr: Expr::Ident(library), .. }) if library == "cel");
    if let (true, "bind", [IdedExpr { expr: Expr::Ident(name), .. }, value, body]) =
        (in_cel, call.func_name.as_str(), call.args.as_slice())
    {
        expression.expr = bind(expression.id, name, value.clone(), body.clone());
        return;
    }
    let flat = match call.func_name.as_str() {
        "optMap" => false,
        "optFlatMap" => true,
        _ => return,
    };
    let (Some(target), [IdedExpr { expr: Expr::Ident(name), .. }, body]) = (&call.target, call.args.as_slice()) else {
        return;
    };
    let id = expression.id;
    let at = |expr: Expr| IdedExpr { id, expr };
    let method = |target: IdedExpr, name: &str, args: Vec<IdedExpr>| {
        at(Expr::Call(CallExpr { func_name: name.into(), target: Some(Box::new(target)), args }))
    };
    let optional = || at(Expr::Ident("optional".into()));
    let named = at(bind(id, name, method((**target).clone(), "value", vec![]), body.clone()));
    let some = if flat { named } else { method(optional(), "of", vec![named]) };
    let args = vec![method((**target).clone(), "hasValue", vec![]), some, method(optional(), "none", vec![])];
    expression.expr = Expr::Call(CallExpr { func_name: operators::CONDITIONAL.into(), target: None, args });
}

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
