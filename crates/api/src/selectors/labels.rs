//! Label selectors: `a=b,c!=d,e in (f,g),h,!i,j>1`, and `metav1.LabelSelector`.
//! Words come from `lexer`.
//! Requirements are sorted by key; every key and value in them is legal.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::Value;

use super::{
    check_size,
    lexer::{Token, scan},
};
use crate::{
    field::{ErrorList, Path},
    names,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    /// Sorted.
    pub values: Vec<String>,
}

/// All requirements must hold; with `nothing`, no object matches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl Requirement {
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, String> {
        let mut errors = ErrorList::new();
        if let Some(complaint) = joined(names::qualified_name(key)) {
            errors.invalid(&Path::new("key"), key, complaint);
        }
        let path = Path::new("values");
        let shown = Value::from(values.clone());
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                errors.invalid(&path, shown, "for 'in', 'notin' operators, values set can't be empty");
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
                errors.invalid(&path, shown, "exact-match compatibility requires one single value");
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                errors.invalid(&path, shown, "values set must be empty for exists and does not exist");
            }
            Operator::GreaterThan | Operator::LessThan => {
                if values.len() != 1 {
                    errors.invalid(&path, shown, "for 'Gt', 'Lt' operators, exactly one value is required");
                }
                for (i, value) in values.iter().enumerate().filter(|(_, v)| v.parse::<i64>().is_err()) {
                    let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                    errors.invalid(&path.index(i), value.as_str(), detail);
                }
            }
            _ => {}
        }
        for (i, value) in values.iter().enumerate() {
            if let Some(complaint) = joined(names::label_value(value)) {
                errors.invalid(&path.index(i).key(key), value.as_str(), complaint);
            }
        }
        match errors.len() {
            0 => Ok(Self { key: key.to_string(), operator, values }),
            1 => Err(errors.iter().map(ToString::to_string).collect()),
            _ => Err(format!("[{}]", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))),
        }
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let found = labels.get(&self.key);
        let listed = |value: &String| self.values.contains(value);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => found.is_some_and(listed),
            Operator::NotIn | Operator::NotEquals => !found.is_some_and(listed),
            Operator::Exists => found.is_some(),
            Operator::DoesNotExist => found.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let number = |text: Option<&String>| text.and_then(|t| t.parse::<i64>().ok());
                match (number(found), number(self.values.first())) {
                    (Some(found), Some(bound)) if self.operator == Operator::GreaterThan => found > bound,
                    (Some(found), Some(bound)) => found < bound,
                    _ => false,
                }
            }
        }
    }
}

fn joined(complaints: Vec<String>) -> Option<String> {
    (!complaints.is_empty()).then(|| complaints.join("; "))
}

impl LabelSelector {
    pub fn everything() -> Self {
        Self::default()
    }

    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        check_size(text)?;
        Parser { tokens: scan(text), at: 0 }.selector().map(Self::from_requirements)
    }

    pub fn from_requirements(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements, nothing: false }
    }

    /// Every label must be there with its value, as in a Service's `selector`. An empty set matches everything.
    pub fn from_labels(labels: &BTreeMap<String, String>) -> Self {
        let requirement = |(key, value): (&String, &String)| Requirement {
            key: key.clone(),
            operator: Operator::Equals,
            values: vec![value.clone()],
        };
        Self { requirements: labels.iter().map(requirement).collect(), nothing: false }
    }

    /// From a `metav1.LabelSelector` in JSON. Null and absent match nothing, `{}` matches everything.
    pub fn from_value(value: &Value) -> Result<Self, String> {
        if value.is_null() {
            return Ok(Self::nothing());
        }
        let selector: meta::LabelSelector = serde_json::from_value(value.clone()).map_err(|e| e.to_string())?;
        Self::from_meta(Some(&selector))
    }

    /// From a `metav1.LabelSelector`. `None` matches nothing, an empty one everything.
    pub fn from_meta(selector: Option<&meta::LabelSelector>) -> Result<Self, String> {
        let Some(selector) = selector else {
            return Ok(Self::nothing());
        };
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(Requirement::new(key, Operator::Equals, vec![value.clone()])?);
        }
        for expression in selector.match_expressions.iter().flatten() {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(format!("{other:?} is not a valid label selector operator")),
            };
            let mut values = expression.values.clone().unwrap_or_default();
            values.sort();
            requirements.push(Requirement::new(&expression.key, operator, values)?);
        }
        Ok(Self::from_requirements(requirements))
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(labels))
    }

    /// Matches every object.
    pub fn is_empty(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.requirements.iter().map(ToString::to_string).collect();
        f.write_str(&parts.join(","))
    }
}

struct Parser {
    tokens: Vec<(Token, String)>,
    at: usize,
}

impl Parser {
    /// The next word. Where a value may stand, `in` and `notin` are plain words.
    fn peek(&self, words_only: bool) -> (Token, &str) {
        let (token, text) = &self.tokens[self.at.min(self.tokens.len() - 1)];
        match token {
            Token::In | Token::NotIn if words_only => (Token::Identifier, text),
            _ => (*token, text),
        }
    }

    fn take(&mut self, words_only: bool) -> (Token, String) {
        let (token, text) = self.peek(words_only);
        let found = (token, text.to_string());
        self.at += 1;
        found
    }

    fn selector(mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek(true) {
                (Token::Identifier | Token::Not, _) => {
                    let found = self.requirement().map_err(|e| format!("unable to parse requirement: {e}"))?;
                    requirements.push(found);
                    match self.take(true) {
                        (Token::End, _) => return Ok(requirements),
                        (Token::Comma, _) => {
                            if let (token, text) = self.peek(true)
                                && !matches!(token, Token::Identifier | Token::Not)
                            {
                                return Err(format!("found '{text}', expected: identifier after ','"));
                            }
                        }
                        (_, text) => return Err(format!("found '{text}', expected: ',' or 'end of string'")),
                    }
                }
                (Token::End, _) => return Ok(requirements),
                (_, text) => return Err(format!("found '{text}', expected: !, identifier, or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let (mut token, mut key) = self.take(true);
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.take(true);
        }
        if token != Token::Identifier {
            return Err(format!("found '{key}', expected: identifier"));
        }
        if let Some(complaint) = joined(names::qualified_name(&key)) {
            return Err(format!("<nil>: Invalid value: {key:?}: {complaint}"));
        }
        if negated {
            return Requirement::new(&key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(true).0, Token::End | Token::Comma) {
            return Requirement::new(&key, Operator::Exists, Vec::new());
        }
        let operator = match self.take(false) {
            (Token::In, _) => Operator::In,
            (Token::NotIn, _) => Operator::NotIn,
            (Token::Equals, _) => Operator::Equals,
            (Token::DoubleEquals, _) => Operator::DoubleEquals,
            (Token::NotEquals, _) => Operator::NotEquals,
            (Token::Greater, _) => Operator::GreaterThan,
            (Token::Less, _) => Operator::LessThan,
            (_, text) => return Err(format!("found '{text}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        let mut values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        values.sort();
        values.dedup();
        Requirement::new(&key, operator, values)
    }

    fn exact_value(&mut self) -> Result<String, String> {
        if matches!(self.peek(true).0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.take(true) {
            (Token::Identifier, text) => Ok(text),
            (_, text) => Err(format!("found '{text}', expected: identifier")),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        if let (token, text) = self.take(true)
            && token != Token::Open
        {
            return Err(format!("found '{text}' expected: '('"));
        }
        match self.peek(true) {
            (Token::Identifier | Token::Comma, _) => self.value_list(),
            (Token::Close, _) => {
                self.at += 1;
                Ok(vec![String::new()])
            }
            (_, text) => Err(format!("found '{text}', expected: ',', ')' or identifier")),
        }
    }

    /// Up to and with the closing parenthesis. A comma with nothing beside it stands for an empty value.
    fn value_list(&mut self) -> Result<Vec<String>, String> {
        let mut values = Vec::new();
        loop {
            match self.take(true) {
                (Token::Identifier, text) => {
                    values.push(text);
                    match self.peek(true) {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => break,
                        (_, text) => return Err(format!("found '{text}', expected: ',' or ')'")),
                    }
                }
                (Token::Comma, _) => {
                    let next = self.peek(true).0;
                    if values.is_empty() || matches!(next, Token::Close | Token::Comma) {
                        values.push(String::new());
                    }
                    if next == Token::Close {
                        break;
                    }
                }
                (_, text) => return Err(format!("found '{text}', expected: ',', or identifier")),
            }
        }
        self.at += 1;
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(text: &str) -> BTreeMap<String, String> {
        text.split(',').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
    }

    #[test]
    fn selectors_match() {
        let check = |selector: &str, object: &str, matches: bool| {
            let parsed = LabelSelector::parse(selector).unwrap();
            assert_eq!(parsed.matches(&labels(object)), matches, "{selector} on {object}");
            assert_eq!(LabelSelector::parse(&parsed.to_string()).unwrap(), parsed);
        };
        check("", "a=b", true);
        check("a=b", "a=b", true);
        check("a==b", "a=b", true);
        check("a=b", "a=c", false);
        check("a!=b", "c=d", true);
        check("a!=b", "a=b", false);
        check("a", "a=", true);
        check("!a", "a=b", false);
        check("! a", "b=b", true);
        check("a in (x,y)", "a=y", true);
        check("a in ()", "a=", true);
        check("a in (,)", "a=", true);
        check("a in (x,)", "a=", true);
        check("a notin (x)", "a=x", false);
        check("a notin (x)", "", true);
        check("a>1", "a=2", true);
        check("a<2", "a=2", false);
        check("a<2", "a=x", false);
        check("a=", "a=", true);
        check("in in (in,notin)", "in=notin", true);
        check("a=b,c in (d, e),!f", "a=b,c=e", true);
        check("example.com/a = b , c", "example.com/a=b,c=d", true);
    }

    #[test]
    fn errors_are_upstreams() {
        let check = |selector: &str, error: &str| {
            let found = LabelSelector::parse(selector).unwrap_err();
            assert!(found.starts_with(error), "{selector}: {found}");
        };
        check("a=b=c", "found '=', expected: ',' or 'end of string'");
        check(",", "found ',', expected: !, identifier, or 'end of string'");
        check("a,", "found '', expected: identifier after ','");
        check("a in x", "unable to parse requirement: found 'x' expected: '('");
        check("a in (x", "unable to parse requirement: found '', expected: ',' or ')'");
        check("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt");
        check("!", "unable to parse requirement: found '', expected: identifier");
        check(
            "a>x",
            "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
        );
        check("-a", "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of");
        check("a=-", "unable to parse requirement: values[0][a]: Invalid value: \"-\": a valid label must be");
        check(&"a".repeat(MAX + 1), "selector is too long");
    }
    const MAX: usize = super::super::SELECTOR_BYTES_MAX;

    #[test]
    fn label_selectors_of_objects_match() {
        let check = |selector: Value, object: &str, matches: bool| {
            let parsed = LabelSelector::from_value(&selector).unwrap();
            assert_eq!(parsed.matches(&labels(object)), matches, "{selector} on {object}");
        };
        check(Value::Null, "a=b", false);
        check(json!({}), "a=b", true);
        check(json!({"matchLabels": {"a": "b"}}), "a=b,c=d", true);
        let expression = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "a", "operator": operator, "values": values}]});
        check(expression("In", json!(["b", "c"])), "a=c", true);
        check(expression("NotIn", json!(["b"])), "a=b", false);
        check(expression("Exists", json!([])), "a=b", true);
        check(expression("DoesNotExist", json!([])), "a=b", false);
        let wrong = LabelSelector::from_value(&expression("Like", json!([]))).unwrap_err();
        assert_eq!(wrong, "\"Like\" is not a valid label selector operator");
        assert!(LabelSelector::from_value(&expression("In", json!([]))).is_err());
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "[a-c=!(),<> \\PC]{0,40}") {
            if let Ok(selector) = LabelSelector::parse(&text) {
                proptest::prop_assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap(), selector);
            }
        }
    }
}
