//! Selectors of devices: what they can name, what they may cost, and whether a device is one that they mean.
//! Checked when claims and classes are written; evaluated by the scheduler.
//! A domain of attributes or capacities that a device has not is an empty one, not an error.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use kube_cel::cel::{
    Context, ExecutionError, FunctionContext, IdedExpr, ResolveResult,
    common::{
        ast::{CallExpr, Expr, LiteralValue, operators},
        types::CelString,
    },
    objects::{Key, Value as CelValue},
};
use serde_json::{Value, json};

use crate::{
    CALL_COST_MAX, CelError, Expression, Variables, cost_estimate::DeclType, map, metering, root,
    traversal::children_mut, types::Type,
};

pub const EXPRESSION_BYTES_MAX: usize = 10 << 10;

const DEVICE: &str = "device";
const ATTRIBUTES: &str = "attributes";
const CAPACITY: &str = "capacity";
/// `@device_domain(map, domain)`: what the map has for the domain, or an empty map.
const DOMAIN: &str = "@device_domain";

/// What a selector can name.
static NAMES: LazyLock<[(&str, Type); 1]> = LazyLock::new(|| {
    let by_domain = |of: Type| Type::Map(Box::new(Type::Map(Box::new(of))));
    let capacity = by_domain(Type::Named("kubernetes.Quantity"));
    let fields = [("driver", Type::String), (ATTRIBUTES, by_domain(Type::Dyn)), (CAPACITY, capacity)];
    let fields = fields.map(|(name, of)| (name.to_string(), of)).to_vec();
    [(DEVICE, Type::Record("DRADevice", Arc::new(fields)))]
});

/// How large a device can be, for what a selector may cost: each map has as many entries as a device may have
/// attributes and capacities, and each attribute a value of limited length.
static SIZES: LazyLock<Option<Arc<DeclType>>> = LazyLock::new(|| {
    let map = |of: Value| json!({ "type": "object", "maxProperties": 32, "additionalProperties": of });
    // A text, a number, a truth or a version.
    let attribute = json!({ "x-kubernetes-int-or-string": true, "maxLength": 64 });
    let schema = json!({ "type": "object", "properties": {
        "driver": { "type": "string", "maxLength": 63 },
        ATTRIBUTES: map(map(attribute.clone())),
        CAPACITY: map(map(attribute)),
    } });
    DeclType::from_schema(&schema, false)
});

pub struct DeviceSelector(Expression);

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attribute<'a> {
    Int(i64),
    Bool(bool),
    String(&'a str),
    Version(&'a str),
}

/// A device as selectors see it. Names without a domain are of the driver's.
#[derive(Debug, Default)]
pub struct Device<'a> {
    pub driver: &'a str,
    pub attributes: Vec<(&'a str, Attribute<'a>)>,
    /// Amounts as quantities are written.
    pub capacity: Vec<(&'a str, &'a str)>,
}

impl DeviceSelector {
    pub fn compile(source: &str) -> Result<Self, CelError> {
        let expression = Expression::compile_with(source, |_| {}, default_domains)?;
        match expression.check(&*NAMES)? {
            Type::Bool | Type::Dyn => Ok(Self(expression)),
            other => Err(CelError::Compilation(format!("must evaluate to bool or the unknown type, not {other}"))),
        }
    }

    /// Whether it may cost more than it may, by the sizes that a device can have.
    pub fn is_too_complex(&self) -> bool {
        // The sizes say nothing of quantities, which cost one to compare.
        let cost = |device: &Arc<DeclType>| self.0.max_cost(device, &*NAMES);
        SIZES.as_ref().map_or(0, cost) > CALL_COST_MAX
    }

    pub fn matches(&self, device: &Device<'_>) -> Result<bool, CelError> {
        let mut variables = Variables::default();
        variables.set_value(DEVICE, device_value(device)?);
        let (result, cost) = self.0.evaluate(&variables);
        match result? {
            _ if cost > CALL_COST_MAX => Err(CelError::CostLimit),
            CelValue::Bool(truth) => Ok(truth),
            other => {
                let found = other.type_of();
                Err(CelError::Evaluation(format!("CEL result of type {found} could not be converted to bool")))
            }
        }
    }
}

fn device_value(device: &Device<'_>) -> Result<CelValue, CelError> {
    let mut attributes = BTreeMap::new();
    for (name, attribute) in &device.attributes {
        let value = match attribute {
            Attribute::Int(number) => CelValue::Int(*number),
            Attribute::Bool(truth) => CelValue::Bool(*truth),
            Attribute::String(text) => CelValue::String(Arc::new(text.to_string())),
            Attribute::Version(text) => made_by("semver", text)
                .map_err(|why| CelError::Evaluation(format!("attribute {name}: parse semantic version: {why}")))?,
        };
        insert(&mut attributes, device.driver, name, value);
    }
    let mut capacity = BTreeMap::new();
    for (name, amount) in &device.capacity {
        insert(&mut capacity, device.driver, name, made_by("quantity", amount)?);
    }
    let driver = CelValue::String(Arc::new(device.driver.to_string()));
    let fields = [("driver", driver), (ATTRIBUTES, domains(attributes)), (CAPACITY, domains(capacity))];
    Ok(map(fields.map(|(name, value)| (name.to_string(), value)).to_vec()))
}

type ByDomain = BTreeMap<String, Vec<(String, CelValue)>>;

fn insert(by_domain: &mut ByDomain, driver: &str, name: &str, value: CelValue) {
    let (domain, id) = name.split_once('/').unwrap_or((driver, name));
    by_domain.entry(domain.to_string()).or_default().push((id.to_string(), value));
}

fn domains(by_domain: ByDomain) -> CelValue {
    map(by_domain.into_iter().map(|(domain, entries)| (domain, map(entries))).collect())
}

/// What a function of one text makes.
fn made_by(function: &str, text: &str) -> Result<CelValue, CelError> {
    let literal = Expr::Literal(LiteralValue::String(CelString::from(text)));
    let call = CallExpr { func_name: function.into(), target: None, args: vec![IdedExpr { id: 1, expr: literal }] };
    let call = IdedExpr { id: 2, expr: Expr::Call(call) };
    CelValue::resolve(&call, &root(None).new_inner_scope()).map_err(|why| CelError::evaluation(&why))
}

/// `device.attributes[domain]` and `device.capacity[domain]` look up a domain; the fields are keys already.
fn default_domains(expression: &mut IdedExpr) {
    children_mut(&mut expression.expr).into_iter().for_each(default_domains);
    let id = expression.id;
    let Expr::Call(call) = &mut expression.expr else { return };
    let optional = call.func_name == operators::OPT_INDEX;
    if !(optional || call.func_name == operators::INDEX) || !call.args.first().is_some_and(is_by_domain) {
        return;
    }
    call.func_name = DOMAIN.into();
    if optional {
        let found = IdedExpr { id, expr: std::mem::replace(&mut expression.expr, Expr::Unspecified) };
        let library = IdedExpr { id, expr: Expr::Ident("optional".into()) };
        let args = vec![found];
        expression.expr = Expr::Call(CallExpr { func_name: "of".into(), target: Some(Box::new(library)), args });
    }
}

fn is_by_domain(expression: &IdedExpr) -> bool {
    let Expr::Call(call) = &expression.expr else { return false };
    let is_field = |e: &IdedExpr| match &e.expr {
        Expr::Literal(LiteralValue::String(field)) => [ATTRIBUTES, CAPACITY].contains(&field.inner()),
        _ => false,
    };
    call.func_name == operators::INDEX
        && matches!(call.args.as_slice(), [owner, field]
            if matches!(&owner.expr, Expr::Ident(name) if name == DEVICE) && is_field(field))
}

pub(crate) fn register(context: &mut Context<'_>) {
    context.add_function(DOMAIN, domain);
}

fn domain(context: &FunctionContext<'_, '_>) -> ResolveResult {
    let [of, key] = context.args else { return Err(ExecutionError::NoSuchOverload) };
    metering::spend(1)?;
    let (CelValue::Map(of), CelValue::String(key)) = (context.ptx.resolve(of)?, context.ptx.resolve(key)?) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    Ok(of.map.get(&Key::String(key)).cloned().unwrap_or_else(|| map(Vec::new())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device<'static> {
        Device {
            driver: "gpu.example.com",
            attributes: vec![
                ("model", Attribute::String("a100")),
                ("index", Attribute::Int(3)),
                ("gpu.example.com/healthy", Attribute::Bool(true)),
                ("driverVersion", Attribute::Version("12.1.0")),
                ("other.example.com/model", Attribute::String("x")),
            ],
            capacity: vec![("memory", "40Gi"), ("other.example.com/slots", "7")],
        }
    }

    #[test]
    fn selectors_look_at_devices_by_domain() {
        let check = |source: &str, expected: Result<bool, &str>| {
            let found = DeviceSelector::compile(source).and_then(|selector| selector.matches(&device()));
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected, "{source}"),
                (Err(why), Err(part)) => assert!(why.to_string().contains(part), "{source}: {why}"),
                _ => panic!("{source}: {found:?}, expected {expected:?}"),
            }
        };
        check("device.driver == 'gpu.example.com'", Ok(true));
        check("device.attributes['gpu.example.com'].model == 'a100'", Ok(true));
        check("device.attributes['gpu.example.com'].index > 3", Ok(false));
        check("device.attributes['gpu.example.com'].healthy", Ok(true));
        check("device.attributes['other.example.com'].model == 'x'", Ok(true));
        check("device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('12.0.9'))", Ok(true));
        check("device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) == 0", Ok(true));
        check("device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('80Gi'))", Ok(false));
        check("device.capacity['other.example.com'].slots.asInteger() == 7", Ok(true));
        check("has(device.attributes['none.example.com'].model)", Ok(false));
        check("device.attributes[?'none.example.com'].hasValue()", Ok(true));
        check("'none.example.com' in device.attributes || 'gpu.example.com' in device.attributes", Ok(true));
        check("device.attributes['gpu.example.com'].?none.orValue(1) == 1", Ok(true));
        check("cel.bind(gpu, device.attributes['gpu.example.com'], gpu.healthy && gpu.index == 3)", Ok(true));
        check("device.attributes['none.example.com'].model == 'x'", Err("model"));
        check("device.attributes['gpu.example.com'].model", Err("could not be converted to bool"));
        check("device.none == 1", Err("undefined field 'none'"));
        check("device.driver", Err("must evaluate to bool or the unknown type, not string"));
        check("none.driver == ''", Err("undeclared reference to 'none'"));
        check("device.driver == '", Err("compilation failed"));
    }

    #[test]
    fn selectors_are_limited_in_what_they_cost() {
        let long = format!("[{}].all(a, ['x'].all(b, a == a))", vec!["'x'"; 60].join(","));
        let nested = (0..4).fold("true".to_string(), |inner, at| {
            let items = vec!["1"; 40].join(",");
            format!("[{items}].all(v{at}, {inner})")
        });
        let plain = DeviceSelector::compile(&long).unwrap();
        assert!(!plain.is_too_complex());
        assert_eq!(plain.matches(&device()), Ok(true));
        let costly = DeviceSelector::compile(&nested).unwrap();
        assert!(costly.is_too_complex());
        assert_eq!(costly.matches(&device()), Err(CelError::CostLimit));
    }
}
