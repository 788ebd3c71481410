//! `kubectl autoscale`: a HorizontalPodAutoscaler for a workload.
//! A row of `verbs::ROOT`; the object is made in `generate::policy`.
//! The workload must be there.

use super::info_of;
use crate::{
    command::Command,
    discovery::ApiResource,
    failure::{Failure, Result},
    flags::{Flag, Matches, int, string},
    generate::policy::{Autoscale, autoscaler},
    printers::{
        Operation, PRINT,
        operation::{DRY_RUN, DryRun},
    },
    resource::{FILENAME, Selection, each},
    run,
    session::Session,
    verbs::change::{
        create::{SAVE_CONFIG, create_one},
        record::RECORD,
    },
};

const FLAGS: &[Flag] = &[
    string("cpu", "", "Target for CPU: a percentage of the request, or an amount"),
    int("cpu-percent", "-1", "Target for CPU, in percent of the request").hidden().deprecated(
        "Use --cpu with percentage or resource quantity format (e.g., '70%' for utilization or '500m' for milliCPU).",
    ),
    int("max", "-1", "Most pods; required"),
    string("memory", "", "Target for memory: a percentage of the request, or an amount"),
    int("min", "-1", "Fewest pods"),
    string("name", "", "Name of the autoscaler; that of the workload if empty"),
    string("field-manager", "kubectl-autoscale", "Name of the field manager"),
];

pub static COMMAND: Command = Command {
    name: "autoscale",
    aliases: &[],
    usage: "(-f FILENAME | TYPE NAME | TYPE/NAME) [--min=MINPODS] --max=MAXPODS [--cpu=CPU] [--memory=MEMORY] [options]",
    about: "Auto-scale a deployment, replica set, stateful set, or replication controller",
    flags: &[FLAGS, SAVE_CONFIG, PRINT, FILENAME, DRY_RUN, RECORD],
    commands: &[],
    run: run!(autoscale),
};

async fn autoscale(session: &Session, matches: &Matches) -> Result<()> {
    if !matches.changed("max") {
        return Err(Failure::message("required flag(s) \"max\" not set"));
    }
    let selection = Selection::of(session, matches)?;
    let (infos, failures) = selection.select(session).await?;
    each(infos, failures, async |info| {
        let scale = format!("{}/scale", info.resource.name);
        let discovery = session.discovery().await?;
        let served =
            |r: &ApiResource| r.group == info.resource.group && r.version == info.resource.version && r.name == scale;
        if !discovery.resources.iter().any(|r| served(r)) {
            return Err(Failure::message(format!(
                "cannot autoscale a {}: could not find scale subresource for {}/{}, Resource={} in discovery information",
                info.resource.kind, info.resource.group, info.resource.version, info.resource.name
            )));
        }
        let namespace = super::given_namespace(session)?;
        let made = autoscaler(
            &Autoscale {
                name: matches.str("name"),
                namespace: namespace.as_deref(),
                min: matches.int("min") as i32,
                max: matches.int("max") as i32,
                cpu_percent: matches.int("cpu-percent") as i32,
                cpu: matches.str("cpu"),
                memory: matches.str("memory"),
            },
            &info.object,
        );
        let mut operation = Operation::of(session, matches)?.typed();
        if operation.dry_run != DryRun::Client {
            operation = operation.saying("autoscaled");
        }
        let place = info_of(session, made.map_err(Failure::Message)?, operation.dry_run).await?;
        create_one(session, matches, &mut operation, place).await
    })
    .await
}
