//! Splits a Go template into texts and the tokens of its actions.
//! Read by `parser`.
//! Every byte of the template is in one token, in white space that a trim marker took, or in a comment.

use super::line_and_column;
use crate::template::jsonpath_parser::unquote;

#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    Text(String),
    LeftDelimiter,
    RightDelimiter,
    Space,
    Pipe,
    Comma,
    Assign,
    Declare,
    LeftParenthesis,
    RightParenthesis,
    Dot,
    /// `.name`
    Field(String),
    /// `$` or `$name`
    Variable(String),
    Identifier(String),
    Number(String),
    Character(String, char),
    /// The source and what it means.
    Quoted(String, String),
    End,
}

#[derive(Debug, Clone)]
pub struct Located {
    pub token: Token,
    pub position: usize,
    pub source: String,
}

pub fn parse_error(text: &str, position: usize, message: impl std::fmt::Display) -> String {
    format!("template: {}:{}: {message}", super::NAME, line_and_column(text, position).0)
}

pub fn tokens(text: &str) -> Result<Vec<Located>, String> {
    let mut lexer = Lexer { text, at: 0, tokens: Vec::new() };
    let mut trim = false;
    loop {
        let rest = &text[lexer.at..];
        let length = rest.find("{{").unwrap_or(rest.len());
        let mut piece = &rest[..length];
        let skipped = if trim { piece.len() - piece.trim_start_matches(SPACES).len() } else { 0 };
        piece = &piece[skipped..];
        let opens = length < rest.len();
        let trims_left = opens && is_left_trim(&rest[length + 2..]);
        let shown = if trims_left { piece.trim_end_matches(SPACES) } else { piece };
        if !shown.is_empty() {
            lexer.push_at(lexer.at + skipped, Token::Text(shown.to_string()), shown);
        }
        lexer.at += length;
        if !opens {
            lexer.push(Token::End, 0);
            return Ok(lexer.tokens);
        }
        let after = 2 + if trims_left { 2 } else { 0 };
        if text[lexer.at + after..].starts_with("/*") {
            trim = lexer.comment(after)?;
            continue;
        }
        lexer.push(Token::LeftDelimiter, 2);
        lexer.at += if trims_left { 2 } else { 0 };
        trim = lexer.action()?;
    }
}

const SPACES: &[char] = &[' ', '\t', '\r', '\n'];

/// After `{{`: a minus sign and a space.
fn is_left_trim(rest: &str) -> bool {
    rest.starts_with('-') && rest[1..].starts_with(SPACES)
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    tokens: Vec<Located>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn push(&mut self, token: Token, length: usize) {
        let source = &self.text[self.at..self.at + length];
        self.push_at(self.at, token, source);
        self.at += length;
    }

    fn push_at(&mut self, position: usize, token: Token, source: &str) {
        self.tokens.push(Located { token, position, source: source.to_string() });
    }

    fn error<T>(&self, message: impl std::fmt::Display) -> Result<T, String> {
        Err(parse_error(self.text, self.at, message))
    }

    fn comment(&mut self, after: usize) -> Result<bool, String> {
        let Some(length) = self.rest()[after..].find("*/") else { return self.error("unclosed comment") };
        let rest = &self.rest()[after + length + 2..];
        let (trims, closing) = match rest.trim_start_matches(SPACES) {
            closing if rest.starts_with(SPACES) && closing.starts_with("-}}") => (true, closing.len() - 3),
            _ if rest.starts_with("}}") => (false, rest.len() - 2),
            _ => return self.error("comment ends before closing delimiter"),
        };
        self.at = self.text.len() - closing;
        Ok(trims)
    }

    /// Reads up to the right delimiter; says whether it trims what follows.
    fn action(&mut self) -> Result<bool, String> {
        let mut depth = 0;
        loop {
            let rest = self.rest();
            let spaces = rest.len() - rest.trim_start_matches(SPACES).len();
            if spaces > 0 && rest[spaces..].starts_with("-}}") {
                self.at += spaces + 1;
            }
            let trims = spaces > 0 && rest[spaces..].starts_with("-}}");
            if self.rest().starts_with("}}") {
                if depth > 0 {
                    return self.error("unclosed left paren");
                }
                self.push(Token::RightDelimiter, 2);
                return Ok(trims);
            }
            if spaces > 0 {
                self.push(Token::Space, spaces);
                continue;
            }
            let Some(first) = rest.chars().next() else { return self.error("unclosed action") };
            match first {
                '=' => self.push(Token::Assign, 1),
                ':' if rest.starts_with(":=") => self.push(Token::Declare, 2),
                ':' => return self.error("expected :="),
                '|' => self.push(Token::Pipe, 1),
                ',' => self.push(Token::Comma, 1),
                '(' => {
                    depth += 1;
                    self.push(Token::LeftParenthesis, 1);
                }
                ')' => {
                    depth -= 1;
                    if depth < 0 {
                        return self.error("unexpected right paren");
                    }
                    self.push(Token::RightParenthesis, 1);
                }
                '"' => self.quoted()?,
                '`' => {
                    let Some(length) = rest[1..].find('`') else { return self.error("unterminated raw quoted string") };
                    let inner = rest[1..1 + length].to_string();
                    self.push(Token::Quoted(rest[..length + 2].to_string(), inner), length + 2);
                }
                '\'' => self.character()?,
                '$' => {
                    let length = 1 + name_length(&rest[1..]);
                    self.terminated(length)?;
                    self.push(Token::Variable(rest[..length].to_string()), length);
                }
                '.' if !rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                    let length = name_length(&rest[1..]);
                    if length == 0 {
                        self.push(Token::Dot, 1);
                    } else {
                        self.terminated(1 + length)?;
                        self.push(Token::Field(rest[1..1 + length].to_string()), 1 + length);
                    }
                }
                c if c == '.' || c == '+' || c == '-' || c.is_ascii_digit() => self.number()?,
                c if c == '_' || c.is_alphanumeric() => {
                    let length = name_length(rest);
                    self.terminated(length)?;
                    self.push(Token::Identifier(rest[..length].to_string()), length);
                }
                c => return self.error(format!("unrecognized character in action: U+{:04X} '{c}'", c as u32)),
            }
        }
    }

    fn terminated(&self, length: usize) -> Result<(), String> {
        match self.rest()[length..].chars().next() {
            Some(c) if !(SPACES.contains(&c) || ".,|:()=}".contains(c)) => {
                self.error(format!("bad character U+{:04X} '{c}'", c as u32))
            }
            _ => Ok(()),
        }
    }

    fn quoted(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let mut escaped = false;
        for (at, c) in rest.char_indices().skip(1) {
            match c {
                '\n' => break,
                '\\' if !escaped => escaped = true,
                '"' if !escaped => {
                    let source = &rest[..=at];
                    let Some(inner) = unquote(&rest[1..at], '"') else { return self.error("invalid syntax") };
                    self.push(Token::Quoted(source.to_string(), inner), at + 1);
                    return Ok(());
                }
                _ => escaped = false,
            }
        }
        self.error("unterminated quoted string")
    }

    fn character(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let closes = |at: &usize| rest.as_bytes()[*at] == b'\'' && (rest.as_bytes()[at - 1] != b'\\' || *at == 3);
        let Some(end) = (2..rest.len().min(12)).find(closes) else {
            return self.error("unterminated character constant");
        };
        let inner = unquote(&rest[1..end], '\'').unwrap_or_default();
        let mut chars = inner.chars();
        let (Some(c), None) = (chars.next(), chars.next()) else {
            return self.error(format!("malformed character constant: {}", &rest[..=end]));
        };
        self.push(Token::Character(rest[..=end].to_string(), c), end + 1);
        Ok(())
    }

    fn number(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let sign = usize::from(rest.starts_with(['+', '-']));
        let mut previous = ' ';
        let body = rest[sign..].find(|c: char| {
            let belongs =
                c.is_ascii_alphanumeric() || c == '_' || c == '.' || ("+-".contains(c) && "eEpP".contains(previous));
            previous = c;
            !belongs
        });
        let length = sign + body.unwrap_or(rest.len() - sign);
        if length == sign || number_value(&rest[..length]).is_none() {
            return self.error(format!("bad number syntax: {}", super::go_format::quote(&rest[..length.max(1)])));
        }
        self.push(Token::Number(rest[..length].to_string()), length);
        Ok(())
    }
}

fn name_length(text: &str) -> usize {
    text.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(text.len())
}

/// An integer in any of Go's bases, or a float.
pub fn number_value(source: &str) -> Option<serde_json::Value> {
    let text = source.replace('_', "");
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') && lower.bytes().all(|b| b.is_ascii_digit()) => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if let Ok(magnitude) = i64::from_str_radix(body, radix) {
        return Some(if negative { -magnitude } else { magnitude }.into());
    }
    let float = if radix == 10 { text.parse::<f64>().ok().filter(|f| f.is_finite()) } else { None };
    float.map(serde_json::Value::from)
}
