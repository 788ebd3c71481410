//! Reads the words of a command line along tables of flags.
//! Used by `lib`, which knows the commands.
//! Refuses what no table has, in pflag's words.

use std::{collections::HashMap, time::Duration};

use api::codec::{parse_bool, parse_duration};

use super::{Flag, FlagTables, Kind};
use crate::failure::{Failure, Result};

/// The flags and arguments of one command line.
#[derive(Debug, Default, Clone)]
pub struct Matches {
    values: HashMap<&'static str, Vec<String>>,
    defaults: HashMap<&'static str, &'static str>,
    pub args: Vec<String>,
    /// The flags as they stood in the line.
    pub given: Vec<(&'static str, String)>,
    /// What is said about flags that should not be used any more.
    pub deprecations: Vec<String>,
    /// How many arguments stood before `--`.
    pub args_before_dash: Option<usize>,
    /// The command as typed, such as `kubectl get`.
    pub command: String,
    /// Global flags whose names the command uses for something else.
    pub shadowed: Vec<&'static str>,
}

impl Matches {
    pub fn declare(&mut self, tables: FlagTables) {
        for flag in tables.iter().copied().flatten() {
            self.defaults.insert(flag.name, flag.default);
        }
    }

    pub fn changed(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub fn str(&self, name: &str) -> &str {
        match self.values.get(name).and_then(|all| all.last()) {
            Some(value) => value,
            None => self.default_of(name),
        }
    }

    /// Whether the command takes such a flag.
    pub fn has(&self, name: &str) -> bool {
        self.defaults.contains_key(name)
    }

    fn default_of(&self, name: &str) -> &'static str {
        debug_assert!(self.defaults.contains_key(name), "no flag {name}");
        self.defaults.get(name).copied().unwrap_or_default()
    }

    /// `None` when the flag is empty or was not given.
    pub fn opt(&self, name: &str) -> Option<&str> {
        Some(self.str(name)).filter(|value| !value.is_empty())
    }

    pub fn bool(&self, name: &str) -> bool {
        parse_bool(self.str(name)).unwrap_or(false)
    }

    pub fn int(&self, name: &str) -> i64 {
        self.str(name).parse().unwrap_or(0)
    }

    pub fn duration(&self, name: &str) -> Duration {
        parse_duration(self.str(name)).map_or(Duration::ZERO, |nanos| Duration::from_nanos(nanos.max(0) as u64))
    }

    pub fn list(&self, name: &str) -> Vec<String> {
        match self.values.get(name) {
            Some(values) => values.clone(),
            None => self.default_of(name).split(',').filter(|v| !v.is_empty()).map(str::to_string).collect(),
        }
    }

    pub fn set(&mut self, flag: &Flag, value: &str) {
        self.given.push((flag.name, value.to_string()));
        if let Some(text) = flag.deprecated {
            self.deprecations.push(format!("Flag --{} has been deprecated, {text}", flag.name));
        }
        let values = self.values.entry(flag.name).or_default();
        match flag.kind {
            Kind::List => values.extend(value.split(',').map(str::to_string)),
            Kind::Array => values.push(value.to_string()),
            _ => *values = vec![value.to_string()],
        }
    }

    /// The flags without those that only share a name with a global one.
    pub fn globals(&self) -> Self {
        let mut globals = self.clone();
        globals.values.retain(|name, _| !self.shadowed.contains(name));
        globals
    }
}

/// Walks over the words of a command line.
pub struct Scanner<'a> {
    words: &'a [String],
    at: usize,
    /// The rest of a group of short flags, such as `t` of `-it`.
    group: &'a str,
}

pub enum Word<'a> {
    Argument(&'a str),
    /// `--`: everything behind is an argument.
    Dash,
    Flag(&'static Flag, String),
    /// `-h` or `--help`.
    Help,
}

fn find_long(tables: &[FlagTables], name: &str) -> Option<&'static Flag> {
    // pflag's word separator: kubectl reads underscores as dashes.
    let name = name.replace('_', "-");
    tables.iter().rev().flat_map(|t| t.iter()).copied().flatten().find(|f| f.name == name)
}

fn find_short(tables: &[FlagTables], letter: char) -> Option<&'static Flag> {
    tables.iter().rev().flat_map(|t| t.iter()).copied().flatten().find(|f| f.short == Some(letter))
}

fn checked(flag: &'static Flag, shown: &str, value: String) -> Result<Word<'static>> {
    let problem = match flag.kind {
        Kind::Bool if parse_bool(&value).is_none() => {
            format!("strconv.ParseBool: parsing {value:?}: invalid syntax")
        }
        Kind::Int if value.parse::<i64>().is_err() => format!("strconv.ParseInt: parsing {value:?}: invalid syntax"),
        Kind::Duration => match parse_duration(&value) {
            Ok(_) => return Ok(Word::Flag(flag, value)),
            Err(problem) => problem,
        },
        _ => return Ok(Word::Flag(flag, value)),
    };
    Err(Failure::flag(format!("invalid argument {value:?} for {shown:?} flag: {problem}")))
}

fn shown(flag: &Flag) -> String {
    match flag.short {
        Some(letter) => format!("-{letter}, --{}", flag.name),
        None => format!("--{}", flag.name),
    }
}

impl<'a> Scanner<'a> {
    pub fn new(words: &'a [String]) -> Self {
        Self { words, at: 0, group: "" }
    }

    pub fn rest(&self) -> &'a [String] {
        &self.words[self.at..]
    }

    fn value(&mut self, flag: &Flag, inline: Option<&str>, missing: String) -> Result<String> {
        if let Some(value) = inline {
            return Ok(value.to_string());
        }
        if let Some(bare) = flag.bare {
            return Ok(bare.to_string());
        }
        let value = self.words.get(self.at).ok_or_else(|| Failure::flag(missing))?;
        self.at += 1;
        Ok(value.clone())
    }

    pub fn next(&mut self, tables: &[FlagTables]) -> Result<Option<Word<'a>>> {
        if !self.group.is_empty() {
            return self.short(tables).map(Some);
        }
        let Some(word) = self.words.get(self.at) else { return Ok(None) };
        self.at += 1;
        if word == "--" {
            return Ok(Some(Word::Dash));
        }
        if let Some(long) = word.strip_prefix("--") {
            let (name, inline) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            };
            if name.is_empty() || name.starts_with('-') || name.starts_with('=') {
                return Err(Failure::flag(format!("bad flag syntax: {word}")));
            }
            let Some(flag) = find_long(tables, name) else {
                if name == "help" {
                    return Ok(Some(Word::Help));
                }
                return Err(Failure::flag(format!("unknown flag: --{name}")));
            };
            let value = self.value(flag, inline, format!("flag needs an argument: --{name}"))?;
            return checked(flag, &shown(flag), value).map(Some);
        }
        if word.len() > 1 && word.starts_with('-') {
            self.group = &word[1..];
            return self.short(tables).map(Some);
        }
        Ok(Some(Word::Argument(word)))
    }

    fn short(&mut self, tables: &[FlagTables]) -> Result<Word<'a>> {
        let whole = self.group;
        let letter = whole.chars().next().unwrap_or_default();
        let rest = &whole[letter.len_utf8()..];
        self.group = "";
        let Some(flag) = find_short(tables, letter) else {
            if letter == 'h' {
                return Ok(Word::Help);
            }
            return Err(Failure::flag(format!("unknown shorthand flag: {letter:?} in -{whole}")));
        };
        let inline = match rest.strip_prefix('=') {
            Some(value) => Some(value),
            None if rest.is_empty() => None,
            None if flag.bare.is_some() => {
                self.group = rest;
                None
            }
            None => Some(rest),
        };
        let value = self.value(flag, inline, format!("flag needs an argument: {letter:?} in -{whole}"))?;
        checked(flag, &shown(flag), value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{array, boolean, duration, int, list, string};

    const TABLE: &[Flag] = &[
        string("output", "", "").short('o'),
        boolean("stdin", "false", "").short('i'),
        boolean("tty", "false", "").short('t'),
        list("label-columns", "").short('L'),
        array("patch-part", ""),
        int("tail", "-1", ""),
        duration("timeout", "0s", ""),
        string("dry-run", "none", "").bare("unchanged"),
    ];
    const TABLES: FlagTables = &[TABLE];

    fn read(line: &str) -> Result<Matches> {
        let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        let mut matches = <Matches as Default>::default();
        matches.declare(TABLES);
        let mut scanner = Scanner::new(&words);
        while let Some(word) = scanner.next(&[TABLES])? {
            match word {
                Word::Argument(argument) => matches.args.push(argument.to_string()),
                Word::Flag(flag, value) => matches.set(flag, &value),
                Word::Dash => matches.args.extend(scanner.rest().iter().cloned()),
                Word::Help => {}
            }
            if matches.args_before_dash.is_some() {
                break;
            }
        }
        Ok(matches)
    }

    #[test]
    fn reads_as_pflag_does() {
        let check = |line: &str, name: &str, wanted: &str| {
            let matches = read(line).unwrap_or_else(|e| panic!("{line}: {}", e.text()));
            assert_eq!(matches.str(name), wanted, "{line}");
        };
        check("-ojson pods", "output", "json");
        check("pods -o json", "output", "json");
        check("--output=json", "output", "json");
        check("-o=json", "output", "json");
        check("-it", "tty", "true");
        check("-it=false", "tty", "false");
        check("--dry-run pods", "dry-run", "unchanged");
        check("--dry-run=client", "dry-run", "client");
        check("pods", "dry-run", "none");
        check("--label_columns=a", "label-columns", "a");
        assert_eq!(read("-L a,b -L c").map(|m| m.list("label-columns")).unwrap_or_default(), ["a", "b", "c"]);
        assert_eq!(read("--patch-part a,b").map(|m| m.list("patch-part")).unwrap_or_default(), ["a,b"]);
    }

    #[test]
    fn refuses_as_pflag_does() {
        let check = |line: &str, wanted: &str| {
            let found = read(line).err().map(|e| e.text());
            assert_eq!(found.as_deref(), Some(wanted), "{line}");
        };
        check("--nope", "unknown flag: --nope");
        check("-x", "unknown shorthand flag: 'x' in -x");
        check("-o", "flag needs an argument: 'o' in -o");
        check("--output", "flag needs an argument: --output");
        check(
            "--tail=x",
            "invalid argument \"x\" for \"--tail\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
        );
        check(
            "-i=x",
            "invalid argument \"x\" for \"-i, --stdin\" flag: strconv.ParseBool: parsing \"x\": invalid syntax",
        );
        check("--timeout=5", "invalid argument \"5\" for \"--timeout\" flag: time: missing unit in duration \"5\"");
    }

    #[test]
    fn durations_are_gos() {
        let check = |text: &str, wanted: Option<i64>| assert_eq!(parse_duration(text).ok(), wanted, "{text}");
        check("0", Some(0));
        check("1h30m", Some(5_400_000_000_000));
        check("250ms", Some(250_000_000));
        check("-5s", Some(-5_000_000_000));
        check("1.5s", Some(1_500_000_000));
        check("5", None);
        check("", None);
        check("1d", None);
    }
}
