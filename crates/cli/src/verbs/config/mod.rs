//! `kubectl config`: reads and changes kubeconfig files.
//! A row of `verbs::ROOT`.
//! A change goes to the file that holds the entry, or to the default one.

mod entries;
pub mod kuberc;
mod lists;
mod properties;
mod view;

use std::path::Path;

use crate::{
    command::Command,
    failure::{Failure, Result},
    kubeconfig::{self, Config, Unread},
    session::Session,
};

pub static COMMAND: Command = Command {
    name: "config",
    aliases: &[],
    usage: "SUBCOMMAND [options]",
    about: "Modify kubeconfig files",
    flags: &[],
    commands: &[
        &lists::CURRENT_CONTEXT,
        &entries::DELETE_CLUSTER,
        &entries::DELETE_CONTEXT,
        &entries::DELETE_USER,
        &lists::GET_CLUSTERS,
        &lists::GET_CONTEXTS,
        &lists::GET_USERS,
        &entries::RENAME_CONTEXT,
        &properties::SET,
        &entries::SET_CLUSTER,
        &entries::SET_CONTEXT,
        &entries::SET_CREDENTIALS,
        &properties::UNSET,
        &entries::USE_CONTEXT,
        &view::VIEW,
    ],
    run: None,
};

/// The file's own content, to change and write back.
fn open(file: &Path) -> Result<Config> {
    match kubeconfig::read(file) {
        Ok(config) => Ok(config),
        Err(Unread::Missing) => Ok(Config::default()),
        Err(Unread::Broken(why)) => {
            Err(Failure::message(format!("error loading config file \"{}\": {why}", file.display())))
        }
    }
}

/// Files are read as they are: one that is named need not be there yet.
fn merged(session: &Session) -> Result<Config> {
    let mut places = session.places();
    places.explicit = false;
    places.load()
}
