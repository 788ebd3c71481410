//! What an evaluation costs while it runs: a loop pays for each iteration, a call that makes much of little before it
//! begins, and all of it has a deadline.
//! `instrument` puts the calls of this module into an expression when it is compiled; `metered` counts what they say.
//! After the limit nothing more is computed, whatever the expression does with the error.

use std::{cell::RefCell, time::Duration};

use env::Env;
use kube_cel::cel::{
    Context, ExecutionError, FunctionContext, IdedExpr, ResolveResult,
    common::{
        ast::{CallExpr, Expr, LiteralValue, operators},
        types::{CelList, CelString},
    },
    objects::Value,
};

use super::{error::CelError, traversal::children_mut};

/// Of one evaluation. Loops look at it; no single call takes long, because large ones pay first.
const EVALUATION_TIMEOUT: Duration = Duration::from_secs(5);
/// A text or list costs one for so many bytes or items that are read or made, as upstream has it.
const BYTES_PER_COST: u64 = 10;

/// The functions that `instrument` puts around the condition of a loop, and around a costly call.
const LOOP_COST: &str = "@loop_cost";
const CALL_COST: &str = "@call_cost";
/// What `CALL_COST` calls the arguments that it has paid for.
const ARGUMENTS: [&str; 4] = ["@argument0", "@argument1", "@argument2", "@argument3"];

/// Calls that take longer, or make more, than the sizes of their arguments.
const COSTLY_CALLS: [&str; 15] = [
    operators::ADD,
    "replace",
    "join",
    "format",
    "distinct",
    "sort",
    "split",
    "matches",
    "find",
    "findAll",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "lists.range",
    "flatten",
];

struct Meter {
    left: u64,
    deadline: Duration,
    stopped: Option<CelError>,
}

thread_local! {
    static METER: RefCell<Option<Meter>> = const { RefCell::new(None) };
    static CLOCK: Env = Env::real();
}

fn now() -> Duration {
    CLOCK.with(Env::monotonic)
}

/// Evaluates for at most `limit`: what came out, and what it cost.
pub fn metered<T>(limit: u64, evaluate: impl FnOnce() -> Result<T, CelError>) -> (Result<T, CelError>, u64) {
    let meter = Meter { left: limit, deadline: now() + EVALUATION_TIMEOUT, stopped: None };
    METER.with(|current| current.replace(Some(meter)));
    let result = evaluate();
    let Some(meter) = METER.with(RefCell::take) else { return (result, 0) };
    match meter.stopped {
        // Also if `||` made something of the error.
        Some(why) => (Err(why), limit),
        None => (result, limit - meter.left),
    }
}

/// Takes `cost` from what is left, or stops the evaluation.
pub fn spend(cost: u64) -> Result<(), ExecutionError> {
    METER.with_borrow_mut(|meter| {
        let Some(meter) = meter else { return Ok(()) };
        if meter.stopped.is_none() {
            match meter.left.checked_sub(cost) {
                Some(left) => meter.left = left,
                None => meter.stopped = Some(CelError::CostLimit),
            }
            if now() > meter.deadline {
                meter.stopped = Some(CelError::Interrupted);
            }
        }
        match &meter.stopped {
            Some(why) => Err(ExecutionError::function_error("cost", why)),
            None => Ok(()),
        }
    })
}

pub fn register(context: &mut Context<'_>) {
    context.add_function(LOOP_COST, loop_cost);
    context.add_function(CALL_COST, call_cost);
}

/// Makes loops and costly calls pay. Returns how many parts the expression has.
pub fn instrument(expression: &mut IdedExpr) -> u64 {
    // What is written out costs nothing.
    let mut parts = u64::from(!matches!(expression.expr, Expr::Literal(_)));
    let id = expression.id;
    if let Expr::Comprehension(comprehension) = &mut expression.expr {
        let around = [&mut comprehension.iter_range, &mut comprehension.accu_init, &mut comprehension.result];
        parts += around.into_iter().map(instrument).sum::<u64>();
        let turn = instrument(&mut comprehension.loop_cond) + instrument(&mut comprehension.loop_step);
        let condition = std::mem::take(&mut comprehension.loop_cond);
        let accumulator = LiteralValue::String(CelString::from(comprehension.accu_var.as_str()));
        let cost = LiteralValue::Int((turn as i64).into());
        let literals = [accumulator, cost].map(|literal| IdedExpr { id, expr: Expr::Literal(literal) });
        let args = [condition].into_iter().chain(literals).collect();
        comprehension.loop_cond = call(id, LOOP_COST, args);
        return parts;
    }
    parts += children_mut(&mut expression.expr).into_iter().map(instrument).sum::<u64>();
    if let Expr::Call(costly) = &mut expression.expr
        && is_costly(costly)
    {
        let mut args = vec![IdedExpr::default()];
        let library = library(costly).is_some();
        let own = costly.target.as_deref_mut().filter(|_| !library).into_iter().chain(costly.args.iter_mut());
        for (argument, name) in own.zip(ARGUMENTS) {
            let named = IdedExpr { id, expr: Expr::Ident(name.into()) };
            args.push(std::mem::replace(argument, named));
        }
        args[0] = std::mem::take(expression);
        *expression = call(id, CALL_COST, args);
    }
    parts
}

fn call(id: u64, name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    IdedExpr { id, expr: Expr::Call(CallExpr { func_name: name.into(), target: None, args }) }
}

/// `sets` of `sets.contains(a, b)`.
fn library(call: &CallExpr) -> Option<&str> {
    match call.target.as_deref().map(|target| &target.expr) {
        Some(Expr::Ident(name)) if matches!(name.as_str(), "sets" | "lists") => Some(name),
        _ => None,
    }
}

fn full_name(call: &CallExpr) -> String {
    library(call).map_or_else(|| call.func_name.clone(), |library| format!("{library}.{}", call.func_name))
}

fn is_costly(call: &CallExpr) -> bool {
    // A loop that collects adds one item at a time, and pays by the turn.
    let collects = call.args.first().is_some_and(|first| matches!(&first.expr, Expr::Ident(name) if name == "@result"));
    let arguments = call.args.len() + usize::from(call.target.is_some());
    COSTLY_CALLS.contains(&full_name(call).as_str()) && !collects && arguments <= ARGUMENTS.len()
}

/// The condition of a loop: `@loop_cost(condition, name of the accumulator, cost)`.
fn loop_cost(context: &FunctionContext<'_, '_>) -> ResolveResult {
    let [condition, accumulator, cost] = context.args else { return Err(ExecutionError::NoSuchOverload) };
    let (Expr::Literal(LiteralValue::String(accumulator)), Expr::Literal(LiteralValue::Int(cost))) =
        (&accumulator.expr, &cost.expr)
    else {
        return Err(ExecutionError::NoSuchOverload);
    };
    // What the last turn added is copied with everything before it.
    let collected = context.ptx.get_variable(accumulator.inner());
    let last = collected.as_deref().and_then(|value| value.downcast_ref::<CelList>()?.inner().last());
    let added = last.and_then(|value| Value::try_from(value.as_ref()).ok()).map_or(0, |value| size(&value));
    spend((*cost.inner()).unsigned_abs() + added / BYTES_PER_COST)?;
    context.ptx.resolve(condition)
}

/// A call whose arguments are looked at first: `@call_cost(call with names for arguments, arguments…)`.
fn call_cost(context: &FunctionContext<'_, '_>) -> ResolveResult {
    let [inner, arguments @ ..] = context.args else { return Err(ExecutionError::NoSuchOverload) };
    let values = arguments.iter().map(|argument| context.ptx.resolve(argument)).collect::<Result<Vec<_>, _>>()?;
    if let Expr::Call(call) = &inner.expr {
        spend(price(&full_name(call), &values))?;
    }
    let mut scope = context.ptx.new_inner_scope();
    for (name, value) in ARGUMENTS.iter().zip(values) {
        scope.add_variable_from_value(*name, value);
    }
    scope.resolve(inner)
}

/// What a call costs beyond being one.
fn price(name: &str, arguments: &[Value]) -> u64 {
    let sizes: Vec<u64> = arguments.iter().map(size).collect();
    let at = |index: usize| sizes.get(index).copied().unwrap_or(0);
    let count = |index: usize| arguments.get(index).map_or(0, items);
    let product = |a: u64, b: u64| a.saturating_mul(b);
    let whole = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size)) / BYTES_PER_COST;
    whole.saturating_add(match name {
        "replace" => product(at(0) / at(1).max(1) + 1, at(2)) / BYTES_PER_COST,
        "join" => product(count(0), at(1)) / BYTES_PER_COST,
        "matches" | "find" | "findAll" => {
            product(at(0) / BYTES_PER_COST + 1, at(1) / 4 + 1).saturating_add(arguments.get(1).map_or(0, pattern_cost))
        }
        "sort" => product(count(0), u64::from(count(0).max(1).ilog2())),
        "distinct" => product(count(0), count(0)),
        "sets.contains" | "sets.intersects" => product(count(0), count(1)),
        "sets.equivalent" => product(count(0), count(1)).saturating_mul(2),
        "lists.range" => arguments.first().map_or(0, |length| match length {
            Value::Int(length) => u64::try_from(*length).unwrap_or(0),
            _ => 0,
        }),
        "format" => product(precision(&arguments[0]), count(1).max(1)) / BYTES_PER_COST,
        _ => 0,
    })
}

/// The largest number in a format, which may be how many digits it asks for.
fn precision(format: &Value) -> u64 {
    let Value::String(format) = format else { return 0 };
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers.map(|digits| digits.parse().unwrap_or(u64::MAX)).max().unwrap_or(0)
}

/// Elements of a regular expression that cost no more than its length.
const PATTERN_ELEMENTS_FREE: u64 = 1000;
/// Of a set of characters, roughly: most are several ranges.
const CLASS_ELEMENTS: u64 = 8;

/// A pattern is compiled each time, and a short one may say that much of it is to be repeated again and again.
fn pattern_cost(pattern: &Value) -> u64 {
    let Value::String(pattern) = pattern else { return 0 };
    // What comes before the last atom, and how large that is; one for each group that is open.
    let mut open = vec![(0_u64, 0_u64)];
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        let group = open.pop().unwrap_or_default();
        let (before, last) = group;
        let after = before.saturating_add(last);
        let atom = |size| (after, size);
        let now = match c {
            '(' => {
                open.push(group);
                (0, 0)
            }
            ')' => {
                let (outside, earlier) = open.pop().unwrap_or_default();
                (outside.saturating_add(earlier), after)
            }
            '{' => {
                let digits: String =
                    std::iter::from_fn(|| chars.next_if(|c| c.is_ascii_digit() || *c == ',')).collect();
                let times = digits.split(',').filter_map(|digits| digits.parse().ok()).max().unwrap_or(1);
                (before, last.saturating_mul(times))
            }
            '[' => {
                while chars.next_if(|c| *c != ']').is_some() {}
                atom(CLASS_ELEMENTS)
            }
            '\\' => atom(if chars.next().is_some_and(|c| c.is_ascii_alphabetic()) { CLASS_ELEMENTS } else { 1 }),
            '}' | ']' | '*' | '+' | '?' => group,
            _ => atom(1),
        };
        open.push(now);
    }
    let elements = open.iter().fold(0_u64, |sum, (before, last)| sum.saturating_add(*before).saturating_add(*last));
    elements.saturating_sub(PATTERN_ELEMENTS_FREE)
}

fn items(value: &Value) -> u64 {
    match value {
        Value::List(list) => list.len() as u64,
        Value::Map(map) => map.map.len() as u64,
        _ => 0,
    }
}

/// Bytes of texts and one for everything else, all the way down.
fn size(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Bytes(bytes) => bytes.len() as u64,
        Value::List(list) => list.iter().fold(1, |sum, item| sum + size(item)),
        Value::Map(map) => map.map.values().fold(1, |sum, item| sum + 1 + size(item)),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{CALL_COST_MAX, Expression, Variables};

    fn variables() -> Variables {
        let mut variables = Variables::default();
        let object = json!({
            "list": (0..300).collect::<Vec<_>>(),
            "text": "x".repeat(100_000),
            "map": (0..300).map(|i| (i.to_string(), json!(i))).collect::<serde_json::Map<_, _>>(),
        });
        variables.set("object", &object);
        variables
    }

    #[test]
    fn cel_evaluation_that_runs_long_is_stopped_at_its_cost_limit() {
        // A tenth of what there is, so that a slow machine is stopped by the cost and not by the deadline.
        const LIMIT: u64 = CALL_COST_MAX / 10;
        let variables = variables();
        let check = |source: &str, expected: CelError| {
            let (result, cost) = Expression::compile(source).unwrap().evaluate_within(&variables, LIMIT);
            assert_eq!(result.unwrap_err(), expected, "{source}");
            assert!(cost >= LIMIT, "{source}: {cost}");
        };
        // How long a list is that the expression itself makes, nobody knows before.
        check(
            "object.list.filter(a, a < 30).all(a, object.list.filter(b, b < 30).all(b, object.list.filter(c, c < 30)\
             .all(c, a + b + c >= 0)))",
            CelError::CostLimit,
        );
        check("object.map.all(a, object.map.all(b, object.map.all(c, a + b + c != '')))", CelError::CostLimit);
        check("lists.range(1000000000).size() > 0", CelError::CostLimit);
        check("lists.range(100000).all(a, lists.range(100000).all(b, a + b >= 0))", CelError::CostLimit);
        check("object.text.replace('x', object.text).size() > 0", CelError::CostLimit);
        check("object.text.replace('', object.text).size() > 0", CelError::CostLimit);
        check("object.list.map(i, 'x').join(object.text).size() > 0", CelError::CostLimit);
        check("lists.range(20000).distinct().size() > 0", CelError::CostLimit);
        check("sets.contains(lists.range(20000), lists.range(20000))", CelError::CostLimit);
        check("'%.999999999f'.format([1.0]).size() > 0", CelError::CostLimit);
        check("object.list.map(i, object).size() > 0", CelError::CostLimit);
        // Twenty bytes that take megabytes to compile, each time.
        check("lists.range(1000).all(i, !'a'.matches('((a{50}){50}){50}'))", CelError::CostLimit);
        check("'a'.find('((?:[a-z]{0,99}){9}){99}') == ''", CelError::CostLimit);
        // Each level doubles what it is given.
        let doubled = (0..40).fold("object.text".to_string(), |inner, _| format!("[{inner}].map(x, x + x)[0]"));
        check(&format!("{doubled}.size() > 0"), CelError::CostLimit);
        // The end cannot be swallowed.
        check("lists.range(1000000000).size() > 0 || true", CelError::CostLimit);
        check("[1].exists(x, lists.range(1000000000).size() > 0) || true", CelError::CostLimit);
    }

    #[test]
    fn ordinary_expressions_are_affordable_and_mean_the_same() {
        let variables = variables();
        let check = |source: &str| {
            let (result, cost) = Expression::compile(source).unwrap().holds(&variables);
            assert_eq!(result, Ok(true), "{source}");
            assert!(cost < CALL_COST_MAX / 2, "{source}: {cost}");
        };
        check("object.list.all(a, object.list.exists(b, a == b))");
        check("object.list.map(a, a + 1).filter(a, a > 299).size() == 1");
        check("('a' + 'b' + 'c').replace('b', 'x') == 'axc' && ['a', 'b'].join('-') == 'a-b'");
        check("'%s is %.2f'.format(['pi', 3.14159]) == 'pi is 3.14'");
        check("sets.contains([1, 2, 3], [2]) && [1, 1, 2].distinct().size() == 2 && lists.range(3) == [0, 1, 2]");
        check("[3, 1, 2].sort() == [1, 2, 3] && [1] + [2] == [1, 2] && 1 + 2 == 3 && 1.5 + 1.5 == 3.0");
        check("object.text.matches('^x+$') && 'a,b'.split(',').size() == 2 && 'abc'.find('b') == 'b'");
        check("('a-0.b'.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\\\.[a-z0-9]{1,61}){0,1}$'))");
        check("duration('1m') + duration('1m') == duration('2m')");
        check("timestamp('2026-01-01T00:00:00Z') + duration('1h') > timestamp('2026-01-01T00:00:00Z')");
        check("object.map.exists_one(k, k == '7') && [[1], [2]].flatten() == [1, 2]");
    }

    #[test]
    fn a_panic_of_the_evaluator_and_messages_are_errors() {
        assert!(Expression::compile("Foo{a: 1}.a == 1").is_err());
        assert!(Expression::compile("[Foo{}].size() == 1").is_err());
    }

    /// The deepest expressions that are let through, on the stack of a worker.
    #[test]
    fn the_deepest_expressions_are_evaluated_on_a_workers_stack() {
        let deepest = |before: &str, inner: &str, after: &str| {
            let levels = (1..=100).rev().find(|n| {
                let source = format!("{}{inner}{}", before.repeat(*n), after.repeat(*n));
                Expression::compile(&source).is_ok_and(|e| e.evaluate(&Variables::default()).0.is_ok())
            });
            assert!(levels.is_some_and(|levels| levels >= 20), "{before}: {levels:?}");
        };
        deepest("(", "1", ")");
        deepest("", "1", " + 1");
        deepest("[", "1", "]");
        deepest("[", "1", "].map(x, x)");
        deepest("!", "true", "");
        deepest("true ? true : ", "true", "");
        deepest("int(", "1", ")");
    }
}
