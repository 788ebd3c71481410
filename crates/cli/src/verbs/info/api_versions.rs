//! `kubectl api-versions`: the groups and versions that the server serves.
//! A row of `verbs::ROOT`.
//! Always asks the server.

use crate::{
    command::Command,
    discovery::Discovery,
    failure::{Failure, Result},
    flags::Matches,
    run,
    session::Session,
};

pub static COMMAND: Command = Command {
    name: "api-versions",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Print the supported API versions on the server, in the form of \"group/version\"",
    flags: &[],
    commands: &[],
    run: run!(api_versions),
};

async fn api_versions(session: &Session, matches: &Matches) -> Result<()> {
    if !matches.args.is_empty() {
        return Err(Failure::usage(format!("unexpected arguments: [{}]", matches.args.join(" "))));
    }
    let discovery = Discovery::load(session, true).await?;
    let mut versions: Vec<String> = Vec::new();
    for group in &discovery.groups {
        versions.extend(group.versions.iter().map(|version| match group.name.as_str() {
            "" => version.clone(),
            name => format!("{name}/{version}"),
        }));
    }
    versions.sort();
    versions.iter().for_each(|version| session.output.line(version));
    Ok(())
}
