//! Parses kubectl's JSONPath dialect into nodes.
//! Read by `jsonpath`, which evaluates them.
//! What does not parse is refused with upstream's words; nothing is guessed.

/// One bound of `[start:end:step]`. `derived` is the end that a single index implies.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SliceBound {
    pub value: Option<i64>,
    pub derived: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    Text(String),
    Field(String),
    Wildcard,
    Recursive,
    Array([SliceBound; 3]),
    Filter { left: Vec<Node>, operator: String, right: Vec<Node> },
    Union(Vec<Vec<Node>>),
    Identifier(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Node>),
}

pub fn parse(text: &str) -> Result<Vec<Node>, String> {
    Parser { input: text, position: 0, start: 0 }.text()
}

/// Parses `text` as if it stood between braces.
fn parse_action(text: &str) -> Result<Vec<Node>, String> {
    match parse(&format!("{{{text}}}"))?.into_iter().next() {
        Some(Node::List(nodes)) => Ok(nodes),
        _ => Ok(Vec::new()),
    }
}

struct Parser<'a> {
    input: &'a str,
    position: usize,
    start: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.input[self.position..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.position += c.len_utf8();
        Some(c)
    }

    /// What was read since the last call.
    fn consume(&mut self) -> &'a str {
        let text = &self.input[self.start..self.position];
        self.start = self.position;
        text
    }

    fn text(&mut self) -> Result<Vec<Node>, String> {
        let mut nodes = Vec::new();
        loop {
            match self.rest().find('{') {
                Some(at) => self.position += at,
                None => self.position = self.input.len(),
            }
            if self.position > self.start {
                nodes.push(Node::Text(self.consume().to_string()));
            }
            if self.peek().is_none() {
                return Ok(nodes);
            }
            self.position += 1;
            self.consume();
            let action = self.action()?;
            nodes.push(Node::List(action));
        }
    }

    fn action(&mut self) -> Result<Vec<Node>, String> {
        let mut nodes = Vec::new();
        loop {
            if self.rest().starts_with('}') {
                self.position += 1;
                self.consume();
                return Ok(nodes);
            }
            if self.rest().starts_with("[?(") {
                nodes.push(self.filter()?);
                continue;
            }
            if self.rest().starts_with("..") {
                self.recursive(&mut nodes)?;
                continue;
            }
            match self.next() {
                None | Some('\r' | '\n') => return Err("unclosed action".to_string()),
                Some(' ' | '@' | '$') => {
                    self.consume();
                }
                Some('[') => self.array(&mut nodes)?,
                Some(quote @ ('"' | '\'')) => nodes.push(self.quoted(quote)?),
                Some('.') => nodes.push(self.field()),
                Some(c) if c == '+' || c == '-' || c.is_numeric() => {
                    self.position -= c.len_utf8();
                    nodes.push(self.number()?);
                }
                Some(c) if is_alphanumeric(c) => {
                    self.position -= c.len_utf8();
                    nodes.push(self.identifier());
                }
                Some(c) => return Err(format!("unrecognized character in action: U+{:04X} '{c}'", c as u32)),
            }
        }
    }

    fn identifier(&mut self) -> Node {
        while self.peek().is_some_and(|c| !is_terminator(c)) {
            self.next();
        }
        match self.consume() {
            "true" => Node::Bool(true),
            "false" => Node::Bool(false),
            name => Node::Identifier(name.to_string()),
        }
    }

    fn recursive(&mut self, nodes: &mut Vec<Node>) -> Result<(), String> {
        if nodes.last() == Some(&Node::Recursive) {
            return Err("invalid multiple recursive descent".to_string());
        }
        self.position += 2;
        self.consume();
        nodes.push(Node::Recursive);
        if self.peek().is_some_and(is_alphanumeric) {
            nodes.push(self.field());
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Node, String> {
        if let Some('+' | '-') = self.peek() {
            self.next();
        }
        while self.peek().is_some_and(|c| c == '.' || c.is_numeric()) {
            self.next();
        }
        let text = self.consume();
        if let Ok(number) = text.parse() {
            return Ok(Node::Int(number));
        }
        text.parse().map(Node::Float).map_err(|_| format!("cannot parse number {text}"))
    }

    fn array(&mut self, nodes: &mut Vec<Node>) -> Result<(), String> {
        loop {
            match self.next() {
                None | Some('\n') => return Err("unterminated array".to_string()),
                Some(']') => break,
                Some(_) => {}
            }
        }
        let text = self.consume();
        let text = match &text[1..text.len() - 1] {
            "*" => ":",
            text => text,
        };
        if text.contains(',') {
            let members: Result<_, String> =
                text.split(',').map(|member| parse_action(&format!("[{}]", member.trim_matches(' ')))).collect();
            nodes.push(Node::Union(members?));
            return Ok(());
        }
        let key = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')).filter(|key| !key.contains('\''));
        if let Some(key) = key {
            nodes.extend(parse_action(&format!(".{key}"))?);
            return Ok(());
        }
        nodes.push(Node::Array(slice_bounds(text)?));
        Ok(())
    }

    fn filter(&mut self) -> Result<Node, String> {
        self.position += 3;
        self.consume();
        let (mut begun, mut ended, mut pair) = (false, false, '"');
        loop {
            match self.next() {
                None | Some('\n') => return Err("unterminated filter".to_string()),
                Some(c @ ('"' | '\'')) if !begun => (begun, pair) = (true, c),
                Some(c @ ('"' | '\'')) => {
                    if c == pair && self.before_last() != Some(b'\\') {
                        ended = true;
                    }
                }
                Some(')') if begun == ended => break,
                Some(_) => {}
            }
        }
        if self.next() != Some(']') {
            return Err("unclosed array expect ]".to_string());
        }
        let text = self.consume();
        let text = &text[..text.len() - 2];
        match comparison(text) {
            None => Ok(Node::Filter { left: parse_action(text)?, operator: "exists".to_string(), right: Vec::new() }),
            Some((left, operator, right)) => Ok(Node::Filter {
                left: parse_action(left)?,
                operator: operator.to_string(),
                right: parse_action(right)?,
            }),
        }
    }

    /// The byte before the character that was read last.
    fn before_last(&self) -> Option<u8> {
        self.position.checked_sub(2).map(|at| self.input.as_bytes()[at])
    }

    fn quoted(&mut self, quote: char) -> Result<Node, String> {
        loop {
            match self.next() {
                None | Some('\n') => return Err("unterminated quoted string".to_string()),
                Some(c) if c == quote && self.before_last() != Some(b'\\') => break,
                Some(_) => {}
            }
        }
        let text = self.consume();
        let inner = if text.len() < 2 { None } else { unquote(&text[1..text.len() - 1], quote) };
        inner.map(Node::Text).ok_or_else(|| format!("unquote string {text} error invalid syntax"))
    }

    fn field(&mut self) -> Node {
        self.consume();
        while let Some(c) = self.peek() {
            if c == '\\' {
                self.next();
            } else if is_terminator(c) {
                break;
            }
            self.next();
        }
        match self.consume() {
            "*" => Node::Wildcard,
            name => Node::Field(name.replace('\\', "")),
        }
    }
}

fn slice_bounds(text: &str) -> Result<[SliceBound; 3], String> {
    let invalid = || format!("invalid array index {text}");
    let parts: Vec<&str> = text.split(':').collect();
    let digits = |part: &&str| part.strip_prefix('-').unwrap_or(part).bytes().all(|b| b.is_ascii_digit());
    if parts.len() > 3 || !parts.iter().all(digits) {
        return Err(invalid());
    }
    let number = |part: &str| match part {
        "" => Ok(None),
        part => part.parse::<i64>().map(Some).map_err(|_| format!("array index {part} is not a number")),
    };
    let mut bounds = [SliceBound::default(); 3];
    for (bound, part) in bounds.iter_mut().zip(&parts) {
        bound.value = number(part)?;
    }
    if parts.len() < 2 {
        bounds[1] = SliceBound { value: Some(bounds[0].value.unwrap_or(0) + 1), derived: true };
    }
    Ok(bounds)
}

/// Splits `left operator right`; without an operator the filter asks whether something is there.
fn comparison(text: &str) -> Option<(&str, &str, &str)> {
    let is_operator = |c: char| matches!(c, '!' | '<' | '>' | '=');
    let at = text.find(is_operator).filter(|at| *at > 0)?;
    let length = text[at..].find(|c| !is_operator(c)).unwrap_or(text.len() - at);
    // An operator at the end gives back a character so that something stands to its right.
    let length = if at + length == text.len() { length - 1 } else { length };
    (length > 0).then(|| (&text[..at], &text[at..at + length], &text[at + length..]))
}

/// The inside of a quoted string with Go's escapes resolved. Either quote may be escaped only in its own kind.
pub fn unquote(text: &str, quote: char) -> Option<String> {
    if !text.contains('\\') && !text.contains(quote) {
        return Some(text.to_string());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    let mut encoded = [0; 4];
    let radix = |chars: &mut std::str::Chars, digits: usize, first: Option<char>, radix: u32| {
        let mut code = first.map_or(Some(0), |c| c.to_digit(radix))?;
        for _ in 0..digits {
            code = code.checked_mul(radix)?.checked_add(chars.next()?.to_digit(radix)?)?;
        }
        Some(code)
    };
    while let Some(c) = chars.next() {
        if c == quote {
            return None;
        }
        if c != '\\' {
            bytes.extend_from_slice(c.encode_utf8(&mut encoded).as_bytes());
            continue;
        }
        match chars.next()? {
            'a' => bytes.push(7),
            'b' => bytes.push(8),
            'f' => bytes.push(12),
            'n' => bytes.push(b'\n'),
            'r' => bytes.push(b'\r'),
            't' => bytes.push(b'\t'),
            'v' => bytes.push(11),
            '\\' => bytes.push(b'\\'),
            'x' => bytes.push(u8::try_from(radix(&mut chars, 2, None, 16)?).ok()?),
            c @ '0'..='7' => bytes.push(u8::try_from(radix(&mut chars, 2, Some(c), 8)?).ok()?),
            c @ ('u' | 'U') => {
                let code = radix(&mut chars, if c == 'u' { 4 } else { 8 }, None, 16)?;
                bytes.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut encoded).as_bytes());
            }
            c if c == quote => bytes.push(c as u8),
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_terminator(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

fn is_alphanumeric(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_templates_are_refused_with_upstreams_words() {
        let check = |template: &str, expected: &str| assert_eq!(parse(template).unwrap_err(), expected, "{template}");
        check("{", "unclosed action");
        check("{.a", "unclosed action");
        check("{.a[0}", "unterminated array");
        check("{.a[?(@.b}", "unterminated filter");
        check("{.a[?(@.b)}", "unclosed array expect ]");
        check("{\"a}", "unterminated quoted string");
        check("{.a[x]}", "invalid array index x");
        check("{.a[1:2:3:4]}", "invalid array index 1:2:3:4");
        check("{.....b}", "invalid multiple recursive descent");
        check("{1.2.3}", "cannot parse number 1.2.3");
        check("{*}", "unrecognized character in action: U+002A '*'");
        check(r#"{"\q"}"#, r#"unquote string "\q" error invalid syntax"#);
    }

    #[test]
    fn escapes_are_resolved() {
        let check = |template: &str, expected: &str| {
            assert_eq!(
                parse(template).unwrap(),
                vec![Node::List(vec![Node::Text(expected.to_string())])],
                "{template}"
            );
        };
        check(r#"{"\t\n\\."}"#, "\t\n\\.");
        check(r#"{'it\'s'}"#, "it's");
        check(r#"{"\u00e9\x41\101"}"#, "éAA");
    }
}
