//! Looks at an expression before it is parsed: how long it is and how deep its tree would be.
//! Used by `Expression::compile`.
//! Needs no stack itself; whatever it lets through, parser, checker and evaluator have the stack for.

use super::error::CelError;

/// Code points of one expression; upstream's limit.
const EXPRESSION_SIZE_MAX: usize = 100_000;
/// Levels of the tree of one expression. Upstream's is 250: its stacks grow, ours have a size.
const EXPRESSION_DEPTH_MAX: usize = 100;

/// Why an expression is not even parsed.
pub fn check(source: &str) -> Result<(), CelError> {
    let size = source.chars().count();
    if size > EXPRESSION_SIZE_MAX {
        return Err(CelError::Compilation(format!(
            "compilation failed: expression code point size exceeds limit: size: {size}, limit {EXPRESSION_SIZE_MAX}"
        )));
    }
    match depth(source) > EXPRESSION_DEPTH_MAX {
        true => Err(CelError::Compilation(format!(
            "compilation failed: expression recursion limit exceeded: {EXPRESSION_DEPTH_MAX}"
        ))),
        false => Ok(()),
    }
}

/// An upper bound of the levels. Each operator, field and bracket is one, within what it stands in; items of a list, and
/// what `&&` and `||` join, stand side by side.
fn depth(source: &str) -> usize {
    let (mut deepest, mut here, mut outer) = (0usize, 0usize, Vec::new());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        match first {
            '\'' | '"' => length = literal(rest, false),
            '/' if rest.starts_with("//") => length = rest.find('\n').unwrap_or(rest.len()),
            '(' | '[' | '{' => {
                here += 1;
                outer.push(here);
            }
            ')' | ']' | '}' => here = outer.pop().unwrap_or(here),
            ',' => here = outer.last().copied().unwrap_or(0),
            '&' | '|' => {
                here = outer.last().copied().unwrap_or(0);
                length = if rest[1..].starts_with(first) { 2 } else { 1 };
            }
            '=' | '<' | '>' | '!' if rest[1..].starts_with('=') => {
                here += 1;
                length = 2;
            }
            '+' | '-' | '*' | '/' | '%' | '<' | '>' | '!' | '?' | '.' => here += 1,
            c if c.is_alphanumeric() || c == '_' => {
                length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                let (word, after) = rest.split_at(length);
                let is_prefix = word.len() <= 2 && word.bytes().all(|b| b"rRbB".contains(&b));
                if is_prefix && after.starts_with(['\'', '"']) {
                    length += literal(after, word.contains(['r', 'R']));
                }
                here += usize::from(word == "in");
            }
            _ => {}
        }
        deepest = deepest.max(here);
        rest = &rest[length..];
    }
    deepest
}

/// The bytes of the text that `source` begins with, quotes and all; the rest of it if it does not end.
fn literal(source: &str, raw: bool) -> usize {
    let quote = &source[..1];
    let triple = quote.repeat(3);
    let end = if source.starts_with(&triple) { triple.as_str() } else { quote };
    let mut at = end.len();
    while let Some(next) = source[at..].chars().next() {
        if source[at..].starts_with(end) {
            return at + end.len();
        }
        at += next.len_utf8();
        if next == '\\' && !raw {
            at += source[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    source.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_that_of_the_tree() {
        for (source, expected) in [
            ("a", 0),
            ("1 + 2 + 3", 2),
            ("a.b.c", 2),
            ("a && b && c.d", 1),
            ("f(a, b, c)", 1),
            ("f(g(h(a)))", 3),
            ("[1, [2, [3]]]", 3),
            ("'((((' + \"[[[[\" + r'\\' + '\\'((' + '''a'(('''", 4),
            ("a // ((((\n + b", 1),
            ("x in [1, 2]", 2),
            ("a ? b : c ? d : e", 2),
            ("a == b || c.d.e >= 1", 3),
            (")))(", 1),
            ("'unfinished ((((", 0),
        ] {
            assert_eq!(depth(source), expected, "{source}");
        }
    }

    #[test]
    fn long_and_deep_expressions_are_refused() {
        let joined = vec!["object.metadata.name != 'x'"; 500].join(" && ");
        assert_eq!(check(&joined), Ok(()));
        assert_eq!(check(&"(".repeat(99)), Ok(()));
        for deep in ["(", "[", "{", "!", "-", "a.", "1+", "a[", "a?b:", "f(", "a<", "1 in "] {
            let found = check(&deep.repeat(10_000)).unwrap_err();
            assert_eq!(found.to_string(), "compilation failed: expression recursion limit exceeded: 100", "{deep}");
        }
        assert!(check(&"(".repeat(200_000)).unwrap_err().to_string().contains("size: 200000, limit 100000"));
    }
}
