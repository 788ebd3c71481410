//! `kubectl cordon` and `uncordon`: whether new pods may come to a node.
//! Rows of `verbs::ROOT`; `drain` cordons too.
//! Sets `spec.unschedulable`, nothing else.

use serde_json::{Value, json};

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::Matches,
    printers::operation::{DRY_RUN, DryRun},
    resource::{Info, SELECTOR, Selection},
    run,
    session::Session,
    verbs::change::{Change, STRATEGIC},
};

pub static CORDON: Command = Command {
    name: "cordon",
    aliases: &[],
    usage: "NODE [options]",
    about: "Mark node as unschedulable",
    flags: &[SELECTOR, DRY_RUN],
    commands: &[],
    run: run!(cordon),
};

pub static UNCORDON: Command = Command {
    name: "uncordon",
    aliases: &[],
    usage: "NODE [options]",
    about: "Mark node as schedulable",
    flags: &[SELECTOR, DRY_RUN],
    commands: &[],
    run: run!(uncordon),
};

async fn cordon(session: &Session, matches: &Matches) -> Result<()> {
    set_all(session, matches, true).await
}

async fn uncordon(session: &Session, matches: &Matches) -> Result<()> {
    set_all(session, matches, false).await
}

/// The nodes that names or a selector say.
pub async fn nodes(session: &Session, matches: &Matches) -> Result<Vec<Info>> {
    let mut selection = Selection::of(session, matches)?;
    if matches.args.is_empty() && !matches.changed("selector") {
        return Err(Failure::usage(format!("USAGE: {} NODE [flags]", matches.command.trim_start_matches("kubectl "))));
    }
    if !matches.args.is_empty() && !selection.selector.is_empty() {
        return Err(Failure::usage("cannot specify both a node name and a --selector option"));
    }
    // A selector that was given and is empty names no node: neither none of them nor all.
    if !matches.args.is_empty() || !selection.selector.is_empty() {
        let names = matches.args.iter().map(|n| n.trim_start_matches("node/").to_string());
        selection.arguments = std::iter::once("nodes".to_string()).chain(names).collect();
    }
    let (infos, failures) = selection.select(session).await?;
    // The first that is not there ends it.
    failures.into_iter().next().map_or(Ok(infos), Err)
}

async fn set_all(session: &Session, matches: &Matches, unschedulable: bool) -> Result<()> {
    let dry_run = DryRun::of(session, matches)?;
    let mut failures = Vec::new();
    for node in nodes(session, matches).await? {
        if let Err(failure) = set(session, &node, unschedulable, dry_run).await {
            failures.push(failure);
        }
    }
    Failure::aggregate(failures)
}

/// Sets and says so.
pub async fn set(session: &Session, node: &Info, unschedulable: bool, dry_run: DryRun) -> Result<()> {
    let done = if unschedulable { "cordoned" } else { "uncordoned" };
    let suffix = match dry_run {
        DryRun::None => "",
        DryRun::Client => " (dry run)",
        DryRun::Server => " (server dry run)",
    };
    if (node.object["spec"]["unschedulable"] == true) == unschedulable {
        session.output.line(&format!("node/{} already {done}{suffix}", node.name));
        return Ok(());
    }
    if dry_run != DryRun::Client {
        let value = if unschedulable { Value::Bool(true) } else { Value::Null };
        let patch = json!({"spec": {"unschedulable": value}});
        Change { session, manager: "kubectl-cordon", validation: "", dry_run }.patch(node, STRATEGIC, &patch).await?;
    }
    session.output.line(&format!("node/{} {done}{suffix}", node.name));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::fake::FakeServer;

    #[test]
    fn an_empty_selector_names_no_node() {
        let check = |words: &[&str], wanted: &str| {
            let server = FakeServer::of_pods();
            let (_, err, code) = server.run(words);
            assert!(err.starts_with(wanted), "{words:?}: {err}");
            assert_eq!((code, server.asked.borrow().len()), (1, 0), "{words:?}");
        };
        check(&["cordon", "--selector="], "error: You must provide one or more resources");
        check(&["drain", "-l", ""], "error: You must provide one or more resources");
        check(&["cordon"], "error: USAGE: cordon NODE [flags]");
        check(&["drain"], "error: USAGE: drain NODE [flags]");
    }
}
