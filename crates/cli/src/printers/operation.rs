//! `deployment.apps/web created`: what was done to an object, or the object itself under `-o`.
//! Used by the verbs that change something.
//! Says `(dry run)` where nothing was changed.

use serde_json::Value;

use super::format::{Format, Printer};
use crate::{
    failure::{Failure, Result},
    flags::{Flag, Matches, string},
    resource::Info,
    session::Session,
};

pub const DRY_RUN: &[Flag] =
    &[string("dry-run", "none", "none, server or client: whether and where the change is only tried")
        .bare("unchanged")];
/// The flag `-o` of a verb that prints no table.
pub const ALLOWED: &str =
    "go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,yaml";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    None,
    Client,
    Server,
}

impl DryRun {
    pub fn of(session: &Session, matches: &Matches) -> Result<Self> {
        match matches.str("dry-run") {
            "none" => Ok(Self::None),
            "client" => Ok(Self::Client),
            "server" => Ok(Self::Server),
            "unchanged" => {
                let text = "--dry-run is deprecated and can be replaced with --dry-run=client.";
                crate::rest::log::warning(&session.env, &session.output, "helpers.go:719", text);
                Ok(Self::Client)
            }
            other => match other.parse::<bool>() {
                Ok(true) => Ok(Self::Client),
                Ok(false) => Ok(Self::None),
                Err(_) => Err(Failure::message(format!(
                    "Invalid dry-run value ({other}). Must be \"none\", \"server\", or \"client\"."
                ))),
            },
        }
    }

    pub fn query(self) -> &'static str {
        match self {
            Self::Server => "All",
            _ => "",
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }
}

/// Prints the outcome of a change.
pub struct Operation {
    printer: Option<Printer>,
    pub dry_run: DryRun,
    /// Said instead of the verb's own word.
    word: Option<&'static str>,
    /// Says nothing of a dry run, as some verbs of kubectl do not.
    no_suffix: bool,
}

impl Operation {
    pub fn of(session: &Session, matches: &Matches) -> Result<Self> {
        let dry_run = match matches.has("dry-run") {
            true => DryRun::of(session, matches)?,
            false => DryRun::None,
        };
        Ok(Self { printer: Printer::of(matches, ALLOWED)?, dry_run, word: None, no_suffix: false })
    }

    /// Of a verb whose objects are typed in kubectl.
    pub fn typed(mut self) -> Self {
        if let Some(printer) = &mut self.printer {
            printer.typed = true;
        }
        self
    }

    pub fn without_suffix(mut self) -> Self {
        self.no_suffix = true;
        self
    }

    pub fn saying(mut self, word: &'static str) -> Self {
        self.word = Some(word);
        self
    }

    /// Whether objects themselves are printed, not what was done to them.
    pub fn prints_objects(&self) -> bool {
        self.printer.as_ref().is_some_and(|p| !matches!(p.format, Format::Name))
    }

    pub fn print(&mut self, session: &Session, info: &Info, object: &Value, done: &str) -> Result<()> {
        let done = self.word.unwrap_or(done);
        match &mut self.printer {
            None => {
                let name = match object["metadata"]["name"].as_str() {
                    Some(name) if !name.is_empty() => name,
                    _ => &info.name,
                };
                let suffix = if self.no_suffix { "" } else { self.dry_run.suffix() };
                let line = format!("{}/{name} {done}{suffix}", info.resource.qualified_kind());
                session.output.line(&line);
            }
            Some(printer) => {
                let text = printer.text(object)?;
                session.output.print(&text);
            }
        }
        Ok(())
    }
}
