//! The command line of this process as flags of another command: those of its flags that the other one knows.
//! Used where servers are started with what `up` was told, and where further servers join with what the first was.
//! Nothing is guessed: only what was typed, or stood in the configuration file, is passed on.

use std::{ffi::OsString, path::absolute};

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, Command, ValueHint, parser::ValueSource};

use super::{config_file, upstream};

/// The command line with what the configuration file adds.
pub fn arguments() -> Result<Vec<OsString>> {
    let typed = upstream::arguments(std::env::args().collect()).map_err(anyhow::Error::msg)?;
    config_file::expand(&config_file::command(), typed.into_iter().map(Into::into).collect())
}

/// What was typed, as flags of the command `target`.
pub fn typed(target: &str, left_out: &[&str]) -> Result<Vec<String>> {
    flags(&config_file::command(), arguments()?, target, left_out)
}

fn flags(root: &Command, arguments: Vec<OsString>, target: &str, left_out: &[&str]) -> Result<Vec<String>> {
    let target = root.find_subcommand(target).with_context(|| format!("there is no command {target}"))?;
    let matches = root.clone().try_get_matches_from(arguments)?;
    let Some((_, matches)) = matches.subcommand() else { return Ok(Vec::new()) };
    let mut passed = Vec::new();
    for argument in target.get_arguments() {
        let (Some(long), id) = (argument.get_long(), argument.get_id().as_str()) else { continue };
        let is_known = matches.try_contains_id(id).is_ok();
        if left_out.contains(&long) || !is_known || matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        if matches!(argument.get_action(), ArgAction::SetTrue) {
            passed.push(format!("--{long}"));
            continue;
        }
        for value in matches.get_raw(id).into_iter().flatten() {
            let value = value.to_str().with_context(|| format!("--{long} is not UTF-8"))?;
            // Whoever it is passed on to runs elsewhere. `-` is standard input.
            let path = absolute(value).ok().filter(|_| takes_path(argument) && value != "-");
            let path = path.as_ref().and_then(|path| path.to_str());
            passed.push(format!("--{long}={}", path.unwrap_or(value)));
        }
    }
    Ok(passed)
}

fn takes_path(argument: &Arg) -> bool {
    matches!(argument.get_value_hint(), ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath)
}

/// Whether the value of this flag of `target` names a file or directory.
pub fn names_path(target: &str, name: &str) -> bool {
    let root = config_file::command();
    let mut arguments = root.find_subcommand(target).into_iter().flat_map(Command::get_arguments);
    arguments.any(|argument| argument.get_long() == Some(name) && takes_path(argument))
}

/// The name of a flag written as `--name=value` or `--name`.
pub fn name(flag: &str) -> &str {
    let flag = flag.trim_start_matches('-');
    flag.split_once('=').map_or(flag, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_commands_know_and_somebody_typed_is_passed_on() {
        let check = |typed: &str, expected: &[&str]| {
            let arguments = typed.split_whitespace().map(OsString::from).collect();
            let passed = flags(&config_file::command(), arguments, "server", &["data-dir", "port"]).unwrap();
            assert_eq!(passed, expected, "{typed}");
        };
        check("minke up", &[]);
        check("minke up --data-dir /x --port 7443 --nodes 3 --servers 3", &[]);
        check("minke up --gateway-api --console=false --nodes 3", &["--console=false", "--gateway-api"]);
        check("minke up --dns none --service-node-port-range 1-2", &["--service-node-port-range=1-2", "--dns=none"]);
        check("minke server --etcd-servers http://a,http://b", &["--etcd-servers=http://a", "--etcd-servers=http://b"]);
        check("minke up --leader-elect-lease-duration 4s", &["--leader-elect-lease-duration=4s"]);
        let here = std::env::current_dir().unwrap();
        check("minke server --etcd-cafile ca.crt", &[&format!("--etcd-cafile={}/ca.crt", here.display())]);
        check("minke server --etcd-cafile /ca.crt --token-file -", &["--etcd-cafile=/ca.crt", "--token-file=-"]);
        assert_eq!((name("--a=b=c"), name("--a")), ("a", "a"));
        assert!(names_path("server", "etcd-cafile") && !names_path("server", "dns"));
    }
}
