//! The flags of upstream's components, one table each: what a flag is, and what it does here.
//! Read by `main` (pflag's grammar, `pflag`) and by the commands that take them (`OtherFlags`).
//! No flag of upstream's v1.35 is missing, and none is swallowed: it acts, or says at the start that it does not.

mod apiserver;
mod controller_manager;
mod kubelet;
mod pflag;
mod proxy;
mod scheduler;
mod shared;

use std::{collections::BTreeMap, marker::PhantomData};

use anyhow::{Result, bail};
use clap::{Args, FromArgMatches};

pub use self::{
    apiserver::Apiserver,
    controller_manager::{CONCURRENCY, ControllerManager},
    kubelet::Kubelet,
    proxy::{FIELDS as PROXY_FIELDS, Proxy},
    scheduler::Scheduler,
};

/// How pflag reads the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    /// `--flag` alone is true.
    Flag,
    Number,
    Float,
    Duration,
    /// Separated by commas; several are one long list.
    List,
    /// Each time it is given is one value.
    Array,
    /// KEY=VALUE,…; several are one long map.
    Map,
    /// Like a map; `kube:` before a name says what is meant anyway.
    Gates,
}

/// What a flag of upstream's does here.
#[derive(Debug, Clone, Copy)]
pub enum Meaning {
    /// The command has it.
    Acts,
    /// Taken with these values, which are what happens anyway (the first is upstream's default); others are refused for
    /// this reason.
    Only(&'static [&'static str], &'static str),
    /// Taken with any value; that it does nothing here, and why, is said at the start.
    Idle(&'static str),
}

pub type Row = (&'static str, Form, Meaning);

/// The flags of one component.
pub trait Component: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// Parts of its table: its own, and what it shares with others.
    fn tables() -> Vec<&'static [Row]>;

    /// Whether an empty text says no more than no flag at all, as it does where nothing can be turned off by one.
    fn empty_is_absent() -> bool {
        true
    }
}

pub fn rows<C: Component>() -> impl Iterator<Item = &'static Row> {
    C::tables().into_iter().flatten()
}

/// The given flags of a component that none of the command's own takes.
#[derive(Debug, Clone)]
pub struct OtherFlags<C>(BTreeMap<&'static str, String>, PhantomData<C>);

impl<C> Default for OtherFlags<C> {
    fn default() -> Self {
        Self(BTreeMap::new(), PhantomData)
    }
}

impl<C: Component> OtherFlags<C> {
    /// Refuses what can't be had, and says what has no effect. Before anything starts.
    pub fn check(&self) -> Result<()> {
        for (name, form, meaning) in rows::<C>() {
            let Some(text) = self.0.get(name) else { continue };
            match meaning {
                Meaning::Acts => {}
                Meaning::Only(possible, _) if possible.iter().any(|one| pflag::same(*form, one, text)) => {}
                Meaning::Only(_, reason) => bail!("--{name}={text} is not supported: {reason}"),
                Meaning::Idle(reason) => {
                    tracing::info!(flag = format!("--{name}={text}"), reason, "a flag that has no effect here");
                }
            }
        }
        Ok(())
    }
}

impl<C: Component> Args for OtherFlags<C> {
    /// After the command's own flags, which are left as they are.
    fn augment_args(command: clap::Command) -> clap::Command {
        rows::<C>().fold(command, |command, (name, form, meaning)| {
            if has_flag(&command, name) || matches!(meaning, Meaning::Acts) {
                return command;
            }
            let help = match meaning {
                Meaning::Only(possible, reason) => format!("Only {}: {reason}", possible.join(" or ")),
                Meaning::Idle(reason) => format!("Has no effect: {reason}"),
                Meaning::Acts => String::new(),
            };
            let argument = clap::Arg::new(*name).long(*name).help(help).help_heading("Taken for upstream's sake");
            command.arg(match form {
                Form::Flag => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
                _ => argument.allow_hyphen_values(true),
            })
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

fn has_flag(command: &clap::Command, name: &str) -> bool {
    command.get_arguments().any(|argument| {
        argument.get_long() == Some(name) || argument.get_all_aliases().is_some_and(|all| all.contains(&name))
    })
}

impl<C: Component> FromArgMatches for OtherFlags<C> {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        // An id that is no argument of the table is a flag of the command's own.
        let given = |name: &'static str| Some((name, matches.try_get_one::<String>(name).ok()??.clone()));
        Ok(Self(rows::<C>().filter_map(|(name, ..)| given(name)).collect(), PhantomData))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Programs of upstream's that this one stands in for when it is called by their names.
const PROGRAMS: [(&str, &str); 5] = [
    ("kube-apiserver", "apiserver"),
    ("kube-controller-manager", "controller-manager"),
    ("kube-scheduler", "scheduler"),
    ("kube-proxy", "proxy"),
    ("kubelet", "kubelet"),
];

/// What was typed, as `Flags` reads it: a component's flags as pflag would have read them, and a component's name in place
/// of that of the program.
pub fn arguments(mut typed: Vec<String>) -> Result<Vec<String>, String> {
    let called_as = typed.first().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    if let Some((_, command)) = PROGRAMS.iter().find(|(program, _)| *program == called_as) {
        typed.insert(1, (*command).to_string());
    }
    let Some(command) = typed.get(1) else { return Ok(typed) };
    let read = match command.as_str() {
        "apiserver" => canonical::<Apiserver>,
        "controller-manager" => canonical::<ControllerManager>,
        "scheduler" => canonical::<Scheduler>,
        "proxy" => canonical::<Proxy>,
        "kubelet" => canonical::<Kubelet>,
        _ => return Ok(typed),
    };
    let given = typed.split_off(2);
    typed.extend(read(given)?);
    Ok(typed)
}

fn canonical<C: Component>(given: Vec<String>) -> Result<Vec<String>, String> {
    pflag::canonical(&C::tables(), C::empty_is_absent(), given)
}

/// `--version` of a component: what to print.
pub fn version(arguments: &[String]) -> Option<String> {
    let command = arguments.get(1)?;
    if !PROGRAMS.iter().any(|(_, known)| known == command) {
        return None;
    }
    let asked = |argument: &&String| matches!(argument.as_str(), "--version" | "--version=true" | "--version=raw");
    arguments.iter().find(asked).map(|_| format!("Kubernetes {}", api::GIT_VERSION))
}

#[cfg(test)]
mod tests;
