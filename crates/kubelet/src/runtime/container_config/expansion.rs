//! Expands `$(NAME)` in commands, arguments, environment values and subPathExpr.
//! An unknown name is left as written, `$$` is one `$`, and nothing is expanded twice.

/// Replaces every `$(NAME)` that `lookup` knows.
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    expand_noting(text, lookup).0
}

/// Also says which names were unknown.
pub fn expand_noting(text: &str, lookup: impl Fn(&str) -> Option<String>) -> (String, Vec<String>) {
    let mut result = String::with_capacity(text.len());
    let mut unknown = Vec::new();
    let mut rest = text;
    while let Some(position) = rest.find('$') {
        result.push_str(&rest[..position]);
        let after = &rest[position + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            result.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match lookup(name) {
                Some(value) => result.push_str(&value),
                None => {
                    unknown.push(name.to_string());
                    result.push_str("$(");
                    result.push_str(name);
                    result.push(')');
                }
            }
            rest = tail;
        } else {
            result.push('$');
            rest = after;
        }
    }
    result.push_str(rest);
    (result, unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_once() {
        let lookup = |name: &str| match name {
            "A" => Some("1".to_string()),
            "B" => Some("$(A)".to_string()),
            "" => Some("empty".to_string()),
            _ => None,
        };
        let check = |text: &str, expected: &str| assert_eq!(expand(text, lookup), expected, "{text}");
        check("$(A)", "1");
        check("x$(A)y$(A)", "x1y1");
        check("$(B)", "$(A)");
        check("$$(A)", "$(A)");
        check("$$$(A)", "$1");
        check("$(C)", "$(C)");
        check("$", "$");
        check("$(A", "$(A");
        check("a$b", "a$b");
        check("100$$", "100$");
    }
}
