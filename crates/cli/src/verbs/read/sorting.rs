//! `--sort-by`: objects in the order of one of their fields.
//! Used by `get`, `events` and `top`.
//! Numbers, times and quantities by value, everything else as text.

use std::cmp::Ordering;

use serde_json::Value;

use crate::{
    failure::{Failure, Result},
    template::{custom_columns::relaxed_expression, jsonpath::JsonPath},
};

pub struct SortKey {
    path: JsonPath,
    text: String,
}

impl SortKey {
    pub fn parse(text: &str) -> Result<Self> {
        let relaxed = relaxed_expression(text).map_err(Failure::Message)?;
        let path = JsonPath::parse(&relaxed).map_err(Failure::Message)?.allow_missing_keys(true);
        Ok(Self { path, text: text.to_string() })
    }

    fn value(&self, object: &Value) -> Option<Value> {
        let results = self.path.results(object).ok()?;
        results.into_iter().flatten().next().map(|item| item.into_owned())
    }

    pub fn sort<T>(&self, items: &mut Vec<T>, object: impl Fn(&T) -> &Value) -> Result<()> {
        let mut keyed: Vec<(Option<Value>, T)> =
            std::mem::take(items).into_iter().map(|item| (self.value(object(&item)), item)).collect();
        if !keyed.is_empty() && keyed.iter().all(|(key, _)| key.is_none()) {
            *items = keyed.into_iter().map(|(_, item)| item).collect();
            return Err(Failure::message(format!(
                "couldn't find any field with path \"{{{}}}\" in the list of objects",
                self.text.trim_matches(['{', '}'])
            )));
        }
        keyed.sort_by(|(a, _), (b, _)| compare(a.as_ref(), b.as_ref()));
        *items = keyed.into_iter().map(|(_, item)| item).collect();
        Ok(())
    }
}

pub fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, _) => Ordering::Less,
        (_, None) => Ordering::Greater,
        (Some(Value::String(a)), Some(Value::String(b))) => {
            match (api::quantity::Quantity::parse(a), api::quantity::Quantity::parse(b)) {
                (Ok(x), Ok(y)) => x.as_f64().total_cmp(&y.as_f64()),
                _ => natural(a, b),
            }
        }
        (Some(a), Some(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(x), Some(y)) => x.total_cmp(&y),
            _ => a.to_string().cmp(&b.to_string()),
        },
    }
}

/// Runs of digits count as numbers.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a.as_bytes(), b.as_bytes());
    while !x.is_empty() && !y.is_empty() {
        let digits = |s: &[u8]| s.iter().take_while(|c| c.is_ascii_digit()).count();
        let (dx, dy) = (digits(x), digits(y));
        if dx > 0 && dy > 0 {
            let strip = |s: &[u8]| -> Vec<u8> { s.iter().copied().skip_while(|c| *c == b'0').collect() };
            let (nx, ny) = (strip(&x[..dx]), strip(&y[..dy]));
            let order = nx.len().cmp(&ny.len()).then(nx.cmp(&ny)).then(dx.cmp(&dy));
            if order != Ordering::Equal {
                return order;
            }
            (x, y) = (&x[dx..], &y[dy..]);
            continue;
        }
        if x[0] != y[0] {
            return x[0].cmp(&y[0]);
        }
        (x, y) = (&x[1..], &y[1..]);
    }
    x.len().cmp(&y.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn orders_by_value() {
        let check = |a: Value, b: Value, wanted: Ordering| assert_eq!(compare(Some(&a), Some(&b)), wanted, "{a} {b}");
        check(json!(2), json!(10), Ordering::Less);
        check(json!("2"), json!("10"), Ordering::Less);
        check(json!("pod-2"), json!("pod-10"), Ordering::Less);
        check(json!("1Gi"), json!("900Mi"), Ordering::Greater);
        check(json!("b"), json!("a"), Ordering::Greater);
    }
}
