//! Regular expressions as Go reads them: the syntax is the regex crate's but for classes, which have no sets inside.
//! Used wherever a pattern comes from a client: schemas of custom resources.

use std::borrow::Cow;

use regex::Regex;

pub fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    Regex::new(&translated(pattern))
}

/// In a class `[` is a letter of its own unless it begins `[:alpha:]`, and so are `&&`, `--` and `~~`.
fn translated(pattern: &str) -> Cow<'_, str> {
    if !pattern.contains('[') {
        return pattern.into();
    }
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut letters = pattern.chars().peekable();
    // How many letters of a class have been read; none outside of one.
    let mut class: Option<usize> = None;
    while let Some(letter) = letters.next() {
        match (letter, class) {
            ('\\', _) => {
                out.push(letter);
                out.extend(letters.next());
                class = class.map(|count| count + 1);
                continue;
            }
            ('[', None) => {
                out.push(letter);
                if letters.peek() == Some(&'^') {
                    out.extend(letters.next());
                }
                class = Some(0);
                continue;
            }
            ('[', Some(_)) if letters.peek() == Some(&':') => {
                // Up to its end, which is no end of the class.
                out.push(letter);
                let mut before = ' ';
                for inside in letters.by_ref() {
                    out.push(inside);
                    if before == ':' && inside == ']' {
                        break;
                    }
                    before = inside;
                }
            }
            // At the beginning it is a letter.
            (']', Some(1..)) => {
                out.push(letter);
                class = None;
                continue;
            }
            ('[' | ']', Some(_)) => out.extend(['\\', letter]),
            ('&' | '-' | '~', Some(_)) if letters.peek() == Some(&letter) => {
                out.extend([letter, '\\']);
                out.extend(letters.next());
            }
            _ => out.push(letter),
        }
        class = class.map(|count| count + 1);
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_no_sets_inside() {
        let check = |pattern: &str, fits: &str, other: &str| {
            let regex = compile(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
            assert!(regex.is_match(fits) && !regex.is_match(other), "{pattern}");
        };
        // Contour's, for the names of cookies.
        check(r#"^[^()<>@,;:\\"\/[\]?={} \t\x7f\x00]+$"#, "name", "na[me");
        check("^[a[b]+$", "a[b", "c");
        check("^[]a]+$", "a]", "b");
        check("^[^]a]+$", "b", "]");
        check("^[[:digit:]x]+$", "1x", "y");
        check("^[a&&b]+$", "a&b", "c");
        check("^[+--]$", ",", "a");
        check(r"^\[a]$", "[a]", "a");
        assert!(compile("[a").is_err());
    }
}
