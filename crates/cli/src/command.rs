//! What a command is: its names, flags and function; and how a command line finds one.
//! The table is `verbs::ROOT`; run by `lib`.
//! Nothing is asked of a server here.

use api::names::distance;
use futures::future::LocalBoxFuture;

use crate::{
    failure::{Failure, Result},
    flags::{Flag, FlagTables, Kind, Matches, Scanner, Word, globals::GLOBAL},
    session::Session,
    translation::Translation,
};

pub type Run = for<'a> fn(&'a Session, &'a Matches) -> LocalBoxFuture<'a, Result<()>>;

pub struct Command {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    /// What stands behind the name in the usage line.
    pub usage: &'static str,
    pub about: &'static str,
    pub flags: FlagTables,
    pub commands: &'static [&'static Command],
    pub run: Option<Run>,
}

/// The function of a verb as a row of the table.
#[macro_export]
macro_rules! run {
    ($function:path) => {
        Some(|session, matches| Box::pin($function(session, matches)))
    };
}

/// A command without further ones, in one row.
#[macro_export]
macro_rules! subcommand {
    ($constant:ident, $name:literal, $aliases:expr, $usage:literal, $about:literal, $flags:expr, $function:ident) => {
        pub static $constant: $crate::command::Command = $crate::command::Command {
            name: $name,
            aliases: $aliases,
            usage: $usage,
            about: $about,
            flags: $flags,
            commands: &[],
            run: $crate::run!($function),
        };
    };
}

/// Whatever stands behind them that they do not know.
const GROUPS_THAT_ONLY_HELP: [&str; 2] = ["alpha", "certificate"];

const GLOBALS: FlagTables = &[GLOBAL];

pub enum Invocation {
    Help(String),
    /// A group of commands without one of them: its help, and exit code 1.
    Incomplete {
        text: String,
        to_stdout: bool,
    },
    Run(&'static Command, Box<Matches>),
}

impl Command {
    fn find(&self, name: &str) -> Option<&'static Command> {
        self.commands.iter().copied().find(|c| c.name == name || c.aliases.contains(&name))
    }
}

impl Invocation {
    pub fn parse(root: &'static Command, words: &[String]) -> std::result::Result<Self, (Failure, String)> {
        let mut command = root;
        let mut path = root.name.to_string();
        let mut matches = Matches::default();
        matches.declare(GLOBALS);
        matches.declare(root.flags);
        let mut scanner = Scanner::new(words);
        let mut help = words.is_empty();
        let mut tables: Vec<FlagTables> = vec![GLOBALS, root.flags];
        loop {
            let word = match scanner.next(&tables) {
                Ok(Some(word)) => word,
                Ok(None) => break,
                Err(failure) => return Err((failure, path)),
            };
            match word {
                Word::Flag(flag, value) => matches.set(flag, &value),
                Word::Help => help = true,
                Word::Dash => {
                    matches.args_before_dash = Some(matches.args.len());
                    matches.args.extend(scanner.rest().iter().cloned());
                    break;
                }
                Word::Argument("help") if std::ptr::eq(command, root) => help = true,
                Word::Argument(argument) => match command.find(argument) {
                    Some(found) if matches.args.is_empty() => {
                        command = found;
                        path = format!("{path} {}", found.name);
                        matches.declare(found.flags);
                        // Flags of the command above are its own: `create --edit`, but not `create configmap --edit`.
                        tables.truncate(2);
                        tables.push(found.flags);
                    }
                    _ if help => {}
                    _ if GROUPS_THAT_ONLY_HELP.contains(&command.name) => help = true,
                    _ if !command.commands.is_empty() && command.run.is_none() => {
                        return Err((unknown_command(command, &path, argument), path));
                    }
                    _ => matches.args.push(argument.to_string()),
                },
            }
        }
        if help
            || (command.run.is_none() && (std::ptr::eq(command, root) || GROUPS_THAT_ONLY_HELP.contains(&command.name)))
        {
            return Ok(Self::Help(help_text(command, &path, Translation::of_environment())));
        }
        if command.run.is_none() {
            let text = help_text(command, &path, Translation::of_environment());
            return Ok(Self::Incomplete { text, to_stdout: command.name == "rollout" });
        }
        matches.command = path;
        let own = command.flags.iter().copied().flatten().map(|f| f.name);
        matches.shadowed = own.filter(|name| GLOBAL.iter().any(|g| g.name == *name)).collect();
        Ok(Self::Run(command, Box::new(matches)))
    }
}

/// The command that words name, with flags among them; the root, if they name none. `None` if no command has the name.
pub fn finds(root: &'static Command, words: &[String]) -> Option<&'static Command> {
    let mut command = root;
    let mut tables: Vec<FlagTables> = vec![GLOBALS, root.flags];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        let named = |f: &&'static Flag| match word.strip_prefix("--") {
            Some(long) => f.name == long,
            None => word.len() == 2 && f.short == word.chars().nth(1),
        };
        if word.starts_with('-') {
            let flag = tables.iter().flat_map(|t| t.iter()).copied().flatten().find(named);
            if flag.is_some_and(|f| f.bare.is_none()) {
                words.next();
            }
            continue;
        }
        match command.find(word) {
            Some(found) => {
                command = found;
                tables.push(found.flags);
            }
            None if std::ptr::eq(command, root)
                && !["help", "__complete", "__completeNoDesc"].contains(&word.as_str()) =>
            {
                return None;
            }
            None => break,
        }
    }
    Some(command)
}

/// What may stand where somebody is typing.
pub enum Completion {
    /// Names of commands or flags.
    Words(Vec<String>),
    /// The value of a flag.
    Values(&'static str),
    /// An argument of a command, behind others.
    Arguments(&'static str, Vec<String>),
}

/// The global flags among words that may not make a whole command line yet.
pub fn globals_of(words: &[String]) -> Matches {
    let mut matches = Matches::default();
    matches.declare(GLOBALS);
    let mut scanner = Scanner::new(words);
    loop {
        match scanner.next(&[GLOBALS]) {
            Ok(Some(Word::Flag(flag, value))) => matches.set(flag, &value),
            Ok(None) | Ok(Some(Word::Dash)) => return matches,
            // What is no global flag is another's business.
            Ok(Some(_)) | Err(_) => {}
        }
    }
}

/// What may follow; the last of `words` is being typed.
pub fn complete(root: &'static Command, words: &[String]) -> Completion {
    let (last, before) = words.split_last().map_or(("", &[] as &[String]), |(l, b)| (l.as_str(), b));
    let mut command = root;
    let mut tables: Vec<FlagTables> = vec![GLOBALS, root.flags];
    let mut given = Vec::new();
    let mut waiting: Option<&'static Flag> = None;
    for word in before {
        if waiting.take().is_some() {
            continue;
        }
        let named = |f: &&'static Flag| match word.strip_prefix("--") {
            Some(long) => f.name == long,
            None => word.len() == 2 && word.starts_with('-') && f.short == word.chars().nth(1),
        };
        if word.starts_with('-') {
            waiting = tables.iter().flat_map(|t| t.iter()).copied().flatten().find(named).filter(|f| f.bare.is_none());
            continue;
        }
        match command.find(word) {
            Some(found) if given.is_empty() => {
                command = found;
                tables.push(found.flags);
            }
            _ => given.push(word.clone()),
        }
    }
    if let Some(flag) = waiting {
        return Completion::Values(flag.name);
    }
    if last.starts_with('-') {
        let all = tables.iter().flat_map(|t| t.iter()).copied().flatten().filter(|f| !f.hidden);
        return Completion::Words(all.map(|f| format!("--{}", f.name)).collect());
    }
    if !command.commands.is_empty() && given.is_empty() && command.run.is_none() {
        return Completion::Words(command.commands.iter().map(|c| c.name.to_string()).collect());
    }
    Completion::Arguments(command.name, given)
}

/// Words of other programs, and what they are called here.
const MEANT: [(&str, &str); 5] = [("list", "get"), ("ps", "get"), ("list", "wait"), ("ps", "wait"), ("rm", "delete")];

fn unknown_command(command: &Command, path: &str, argument: &str) -> Failure {
    // Groups refuse it in words of their own; the root alone is a parser's business.
    if path.contains(' ') {
        return Failure::usage(format!("unknown command {argument:?}"));
    }
    let mut text = format!("error: unknown command {argument:?} for {path:?}");
    let near: Vec<&str> = command
        .commands
        .iter()
        .map(|c| c.name)
        .filter(|name| {
            let typed = argument.to_lowercase();
            distance(name, argument) <= 2
                || name.starts_with(&typed)
                || MEANT.iter().any(|(word, own)| *word == typed && own == name)
        })
        .collect();
    if !near.is_empty() {
        text.push_str("\n\nDid you mean this?\n");
        near.iter().for_each(|name| text.push_str(&format!("\t{name}\n")));
    }
    Failure::Plain(text)
}

fn flag_lines(flags: FlagTables) -> String {
    let mut all: Vec<&Flag> = flags.iter().copied().flatten().filter(|f| !f.hidden).collect();
    all.sort_by_key(|f| f.name);
    let mut text = String::new();
    for flag in all {
        let short = flag.short.map_or_else(|| "    ".to_string(), |c| format!("-{c}, "));
        let default = match flag.kind {
            Kind::String => format!("='{}'", flag.default),
            Kind::List | Kind::Array => format!("=[{}]", flag.default),
            _ => format!("={}", flag.default),
        };
        text.push_str(&format!("    {short}--{}{default}:\n        {}.\n\n", flag.name, flag.help));
    }
    text
}

/// What `--help` prints.
pub fn help_text(command: &Command, path: &str, words: Translation) -> String {
    let mut text = format!("{}\n\n", words.sentence(command.about));
    if !command.commands.is_empty() {
        text.push_str("Available Commands:\n");
        let width = command.commands.iter().map(|c| c.name.len()).max().unwrap_or(0);
        for child in command.commands.iter().filter(|c| !c.about.is_empty()) {
            text.push_str(&format!("  {:width$} {}\n", child.name, words.text(child.about)));
        }
        text.push('\n');
    }
    let flags = flag_lines(command.flags);
    if !flags.is_empty() {
        text.push_str(&format!("Options:\n{flags}"));
    }
    text.push_str(&format!("Usage:\n  {path} {}\n\n", command.usage));
    if !command.commands.is_empty() {
        text.push_str(&format!("Use \"{path} <command> --help\" for more information about a given command.\n"));
    }
    text.push_str("Use \"kubectl options\" for a list of global command-line options (applies to all commands).\n");
    text
}

/// What `kubectl options` prints.
pub fn global_flags_text() -> String {
    format!("The following options can be passed to any command:\n\n{}", flag_lines(GLOBALS).trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_commands_behind_global_flags() {
        let check = |line: &str, wanted: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
            let found = match Invocation::parse(&crate::verbs::ROOT, &words) {
                Ok(Invocation::Run(_, matches)) => format!("{} {:?}", matches.command, matches.args),
                Ok(Invocation::Help(_) | Invocation::Incomplete { .. }) => "help".to_string(),
                Err((failure, path)) => failure.report(&path).0,
            };
            assert_eq!(found, wanted, "{line}");
        };
        check("version", "kubectl version []");
        check("-n kube-system version", "kubectl version []");
        check("--namespace kube-system version --client", "kubectl version []");
        check("", "help");
        check("version --help", "help");
        check("versoin", "error: unknown command \"versoin\" for \"kubectl\"\n\nDid you mean this?\n\tversion\n");
        check("list", "error: unknown command \"list\" for \"kubectl\"\n\nDid you mean this?\n\tget\n\twait\n");
        check("version --nope", "error: unknown flag: --nope\nSee 'kubectl version --help' for usage.");
    }
}
