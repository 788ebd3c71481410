//! The expression language of match conditions, admission policies and validation rules.
//! Used by the API server and, for selectors of devices (`device`), by the scheduler. The functions Kubernetes adds come
//! from `kube-cel`, others from a `Library`; `types` finds what cannot work before it runs.
//! An expression is compiled once; evaluating it changes nothing, never panics on input, and ends (`metering`).

pub mod admission;
pub mod authorizer;
pub mod blocking;
pub mod cost_estimate;
pub mod device;
pub mod error;
pub mod escape;
pub mod metering;
pub mod openapi_types;
pub mod types;

mod checker;
mod functions;
mod mutations;
mod nesting;
mod optionals;
mod traversal;

use std::{cell::RefCell, collections::HashMap, panic::AssertUnwindSafe, rc::Rc, sync::Arc};

use kube_cel::{
    KubeCelExt,
    cel::{
        Context, IdedExpr, ResolveResult,
        common::ast::{Expr, LiteralValue, operators},
        objects::{Key, Map, Value as CelValue},
        parser::Parser,
    },
};
use serde_json::Value;

use self::{
    blocking::off_worker,
    cost_estimate::{CostEstimator, DeclType},
    traversal::children_mut,
    types::Type,
};
pub use self::{error::CelError, mutations::to_json};

/// What evaluating one expression may cost.
pub const CALL_COST_MAX: u64 = 1_000_000;
/// What all expressions of a policy, or all rules on an object, may cost together.
pub const COST_BUDGET: u64 = 10 * CALL_COST_MAX;
/// What the conditions of a webhook or policy may cost together.
pub const CONDITIONS_COST_BUDGET: u64 = 2_500_000;

pub struct Expression {
    parsed: IdedExpr,
    evaluated: IdedExpr,
    /// How many parts it has: what it costs at least.
    parts: u64,
    /// Without loops an evaluation is over in no time.
    has_loops: bool,
    pub source: String,
}

/// As upstream's compiler shows it: lines that show where an error is are a column to the right, and the end of an empty
/// source is before its first column.
fn shown(error: &str, source: &str) -> String {
    let error = error.replace("\n|", "\n |");
    if source.is_empty() { error.replace("<input>:1:1:", "<input>:1:0:") } else { error }
}

impl Expression {
    pub fn compile(source: &str) -> Result<Self, CelError> {
        Self::compile_with(source, |_| {}, |_| {})
    }

    /// One that makes an object or a patch.
    pub fn compile_mutation(source: &str) -> Result<Self, CelError> {
        Self::compile_with(source, mutations::expand, |_| {})
    }

    /// `expand` changes what is checked and evaluated, `rewrite` only what is evaluated.
    fn compile_with(
        source: &str,
        expand: impl FnOnce(&mut IdedExpr),
        rewrite: impl FnOnce(&mut IdedExpr),
    ) -> Result<Self, CelError> {
        nesting::check(source)?;
        // The parser is generated code that has panicked on odd input before; an expression must not end the server.
        let parsed = std::panic::catch_unwind(|| Parser::new().enable_optional_syntax(true).parse(source));
        let parsed = parsed.map_err(|_| CelError::Compilation("the expression cannot be parsed".into()))?;
        let mut parsed = parsed
            .map_err(|e| CelError::Compilation(format!("compilation failed: {}", shown(&e.to_string(), source))))?;
        expand(&mut parsed);
        if let Some(name) = message_type(&mut parsed) {
            let text = format!("compilation failed: undeclared reference to '{name}' (in container '')");
            return Err(CelError::Compilation(text));
        }
        name_request_resource(&mut parsed);
        optionals::expand_macros(&mut parsed);
        let mut evaluated = parsed.clone();
        optionals::fields_to_keys(&mut evaluated);
        rewrite(&mut evaluated);
        let has_loops = has_loops(&mut evaluated);
        let parts = metering::instrument(&mut evaluated);
        Ok(Self { parsed, evaluated, parts, has_loops, source: source.to_string() })
    }

    /// The type it evaluates to if its names have these types, or why it cannot work, in the words of a compiler.
    pub fn check(&self, scope: &[(&str, Type)]) -> Result<Type, CelError> {
        checker::check(&self.parsed, &self.source, scope)
    }

    pub fn names(&self, variable: &str) -> bool {
        self.parsed.references().has_variable(variable)
    }

    /// Whether it looks at `field` of `variable`, optionally or not.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        selects(&mut self.parsed.clone(), variable, field)
    }

    /// What it costs at most with names of these types; `root` is the one whose parts it looks at.
    pub fn max_cost(&self, root: &Arc<DeclType>, names: &[(&str, Type)]) -> u64 {
        let names = names.iter().map(|(name, kind)| (name.to_string(), kind.clone())).collect();
        CostEstimator::new(root.clone(), names).estimate(&self.parsed)
    }

    /// What it makes of the variables, and what that cost.
    pub fn evaluate(&self, variables: &Variables) -> (Result<CelValue, CelError>, u64) {
        self.evaluate_within(variables, CALL_COST_MAX)
    }

    fn evaluate_within(&self, variables: &Variables, limit: u64) -> (Result<CelValue, CelError>, u64) {
        let evaluate = || {
            let root = root(variables.library);
            let mut context = root.new_inner_scope();
            for (name, value) in &variables.values {
                context.add_variable_from_value(name.clone(), value.clone());
            }
            CelValue::resolve(&self.evaluated, &context).map_err(|e| CelError::evaluation(&e))
        };
        let guarded = || {
            let evaluated = std::panic::catch_unwind(AssertUnwindSafe(evaluate));
            evaluated.unwrap_or_else(|_| {
                Err(CelError::Evaluation("internal error: the expression cannot be evaluated".into()))
            })
        };
        let run = || metering::metered(limit, guarded);
        let (result, cost) = if self.has_loops { off_worker(run) } else { run() };
        (result, cost.saturating_add(self.parts))
    }

    /// The truth of a condition; anything but a boolean is an error.
    pub fn holds(&self, variables: &Variables) -> (Result<bool, CelError>, u64) {
        let (result, cost) = self.evaluate(variables);
        let truth = result.and_then(|value| match value {
            CelValue::Bool(truth) => Ok(truth),
            other => {
                let text = format!("cel expression evaluated to {:?}, must evaluate to bool", other.type_of());
                Err(CelError::Evaluation(text))
            }
        });
        (truth, cost)
    }

    /// The text an expression makes.
    pub fn text(&self, variables: &Variables) -> (Result<String, CelError>, u64) {
        let (result, cost) = self.evaluate(variables);
        let text = result.and_then(|value| match value {
            CelValue::String(text) => Ok(text.to_string()),
            CelValue::Null => Ok(String::new()),
            other => {
                let text = format!("expression evaluated to {:?}, must evaluate to string", other.type_of());
                Err(CelError::Evaluation(text))
            }
        });
        (text, cost)
    }
}

/// Takes what is left of a budget, or says that it is used up.
pub fn spend(budget: &mut u64, cost: u64) -> Result<(), CelError> {
    let left = budget.checked_sub(cost);
    *budget = left.unwrap_or(0);
    left.map(drop).ok_or(CelError::OutOfBudget)
}

/// The name of a message that the expression makes: there are none here, and the evaluator has no answer to them.
fn message_type(expression: &mut IdedExpr) -> Option<String> {
    match &expression.expr {
        Expr::Struct(message) => Some(message.type_name.clone()),
        Expr::Unspecified => Some(String::new()),
        _ => children_mut(&mut expression.expr).into_iter().find_map(message_type),
    }
}

fn selects(expression: &mut IdedExpr, variable: &str, field: &str) -> bool {
    let named = |operand: &IdedExpr| matches!(&operand.expr, Expr::Ident(name) if name == variable);
    let found = match &expression.expr {
        Expr::Select(select) => select.field == field && named(&select.operand),
        Expr::Call(call) if call.func_name == operators::OPT_SELECT => match call.args.as_slice() {
            [operand, IdedExpr { expr: Expr::Literal(LiteralValue::String(key)), .. }] => {
                key.inner() == field && named(operand)
            }
            _ => false,
        },
        _ => false,
    };
    found || children_mut(&mut expression.expr).into_iter().any(|child| selects(child, variable, field))
}

fn has_loops(expression: &mut IdedExpr) -> bool {
    matches!(expression.expr, Expr::Comprehension(_)) || children_mut(&mut expression.expr).into_iter().any(has_loops)
}

/// Functions beside those of the language and of Kubernetes' libraries.
pub type Library = fn(&mut Context<'static>);

/// With the functions of each library that was asked for.
type Roots = Vec<(Option<Library>, Rc<Context<'static>>)>;

thread_local! {
    /// Registering every function costs more than most evaluations.
    static ROOTS: RefCell<Roots> = const { RefCell::new(Vec::new()) };
}

fn root(library: Option<Library>) -> Rc<Context<'static>> {
    let same = |known: Option<Library>| known.map(|f| f as usize) == library.map(|f| f as usize);
    let known = ROOTS.with_borrow(|roots| roots.iter().find(|(of, _)| same(*of)).map(|(_, root)| root.clone()));
    known.unwrap_or_else(|| {
        let mut root = Context::default().with_all();
        metering::register(&mut root);
        device::register(&mut root);
        root.add_function("type", type_name);
        for name in functions::TYPE_NAMES {
            root.add_variable_from_value(name, name);
        }
        if let Some(library) = library {
            library(&mut root);
        }
        let root = Rc::new(root);
        ROOTS.with_borrow_mut(|roots| roots.push((library, root.clone())));
        root
    })
}

/// `type(x)`. Types are only compared, so their names stand for them.
fn type_name(value: CelValue) -> ResolveResult {
    let name = match value {
        CelValue::Float(_) => "double".into(),
        CelValue::Null => "null_type".into(),
        other => other.type_of().to_string(),
    };
    Ok(CelValue::String(Arc::new(name)))
}

/// `authorizer.requestResource` is one name, which the parser takes for a field of another.
fn name_request_resource(expression: &mut IdedExpr) {
    if let Expr::Select(select) = &expression.expr
        && select.field == "requestResource"
        && matches!(&select.operand.expr, Expr::Ident(name) if name == authorizer::NAME)
    {
        expression.expr = Expr::Ident(authorizer::REQUEST_RESOURCE.into());
        return;
    }
    children_mut(&mut expression.expr).into_iter().for_each(name_request_resource);
}

/// What an expression can name.
#[derive(Default, Clone)]
pub struct Variables {
    values: Vec<(String, CelValue)>,
    library: Option<Library>,
}

impl Variables {
    pub fn set(&mut self, name: &str, value: &Value) {
        self.set_value(name, from_json(value));
    }

    pub fn set_value(&mut self, name: &str, value: CelValue) {
        match self.values.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = value,
            None => self.values.push((name.to_string(), value)),
        }
    }

    /// The functions that work on these variables.
    pub fn set_library(&mut self, library: Library) {
        self.library = Some(library);
    }
}

/// JSON as expressions see it: numbers without a fraction are integers.
pub fn from_json(value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(b) => CelValue::Bool(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => CelValue::Int(i),
            (None, Some(u)) => CelValue::UInt(u),
            _ => CelValue::Float(n.as_f64().unwrap_or_default()),
        },
        Value::String(s) => CelValue::String(Arc::new(s.clone())),
        Value::Array(items) => CelValue::List(Arc::new(items.iter().map(from_json).collect())),
        Value::Object(fields) => {
            let map = fields.iter().map(|(k, v)| (Key::String(Arc::new(k.clone())), from_json(v)));
            CelValue::Map(Map { map: Arc::new(map.collect::<HashMap<_, _>>()) })
        }
    }
}

/// A map made of values already evaluated.
pub fn map(entries: Vec<(String, CelValue)>) -> CelValue {
    let map = entries.into_iter().map(|(k, v)| (Key::String(Arc::new(k)), v));
    CelValue::Map(Map { map: Arc::new(map.collect::<HashMap<_, _>>()) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_see_objects() {
        let mut variables = Variables::default();
        variables.set(
            "object",
            &json!({
                "metadata": { "name": "web", "labels": { "app": "x" } },
                "spec": { "replicas": 3, "cpu": "500m", "list": [1, 2] },
            }),
        );
        variables.set("oldObject", &Value::Null);
        let check = |source: &str, expected: Result<bool, ()>| {
            let found = Expression::compile(source).and_then(|e| e.holds(&variables).0);
            assert_eq!(found.clone().map_err(drop), expected, "{source}: {found:?}");
        };
        check("object.?metadata.name.orValue('') == 'web'", Ok(true));
        check("(oldObject != null ? oldObject : object).?metadata.name.orValue('') == 'web'", Ok(true));
        check("object.?none.name.orValue('') == ''", Ok(true));
        check("object.?none.?name.orValue('x') == 'x'", Ok(true));
        check("object.metadata.labels[?'none'].orValue('x') == 'x'", Ok(true));
        check("object.?none.hasValue() || !object.?spec.hasValue()", Ok(false));
        check("object.?spec.replicas.optMap(n, n + 1).orValue(0) == 4", Ok(true));
        check("object.?none.optMap(n, n.x).hasValue()", Ok(false));
        check("object.?spec.optFlatMap(s, s.?cpu).orValue('') == '500m'", Ok(true));
        check("object.?none.or(object.?spec).value().replicas == 3", Ok(true));
        check("optional.none().hasValue() || optional.of(1).value() == 1", Ok(true));
        check("object.metadata.name.none == false", Err(()));
        check("oldObject.?metadata.hasValue()", Err(()));
        check("object.spec.replicas <= 5", Ok(true));
        check("type(object.spec.replicas) == int && type(object.spec.cpu) == string", Ok(true));
        check("type(oldObject) == null_type && type(object) != list", Ok(true));
        check("object.spec.replicas == 3 && oldObject == null", Ok(true));
        check("has(object.spec.none) || object.metadata.name.startsWith('w')", Ok(true));
        check("object.spec.list.all(x, x > 1)", Ok(false));
        check("'app' in object.metadata.labels", Ok(true));
        check("quantity(object.spec.cpu).isLessThan(quantity('1'))", Ok(true));
        check("object.metadata.name.matches('^[a-z]+$')", Ok(true));
        check("object.spec.none > 1", Err(()));
        check("object.spec.replicas", Err(()));
        check("object.spec.(", Err(()));
        let text = Expression::compile("'has ' + string(object.spec.replicas)").unwrap().text(&variables).0;
        assert_eq!(text, Ok("has 3".to_string()));
    }
}
