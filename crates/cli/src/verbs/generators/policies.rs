//! `create quota`, `create priorityclass`, `create poddisruptionbudget`.
//! Subcommands of `create`.
//! Quantities and selectors are checked before anything is sent.

use super::{MANAGER, create, given_namespace, name};
use crate::{
    command::Command,
    failure::Result,
    flags::{Flag, Matches, boolean, int, string},
    generate::policy,
    printers::{PRINT, operation::DRY_RUN},
    run,
    session::Session,
    verbs::change::{VALIDATE, create::SAVE_CONFIG},
};

const QUOTA_FLAGS: &[Flag] =
    &[string("hard", "", "Limits, as cpu=1,memory=1G,pods=2"), string("scopes", "", "Scopes, separated by commas")];
const PRIORITY_FLAGS: &[Flag] = &[
    string("description", "", "What it is for"),
    boolean("global-default", "false", "For pods that name no class"),
    string("preemption-policy", "PreemptLowerPriority", "Whether pods of lower priority make room"),
    int("value", "0", "The priority"),
];
const BUDGET_FLAGS: &[Flag] = &[
    string("max-unavailable", "", "At most this many may be missing"),
    string("min-available", "", "At least this many must be there"),
    string("selector", "", "Labels of the pods"),
];

pub static QUOTA: Command = Command {
    name: "quota",
    aliases: &["resourcequota"],
    usage: "NAME [--hard=key1=value1,key2=value2] [--scopes=Scope1,Scope2] [--dry-run=server|client|none] [options]",
    about: "Create a quota with the specified name",
    flags: &[QUOTA_FLAGS, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(quota),
};

pub static PRIORITY_CLASS: Command = Command {
    name: "priorityclass",
    aliases: &["pc"],
    usage: "NAME --value=VALUE --global-default=BOOL [--dry-run=server|client|none] [options]",
    about: "Create a priority class with the specified name",
    flags: &[PRIORITY_FLAGS, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(priority_class),
};

pub static POD_DISRUPTION_BUDGET: Command = Command {
    name: "poddisruptionbudget",
    aliases: &["pdb"],
    usage: "NAME --selector=SELECTOR --min-available=N [--dry-run=server|client|none] [options]",
    about: "Create a pod disruption budget with the specified name",
    flags: &[BUDGET_FLAGS, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(budget),
};

async fn quota(session: &Session, matches: &Matches) -> Result<()> {
    let (name, namespace) = (name(matches)?, given_namespace(session)?);
    create(session, matches, policy::quota(name, namespace.as_deref(), matches.str("hard"), matches.str("scopes")))
        .await
}

async fn priority_class(session: &Session, matches: &Matches) -> Result<()> {
    let name = name(matches)?;
    let (value, default) = (matches.int("value") as i32, matches.bool("global-default"));
    let made =
        policy::priority_class(name, value, default, matches.str("description"), matches.str("preemption-policy"));
    create(session, matches, Ok(made)).await
}

async fn budget(session: &Session, matches: &Matches) -> Result<()> {
    let (name, namespace) = (name(matches)?, given_namespace(session)?);
    let (selector, min, max) = (matches.str("selector"), matches.str("min-available"), matches.str("max-unavailable"));
    create(session, matches, policy::pod_disruption_budget(name, namespace.as_deref(), selector, min, max)).await
}
