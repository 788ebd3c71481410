//! `kubectl label`: sets and removes labels.
//! A row of `verbs::ROOT`; what `label` and `annotate` share is in `pairs`.
//! A value that is there is only changed with `--overwrite`.

use super::pairs::{self, Subject};
use crate::{
    command::Command,
    failure::Result,
    flags::{Flag, Matches, boolean, string},
    printers::{PRINT, operation::DRY_RUN},
    resource::{ALL_NAMESPACES, FIELD_SELECTOR, FILENAME, SELECTOR},
    run,
    session::Session,
    verbs::change::record::RECORD,
};

pub const FLAGS: &[Flag] = &[
    boolean("list", "false", "Print the labels of the objects"),
    string("field-manager", "kubectl-label", "Name of the field manager"),
];

pub static COMMAND: Command = Command {
    name: "label",
    aliases: &[],
    usage: "[--overwrite] (-f FILENAME | TYPE NAME) KEY_1=VAL_1 ... KEY_N=VAL_N [--resource-version=version] [options]",
    about: "Update the labels on a resource",
    flags: &[FLAGS, pairs::FLAGS, PRINT, FILENAME, SELECTOR, FIELD_SELECTOR, ALL_NAMESPACES, DRY_RUN, RECORD],
    commands: &[],
    run: run!(run),
};

const SUBJECT: Subject = Subject { field: "labels", word: "label", done: "labeled" };

async fn run(session: &Session, matches: &Matches) -> Result<()> {
    pairs::run(session, matches, &SUBJECT).await
}
