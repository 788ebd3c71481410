//! Objects as YAML, in the form that upstream writes: sorted keys, lists not indented, folded at 80 columns.
//! Used by `codec::encode` and by kubectl's printers, `edit` and `config view`.
//! Whatever is written is read back as the same value.

use std::cmp::Ordering;

use serde_json::Value;

/// A line that is longer is folded at the next space.
const WIDTH: usize = 80;

pub fn to_string(value: &Value) -> String {
    let mut writer = Writer { text: String::new(), column: 0 };
    match value {
        Value::Object(map) if !map.is_empty() => writer.mapping(map, 0, true),
        Value::Array(list) if !list.is_empty() => writer.sequence(list, 0, true),
        scalar => {
            writer.scalar(scalar, 0, false);
            writer.put("\n");
        }
    }
    writer.text
}

/// A document whose `field` is a list of items, each of which is made when it is written.
pub fn list_to_string(
    document: &serde_json::Map<String, Value>,
    field: &str,
    items: impl Iterator<Item = Value>,
) -> String {
    let mut writer = Writer { text: String::new(), column: 0 };
    let mut items = Some(items.peekable());
    for key in sorted_keys(document) {
        writer.string(key, 2, true);
        writer.put(":");
        match items.take_if(|_| key == field) {
            None => writer.entry(&document[key], 0),
            Some(mut items) => {
                writer.put(if items.peek().is_none() { " []\n" } else { "\n" });
                items.for_each(|item| writer.item(&item, 0));
            }
        }
    }
    writer.text
}

fn sorted_keys(map: &serde_json::Map<String, Value>) -> Vec<&String> {
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort_by(|a, b| natural_order(a, b));
    keys
}

struct Writer {
    text: String,
    column: usize,
}

impl Writer {
    fn put(&mut self, text: &str) {
        self.text.push_str(text);
        match text.rfind('\n') {
            Some(at) => self.column = text[at + 1..].chars().count(),
            None => self.column += text.chars().count(),
        }
    }

    fn indent(&mut self, indent: usize) {
        let spaces = " ".repeat(indent);
        self.put(&spaces);
    }

    /// Every entry ends with a new line. The first stands where the writer is if `inline`.
    fn mapping(&mut self, map: &serde_json::Map<String, Value>, indent: usize, inline: bool) {
        for (index, key) in sorted_keys(map).into_iter().enumerate() {
            if index > 0 || !inline {
                self.indent(indent);
            }
            self.string(key, indent + 2, true);
            self.put(":");
            self.entry(&map[key], indent);
        }
    }

    fn entry(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                self.put("\n");
                self.mapping(map, indent + 2, false);
            }
            Value::Array(list) if !list.is_empty() => {
                self.put("\n");
                self.sequence(list, indent, false);
            }
            scalar => {
                self.put(" ");
                self.scalar(scalar, indent + 2, false);
                self.put("\n");
            }
        }
    }

    fn sequence(&mut self, list: &[Value], indent: usize, inline: bool) {
        for (index, item) in list.iter().enumerate() {
            if index > 0 || !inline {
                self.indent(indent);
            }
            self.item(item, indent);
        }
    }

    fn item(&mut self, item: &Value, indent: usize) {
        self.put("- ");
        match item {
            Value::Object(map) if !map.is_empty() => self.mapping(map, indent + 2, true),
            Value::Array(inner) if !inner.is_empty() => self.sequence(inner, indent + 2, true),
            scalar => {
                self.scalar(scalar, indent + 2, false);
                self.put("\n");
            }
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize, key: bool) {
        match value {
            Value::String(text) => self.string(text, indent, key),
            Value::Object(_) => self.put("{}"),
            Value::Array(_) => self.put("[]"),
            Value::Number(number) => self.put(&number_text(number)),
            other => self.put(&other.to_string()),
        }
    }

    fn string(&mut self, text: &str, indent: usize, key: bool) {
        let shape = Shape::of(text);
        let multiline = text.contains('\n');
        if multiline && shape.block && !key {
            return self.literal(text, indent);
        }
        let plain = !multiline && !resolves(text);
        if plain && shape.plain && !text.is_empty() {
            return self.folded(text, indent, key);
        }
        match plain && shape.single {
            true => {
                let quoted = text.replace('\'', "''");
                self.put("'");
                self.folded_inside(&quoted, indent, key);
                self.put("'");
            }
            false => self.double_quoted(text, indent, key),
        }
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.put("|");
        if text.starts_with([' ', '\n']) {
            self.put("2");
        }
        if !text.ends_with('\n') {
            self.put("-");
        } else if text == "\n" || text.ends_with("\n\n") {
            self.put("+");
        }
        let body = text.strip_suffix('\n').unwrap_or(text);
        for line in body.split('\n') {
            self.put("\n");
            if !line.is_empty() {
                self.indent(indent);
                self.put(line);
            }
        }
    }

    fn folded(&mut self, text: &str, indent: usize, key: bool) {
        self.fold(text, indent, key, false);
    }

    fn folded_inside(&mut self, text: &str, indent: usize, key: bool) {
        self.fold(text, indent, key, true);
    }

    /// Breaks at a single space beyond the width.
    fn fold(&mut self, text: &str, indent: usize, key: bool, quoted: bool) {
        let letters: Vec<char> = text.chars().collect();
        let mut spaces = false;
        for (at, letter) in letters.iter().enumerate() {
            if *letter == ' ' {
                let next_is_space = letters.get(at + 1) == Some(&' ');
                let inside = !quoted || (at > 0 && at + 1 < letters.len());
                if !key && !spaces && self.column > WIDTH && inside && !next_is_space {
                    self.put("\n");
                    self.indent(indent);
                } else {
                    self.put(" ");
                }
                spaces = true;
            } else {
                self.text.push(*letter);
                self.column += 1;
                spaces = false;
            }
        }
    }

    fn double_quoted(&mut self, text: &str, indent: usize, key: bool) {
        self.put("\"");
        let letters: Vec<char> = text.chars().collect();
        let mut spaces = false;
        for (at, letter) in letters.iter().enumerate() {
            if let Some(escaped) = escape(*letter) {
                self.put(&escaped);
                spaces = false;
            } else if *letter == ' ' {
                if !key && !spaces && self.column > WIDTH && at > 0 && at + 1 < letters.len() {
                    self.put("\n");
                    self.indent(indent);
                    if letters.get(at + 1) == Some(&' ') {
                        self.put("\\");
                    }
                } else {
                    self.put(" ");
                }
                spaces = true;
            } else {
                self.text.push(*letter);
                self.column += 1;
                spaces = false;
            }
        }
        self.put("\"");
    }
}

/// The order of keys: runs of digits as numbers, other signs before letters.
fn natural_order(a: &str, b: &str) -> Ordering {
    let (x, y): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let Some(i) = x.iter().zip(&y).position(|(a, b)| a != b) else { return x.len().cmp(&y.len()) };
    match (x[i].is_alphabetic(), y[i].is_alphabetic()) {
        (true, true) => return x[i].cmp(&y[i]),
        (false, true) => return Ordering::Less,
        (true, false) => return Ordering::Greater,
        (false, false) => {}
    }
    // A zero inside a number counts as a digit of it, one at the beginning does not.
    let inside = x[..i].iter().rev().take_while(|c| c.is_numeric()).any(|c| *c != '0');
    let start = i64::from((x[i] == '0' || y[i] == '0') && inside);
    let number = |letters: &[char]| {
        let digits = letters[i..].iter().map_while(|c| c.to_digit(10));
        digits.fold((start, 0), |(value, count), digit| {
            (value.saturating_mul(10).saturating_add(i64::from(digit)), count + 1)
        })
    };
    number(&x).cmp(&number(&y)).then(x[i].cmp(&y[i]))
}

fn number_text(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => {
            if float.fract() == 0.0 && float.abs() < 1e21 {
                return format!("{float:.0}");
            }
            number.to_string()
        }
        _ => number.to_string(),
    }
}

fn escape(letter: char) -> Option<String> {
    Some(match letter {
        '\0' => "\\0".into(),
        '\x07' => "\\a".into(),
        '\x08' => "\\b".into(),
        '\t' => "\\t".into(),
        '\n' => "\\n".into(),
        '\x0b' => "\\v".into(),
        '\x0c' => "\\f".into(),
        '\r' => "\\r".into(),
        '\x1b' => "\\e".into(),
        '"' => "\\\"".into(),
        '\\' => "\\\\".into(),
        '\u{85}' => "\\N".into(),
        '\u{a0}' => "\\_".into(),
        '\u{2028}' => "\\L".into(),
        '\u{2029}' => "\\P".into(),
        '\u{feff}' => "\\uFEFF".into(),
        other if is_printable(other) => return None,
        other if (other as u32) <= 0xff => format!("\\x{:02X}", other as u32),
        other if (other as u32) <= 0xffff => format!("\\u{:04X}", other as u32),
        other => format!("\\U{:08X}", other as u32),
    })
}

fn is_printable(letter: char) -> bool {
    matches!(letter as u32, 0x0a | 0x20..=0x7e | 0xa0..=0xd7ff | 0xe000..=0xfffd) && letter != '\u{feff}'
}

/// In which forms a text can be written.
struct Shape {
    plain: bool,
    single: bool,
    block: bool,
}

impl Shape {
    fn of(text: &str) -> Self {
        let letters: Vec<char> = text.chars().collect();
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let (mut special, mut breaks, mut break_space, mut space_break) = (false, false, false, false);
        let is_break = |c: char| matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let blank = |c: Option<&char>| c.is_none_or(|c| *c == ' ' || *c == '\t' || is_break(*c));
        for (at, letter) in letters.iter().enumerate() {
            let next_blank = blank(letters.get(at + 1));
            let after_blank = at == 0 || blank(letters.get(at - 1));
            indicators |= match letter {
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`'
                    if at == 0 =>
                {
                    true
                }
                '?' | '-' if at == 0 => next_blank,
                ':' => next_blank,
                '#' => after_blank,
                _ => false,
            };
            special |= !is_printable(*letter);
            if is_break(*letter) {
                breaks = true;
                space_break |= at > 0 && letters[at - 1] == ' ';
            } else if *letter == ' ' {
                break_space |= at > 0 && is_break(letters[at - 1]);
            }
        }
        let first_or_last = |test: &dyn Fn(char) -> bool| {
            letters.first().is_some_and(|c| test(*c)) || letters.last().is_some_and(|c| test(*c))
        };
        let edge = first_or_last(&|c| c == ' ' || is_break(c));
        let trailing_space = letters.last() == Some(&' ');
        Self {
            plain: !(indicators || special || breaks || edge || space_break || break_space),
            single: !(special || space_break || break_space),
            block: !(special || space_break || trailing_space),
        }
    }
}

/// Whether a plain text would be read as something other than a string.
pub fn resolves(text: &str) -> bool {
    const WORDS: &[&str] = &[
        "", "~", "null", "Null", "NULL", "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", "n",
        "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF", ".nan", ".NaN", ".NAN", ".inf", ".Inf",
        ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF", "<<",
    ];
    if WORDS.contains(&text) {
        return true;
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return false;
    }
    is_number(&text.replace('_', "")) || is_base_60(text) || is_timestamp(text)
}

fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = |rest: &str, radix: u32| !rest.is_empty() && rest.chars().all(|c| c.is_digit(radix));
    let lower = unsigned.to_ascii_lowercase();
    let based = [("0x", 16), ("0o", 8), ("0b", 2)];
    if based.iter().any(|(prefix, radix)| lower.strip_prefix(prefix).is_some_and(|rest| digits(rest, *radix))) {
        return true;
    }
    let (mantissa, exponent) = match lower.split_once('e') {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (lower.as_str(), None),
    };
    let exponent_fits = exponent.is_none_or(|e| digits(e.strip_prefix(['-', '+']).unwrap_or(e), 10));
    let mantissa_fits = match mantissa.split_once('.') {
        Some(("", fraction)) => digits(fraction, 10),
        Some((whole, fraction)) => digits(whole, 10) && (fraction.is_empty() || digits(fraction, 10)),
        None => digits(mantissa, 10),
    };
    exponent_fits && mantissa_fits
}

fn is_base_60(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let whole = unsigned.split('.').next().unwrap_or_default();
    let mut parts = whole.split(':');
    let first = parts.next().unwrap_or_default();
    let rest: Vec<&str> = parts.collect();
    let sixtieth = |part: &&str| match part.as_bytes() {
        [d] => d.is_ascii_digit(),
        [t, d] => (b'0'..=b'5').contains(t) && d.is_ascii_digit(),
        _ => false,
    };
    !rest.is_empty()
        && first.starts_with(|c: char| c.is_ascii_digit())
        && first.chars().all(|c| c.is_ascii_digit() || c == '_')
        && rest.iter().all(sixtieth)
        && unsigned[whole.len()..].chars().all(|c| c.is_ascii_digit() || c == '.' || c == '_')
}

/// `2006-1-2`, perhaps with a time behind `T`, `t` or a space.
fn is_timestamp(text: &str) -> bool {
    let (date, time) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let parts: Vec<&str> = date.split('-').collect();
    let digits = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&part.len()) && part.chars().all(|c| c.is_ascii_digit())
    };
    let [year, month, day] = parts.as_slice() else { return false };
    if !digits(year, 4..=4) || !digits(month, 1..=2) || !digits(day, 1..=2) {
        return false;
    }
    let Some(time) = time else { return true };
    let clock_end = time.find(|c: char| !(c.is_ascii_digit() || c == ':' || c == '.')).unwrap_or(time.len());
    let clock: Vec<&str> = time[..clock_end].split(':').collect();
    let zone = time[clock_end..].trim_start();
    let zone_fits = zone.is_empty() || zone == "Z" || zone.starts_with(['+', '-']);
    clock.len() == 3 && clock.iter().all(|p| !p.is_empty()) && zone_fits && (!zone.is_empty() || text.contains(' '))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_made_item_by_item_looks_as_one_that_is_there() {
        for items in [vec![], vec![json!({ "a": { "b": [1] } }), json!([2, {}]), json!("x")]] {
            let mut whole = json!({ "kind": "L", "apiVersion": "v1", "items": null, "metadata": { "c": "d" } });
            let written = list_to_string(whole.as_object().unwrap(), "items", items.clone().into_iter());
            whole["items"] = items.into();
            assert_eq!(written, to_string(&whole));
        }
    }

    #[test]
    fn scalars_are_quoted_where_they_must_be() {
        let check =
            |text: &str, wanted: &str| assert_eq!(to_string(&json!({"a": text})), format!("a: {wanted}\n"), "{text:?}");
        check("plain", "plain");
        check("", "\"\"");
        check("true", "\"true\"");
        check("y", "\"y\"");
        check("123", "\"123\"");
        check("1.5", "\"1.5\"");
        check("1e3", "\"1e3\"");
        check("10.0.0.1", "10.0.0.1");
        check("1:20", "\"1:20\"");
        check("2026-11-18T02:00:00Z", "\"2026-11-18T02:00:00Z\"");
        check("2026-11-18", "\"2026-11-18\"");
        check("a: b", "'a: b'");
        check("it's: b", "'it''s: b'");
        check("# x", "'# x'");
        check("*", "'*'");
        check("-x", "-x");
        check("- x", "'- x'");
        check("tab\there", "\"tab\\there\"");
        check("two\nlines\n", "|\n  two\n  lines");
        check("no end\nhere", "|-\n  no end\n  here");
        check(" lead", "' lead'");
        check("<none>", "<none>");
        check("{}", "'{}'");
    }

    #[test]
    fn keys_stand_as_go_sorts_them() {
        let check = |a: &str, b: &str| assert_eq!(natural_order(a, b), Ordering::Less, "{a} {b}");
        check("a2", "a10");
        check("a-b", "ab");
        check("app.kubernetes.io/name", "app1");
        check("A", "a");
        check("a", "ab");
    }

    #[test]
    fn long_texts_are_folded() {
        let text = "word ".repeat(20).trim_end().to_string();
        let wanted = format!("a: {}\n  {}\n", ["word"; 16].join(" "), ["word"; 4].join(" "));
        assert_eq!(to_string(&json!({"a": text})), wanted);
    }

    #[test]
    fn collections_nest_as_kubectl_shows_them() {
        let value =
            json!({"spec": {"containers": [{"name": "c", "args": ["a", ["b"]], "env": []}], "x": {}}, "n": null});
        let wanted =
            "\"n\": null\nspec:\n  containers:\n  - args:\n    - a\n    - - b\n    env: []\n    name: c\n  x: {}\n";
        assert_eq!(to_string(&value), wanted);
    }
}
