//! The syntax tree of a Go template.
//! Made by `parser`, walked by `execute`.
//! Each node that can fail knows its byte in the template and prints as its source.

use std::fmt::{self, Display, Formatter};

use serde_json::Value;

#[derive(Debug, Clone)]
pub enum Node {
    Text(String),
    Action(Pipe),
    If { pipe: Pipe, list: Vec<Node>, otherwise: Vec<Node> },
    With { pipe: Pipe, list: Vec<Node>, otherwise: Vec<Node> },
    Range { pipe: Pipe, list: Vec<Node>, otherwise: Vec<Node> },
    Template { position: usize, name: String, pipe: Option<Pipe> },
    Break,
    Continue,
}

#[derive(Debug, Clone)]
pub struct Pipe {
    pub position: usize,
    pub variables: Vec<String>,
    pub is_assignment: bool,
    pub commands: Vec<Command>,
}

#[derive(Debug, Clone)]
pub struct Command {
    pub position: usize,
    pub arguments: Vec<Argument>,
}

#[derive(Debug, Clone)]
pub struct Argument {
    pub position: usize,
    pub kind: ArgumentKind,
}

#[derive(Debug, Clone)]
pub enum ArgumentKind {
    Dot,
    Nil,
    Constant { value: Value, source: String },
    Field(Vec<String>),
    Variable(String, Vec<String>),
    Function(String),
    Pipe(Pipe),
    Chain(Box<Argument>, Vec<String>),
}

impl Display for Pipe {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.variables.is_empty() {
            write!(f, "{} {} ", self.variables.join(", "), if self.is_assignment { "=" } else { ":=" })?;
        }
        for (i, command) in self.commands.iter().enumerate() {
            write!(f, "{}{command}", if i > 0 { " | " } else { "" })?;
        }
        Ok(())
    }
}

impl Display for Command {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, argument) in self.arguments.iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            match &argument.kind {
                ArgumentKind::Pipe(pipe) => write!(f, "{space}({pipe})")?,
                _ => write!(f, "{space}{argument}")?,
            }
        }
        Ok(())
    }
}

impl Display for Argument {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let dotted = |fields: &[String]| fields.iter().map(|field| format!(".{field}")).collect::<String>();
        match &self.kind {
            ArgumentKind::Dot => write!(f, "."),
            ArgumentKind::Nil => write!(f, "nil"),
            ArgumentKind::Constant { source, .. } => write!(f, "{source}"),
            ArgumentKind::Field(fields) => write!(f, "{}", dotted(fields)),
            ArgumentKind::Variable(name, fields) => write!(f, "{name}{}", dotted(fields)),
            ArgumentKind::Function(name) => write!(f, "{name}"),
            ArgumentKind::Pipe(pipe) => write!(f, "{pipe}"),
            ArgumentKind::Chain(inner, fields) => match &inner.kind {
                ArgumentKind::Pipe(pipe) => write!(f, "({pipe}){}", dotted(fields)),
                _ => write!(f, "{inner}{}", dotted(fields)),
            },
        }
    }
}
