//! Evaluates kubectl's JSONPath dialect over a decoded object.
//! Neighbours: `jsonpath_parser` makes the nodes; `custom_columns`, `wait --for=jsonpath` and `--sort-by` use `results`.
//! An evaluation does not change the template; the same object gives the same text (map keys in order).

use std::{borrow::Cow, cmp::Ordering};

use serde_json::Value;

use super::{
    go_format,
    jsonpath_parser::{self, Node, SliceBound},
};

type Item<'a> = Cow<'a, Value>;

/// A parsed template.
#[derive(Debug, Clone)]
pub struct JsonPath {
    nodes: Vec<Node>,
    allow_missing_keys: bool,
}

impl JsonPath {
    pub fn parse(template: &str) -> Result<Self, String> {
        Ok(Self { nodes: jsonpath_parser::parse(template)?, allow_missing_keys: false })
    }

    /// Whether a field that is not there gives nothing instead of an error.
    pub fn allow_missing_keys(mut self, allow: bool) -> Self {
        self.allow_missing_keys = allow;
        self
    }

    /// The text that `-o jsonpath=` prints.
    pub fn render(&self, data: &Value) -> Result<String, String> {
        let mut text = String::new();
        for results in self.results(data)? {
            for (i, result) in results.iter().enumerate() {
                if i > 0 {
                    text.push(' ');
                }
                match &**result {
                    Value::Null => text.push_str("null"),
                    value @ (Value::Array(_) | Value::Object(_)) => text.push_str(&go_format::json(value)),
                    value => text.push_str(&go_format::sprint(value)),
                }
            }
        }
        Ok(text)
    }

    /// The text that `-o jsonpath-as-json=` prints: each group of results as an indented JSON array.
    pub fn render_as_json(&self, data: &Value) -> Result<String, String> {
        let mut text = String::new();
        for results in self.results(data)? {
            let results = results.into_iter().map(Cow::into_owned).collect();
            text.push_str(&go_format::json_indent(&Value::Array(results), "    "));
            text.push('\n');
        }
        Ok(text)
    }

    /// One group of values for each part of the template.
    pub fn results<'a>(&'a self, data: &'a Value) -> Result<Vec<Vec<Item<'a>>>, String> {
        let mut evaluation =
            Evaluation { allow_missing_keys: self.allow_missing_keys, range_begins: false, range_ends: false };
        let (groups, _) = evaluation.block(&self.nodes, 0, Some(Cow::Borrowed(data)), 0)?;
        Ok(groups)
    }
}

struct Evaluation {
    allow_missing_keys: bool,
    range_begins: bool,
    range_ends: bool,
}

/// Groups of results, and where the `{end}` was that closed the block.
type Block<'a> = (Vec<Vec<Item<'a>>>, Option<usize>);

impl Evaluation {
    /// `data` is absent inside a range over nothing: the nodes are walked only to find its end.
    fn block<'a>(
        &mut self,
        nodes: &'a [Node],
        from: usize,
        data: Option<Item<'a>>,
        depth: usize,
    ) -> Result<Block<'a>, String> {
        let current: Vec<Item<'a>> = data.into_iter().collect();
        let mut groups = Vec::new();
        let mut at = from;
        while at < nodes.len() {
            let results = self.walk(current.clone(), &nodes[at], depth)?;
            if std::mem::take(&mut self.range_ends) {
                return Ok((groups, Some(at)));
            }
            if !std::mem::take(&mut self.range_begins) {
                groups.push(results);
                at += 1;
                continue;
            }
            let mut end = None;
            if results.is_empty() {
                end = self.block(nodes, at + 1, None, depth + 1)?.1;
            }
            for result in results {
                let (inner, closed) = self.block(nodes, at + 1, Some(result), depth + 1)?;
                groups.extend(inner);
                end = closed.or(end);
            }
            at = end.unwrap_or(at) + 1;
        }
        Ok((groups, None))
    }

    fn list<'a>(&mut self, input: Vec<Item<'a>>, nodes: &'a [Node], depth: usize) -> Result<Vec<Item<'a>>, String> {
        nodes.iter().try_fold(input, |current, node| self.walk(current, node, depth))
    }

    fn walk<'a>(&mut self, input: Vec<Item<'a>>, node: &'a Node, depth: usize) -> Result<Vec<Item<'a>>, String> {
        match node {
            Node::List(nodes) => self.list(input, nodes, depth),
            Node::Text(text) => Ok(vec![Cow::Owned(Value::String(text.clone()))]),
            Node::Int(number) => Ok(input.iter().map(|_| Cow::Owned(Value::from(*number))).collect()),
            Node::Float(number) => Ok(input.iter().map(|_| Cow::Owned(Value::from(*number))).collect()),
            Node::Bool(truth) => Ok(input.iter().map(|_| Cow::Owned(Value::from(*truth))).collect()),
            Node::Field(name) => self.field(input, name),
            Node::Wildcard => Ok(input.into_iter().flat_map(children).collect()),
            Node::Recursive => Ok(recursive(input)),
            Node::Array(bounds) => array(input, bounds),
            Node::Filter { left, operator, right } => self.filter(input, left, operator, right, depth),
            Node::Union(members) => {
                let mut results = Vec::new();
                for member in members {
                    results.extend(self.list(input.clone(), member, depth)?);
                }
                Ok(results)
            }
            Node::Identifier(name) => match name.as_str() {
                "range" => {
                    self.range_begins = true;
                    Ok(input)
                }
                "end" if depth > 0 => {
                    self.range_ends = true;
                    Ok(Vec::new())
                }
                "end" => Err("not in range, nothing to end".to_string()),
                name => Err(format!("unrecognized identifier {name}")),
            },
        }
    }

    fn field<'a>(&self, input: Vec<Item<'a>>, name: &str) -> Result<Vec<Item<'a>>, String> {
        if input.is_empty() {
            return Ok(Vec::new());
        }
        let results: Vec<Item<'a>> = input
            .into_iter()
            .filter_map(|value| match value {
                Cow::Borrowed(Value::Object(fields)) => fields.get(name).map(Cow::Borrowed),
                Cow::Owned(Value::Object(mut fields)) => fields.remove(name).map(Cow::Owned),
                _ => None,
            })
            .collect();
        if results.is_empty() && !self.allow_missing_keys {
            return Err(format!("{name} is not found"));
        }
        Ok(results)
    }

    fn filter<'a>(
        &mut self,
        input: Vec<Item<'a>>,
        left: &'a [Node],
        operator: &str,
        right: &'a [Node],
        depth: usize,
    ) -> Result<Vec<Item<'a>>, String> {
        let mut results = Vec::new();
        for value in input {
            if !value.is_array() {
                let shown = go_format::sprint(&value);
                return Err(format!("{shown} is not array or slice and cannot be filtered"));
            }
            for element in children(value) {
                let lefts = self.list(vec![element.clone()], left, depth);
                if operator == "exists" {
                    if lefts.is_ok_and(|found| !found.is_empty()) {
                        results.push(element);
                    }
                    continue;
                }
                let Some(left) = one(lefts?)? else { continue };
                let Some(right) = one(self.list(vec![element.clone()], right, depth)?)? else { continue };
                if compare(&left, operator, &right)? {
                    results.push(element);
                }
            }
        }
        Ok(results)
    }
}

fn one(mut found: Vec<Item<'_>>) -> Result<Option<Item<'_>>, String> {
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err("can only compare one element at a time".to_string()),
    }
}

/// Members of a map in order of their keys, elements of a list, bytes of a string.
fn children(value: Item<'_>) -> Vec<Item<'_>> {
    match value {
        Cow::Borrowed(Value::Object(fields)) => fields.values().map(Cow::Borrowed).collect(),
        Cow::Borrowed(Value::Array(items)) => items.iter().map(Cow::Borrowed).collect(),
        Cow::Borrowed(Value::String(text)) => text.bytes().map(|byte| Cow::Owned(Value::from(byte))).collect(),
        Cow::Owned(Value::Object(fields)) => fields.into_iter().map(|(_, field)| Cow::Owned(field)).collect(),
        Cow::Owned(Value::Array(items)) => items.into_iter().map(Cow::Owned).collect(),
        Cow::Owned(Value::String(text)) => text.bytes().map(|byte| Cow::Owned(Value::from(byte))).collect(),
        _ => Vec::new(),
    }
}

/// Every value below, each before what it holds.
fn recursive(input: Vec<Item<'_>>) -> Vec<Item<'_>> {
    let mut results = Vec::new();
    for value in input {
        let inner = children(value.clone());
        if !inner.is_empty() {
            results.push(value);
            results.extend(recursive(inner));
        }
    }
    results
}

fn array<'a>(input: Vec<Item<'a>>, bounds: &[SliceBound; 3]) -> Result<Vec<Item<'a>>, String> {
    let mut results = Vec::new();
    for value in input {
        let Some(items) = value.as_array() else {
            if value.is_null() {
                continue;
            }
            return Err(format!("{} is not array or slice", go_format::type_name(&value)));
        };
        let length = items.len() as i64;
        let mut start = bounds[0].value.unwrap_or(0);
        if start < 0 {
            start += length;
        }
        let mut end = bounds[1].value.unwrap_or(length);
        if end < 0 || (end == 0 && bounds[1].derived) {
            end += length;
        }
        if start == end {
            return Ok(results);
        }
        let out_of_bounds = |index| Err(format!("array index out of bounds: index {index}, length {length}"));
        if start >= length || start < 0 {
            return out_of_bounds(start);
        }
        if end > length || end < 0 {
            return out_of_bounds(end - 1);
        }
        if start > end {
            return Err(format!("starting index {start} is greater than ending index {end}"));
        }
        let step = bounds[2].value.unwrap_or(1);
        if step <= 0 {
            return Err("step must be > 0".to_string());
        }
        let taken = children(value).into_iter().skip(start as usize).take((end - start) as usize);
        results.extend(taken.step_by(step as usize));
    }
    Ok(results)
}

fn compare(left: &Value, operator: &str, right: &Value) -> Result<bool, String> {
    let ordered = || order(left, right);
    let not_ordered = |value: &Value| value.is_boolean();
    match operator {
        "==" => Ok(ordered()? == Ordering::Equal),
        "!=" => Ok(ordered()? != Ordering::Equal),
        "<" | ">" | "<=" | ">=" => {
            let order = ordered()?;
            if not_ordered(left) {
                return Err("invalid type for comparison".to_string());
            }
            Ok(match operator {
                "<" => order.is_lt(),
                ">" => order.is_gt(),
                "<=" => order.is_le(),
                _ => order.is_ge(),
            })
        }
        operator => Err(format!("unrecognized filter operator {operator}")),
    }
}

/// Values of one basic kind in order. An integer and a float are different kinds, as in Go.
fn order(left: &Value, right: &Value) -> Result<Ordering, String> {
    let basic = |value: &Value| !matches!(value, Value::Null | Value::Array(_) | Value::Object(_));
    if !basic(left) || !basic(right) {
        return Err("invalid type for comparison".to_string());
    }
    match (left, right) {
        (Value::String(a), Value::String(b)) => Ok(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            Ok(a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Less))
        }
        (Value::Number(a), Value::Number(b)) if !a.is_f64() && !b.is_f64() => {
            let wide = |n: &serde_json::Number| n.as_i64().map(i128::from).or(n.as_u64().map(i128::from)).unwrap_or(0);
            Ok(wide(a).cmp(&wide(b)))
        }
        _ => Err("incompatible types for comparison".to_string()),
    }
}

/// What a failed evaluation says on standard error.
pub fn execution_error(template: &str, error: &str, data: &Value) -> String {
    format!(
        "error executing jsonpath {}: Error executing template: {error}. Printing more information for debugging the \
         template:\n\ttemplate was:\n\t\t{template}\n\tobject given to jsonpath engine was:\n\t\t{}\n\n\n",
        go_format::quote(template),
        go_format::go_syntax(data)
    )
}

#[cfg(test)]
#[path = "jsonpath_tests.rs"]
mod tests;
