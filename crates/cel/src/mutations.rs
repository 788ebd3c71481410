//! What expressions that make changes have beyond others: `Object{…}`, `Object.spec{…}`, `JSONPatch{…}` and
//! `jsonpatch.escapeKey(…)`.
//! Used by `Expression::compile_mutation`; the admission plugin MutatingAdmissionPolicy takes the result as JSON.
//! Objects are maps to the evaluator: their fields are judged when the result is merged.

use kube_cel::cel::{
    IdedExpr,
    common::{
        ast::{CallExpr, EntryExpr, Expr, IdedEntryExpr, LiteralValue, MapEntryExpr, MapExpr},
        types::CelString,
    },
    objects::{Key, Value as CelValue},
};
use serde_json::Value;

use super::traversal::children_mut;

/// Spells out what other expressions do not know.
pub fn expand(expression: &mut IdedExpr) {
    children_mut(&mut expression.expr).into_iter().for_each(expand);
    let id = expression.id;
    let text = |text: &str| IdedExpr { id, expr: Expr::Literal(LiteralValue::String(CelString::from(text))) };
    match &mut expression.expr {
        Expr::Struct(message) if is_object(&message.type_name) || message.type_name == "JSONPatch" => {
            let entries = std::mem::take(&mut message.entries).into_iter().map(|entry| match entry.expr {
                EntryExpr::StructField(field) => {
                    let expr = EntryExpr::MapEntry(MapEntryExpr {
                        key: text(&field.field),
                        value: field.value,
                        optional: field.optional,
                    });
                    IdedEntryExpr { id: entry.id, expr }
                }
                EntryExpr::MapEntry(_) => entry,
            });
            expression.expr = Expr::Map(MapExpr { entries: entries.collect() });
        }
        Expr::Call(call) if call.func_name == "escapeKey" && names_jsonpatch(call) => {
            let replaced = |target: IdedExpr, from: &str, to: &str| {
                let args = vec![text(from), text(to)];
                let expr = Expr::Call(CallExpr { func_name: "replace".into(), target: Some(Box::new(target)), args });
                IdedExpr { id, expr }
            };
            let key = std::mem::take(&mut call.args[0]);
            *expression = replaced(replaced(key, "~", "~0"), "/", "~1");
        }
        _ => {}
    }
}

fn is_object(type_name: &str) -> bool {
    type_name == "Object" || type_name.starts_with("Object.")
}

fn names_jsonpatch(call: &CallExpr) -> bool {
    let target = call.target.as_ref().map(|target| &target.expr);
    call.args.len() == 1 && matches!(target, Some(Expr::Ident(name)) if name == "jsonpatch")
}

/// A result as JSON; nothing if it holds what JSON has not.
pub fn to_json(value: &CelValue) -> Option<Value> {
    Some(match value {
        CelValue::Null => Value::Null,
        CelValue::Bool(b) => (*b).into(),
        CelValue::Int(i) => (*i).into(),
        CelValue::UInt(u) => (*u).into(),
        CelValue::Float(f) => serde_json::Number::from_f64(*f)?.into(),
        CelValue::String(s) => s.as_str().into(),
        CelValue::List(items) => Value::Array(items.iter().map(to_json).collect::<Option<_>>()?),
        CelValue::Map(map) => {
            let fields = map.map.iter().map(|(key, value)| match key {
                Key::String(key) => Some((key.to_string(), to_json(value)?)),
                _ => None,
            });
            Value::Object(fields.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Expression, Variables};
    use super::*;

    #[test]
    fn objects_and_patches_are_made() {
        let mut variables = Variables::default();
        variables.set("object", &json!({ "spec": { "replicas": 2 } }));
        let check = |source: &str, expected: Option<Value>| {
            let made = Expression::compile_mutation(source).ok().and_then(|e| e.evaluate(&variables).0.ok());
            assert_eq!(made.as_ref().and_then(to_json), expected, "{source}");
        };
        check("Object{}", Some(json!({})));
        check(
            "Object{spec: Object.spec{replicas: object.spec.replicas + 1, list: [Object.spec.list{a: 'b'}]}}",
            Some(json!({ "spec": { "replicas": 3, "list": [{ "a": "b" }] } })),
        );
        check(
            "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a~/b'), value: 'c'}]",
            Some(json!([{ "op": "add", "path": "/metadata/labels/a~0~1b", "value": "c" }])),
        );
        check("Other{}", None);
        assert!(Expression::compile("Object{}").is_err(), "only mutations make objects");
    }
}
