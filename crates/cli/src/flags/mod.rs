//! Flags as kubectl's users write them: `--name=value`, `--name value`, `-n value`, `-nvalue`, `-it`, anywhere in the line.
//! Tables of `Flag` are made by `verbs` and `globals`; `parse` reads a command line along them.
//! Knows no command: what a value means is for the verb to say, except that numbers, truths and durations are checked.

pub mod globals;
mod parse;

pub use parse::Matches;
pub(crate) use parse::{Scanner, Word};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bool,
    String,
    /// Repeated, and split at commas.
    List,
    /// Repeated, never split.
    Array,
    Int,
    Duration,
}

#[derive(Debug, Clone, Copy)]
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    pub kind: Kind,
    pub default: &'static str,
    /// What `--name` alone says.
    pub bare: Option<&'static str>,
    pub help: &'static str,
    pub hidden: bool,
    /// Said on standard error when it is given.
    pub deprecated: Option<&'static str>,
}

const fn flag(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Flag {
    Flag { name, short: None, kind, default, bare: None, help, hidden: false, deprecated: None }
}

pub const fn boolean(name: &'static str, default: &'static str, help: &'static str) -> Flag {
    let mut made = flag(name, Kind::Bool, default, help);
    made.bare = Some("true");
    made
}

pub const fn string(name: &'static str, default: &'static str, help: &'static str) -> Flag {
    flag(name, Kind::String, default, help)
}

pub const fn list(name: &'static str, help: &'static str) -> Flag {
    flag(name, Kind::List, "", help)
}

/// A list with something in it when nobody says.
pub const fn list_of(name: &'static str, default: &'static str, help: &'static str) -> Flag {
    flag(name, Kind::List, default, help)
}

pub const fn array(name: &'static str, help: &'static str) -> Flag {
    flag(name, Kind::Array, "", help)
}

pub const fn int(name: &'static str, default: &'static str, help: &'static str) -> Flag {
    flag(name, Kind::Int, default, help)
}

pub const fn duration(name: &'static str, default: &'static str, help: &'static str) -> Flag {
    flag(name, Kind::Duration, default, help)
}

impl Flag {
    pub const fn short(mut self, letter: char) -> Self {
        self.short = Some(letter);
        self
    }

    pub const fn bare(mut self, value: &'static str) -> Self {
        self.bare = Some(value);
        self
    }

    pub const fn deprecated(mut self, text: &'static str) -> Self {
        self.deprecated = Some(text);
        self
    }

    pub const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }
}

/// Tables that several verbs share are joined by reference.
pub type FlagTables = &'static [&'static [Flag]];
