//! Command lines as pflag reads them: underscores for dashes, `--flag value` or `--flag=value`, lists given several times.
//! Used by `main` before clap, which gets every flag of a table once (lists whole) and with its value.
//! Flags that no table has are left as they are.

use super::{Form, Row};

/// In the order they were first given.
type Given = Vec<(&'static Row, Vec<String>)>;

/// `empty_is_absent`: see `Component`.
pub fn canonical(tables: &[&'static [Row]], empty_is_absent: bool, typed: Vec<String>) -> Result<Vec<String>, String> {
    let row = |name: &str| tables.iter().flat_map(|table| table.iter()).find(|(known, ..)| *known == name);
    let (mut given, mut others): (Given, Vec<String>) = (Vec::new(), Vec::new());
    let mut words = typed.into_iter();
    while let Some(word) = words.next() {
        if word == "--" {
            others.push(word);
            others.extend(words);
            break;
        }
        let Some((name, value)) = name_and_value(&word) else {
            others.push(word);
            continue;
        };
        let Some(row) = row(&name) else {
            others.push(word);
            continue;
        };
        let value = match value {
            Some(value) => value,
            None if row.1 == Form::Flag => "true".to_string(),
            None => words.next().ok_or_else(|| format!("flag needs an argument: --{name}"))?,
        };
        let value = read(row.1, &value)
            .map_err(|problem| format!("invalid argument {value:?} for \"--{name}\" flag: {problem}"))?;
        match given.iter_mut().find(|(known, _)| known.0 == row.0) {
            Some((_, values)) if matches!(row.1, Form::List | Form::Map | Form::Gates | Form::Array) => {
                values.push(value)
            }
            Some((_, values)) => *values = vec![value],
            None => given.push((row, vec![value])),
        }
    }
    let is_said = |(_, values): &(&Row, Vec<String>)| !empty_is_absent || values.iter().any(|value| !value.is_empty());
    let canonical = given.into_iter().filter(is_said).flat_map(|((name, form, _), values)| match form {
        Form::Array => values.iter().map(|value| format!("--{name}={value}")).collect(),
        _ => vec![format!("--{name}={}", values.join(","))],
    });
    Ok(others.into_iter().chain(canonical).collect())
}

/// `--name`, `--name=value`, `--na_me=value`; `-v 2`, `-v=2`, `-v2`.
fn name_and_value(word: &str) -> Option<(String, Option<String>)> {
    if let Some(rest) = word.strip_prefix("--") {
        let (name, value) = match rest.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (rest, None),
        };
        return Some((name.replace('_', "-"), value));
    }
    let rest = word.strip_prefix("-v")?;
    let value = Some(rest.strip_prefix('=').unwrap_or(rest)).filter(|value| !value.is_empty());
    Some(("v".into(), value.map(str::to_string)))
}

fn read(form: Form, text: &str) -> Result<String, String> {
    let syntax = |parser: &str| format!("strconv.{parser}: parsing {text:?}: invalid syntax");
    match form {
        Form::Flag => match api::codec::parse_bool(text) {
            Some(flag) => Ok(flag.to_string()),
            None => Err(syntax("ParseBool")),
        },
        Form::Number => text.parse::<i64>().map(|number| number.to_string()).map_err(|_| syntax("ParseInt")),
        Form::Float => text.parse::<f64>().map(|_| text.to_string()).map_err(|_| syntax("ParseFloat")),
        Form::Duration => {
            let parsed = api::codec::parse_duration(text).map(|_| text.to_string());
            parsed.map_err(|_| format!("time: invalid duration {text:?}"))
        }
        Form::Map | Form::Gates => {
            let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
            let strip = |pair: &str| match form {
                Form::Gates => pair.strip_prefix("kube:").unwrap_or(pair).to_string(),
                _ => pair.to_string(),
            };
            Ok(pairs.map(strip).collect::<Vec<_>>().join(","))
        }
        Form::Text | Form::List | Form::Array => Ok(text.to_string()),
    }
}

/// Whether two texts are one value: `1m` is `60s`.
pub fn same(form: Form, one: &str, other: &str) -> bool {
    let both = |read: &dyn Fn(&str) -> Option<f64>| matches!((read(one), read(other)), (Some(a), Some(b)) if a == b);
    match form {
        Form::Duration => both(&|text| api::codec::parse_duration(text).ok().map(|nanoseconds| nanoseconds as f64)),
        Form::Number | Form::Float => both(&|text| text.parse().ok()),
        _ => one == other,
    }
}
