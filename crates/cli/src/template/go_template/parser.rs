//! Parses the tokens of a Go template into its tree, one tree for each `define`.
//! Neighbours: `lexer` feeds it, `execute` walks what it returns.
//! Every function and variable that a tree names exists.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    functions,
    lexer::{self, Located, Token},
    nodes::{Argument, ArgumentKind, Command, Node, Pipe},
};
use crate::template::go_format;

/// Parentheses and blocks within each other.
const DEPTH_MAX: usize = 1_000;

pub fn parse(text: &str) -> Result<BTreeMap<String, Vec<Node>>, String> {
    let tokens = lexer::tokens(text)?;
    let mut parser = Parser {
        text,
        tokens,
        at: 0,
        variables: vec!["$".to_string()],
        templates: BTreeMap::new(),
        range_depth: 0,
        depth: 0,
    };
    let (list, ending) = parser.list()?;
    if let Ending::End | Ending::Else = ending {
        return parser.error(format!("unexpected {{{{{}}}}}", if ending == Ending::End { "end" } else { "else" }));
    }
    parser.templates.insert(super::NAME.to_string(), list);
    Ok(parser.templates)
}

#[derive(PartialEq)]
enum Ending {
    File,
    End,
    Else,
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Located>,
    at: usize,
    variables: Vec<String>,
    templates: BTreeMap<String, Vec<Node>>,
    range_depth: usize,
    depth: usize,
}

impl Parser<'_> {
    fn error<T>(&self, message: impl std::fmt::Display) -> Result<T, String> {
        let position = self.tokens.get(self.at.saturating_sub(1)).map_or(0, |located| located.position);
        Err(lexer::parse_error(self.text, position, message))
    }

    fn peek(&self) -> &Located {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn next(&mut self) -> Located {
        let located = self.peek().clone();
        self.at += 1;
        located
    }

    fn next_non_space(&mut self) -> Located {
        self.skip_space();
        self.next()
    }

    fn skip_space(&mut self) {
        while self.peek().token == Token::Space {
            self.at += 1;
        }
    }

    fn unexpected<T>(&self, found: &Located, context: &str) -> Result<T, String> {
        if found.token == Token::End {
            return self.error("unexpected EOF");
        }
        let shown = match &found.token {
            Token::Identifier(name) if is_keyword(name) => format!("<{name}>"),
            _ if found.source.chars().count() > 10 => {
                format!("{}...", go_format::quote(&found.source.chars().take(10).collect::<String>()))
            }
            _ => go_format::quote(&found.source),
        };
        self.error(format!("unexpected {shown} in {context}"))
    }

    fn expect(&mut self, token: Token, context: &str) -> Result<(), String> {
        let found = self.next_non_space();
        if found.token == token { Ok(()) } else { self.unexpected(&found, context) }
    }

    /// Nodes up to `{{end}}`, `{{else` or the end of the text. What follows `else` is left to the caller.
    fn list(&mut self) -> Result<(Vec<Node>, Ending), String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.error("max expression depth exceeded");
        }
        let mut nodes = Vec::new();
        let ending = loop {
            let located = self.next();
            match located.token {
                Token::End => break Ending::File,
                Token::Text(text) => nodes.push(Node::Text(text)),
                Token::LeftDelimiter => {
                    self.skip_space();
                    match self.peek().token.clone() {
                        Token::Identifier(name) if name == "end" => {
                            self.at += 1;
                            self.expect(Token::RightDelimiter, "end")?;
                            break Ending::End;
                        }
                        Token::Identifier(name) if name == "else" => {
                            self.at += 1;
                            break Ending::Else;
                        }
                        Token::Identifier(name) if is_keyword(&name) => {
                            self.at += 1;
                            nodes.extend(self.keyword(&name)?);
                        }
                        _ => nodes.push(Node::Action(self.pipe("command", Token::RightDelimiter)?)),
                    }
                }
                _ => return self.unexpected(&located, "input"),
            }
        };
        self.depth -= 1;
        Ok((nodes, ending))
    }

    fn keyword(&mut self, name: &str) -> Result<Option<Node>, String> {
        Ok(Some(match name {
            "if" | "with" | "range" => self.control(name)?,
            "break" | "continue" => {
                if self.range_depth == 0 {
                    return self.error(format!("{{{{{name}}}}} outside {{{{range}}}}"));
                }
                self.expect(Token::RightDelimiter, &format!("{{{{{name}}}}}"))?;
                if name == "break" { Node::Break } else { Node::Continue }
            }
            "template" => {
                self.skip_space();
                let position = self.peek().position;
                let template = self.template_name("template clause")?;
                self.skip_space();
                let pipe = if self.peek().token == Token::RightDelimiter {
                    self.at += 1;
                    None
                } else {
                    Some(self.pipe("template clause", Token::RightDelimiter)?)
                };
                Node::Template { position, name: template, pipe }
            }
            "block" => {
                self.skip_space();
                let position = self.peek().position;
                let template = self.template_name("block clause")?;
                let pipe = self.pipe("block clause", Token::RightDelimiter)?;
                self.definition(&template, "block clause")?;
                Node::Template { position, name: template, pipe: Some(pipe) }
            }
            _ => {
                let template = self.template_name("define clause")?;
                self.expect(Token::RightDelimiter, "define clause")?;
                self.definition(&template, "define clause")?;
                return Ok(None);
            }
        }))
    }

    fn template_name(&mut self, context: &str) -> Result<String, String> {
        let found = self.next_non_space();
        match found.token {
            Token::Quoted(_, name) => Ok(name),
            _ => self.unexpected(&found, context),
        }
    }

    /// A tree of its own: it sees `$` and no other variable of the tree around it.
    fn definition(&mut self, name: &str, context: &str) -> Result<(), String> {
        let outer = std::mem::replace(&mut self.variables, vec!["$".to_string()]);
        let range_depth = std::mem::take(&mut self.range_depth);
        let (list, ending) = self.list()?;
        if ending == Ending::File {
            return self.error("unexpected EOF");
        }
        if ending == Ending::Else {
            return self.error(format!("unexpected {{{{else}}}} in {context}"));
        }
        (self.variables, self.range_depth) = (outer, range_depth);
        self.templates.insert(name.to_string(), list);
        Ok(())
    }

    fn control(&mut self, keyword: &str) -> Result<Node, String> {
        let variables = self.variables.len();
        let pipe = self.pipe(keyword, Token::RightDelimiter)?;
        self.range_depth += usize::from(keyword == "range");
        let (list, ending) = self.list()?;
        self.range_depth -= usize::from(keyword == "range");
        let otherwise = match ending {
            Ending::File => return self.error("unexpected EOF"),
            Ending::End => Vec::new(),
            Ending::Else => self.otherwise(keyword)?,
        };
        self.variables.truncate(variables);
        Ok(match keyword {
            "if" => Node::If { pipe, list, otherwise },
            "with" => Node::With { pipe, list, otherwise },
            _ => Node::Range { pipe, list, otherwise },
        })
    }

    /// After `{{else`: another condition of the same keyword, or a list.
    fn otherwise(&mut self, keyword: &str) -> Result<Vec<Node>, String> {
        self.skip_space();
        if keyword != "range" && self.peek().token == Token::Identifier(keyword.to_string()) {
            self.at += 1;
            return Ok(vec![self.control(keyword)?]);
        }
        self.expect(Token::RightDelimiter, "else")?;
        let (list, ending) = self.list()?;
        match ending {
            Ending::End => Ok(list),
            Ending::File => self.error("unexpected EOF"),
            Ending::Else => self.error("expected end; found {{else}}"),
        }
    }

    fn pipe(&mut self, context: &str, end: Token) -> Result<Pipe, String> {
        self.skip_space();
        let position = self.peek().position;
        let (variables, is_assignment) = self.declarations(context)?;
        let mut commands: Vec<Command> = Vec::new();
        loop {
            self.skip_space();
            if self.peek().token == end {
                self.at += 1;
                break;
            }
            commands.push(self.command()?);
        }
        if commands.is_empty() {
            return self.error(format!("missing value for {context}"));
        }
        for (i, command) in commands.iter().enumerate().skip(1) {
            if let ArgumentKind::Constant { .. } | ArgumentKind::Dot | ArgumentKind::Nil = command.arguments[0].kind {
                return self.error(format!("non executable command in pipeline stage {}", i + 1));
            }
        }
        if !is_assignment {
            self.variables.extend(variables.iter().cloned());
        }
        Ok(Pipe { position, variables, is_assignment, commands })
    }

    /// `$x :=`, `$x =`, and in a range `$i, $x :=`.
    fn declarations(&mut self, context: &str) -> Result<(Vec<String>, bool), String> {
        let start = self.at;
        let mut names = Vec::new();
        while let Token::Variable(name) = self.peek().token.clone() {
            self.at += 1;
            self.skip_space();
            names.push(name);
            match self.peek().token {
                Token::Declare | Token::Assign => {
                    let is_assignment = self.next().token == Token::Assign;
                    if names.len() > 1 && (context != "range" || names.len() > 2) {
                        return self.error(format!("too many declarations in {context}"));
                    }
                    let unknown = names.iter().find(|name| !self.variables.contains(name));
                    if let (true, Some(name)) = (is_assignment, unknown) {
                        return self.error(format!("undefined variable {}", go_format::quote(name)));
                    }
                    return Ok((names, is_assignment));
                }
                Token::Comma => {
                    self.at += 1;
                    self.skip_space();
                }
                _ => break,
            }
        }
        self.at = start;
        Ok((Vec::new(), false))
    }

    fn command(&mut self) -> Result<Command, String> {
        self.skip_space();
        let position = self.peek().position;
        let mut arguments = Vec::new();
        loop {
            self.skip_space();
            if let Some(argument) = self.operand()? {
                arguments.push(argument);
            }
            let located = self.next();
            match located.token {
                Token::Space => continue,
                Token::RightDelimiter | Token::RightParenthesis => self.at -= 1,
                Token::Pipe => {
                    self.skip_space();
                    if let Token::RightDelimiter | Token::RightParenthesis = self.peek().token {
                        return self.error("missing value for command");
                    }
                }
                _ => return self.unexpected(&located, "operand"),
            }
            break;
        }
        if arguments.is_empty() {
            return self.error("empty command");
        }
        Ok(Command { position, arguments })
    }

    fn operand(&mut self) -> Result<Option<Argument>, String> {
        let Some(argument) = self.term()? else { return Ok(None) };
        // Go counts the column of a chain from its second part.
        let position = self.peek().position;
        let mut fields = Vec::new();
        while let Token::Field(name) = self.peek().token.clone() {
            self.at += 1;
            fields.push(name);
        }
        if fields.is_empty() {
            return Ok(Some(argument));
        }
        let own_position = argument.position;
        let kind = match argument.kind {
            ArgumentKind::Field(mut own) => {
                own.extend(fields);
                ArgumentKind::Field(own)
            }
            ArgumentKind::Variable(name, _) => ArgumentKind::Variable(name, fields),
            ArgumentKind::Constant { source, .. } => {
                return self.error(format!("unexpected . after term {}", go_format::quote(&source)));
            }
            ArgumentKind::Nil => return self.error("unexpected . after term \"nil\""),
            ArgumentKind::Dot => return self.error("unexpected . after term \".\""),
            kind => ArgumentKind::Chain(Box::new(Argument { position: own_position, kind }), fields),
        };
        Ok(Some(Argument { position, kind }))
    }

    fn term(&mut self) -> Result<Option<Argument>, String> {
        let located = self.next();
        let constant = |value: Value, source: String| ArgumentKind::Constant { value, source };
        let kind = match located.token {
            Token::Identifier(name) => match name.as_str() {
                "nil" => ArgumentKind::Nil,
                "true" | "false" => constant(Value::Bool(name == "true"), name),
                _ if is_keyword(&name) => {
                    self.at -= 1;
                    return Ok(None);
                }
                _ if functions::exists(&name) => ArgumentKind::Function(name),
                _ => return self.error(format!("function {} not defined", go_format::quote(&name))),
            },
            Token::Dot => ArgumentKind::Dot,
            Token::Variable(name) => {
                if !self.variables.contains(&name) {
                    return self.error(format!("undefined variable {}", go_format::quote(&name)));
                }
                ArgumentKind::Variable(name, Vec::new())
            }
            Token::Field(name) => ArgumentKind::Field(vec![name]),
            Token::Number(source) => constant(lexer::number_value(&source).unwrap_or(Value::Null), source),
            Token::Character(source, c) => constant(Value::from(c as u32), source),
            Token::Quoted(source, text) => constant(Value::String(text), source),
            Token::LeftParenthesis => {
                self.depth += 1;
                if self.depth > DEPTH_MAX {
                    return self.error("max expression depth exceeded");
                }
                let pipe = self.pipe("parenthesized pipeline", Token::RightParenthesis)?;
                self.depth -= 1;
                ArgumentKind::Pipe(pipe)
            }
            _ => {
                self.at -= 1;
                return Ok(None);
            }
        };
        Ok(Some(Argument { position: located.position, kind }))
    }
}

fn is_keyword(name: &str) -> bool {
    matches!(name, "if" | "else" | "end" | "with" | "range" | "template" | "block" | "define" | "break" | "continue")
}
