//! Checks an expression before it runs: names, fields and operators that cannot work.
//! Used by `admission` when policies and webhooks are written, and for the warnings in a policy's status.
//! A doubt is never an error.

use kube_cel::cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, SelectExpr},
};

use super::{
    authorizer,
    error::CelError,
    escape,
    functions::{FUNCTIONS, LIBRARIES, STRING_FUNCTIONS, TYPE_NAMES, binary, operator, unary},
    types::Type,
};

/// The type of an expression whose names have these types, or the first thing that is wrong with it.
pub fn check(expression: &IdedExpr, source: &str, scope: &[(&str, Type)]) -> Result<Type, CelError> {
    let scope = scope.iter().map(|(name, kind)| (name.to_string(), kind.clone())).collect();
    let mut checker = Checker { scope, place: SourcePosition::new(source), problems: Vec::new() };
    let found = checker.visit(&expression.expr);
    if checker.problems.is_empty() {
        return Ok(found);
    }
    checker.problems.sort_by_key(|(at, _)| *at);
    let shown: Vec<_> = checker.problems.iter().map(|(at, text)| show(source, *at, text)).collect();
    Err(CelError::Compilation(format!("compilation failed: {}", shown.join("\n"))))
}

/// An error with its place, as compilers of this language show it.
fn show(source: &str, at: usize, text: &str) -> String {
    let before = &source[..at.min(source.len())];
    let line = before.matches('\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
    let shown = source.lines().nth(line).unwrap_or_default();
    format!("ERROR: <input>:{}:{}: {text}\n | {shown}\n | {}^", line + 1, column + 1, ".".repeat(column))
}

/// Where in the source the traversal is. The parser does not tell, but both go from left to right.
struct SourcePosition {
    /// The source without what is in quotes.
    code: String,
    at: usize,
}

impl SourcePosition {
    fn new(source: &str) -> Self {
        let mut quote = None;
        let mut escaped = false;
        let masked = source.chars().map(|c| {
            let hidden = quote.is_some();
            match (quote, c) {
                (Some(_), _) if escaped => escaped = false,
                (Some(_), '\\') => escaped = true,
                (Some(open), c) if open == c => quote = None,
                (None, '"' | '\'') => quote = Some(c),
                _ => {}
            }
            if hidden { " ".repeat(c.len_utf8()) } else { c.to_string() }
        });
        Self { code: masked.collect(), at: 0 }
    }

    /// The next place of a word or sign, which is then behind us; where we are if there is none.
    fn next(&mut self, token: &str) -> usize {
        let is_word = token.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let mut from = self.at;
        while let Some(found) = self.code[from..].find(token).map(|i| i + from) {
            let end = found + token.len();
            let inside = part(self.code[..found].chars().next_back()) || part(self.code[end..].chars().next());
            if !is_word || !inside {
                self.at = end;
                return found;
            }
            from = end;
        }
        self.at
    }
}

struct Checker {
    scope: Vec<(String, Type)>,
    place: SourcePosition,
    problems: Vec<(usize, String)>,
}

impl Checker {
    fn problem(&mut self, at: usize, text: String) -> Type {
        self.problems.push((at, text));
        Type::Dyn
    }

    fn visit(&mut self, expression: &Expr) -> Type {
        match expression {
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Type::Bool,
                LiteralValue::Bytes(_) => Type::Bytes,
                LiteralValue::Double(_) => Type::Double,
                LiteralValue::Int(_) => Type::Int,
                LiteralValue::Null => Type::Null,
                LiteralValue::String(_) => Type::String,
                LiteralValue::UInt(_) => Type::Uint,
            },
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(list) => {
                let items: Vec<_> = list.elements.iter().map(|e| self.visit(&e.expr)).collect();
                let mut kinds = items.into_iter();
                let first = kinds.next().unwrap_or(Type::Dyn);
                let same = kinds.all(|k| k.fits(&first));
                Type::List(Box::new(if same { first } else { Type::Dyn }))
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.visit(&entry.key.expr);
                        self.visit(&entry.value.expr);
                    }
                }
                Type::Map(Box::new(Type::Dyn))
            }
            Expr::Struct(_) | Expr::Unspecified => Type::Dyn,
        }
    }

    fn name(&mut self, name: &str) -> Type {
        let at = self.place.next(name.split('.').next().unwrap_or(name));
        if name == authorizer::REQUEST_RESOURCE {
            self.place.next("requestResource");
        }
        if let Some((_, kind)) = self.scope.iter().rev().find(|(known, _)| known == name) {
            return kind.clone();
        }
        // The names of types are values too.
        if TYPE_NAMES.contains(&name) {
            return Type::Dyn;
        }
        self.problem(at, format!("undeclared reference to '{name}' (in container '')"))
    }

    fn select(&mut self, select: &SelectExpr) -> Type {
        let operand = self.visit(&select.operand.expr);
        let at = self.place.next(".");
        self.place.next(&select.field);
        let found = self.field(operand, &select.field, at);
        if select.test { Type::Bool } else { found }
    }

    fn field(&mut self, operand: Type, name: &str, at: usize) -> Type {
        match operand {
            Type::Dyn | Type::Named(_) => Type::Dyn,
            Type::Map(item) => *item,
            Type::Struct(schema, id) => {
                let fields = schema.get(id);
                match fields.field(name).or_else(|| fields.field(&escape::unescape(name))) {
                    Some(field) => Type::from_schema_node(&schema, &field.node),
                    // A type without fields is one nobody described.
                    None if fields.preserve_unknown || fields.fields.is_empty() => Type::Dyn,
                    None => self.problem(at, format!("undefined field '{name}'")),
                }
            }
            Type::Record(_, fields) => {
                match fields.iter().find(|(known, _)| known == name || is_escaped(known, name)) {
                    Some((_, kind)) => kind.clone(),
                    None => self.problem(at, format!("undefined field '{name}'")),
                }
            }
            other => self.problem(at, format!("type '{other}' does not support field selection")),
        }
    }

    fn call(&mut self, call: &CallExpr) -> Type {
        if let Some(sign) = operator(&call.func_name) {
            return self.operator(call, sign);
        }
        let library = call.target.as_ref().is_some_and(|t| {
            matches!(&t.expr, Expr::Ident(name)
            if LIBRARIES.contains(&name.as_str()) && !self.scope.iter().any(|(known, _)| known == name))
        });
        let target = call.target.as_ref().filter(|_| !library).map(|t| self.visit(&t.expr));
        self.place.next(&call.func_name);
        let at = self.place.next("(");
        let arguments: Vec<_> = call.args.iter().map(|a| self.visit(&a.expr)).collect();
        if library {
            return Type::Dyn;
        }
        let name = call.func_name.as_str();
        let Some((_, result)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
            // Functions that macros and optional values are made of begin with a sign.
            return match name.starts_with(|c: char| c.is_alphabetic()) {
                true => self.problem(at, format!("undeclared reference to '{name}' (in container '')")),
                false => Type::Dyn,
            };
        };
        if let Some(target) = target.filter(|t| STRING_FUNCTIONS.contains(&name) && !t.fits(&Type::String)) {
            let shown = arguments.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return self
                .problem(at, format!("found no matching overload for '{name}' applied to '{target}.({shown})'"));
        }
        result.clone()
    }

    fn operator(&mut self, call: &CallExpr, sign: &str) -> Type {
        let mut at = None;
        if call.args.len() == 1 {
            at = Some(self.place.next(sign));
        }
        let mut kinds = Vec::new();
        for (number, argument) in call.args.iter().enumerate() {
            if number == 1 {
                at = Some(self.place.next(sign));
            }
            if number == 2 {
                self.place.next(":");
            }
            kinds.push(self.visit(&argument.expr));
        }
        let result = match kinds.as_slice() {
            [one] => unary(&call.func_name, one),
            [left, right] => binary(&call.func_name, left, right),
            [condition, yes, no] if condition.fits(&Type::Bool) && yes.fits(no) => Some(yes.clone().either(no.clone())),
            _ => None,
        };
        result.unwrap_or_else(|| {
            let shown = kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let name = &call.func_name;
            let at = at.unwrap_or(self.place.at);
            self.problem(at, format!("found no matching overload for '{name}' applied to '({shown})'"))
        })
    }

    fn comprehension(&mut self, c: &ComprehensionExpr) -> Type {
        let range = self.visit(&c.iter_range.expr);
        self.place.next(&c.iter_var);
        let item = match range {
            Type::List(item) => *item,
            Type::Map(_) => Type::String,
            Type::Dyn | Type::Struct(..) | Type::Record(..) => Type::Dyn,
            other => {
                let at = self.place.at;
                self.problem(at, format!("expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"))
            }
        };
        let start = self.visit(&c.accu_init.expr);
        let outside = self.scope.len();
        self.scope.push((c.accu_var.clone(), start));
        self.scope.push((c.iter_var.clone(), item));
        if let Some(second) = &c.iter_var2 {
            self.place.next(second);
            self.scope.push((second.clone(), Type::Dyn));
        }
        let step = self.visit(&c.loop_step.expr);
        self.scope.truncate(outside);
        self.scope.push((c.accu_var.clone(), step));
        let result = self.visit(&c.result.expr);
        self.scope.truncate(outside);
        result
    }
}

/// Whether the known field is the keyword `name`, which is written either way.
fn is_escaped(known: &str, name: &str) -> bool {
    escape::is_keyword(name) && known.strip_prefix("__").and_then(|rest| rest.strip_suffix("__")) == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Expression;

    #[test]
    fn what_cannot_work_is_found_where_it_is() {
        let schema = crate::types::builtin_schema();
        let deployment = schema.find_kind("apps", "v1", "Deployment").unwrap();
        let scope = [
            ("object", Type::Struct(schema, deployment)),
            ("request", Type::request()),
            ("params", Type::Dyn),
            (authorizer::NAME, Type::Named("kubernetes.authorization.Authorizer")),
            (authorizer::REQUEST_RESOURCE, Type::Named("kubernetes.authorization.ResourceCheck")),
        ];
        let check = |source: &str, expected: &str| {
            let found = Expression::compile(source).unwrap().check(&scope);
            let found = found
                .map_or_else(|e| e.to_string().replace("compilation failed: ERROR: <input>:", ""), |t| t.to_string());
            let found = if expected.contains('\n') { found } else { found.lines().next().unwrap().to_string() };
            assert_eq!(found, expected, "{source}");
        };
        for (source, kind) in [
            ("object.spec.replicas > 1", "bool"),
            ("object.spec.replicas + 1", "int"),
            ("object.spec.template.spec.containers.all(c, c.image.startsWith('r/'))", "bool"),
            ("object.spec.template.spec.containers.map(c, c.name)", "list(string)"),
            ("object.spec.template.spec.containers.filter(c, has(c.image)).size() > 0", "bool"),
            ("object.spec.template.spec.containers.exists_one(c, c.name == 'a')", "bool"),
            ("object.metadata.labels['a'] == 'b' && 'a' in object.metadata.labels", "bool"),
            ("object.spec.strategy.rollingUpdate.maxSurge == 1", "bool"),
            ("request.userInfo.groups.exists(g, g == 'dev')", "bool"),
            ("params.anything.at.all > 3 ? 'a' : 'b'", "string"),
            ("object.?spec.?replicas.orValue(1) > 0", "bool"),
            ("math.greatest([1, object.spec.replicas]) < 5", "bool"),
            ("authorizer.group('apps').resource('deployments').check('create').allowed()", "bool"),
            ("authorizer.requestResource.check('update').allowed()", "bool"),
            ("object.metadata == null", "bool"),
            ("quantity('1').isLessThan(quantity('2'))", "bool"),
        ] {
            check(source, kind);
        }
        check(
            "object.spec.replicas > '1'",
            "1:22: found no matching overload for '_>_' applied to '(int, string)'\n | object.spec.replicas > '1'\n | .....................^",
        );
        for (source, problem) in [
            (
                "'wants > 1, got ' + object.spec.replicas",
                "1:19: found no matching overload for '_+_' applied to '(string, int)'",
            ),
            ("object.spec.maxRetries < 10", "1:12: undefined field 'maxRetries'"),
            ("object.spec.template.spec.containers.all(c, c.img == 'x')", "1:46: undefined field 'img'"),
            ("objct.spec", "1:1: undeclared reference to 'objct' (in container '')"),
            (
                "object.spec.replicas.startsWith('a')",
                "1:32: found no matching overload for 'startsWith' applied to 'int.(string)'",
            ),
            ("sise(object.spec)", "1:5: undeclared reference to 'sise' (in container '')"),
            ("object.spec.replicas == 'a'", "1:22: found no matching overload for '_==_' applied to '(int, string)'"),
            ("object.spec.replicas.x", "1:21: type 'int' does not support field selection"),
            ("!object.spec.replicas", "1:1: found no matching overload for '!_' applied to '(int)'"),
            ("request.usr", "1:8: undefined field 'usr'"),
        ] {
            check(source, problem);
        }
    }
}
