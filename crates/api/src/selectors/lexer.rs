//! The tokens of a label selector.
//! Read by `labels`.
//! Always ends with `End`.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Error,
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Identifier,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

fn symbol(text: &str) -> Option<Token> {
    Some(match text {
        ")" => Token::Close,
        "," => Token::Comma,
        "!" => Token::Not,
        "==" => Token::DoubleEquals,
        "=" => Token::Equals,
        ">" => Token::Greater,
        "<" => Token::Less,
        "!=" => Token::NotEquals,
        "(" => Token::Open,
        _ => return None,
    })
}

fn is_special(byte: u8) -> bool {
    b"=!(),><".contains(&byte)
}

fn is_space(byte: u8) -> bool {
    b" \t\r\n".contains(&byte)
}

/// Tokens with the text they came from.
pub fn scan(text: &str) -> Vec<(Token, String)> {
    // Upstream's lexer takes a zero byte for the end of the text.
    let text = text.split('\0').next().unwrap_or_default();
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if is_space(bytes[at]) {
            at += 1;
        } else if is_special(bytes[at]) {
            // One or two characters: the longest that is a symbol.
            let two = text.get(at..at + 2).and_then(symbol);
            let length = if two.is_some() { 2 } else { 1 };
            let found = &text[at..at + length];
            tokens.push((symbol(found).unwrap_or(Token::Error), found.to_string()));
            at += length;
        } else {
            let length = bytes[at..].iter().take_while(|b| !is_special(**b) && !is_space(**b)).count();
            let word = &text[at..at + length];
            let token = match word {
                "in" => Token::In,
                "notin" => Token::NotIn,
                _ => Token::Identifier,
            };
            tokens.push((token, word.to_string()));
            at += length;
        }
    }
    tokens.push((Token::End, String::new()));
    tokens
}
