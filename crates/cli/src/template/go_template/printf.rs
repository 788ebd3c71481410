//! Go's `fmt` for the values a template holds: print, println and printf with Go's verbs and flags.
//! Called by `functions`.
//! A verb that does not fit its argument prints Go's `%!verb(type=value)`, never fails.

use serde_json::Value;

use super::execute::Operand;
use crate::template::go_format;

/// Operands side by side, with a space between two that are not strings.
pub fn sprint(operands: &[Operand]) -> String {
    let mut out = String::new();
    for (i, operand) in operands.iter().enumerate() {
        if i > 0 && !operand.value().is_string() && !operands[i - 1].value().is_string() {
            out.push(' ');
        }
        out.push_str(&go_format::sprint(operand.value()));
    }
    out
}

pub fn sprintln(operands: &[Operand]) -> String {
    let shown: Vec<String> = operands.iter().map(|operand| go_format::sprint(operand.value())).collect();
    shown.join(" ") + "\n"
}

#[derive(Default, Clone)]
struct Flags {
    plus: bool,
    minus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

/// Widths and precisions beyond this are refused, as in Go.
const WIDTH_MAX: usize = 1_000_000;

pub fn sprintf(format: &str, operands: &[Operand]) -> String {
    let mut printer = Printer { rest: format, operands, next: 0, reordered: false, out: String::new() };
    printer.run();
    if !printer.reordered && printer.next < operands.len() {
        let extra: Vec<String> =
            operands[printer.next..].iter().map(|operand| typed(operand.value(), operand.type_name())).collect();
        printer.out.push_str(&format!("%!(EXTRA {})", extra.join(", ")));
    }
    printer.out
}

fn typed(value: &Value, type_name: &str) -> String {
    match value {
        Value::Null => "<nil>".to_string(),
        value => format!("{type_name}={}", go_format::sprint(value)),
    }
}

struct Printer<'f, 'o, 'a> {
    rest: &'f str,
    operands: &'o [Operand<'a>],
    next: usize,
    reordered: bool,
    out: String,
}

impl Printer<'_, '_, '_> {
    fn take(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn run(&mut self) {
        while let Some(at) = self.rest.find('%') {
            self.out.push_str(&self.rest[..at]);
            self.rest = &self.rest[at + 1..];
            let mut flags = Flags::default();
            while let Some(c @ ('+' | '-' | '#' | ' ' | '0')) = self.rest.chars().next() {
                match c {
                    '+' => flags.plus = true,
                    '-' => flags.minus = true,
                    '#' => flags.sharp = true,
                    ' ' => flags.space = true,
                    _ => flags.zero = true,
                }
                self.take();
            }
            self.argument_number();
            flags.width = self.count(&mut flags.minus, "%!(BADWIDTH)");
            if self.rest.starts_with('.') {
                self.take();
                self.argument_number();
                let mut negative = false;
                flags.precision = self.count(&mut negative, "%!(BADPREC)").or(Some(0)).filter(|_| !negative);
            }
            self.argument_number();
            let Some(verb) = self.take() else {
                self.out.push_str("%!(NOVERB)");
                return;
            };
            if verb == '%' {
                self.out.push('%');
                continue;
            }
            match self.operands.get(self.next) {
                None => self.out.push_str(&format!("%!{verb}(BADINDEX)").replace("BADINDEX", self.missing())),
                Some(operand) => {
                    let text = one(verb, operand.value(), operand.type_name(), &flags);
                    self.out.push_str(&text);
                    self.next += 1;
                }
            }
        }
        self.out.push_str(self.rest);
    }

    fn missing(&self) -> &'static str {
        if self.reordered { "BADINDEX" } else { "MISSING" }
    }

    /// `[2]` chooses the operand.
    fn argument_number(&mut self) {
        if !self.rest.starts_with('[') {
            return;
        }
        let Some(end) = self.rest.find(']') else { return };
        self.reordered = true;
        let number: usize = self.rest[1..end].parse().unwrap_or(0);
        self.next = number.checked_sub(1).unwrap_or(usize::MAX - 1);
        self.rest = &self.rest[end + 1..];
    }

    fn count(&mut self, negative: &mut bool, bad: &str) -> Option<usize> {
        if self.rest.starts_with('*') {
            self.take();
            let given = self.operands.get(self.next).and_then(|operand| operand.value().as_i64());
            self.next += 1;
            let Some(given) = given.filter(|n| n.unsigned_abs() as usize <= WIDTH_MAX) else {
                self.out.push_str(bad);
                return None;
            };
            *negative |= given < 0;
            return Some(given.unsigned_abs() as usize);
        }
        let digits = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let number = self.rest[..digits].parse().ok().filter(|n| *n <= WIDTH_MAX);
        self.rest = &self.rest[digits..];
        number
    }
}

fn one(verb: char, value: &Value, type_name: &str, flags: &Flags) -> String {
    let bad = |verb: char, value: &Value| format!("%!{verb}({})", typed(value, type_name));
    let inner = |value: &Value| one(verb, value, go_format::type_name(value), flags);
    match (verb, value) {
        ('T', _) => pad(type_name, flags),
        ('v', _) if flags.sharp => pad(&go_format::go_syntax(value), flags),
        ('v', Value::Null) => pad("<nil>", flags),
        (_, Value::Null) => bad(verb, value),
        (_, Value::Array(items)) if verb != 'v' => {
            let items: Vec<String> = items.iter().map(inner).collect();
            format!("[{}]", items.join(" "))
        }
        (_, Value::Object(fields)) if verb != 'v' => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(key, field)| format!("{}:{}", inner(&Value::from(key.as_str())), inner(field)))
                .collect();
            format!("map[{}]", fields.join(" "))
        }
        ('v', Value::Array(_) | Value::Object(_)) => go_format::sprint(value),
        ('v' | 't', Value::Bool(truth)) => pad(&truth.to_string(), flags),
        ('v' | 's' | 'q' | 'x' | 'X', Value::String(text)) => string(verb, text, flags),
        (_, Value::Number(number)) => match number.as_i64() {
            Some(whole) => integer(verb, whole, flags).unwrap_or_else(|| bad(verb, value)),
            None => float(verb, number.as_f64().unwrap_or(0.0), flags).unwrap_or_else(|| bad(verb, value)),
        },
        _ => bad(verb, value),
    }
}

fn pad(text: &str, flags: &Flags) -> String {
    let missing = flags.width.unwrap_or(0).saturating_sub(text.chars().count());
    if flags.minus { format!("{text}{}", " ".repeat(missing)) } else { format!("{}{text}", " ".repeat(missing)) }
}

/// Zeros go between the sign and the digits.
fn pad_number(text: &str, flags: &Flags, zero: bool) -> String {
    let width = flags.width.unwrap_or(0);
    let length = text.chars().count();
    if !zero || flags.minus || length >= width {
        return pad(text, flags);
    }
    let sign = usize::from(text.starts_with(['-', '+', ' ']));
    format!("{}{}{}", &text[..sign], "0".repeat(width - length), &text[sign..])
}

fn string(verb: char, text: &str, flags: &Flags) -> String {
    let cut: String = match flags.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text.to_string(),
    };
    match verb {
        'q' if flags.sharp && !cut.contains('`') => pad(&format!("`{cut}`"), flags),
        'q' => pad(&go_format::quote(&cut), flags),
        'x' => pad(&cut.bytes().map(|byte| format!("{byte:02x}")).collect::<String>(), flags),
        'X' => pad(&cut.bytes().map(|byte| format!("{byte:02X}")).collect::<String>(), flags),
        _ => pad(&cut, flags),
    }
}

fn integer(verb: char, number: i64, flags: &Flags) -> Option<String> {
    let magnitude = number.unsigned_abs();
    let digits = match verb {
        'v' | 'd' => magnitude.to_string(),
        'b' => format!("{magnitude:b}"),
        'o' => format!("{}{magnitude:o}", if flags.sharp { "0" } else { "" }),
        'O' => format!("0o{magnitude:o}"),
        'x' => format!("{}{magnitude:x}", if flags.sharp { "0x" } else { "" }),
        'X' => format!("{}{magnitude:X}", if flags.sharp { "0X" } else { "" }),
        'c' => return Some(pad(&char::from_u32(number as u32).unwrap_or('\u{fffd}').to_string(), flags)),
        'q' => {
            let c = char::from_u32(number as u32).unwrap_or('\u{fffd}');
            let quoted = go_format::quote(&c.to_string()).trim_matches('"').replace('\'', "\\'");
            return Some(pad(&format!("'{quoted}'"), flags));
        }
        'U' => return Some(pad(&format!("U+{number:04X}"), flags)),
        _ => return None,
    };
    let least = flags.precision.unwrap_or(0);
    let digits = format!("{}{digits}", "0".repeat(least.saturating_sub(digits.len())));
    let text = format!("{}{digits}", sign(number < 0, flags));
    Some(pad_number(&text, flags, flags.zero && flags.precision.is_none()))
}

fn sign(negative: bool, flags: &Flags) -> &'static str {
    match (negative, flags.plus, flags.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    }
}

fn float(verb: char, number: f64, flags: &Flags) -> Option<String> {
    let magnitude = number.abs();
    let body = match (verb, flags.precision) {
        ('v' | 'g' | 'G', None) => go_format::float(magnitude),
        ('v' | 'g' | 'G', Some(precision)) => general(magnitude, precision.max(1)),
        ('f' | 'F', precision) => format!("{magnitude:.*}", precision.unwrap_or(6)),
        ('e' | 'E', precision) => exponent(&format!("{magnitude:.*e}", precision.unwrap_or(6))),
        _ => return None,
    };
    let body = if verb == 'E' || verb == 'G' { body.to_uppercase() } else { body };
    let text = format!("{}{body}", sign(number.is_sign_negative(), flags));
    Some(pad_number(&text, flags, flags.zero))
}

/// Rust's `1e-7` as Go's `1e-07`.
fn exponent(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn general(number: f64, precision: usize) -> String {
    let scientific = format!("{number:.*e}", precision - 1);
    let (mantissa, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if power < -4 || power >= precision as i32 {
        return exponent(&format!("{}e{power}", trimmed(mantissa)));
    }
    trimmed(&format!("{number:.*}", (precision as i32 - 1 - power).max(0) as usize))
}
