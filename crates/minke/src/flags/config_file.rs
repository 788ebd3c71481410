//! `config.yaml`: flags of every command in a file, for those that are not typed.
//! Laid into the command line by `main` before it is parsed; `minke config` prints and checks such files.
//! Invariant: what is typed or in the environment wins over the file (test: `the_file_fills_in_what_is_not_typed`).

use std::{
    ffi::OsString,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use api::names::distance;
use clap::{Arg, ArgAction, Command, CommandFactory};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

pub const DEFAULT_FILE: &str = "/etc/minke/config.yaml";
/// Names another file; empty means none. Agents that `up` starts have all of their flags from it.
pub const ENVIRONMENT: &str = "MINKE_CONFIG";
const FLAG: &str = "config";
/// A file of a megabyte is no configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// One `key: value`, with the line of its key.
#[derive(Debug)]
struct Entry {
    key: String,
    line: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Nothing,
    Flag(bool),
    Text(String),
    List(Vec<String>),
    Section(Vec<Entry>),
}

/// Every command and flag, with the global ones where they count.
pub fn command() -> Command {
    let mut command = crate::flags::Flags::command();
    command.build();
    command
}

/// The arguments with what the file says for flags that were not typed. `command` is built, so that it has its globals.
pub fn expand(command: &Command, arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let typed = Typed::read(command, &arguments);
    let Some((path, is_wanted)) = file(&typed) else { return Ok(typed.without_config) };
    let entries = match read(&path) {
        Ok(entries) => entries,
        Err(error) if !is_wanted && is_absent(&error) => return Ok(typed.without_config),
        Err(error) => return Err(error),
    };
    check(command, &entries).with_context(|| format!("{} can't be used", path.display()))?;
    Ok(typed.with(command, &entries))
}

/// Whether a file can be used; every mistake in it is told.
pub fn check_file(command: &Command, path: &Path) -> Result<usize> {
    let entries = read(path)?;
    check(command, &entries).with_context(|| format!("{} can't be used", path.display()))?;
    let count = |entry: &Entry| if let Content::Section(inner) = &entry.content { inner.len() } else { 1 };
    Ok(entries.iter().map(count).sum())
}

/// What somebody may have meant by a word that is not known.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Short words are near to everything.
    let limit = word.len().div_ceil(3).clamp(1, 3);
    let near = known.map(|candidate| (distance(candidate, word), candidate)).filter(|(far, _)| *far <= limit);
    near.min().map(|(_, candidate)| candidate)
}

/// Which file, and whether somebody asked for it.
fn file(typed: &Typed) -> Option<(PathBuf, bool)> {
    match (&typed.config, std::env::var_os(ENVIRONMENT)) {
        (Some(path), _) => Some((path.clone(), true)),
        (None, Some(path)) if path.is_empty() => None,
        (None, Some(path)) => Some((path.into(), true)),
        (None, None) => Some((DEFAULT_FILE.into(), false)),
    }
}

fn is_absent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| {
        // One that is root's alone is not for the commands that everybody may use.
        matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied)
    })
}

fn read(path: &Path) -> Result<Vec<Entry>> {
    let failed =
        || format!("can't read the configuration file {}: mend it, or name another with --config", path.display());
    let text = std::fs::metadata(path)
        .and_then(|found| match found.len() <= FILE_BYTES_MAX {
            true => std::fs::read_to_string(path),
            false => Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "it is larger than 1 MiB")),
        })
        .with_context(failed)?;
    parse(&text).map_err(|error| anyhow::anyhow!("{error}")).with_context(failed)
}

fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let is_empty = text.lines().all(|line| line.trim_start().is_empty() || line.trim_start().starts_with('#'));
    if is_empty {
        return Ok(Vec::new());
    }
    let options = serde_saphyr::options! { with_snippet: false };
    match serde_saphyr::from_str_with_options::<Content>(text, options) {
        Ok(Content::Section(entries)) => Ok(entries),
        Ok(Content::Nothing) => Ok(Vec::new()),
        Ok(_) => Err("it is not a mapping of commands to their flags".into()),
        Err(error) => Err(error.to_string()),
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a value of a flag, a list of values, or flags of a command")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Nothing)
    }

    fn visit_none<E>(self) -> Result<Content, E> {
        Ok(Content::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Flag(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Text(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Text(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Content, E> {
        Ok(Content::Text(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Text(value.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element::<Content>()? {
            match value {
                Content::Flag(flag) => values.push(flag.to_string()),
                Content::Text(text) => values.push(text),
                _ => return Err(serde::de::Error::custom("a list of a flag holds plain values only")),
            }
        }
        Ok(Content::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, content)) = map.next_entry::<Spanned<String>, Content>()? {
            entries.push(Entry { line: key.referenced.line(), key: key.value, content });
        }
        Ok(Content::Section(entries))
    }
}

/// What somebody typed, as far as the file cares.
struct Typed {
    without_config: Vec<OsString>,
    config: Option<PathBuf>,
    /// The commands, as `["image", "ls"]`, and the place behind the last of them.
    path: Vec<String>,
    behind: usize,
    given: Vec<String>,
    /// What follows belongs to kubectl.
    is_kubectl: bool,
}

impl Typed {
    fn read(root: &Command, arguments: &[OsString]) -> Self {
        let mut typed = Self {
            without_config: arguments.first().cloned().into_iter().collect(),
            config: None,
            path: Vec::new(),
            behind: 1,
            given: Vec::new(),
            is_kubectl: false,
        };
        let mut command = root;
        let mut rest = arguments.iter().skip(1);
        while let Some(word) = rest.next() {
            let text = word.to_string_lossy();
            if text == "--" || typed.is_kubectl {
                typed.without_config.push(word.clone());
                typed.without_config.extend(rest.by_ref().cloned());
                break;
            }
            if let Some(flag) = text.strip_prefix("--") {
                let (name, value) = flag.split_once('=').map_or((flag, None), |(n, v)| (n, Some(v)));
                // Some components have a flag of that name, and a file of upstream's behind it.
                if name == FLAG && (typed.path.is_empty() || long(command, FLAG).is_none()) {
                    typed.config = value.map(PathBuf::from).or_else(|| rest.next().map(PathBuf::from));
                    continue;
                }
                typed.without_config.push(word.clone());
                let Some(argument) = long(command, name) else { continue };
                typed.given.push(argument.get_id().to_string());
                if value.is_none() && takes_next(argument) {
                    typed.without_config.extend(rest.next().cloned());
                }
                continue;
            }
            typed.without_config.push(word.clone());
            if let Some(short) = text.strip_prefix('-').and_then(|rest| rest.chars().next()) {
                let Some(argument) = command.get_arguments().find(|a| a.get_short() == Some(short)) else { continue };
                typed.given.push(argument.get_id().to_string());
                if text.len() == 2 && takes_next(argument) {
                    typed.without_config.extend(rest.next().cloned());
                }
            } else if let Some(next) = command.find_subcommand(&*text) {
                command = next;
                typed.path.push(next.get_name().to_string());
                typed.behind = typed.without_config.len();
                typed.is_kubectl = next.get_arguments().any(|a| a.is_trailing_var_arg_set());
            }
        }
        typed
    }

    /// Lays what the file says behind the last command.
    fn with(self, root: &Command, entries: &[Entry]) -> Vec<OsString> {
        if self.is_kubectl || self.path.is_empty() {
            return self.without_config;
        }
        let (mut command, mut section) = (root, entries);
        let mut wanted: Vec<&Entry> = flags(root, entries).collect();
        for name in &self.path {
            command = command.find_subcommand(name).unwrap_or(command);
            let found = section.iter().find(|entry| entry.key == *name);
            section = match found.map(|entry| &entry.content) {
                Some(Content::Section(inner)) => inner.as_slice(),
                _ => &[],
            };
            // The more special one wins.
            let own: Vec<&Entry> = flags(command, section).collect();
            wanted.retain(|entry| own.iter().all(|more| more.key != entry.key));
            wanted.extend(own);
        }
        let mut filled = Vec::new();
        for entry in wanted {
            let Some(argument) = long(command, &entry.key) else { continue };
            let is_in_environment = argument.get_env().is_some_and(|name| std::env::var_os(name).is_some());
            if !is_in_environment && !self.given.iter().any(|given| argument.get_id() == given.as_str()) {
                filled.extend(words(argument, &entry.key, &entry.content).into_iter().map(OsString::from));
            }
        }
        let mut all = self.without_config;
        drop(all.splice(self.behind..self.behind, filled));
        all
    }
}

/// Entries that are no sections of commands.
fn flags<'a>(command: &Command, entries: &'a [Entry]) -> impl Iterator<Item = &'a Entry> {
    entries.iter().filter(|entry| command.find_subcommand(&entry.key).is_none())
}

fn words(argument: &Arg, key: &str, content: &Content) -> Vec<String> {
    match content {
        Content::Nothing | Content::Section(_) => Vec::new(),
        Content::Flag(value) if takes_value(argument) => vec![format!("--{key}={value}")],
        Content::Flag(true) => vec![format!("--{key}")],
        Content::Flag(false) => Vec::new(),
        Content::Text(text) => vec![format!("--{key}={text}")],
        Content::List(values) if argument.get_value_delimiter().is_some() => {
            vec![format!("--{key}={}", values.join(","))]
        }
        Content::List(values) => values.iter().map(|value| format!("--{key}={value}")).collect(),
    }
}

fn long<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|argument| {
        argument.get_long() == Some(name) || argument.get_all_aliases().is_some_and(|all| all.contains(&name))
    })
}

fn takes_value(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Whether the word behind the flag is its value.
fn takes_next(argument: &Arg) -> bool {
    takes_value(argument) && !argument.is_require_equals_set()
}

/// Flags that a file may say: those that people see, and no positional ones.
fn settable(command: &Command) -> impl Iterator<Item = &Arg> {
    let own = |argument: &&Arg| !["help", "version", FLAG].contains(&argument.get_long().unwrap_or("help"));
    command.get_arguments().filter(|argument| argument.get_long().is_some() && !argument.is_hide_set()).filter(own)
}

fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    let is_kubectl = |c: &Command| c.get_arguments().any(|a| a.is_trailing_var_arg_set());
    command.get_subcommands().filter(move |c| c.get_name() != "help" && !c.is_hide_set() && !is_kubectl(c))
}

/// Every command below, for flags that stand at the top and count for whoever has them.
fn all_commands(command: &Command) -> Vec<&Command> {
    subcommands(command).flat_map(|c| std::iter::once(c).chain(all_commands(c))).collect()
}

fn check(command: &Command, entries: &[Entry]) -> Result<()> {
    let mut problems = Vec::new();
    check_section(command, command.get_name(), entries, &mut problems);
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("; ")) }
}

fn check_section(command: &Command, title: &str, entries: &[Entry], problems: &mut Vec<String>) {
    let below = all_commands(command);
    let known: Vec<&str> = std::iter::once(command)
        .chain(below.iter().copied())
        .flat_map(settable)
        .filter_map(Arg::get_long)
        .chain(subcommands(command).map(Command::get_name))
        .collect();
    for entry in entries {
        let (key, line) = (&entry.key, entry.line);
        if let Some(sub) = subcommands(command).find(|c| c.get_name() == key) {
            match &entry.content {
                Content::Section(inner) => check_section(sub, &format!("{title} {key}"), inner, problems),
                Content::Nothing => {}
                _ => problems.push(format!("line {line}: {key:?} is a command: its flags go below it, one a line")),
            }
            continue;
        }
        let argument = std::iter::once(command).chain(below.iter().copied()).find_map(|c| {
            settable(c).find(|a| {
                a.get_long() == Some(key.as_str()) || a.get_all_aliases().is_some_and(|l| l.contains(&key.as_str()))
            })
        });
        let Some(argument) = argument else {
            let meant = nearest(key, known.iter().copied()).map(|meant| format!(": did you mean {meant:?}?"));
            let meant = meant.unwrap_or_else(|| format!(": `{title} --help` lists them"));
            problems.push(format!("line {line}: `{title}` has no flag or command {key:?}{meant}"));
            continue;
        };
        problems.extend(problem(argument, entry).map(|problem| format!("line {line}: {key:?} {problem}")));
    }
}

/// What is wrong with a value, as far as it shows before the command runs.
fn problem(argument: &Arg, entry: &Entry) -> Option<String> {
    let values: Vec<String> = match &entry.content {
        Content::Section(_) => return Some("is a flag: it has a value, not further keys".into()),
        Content::Nothing => return None,
        Content::Flag(_) if !takes_value(argument) => return None,
        _ if !takes_value(argument) => return Some("is true or false".into()),
        Content::Flag(value) => vec![value.to_string()],
        Content::Text(text) => vec![text.clone()],
        Content::List(values) if argument.get_value_delimiter().is_some() => values.clone(),
        Content::List(_) if !matches!(argument.get_action(), ArgAction::Append) => {
            return Some("has one value, not a list".into());
        }
        Content::List(values) => values.clone(),
    };
    // By itself: the flag as it is names others, which it needs or excludes.
    let long = argument.get_long().unwrap_or_default().to_string();
    let mut alone = Arg::new("value").long("value").value_parser(argument.get_value_parser().clone());
    alone = alone.action(ArgAction::Append).allow_hyphen_values(true);
    if let Some(delimiter) = argument.get_value_delimiter() {
        alone = alone.value_delimiter(delimiter);
    }
    let alone = Command::new("config").arg(alone).no_binary_name(true).disable_help_flag(true);
    let typed = values.iter().map(|value| format!("--value={value}"));
    // Only what is said about this value: other flags it needs or excludes are looked at when the command runs.
    let refused = alone.try_get_matches_from(typed).err().filter(|error| {
        use clap::error::ErrorKind::{InvalidValue, ValueValidation};
        matches!(error.kind(), InvalidValue | ValueValidation)
    })?;
    let text = refused.to_string();
    let first = text.lines().next().unwrap_or_default();
    Some(format!(
        "is refused: {}",
        first.trim_start_matches("error: ").replace("'--value <value>'", &format!("--{long}"))
    ))
}

/// A file with everything that can be said, commented out.
pub fn example(command: &Command) -> String {
    let mut text = String::from(
        "# Configuration of minke: flags for those that are not typed. What is typed wins, then the environment.\n\
         # A key is a flag without its dashes, below the command it is for; at the top it counts for every command\n\
         # that has it. `minke config check` says what is wrong with this file.\n",
    );
    for argument in settable(command) {
        write_flag(&mut text, argument, 0);
    }
    for sub in subcommands(command) {
        write_section(&mut text, sub, 0);
    }
    text
}

fn write_section(text: &mut String, command: &Command, depth: usize) {
    let own: Vec<&Arg> = settable(command).filter(|argument| !argument.is_global_set()).collect();
    let below: Vec<&Command> = subcommands(command).collect();
    if own.is_empty() && below.iter().all(|c| settable(c).all(Arg::is_global_set)) {
        return;
    }
    let indent = "  ".repeat(depth);
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(text, "\n{indent}# {about}\n#{indent}{}:", command.get_name());
    for argument in own {
        write_flag(text, argument, depth + 1);
    }
    for sub in below {
        write_section(text, sub, depth + 1);
    }
}

fn write_flag(text: &mut String, argument: &Arg, depth: usize) {
    let indent = "  ".repeat(depth);
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    for line in help.lines() {
        let _ = writeln!(text, "{indent}# {}", line.trim());
    }
    let defaults: Vec<_> = argument.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
    let value = match (takes_value(argument), defaults.join(",")) {
        (false, _) => "false".to_string(),
        (true, value) if value.is_empty() => String::new(),
        (true, value) if value.chars().all(|c| c.is_ascii_alphanumeric() || "-._/".contains(c)) => value,
        (true, value) => format!("{value:?}"),
    };
    let line = format!("#{indent}{}: {value}", argument.get_long().unwrap_or_default());
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::{Command as Which, Flags};

    fn expanded(text: &str, typed: &[&str]) -> Vec<String> {
        let arguments: Vec<OsString> = std::iter::once("minke").chain(typed.iter().copied()).map(Into::into).collect();
        let (command, entries) = (command(), parse(text).unwrap());
        check(&command, &entries).unwrap();
        let all = Typed::read(&command, &arguments).with(&command, &entries);
        all.into_iter().skip(1).map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn the_file_fills_in_what_is_not_typed() {
        let text = "data-dir: /srv/a\nup:\n  nodes: 3\n  demo: true\n  foreground: false\n  pod-cidr: [10.1.0.0/16, 'fd01::/64']\n\
                    image:\n  ls:\n    data-dir: /srv/b\n";
        let check = |typed: &[&str], expected: &[&str]| assert_eq!(expanded(text, typed), expected, "{typed:?}");
        let cidr = "--pod-cidr=10.1.0.0/16,fd01::/64";
        check(&["up"], &["up", "--data-dir=/srv/a", "--nodes=3", "--demo", cidr]);
        check(&["up", "--nodes", "2"], &["up", "--data-dir=/srv/a", "--demo", cidr, "--nodes", "2"]);
        check(
            &["up", "--data-dir=x", "--pod-cidr=y", "--demo"],
            &["up", "--nodes=3", "--data-dir=x", "--pod-cidr=y", "--demo"],
        );
        check(&["down"], &["down", "--data-dir=/srv/a"]);
        check(&["image", "ls"], &["image", "ls", "--data-dir=/srv/b"]);
        check(&["-v", "4", "down"], &["-v", "4", "down", "--data-dir=/srv/a"]);
        check(&["kubectl", "get", "--config", "x"], &["kubectl", "get", "--config", "x"]);
        check(&["completion", "bash"], &["completion", "bash"]);
    }

    #[test]
    fn the_flag_is_ours_unless_the_component_has_one() {
        let check = |typed: &[&str], config: Option<&str>, rest: &[&str]| {
            let arguments: Vec<OsString> =
                std::iter::once("minke").chain(typed.iter().copied()).map(Into::into).collect();
            let read = Typed::read(&command(), &arguments);
            assert_eq!(read.config, config.map(PathBuf::from), "{typed:?}");
            let left: Vec<_> = read.without_config[1..].iter().map(|w| w.to_string_lossy().into_owned()).collect();
            assert_eq!(left, rest, "{typed:?}");
        };
        check(&["up", "--config", "c.yaml", "--demo"], Some("c.yaml"), &["up", "--demo"]);
        check(&["--config=c.yaml", "up"], Some("c.yaml"), &["up"]);
        check(&["kubelet", "--config", "k.yaml"], None, &["kubelet", "--config", "k.yaml"]);
        check(&["--config", "c", "kubelet", "--config", "k"], Some("c"), &["kubelet", "--config", "k"]);
        check(&["up", "--data-dir", "--config"], None, &["up", "--data-dir", "--config"]);
    }

    #[test]
    fn mistakes_name_their_line_and_the_nearest_key() {
        let said = |text: &str| check(&command(), &parse(text).unwrap()).unwrap_err().to_string();
        assert_eq!(
            said("\nup:\n  nodse: 3\n"),
            "line 3: `minke up` has no flag or command \"nodse\": did you mean \"nodes\"?"
        );
        assert_eq!(
            said("upp:\n  nodes: 3\nserver: 4\n"),
            "line 1: `minke` has no flag or command \"upp\": did you mean \
            \"up\"?; line 3: \"server\" is a command: its flags go below it, one a line"
        );
        assert_eq!(said("up:\n  demo: perhaps\n"), "line 2: \"demo\" is true or false");
        assert_eq!(said("up:\n  nodes: [1, 2]\n"), "line 2: \"nodes\" has one value, not a list");
        assert_eq!(
            said("up:\n  node-name: {a: b}\n"),
            "line 2: \"node-name\" is a flag: it has a value, not further keys"
        );
        let refused = said("up:\n\n  nodes: 300\n");
        assert!(refused.starts_with("line 3: \"nodes\" is refused: invalid value '300'"), "{refused}");
        assert!(said("agent:\n  token: abc\n").contains("has no flag or command \"token\""));
        let broken = parse("up: [\n").unwrap_err();
        assert!(broken.contains("line"), "{broken}");
    }

    #[test]
    fn the_example_says_nothing_until_a_line_is_uncommented() {
        let text = example(&command());
        assert!(parse(&text).unwrap().is_empty());
        for line in
            ["#up:", "#  data-dir: /var/lib/minke", "#  nodes: 1", "#  demo: false", "#  registry: false", "#  ls:"]
        {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        // Without the marks, what is left is what the commands do anyway.
        let wanted = ["up:", "  nodes: 1", "  demo: false", "  registry-port: 5000"];
        let uncommented = text.lines().filter_map(|l| l.strip_prefix('#')).filter(|l| wanted.contains(l));
        let uncommented: Vec<&str> = uncommented.skip_while(|l| *l != "up:").take(4).collect();
        check(&command(), &parse(&uncommented.join("\n")).unwrap()).unwrap();
        let typed = ["minke", "up", "--nodes=1"];
        assert!(matches!(Flags::try_parse_from(typed).unwrap().command, Which::Up(_)));
    }
}
