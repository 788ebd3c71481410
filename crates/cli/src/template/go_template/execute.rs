//! Walks a parsed Go template over one object and writes its text.
//! Neighbours: `functions` are the builtins; `nodes` says what is walked.
//! Errors carry Go's prefix with line, column and the source of the node that failed.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::Value;

use super::{
    functions, line_and_column,
    nodes::{Argument, ArgumentKind, Command, Node, Pipe},
};
use crate::template::go_format;

/// Templates that call each other.
const TEMPLATE_DEPTH_MAX: usize = 1_000;

/// A value, or the key that a map did not have: Go prints both as `<no value>`, but only a null refuses fields.
#[derive(Debug, Clone)]
pub enum Operand<'a> {
    Missing,
    Found(Cow<'a, Value>),
    /// A constant of the template or a length: an `int`, where the object's own numbers are `int64`.
    Int(Value),
}

impl<'a> Operand<'a> {
    pub fn owned(value: impl Into<Value>) -> Self {
        Operand::Found(Cow::Owned(value.into()))
    }

    pub fn value(&self) -> &Value {
        match self {
            Operand::Missing => &Value::Null,
            Operand::Found(value) => value,
            Operand::Int(value) => value,
        }
    }

    pub fn type_name(&self) -> &'static str {
        match self {
            Operand::Int(_) => "int",
            operand => go_format::type_name(operand.value()),
        }
    }

    pub fn is_true(&self) -> bool {
        match self.value() {
            Value::Null => false,
            Value::Bool(truth) => *truth,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
        }
    }

    fn member(self, name: &str) -> Option<Self> {
        match self {
            Operand::Found(Cow::Borrowed(Value::Object(fields))) => {
                fields.get(name).map(|v| Operand::Found(Cow::Borrowed(v)))
            }
            Operand::Found(Cow::Owned(Value::Object(mut fields))) => fields.remove(name).map(Operand::owned),
            _ => None,
        }
    }

    /// Keys or indexes with their elements, for `range`.
    fn elements(self) -> Option<Vec<(Value, Operand<'a>)>> {
        let indexed = |(i, item)| (Value::from(i as u64), item);
        Some(match self {
            Operand::Missing => Vec::new(),
            Operand::Int(value) => return Operand::owned(value).elements(),
            Operand::Found(Cow::Borrowed(value)) => match value {
                Value::Array(items) => {
                    items.iter().map(|v| Operand::Found(Cow::Borrowed(v))).enumerate().map(indexed).collect()
                }
                Value::Object(fields) => {
                    fields.iter().map(|(k, v)| (Value::from(k.as_str()), Operand::Found(Cow::Borrowed(v)))).collect()
                }
                other => return Operand::Found(Cow::Owned(other.clone())).elements(),
            },
            Operand::Found(Cow::Owned(value)) => match value {
                Value::Array(items) => items.into_iter().map(Operand::owned).enumerate().map(indexed).collect(),
                Value::Object(fields) => fields.into_iter().map(|(k, v)| (Value::from(k), Operand::owned(v))).collect(),
                Value::Null => Vec::new(),
                Value::Number(number) => {
                    let count = number.as_i64()?.clamp(0, RANGE_COUNT_MAX);
                    (0..count).map(|i| (Value::from(i), Operand::owned(i))).collect()
                }
                _ => return None,
            },
        })
    }
}

/// How far `range` counts when it is given a number.
const RANGE_COUNT_MAX: i64 = 1_000_000;

enum Flow {
    Next,
    Break,
    Continue,
}

pub fn execute(
    text: &str,
    templates: &BTreeMap<String, Vec<Node>>,
    allow_missing_keys: bool,
    data: &Value,
    out: &mut String,
) -> Result<(), String> {
    let data = Operand::Found(Cow::Borrowed(data));
    let mut state = State {
        text,
        templates,
        allow_missing_keys,
        name: super::NAME.to_string(),
        variables: vec![("$".to_string(), data.clone())],
        depth: 0,
        out,
    };
    let nodes = templates.get(super::NAME).map_or(&[][..], Vec::as_slice);
    state.walk(data, nodes).map(|_| ())
}

struct State<'a, 't> {
    text: &'t str,
    templates: &'t BTreeMap<String, Vec<Node>>,
    allow_missing_keys: bool,
    name: String,
    variables: Vec<(String, Operand<'a>)>,
    depth: usize,
    out: &'t mut String,
}

impl<'a, 't> State<'a, 't> {
    fn error<T>(
        &self,
        position: usize,
        source: &dyn std::fmt::Display,
        message: impl std::fmt::Display,
    ) -> Result<T, String> {
        let (line, column) = line_and_column(self.text, position);
        let name = go_format::quote(&self.name);
        Err(format!("template: {}:{line}:{column}: executing {name} at <{source}>: {message}", super::NAME))
    }

    fn walk(&mut self, dot: Operand<'a>, nodes: &'t [Node]) -> Result<Flow, String> {
        for node in nodes {
            let flow = match node {
                Node::Text(text) => {
                    self.out.push_str(text);
                    Flow::Next
                }
                Node::Action(pipe) => {
                    let value = self.pipe(&dot, pipe)?;
                    if pipe.variables.is_empty() {
                        match value.value() {
                            Value::Null => self.out.push_str("<no value>"),
                            value => self.out.push_str(&go_format::sprint(value)),
                        }
                    }
                    Flow::Next
                }
                Node::If { pipe, list, otherwise } => self.scoped(|state| {
                    let list = if state.pipe(&dot, pipe)?.is_true() { list } else { otherwise };
                    state.walk(dot.clone(), list)
                })?,
                Node::With { pipe, list, otherwise } => self.scoped(|state| {
                    let value = state.pipe(&dot, pipe)?;
                    if value.is_true() { state.walk(value, list) } else { state.walk(dot.clone(), otherwise) }
                })?,
                Node::Range { pipe, list, otherwise } => {
                    self.scoped(|state| state.range(&dot, pipe, list, otherwise))?
                }
                Node::Template { position, name, pipe } => self.template(&dot, *position, name, pipe.as_ref())?,
                Node::Break => Flow::Break,
                Node::Continue => Flow::Continue,
            };
            if !matches!(flow, Flow::Next) {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn scoped<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        let variables = self.variables.len();
        let result = body(self);
        self.variables.truncate(variables);
        result
    }

    fn range(
        &mut self,
        dot: &Operand<'a>,
        pipe: &'t Pipe,
        list: &'t [Node],
        otherwise: &'t [Node],
    ) -> Result<Flow, String> {
        let before = self.variables.len();
        let value = self.pipe(dot, pipe)?;
        // The pipe's own declaration is replaced by one for each element.
        if !pipe.is_assignment {
            self.variables.truncate(before);
        }
        let shown = go_format::sprint(value.value());
        let Some(elements) = value.elements() else {
            return self.error(pipe.position, pipe, format!("range can't iterate over {shown}"));
        };
        if elements.is_empty() {
            return self.walk(dot.clone(), otherwise);
        }
        for (key, element) in elements {
            let flow = self.scoped(|state| {
                match pipe.variables.as_slice() {
                    [one] => state.bind(one, element.clone(), pipe.is_assignment),
                    [index, item] => {
                        state.bind(index, Operand::owned(key), pipe.is_assignment);
                        state.bind(item, element.clone(), pipe.is_assignment);
                    }
                    _ => {}
                }
                state.walk(element, list)
            })?;
            if let Flow::Break = flow {
                break;
            }
        }
        Ok(Flow::Next)
    }

    fn bind(&mut self, name: &str, value: Operand<'a>, is_assignment: bool) {
        if is_assignment && let Some(variable) = self.variables.iter_mut().rev().find(|(own, _)| own == name) {
            variable.1 = value;
            return;
        }
        self.variables.push((name.to_string(), value));
    }

    fn template(
        &mut self,
        dot: &Operand<'a>,
        position: usize,
        name: &str,
        pipe: Option<&'t Pipe>,
    ) -> Result<Flow, String> {
        let source = format!("{{{{template {}}}}}", go_format::quote(name));
        let Some(nodes) = self.templates.get(name) else {
            return self.error(position, &source, format!("template {} not defined", go_format::quote(name)));
        };
        if self.depth == TEMPLATE_DEPTH_MAX {
            return self.error(position, &source, format!("exceeded maximum template depth ({TEMPLATE_DEPTH_MAX})"));
        }
        let data = match pipe {
            Some(pipe) => self.pipe(dot, pipe)?,
            None => Operand::Missing,
        };
        let variables = std::mem::replace(&mut self.variables, vec![("$".to_string(), data.clone())]);
        let outer = std::mem::replace(&mut self.name, name.to_string());
        self.depth += 1;
        self.walk(data, nodes)?;
        self.depth -= 1;
        (self.variables, self.name) = (variables, outer);
        Ok(Flow::Next)
    }

    fn pipe(&mut self, dot: &Operand<'a>, pipe: &'t Pipe) -> Result<Operand<'a>, String> {
        let mut value = None;
        for command in &pipe.commands {
            value = Some(self.command(dot, command, value)?);
        }
        let value = value.unwrap_or(Operand::Missing);
        for name in &pipe.variables {
            self.bind(name, value.clone(), pipe.is_assignment);
        }
        Ok(value)
    }

    fn command(
        &mut self,
        dot: &Operand<'a>,
        command: &'t Command,
        last: Option<Operand<'a>>,
    ) -> Result<Operand<'a>, String> {
        let first = &command.arguments[0];
        if let ArgumentKind::Function(name) = &first.kind {
            return self.call(dot, command, name, last);
        }
        if command.arguments.len() > 1 || last.is_some() {
            let message = match &first.kind {
                ArgumentKind::Field(fields) | ArgumentKind::Variable(_, fields) | ArgumentKind::Chain(_, fields)
                    if !fields.is_empty() =>
                {
                    format!("{} is not a method but has arguments", fields[fields.len() - 1])
                }
                _ => format!("can't give argument to non-function {first}"),
            };
            return self.error(first.position, first, message);
        }
        if let ArgumentKind::Nil = first.kind {
            return self.error(first.position, first, "nil is not a command");
        }
        self.argument(dot, first)
    }

    fn argument(&mut self, dot: &Operand<'a>, argument: &'t Argument) -> Result<Operand<'a>, String> {
        match &argument.kind {
            ArgumentKind::Dot => Ok(dot.clone()),
            ArgumentKind::Nil => Ok(Operand::owned(Value::Null)),
            ArgumentKind::Constant { value, .. } if value.is_i64() || value.is_u64() => Ok(Operand::Int(value.clone())),
            ArgumentKind::Constant { value, .. } => Ok(Operand::owned(value.clone())),
            ArgumentKind::Field(fields) => self.fields(argument, dot.clone(), fields),
            ArgumentKind::Variable(name, fields) => {
                let found = self.variables.iter().rev().find(|(own, _)| own == name);
                let Some((_, value)) = found else {
                    return self.error(argument.position, argument, format!("undefined variable: {name}"));
                };
                let value = value.clone();
                self.fields(argument, value, fields)
            }
            ArgumentKind::Function(name) => {
                let position = argument.position;
                let value = functions::call(name, Vec::new());
                value.or_else(|message| self.error(position, name, format!("error calling {name}: {message}")))
            }
            ArgumentKind::Pipe(pipe) => self.pipe(dot, pipe),
            ArgumentKind::Chain(inner, fields) => {
                let value = self.argument(dot, inner)?;
                self.fields(argument, value, fields)
            }
        }
    }

    fn fields(&self, argument: &Argument, receiver: Operand<'a>, fields: &[String]) -> Result<Operand<'a>, String> {
        let mut receiver = receiver;
        for name in fields {
            let refuse = |message: String| self.error(argument.position, argument, message);
            receiver = match receiver {
                Operand::Missing if self.allow_missing_keys => Operand::Missing,
                Operand::Missing => return refuse(format!("nil data; no entry for key {}", go_format::quote(name))),
                found => match found.value() {
                    Value::Object(_) => match found.member(name) {
                        Some(value) => value,
                        None if self.allow_missing_keys => Operand::Missing,
                        None => return refuse(format!("map has no entry for key {}", go_format::quote(name))),
                    },
                    Value::Null => return refuse(format!("nil pointer evaluating interface {{}}.{name}")),
                    _ => return refuse(format!("can't evaluate field {name} in type interface {{}}")),
                },
            };
        }
        Ok(receiver)
    }

    fn call(
        &mut self,
        dot: &Operand<'a>,
        command: &'t Command,
        name: &str,
        last: Option<Operand<'a>>,
    ) -> Result<Operand<'a>, String> {
        let rest = &command.arguments[1..];
        let count = rest.len() + usize::from(last.is_some());
        if let Some(message) = functions::wrong_count(name, count) {
            return self.error(command.position, &command.arguments[0], message);
        }
        if let "and" | "or" = name {
            let mut value = Operand::Missing;
            for argument in rest {
                value = self.argument(dot, argument)?;
                if value.is_true() == (name == "or") {
                    return Ok(value);
                }
            }
            return Ok(last.unwrap_or(value));
        }
        let mut values = Vec::with_capacity(count);
        for argument in rest {
            values.push(self.argument(dot, argument)?);
        }
        values.extend(last);
        let value = functions::call(name, values);
        value.or_else(|message| self.error(command.position, command, format!("error calling {name}: {message}")))
    }
}
