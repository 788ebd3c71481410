//! `create deployment`, `create job`, `create cronjob`.
//! Subcommands of `create`.
//! A command stands behind `--`.

use super::{MANAGER, create, given_namespace, name_and_command};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, array, int, string},
    generate::workloads,
    printers::{PRINT, operation::DRY_RUN},
    run,
    session::Session,
    verbs::change::{VALIDATE, create::SAVE_CONFIG},
};

const IMAGE: &[Flag] = &[string("image", "", "Image of the container")];
const DEPLOYMENT_FLAGS: &[Flag] = &[
    array("image", "Image of a container; may be repeated"),
    int("port", "-1", "Port of the containers"),
    int("replicas", "1", "How many pods").short('r'),
];
const JOB_FLAGS: &[Flag] = &[string("from", "", "CronJob whose template is taken: cronjob/NAME")];
const CRON_JOB_FLAGS: &[Flag] = &[
    string("restart", "", "Restart policy of the pods: OnFailure or Never"),
    string("schedule", "", "Schedule in cron's format"),
];

pub static DEPLOYMENT: Command = Command {
    name: "deployment",
    aliases: &["deploy"],
    usage: "NAME --image=image -- [COMMAND] [args...] [options]",
    about: "Create a deployment with the specified name",
    flags: &[DEPLOYMENT_FLAGS, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(deployment),
};

pub static JOB: Command = Command {
    name: "job",
    aliases: &[],
    usage: "NAME --image=image [--from=cronjob/name] -- [COMMAND] [args...] [options]",
    about: "Create a job with the specified name",
    flags: &[JOB_FLAGS, IMAGE, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(job),
};

pub static CRON_JOB: Command = Command {
    name: "cronjob",
    aliases: &["cj"],
    usage: "NAME --image=image --schedule='0/5 * * * ?' -- [COMMAND] [args...] [options]",
    about: "Create a cron job with the specified name",
    flags: &[CRON_JOB_FLAGS, IMAGE, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(cron_job),
};

async fn deployment(session: &Session, matches: &Matches) -> Result<()> {
    let (name, command) = name_and_command(matches)?;
    let images = matches.list("image");
    if images.is_empty() {
        return Err(Failure::message("required flag(s) \"image\" not set"));
    }
    let namespace = given_namespace(session)?;
    let made = workloads::deployment(&workloads::Deployment {
        name,
        namespace: namespace.as_deref(),
        images: &images,
        replicas: Some(matches.int("replicas") as i32),
        port: (matches.int("port") >= 0).then(|| matches.int("port") as i32),
        command,
    });
    create(session, matches, made).await
}

async fn job(session: &Session, matches: &Matches) -> Result<()> {
    let (name, command) = name_and_command(matches)?;
    let namespace = given_namespace(session)?;
    let (image, from) = (matches.str("image"), matches.str("from"));
    if image.is_empty() == from.is_empty() {
        return Err(Failure::message("either --image or --from must be specified"));
    }
    if !command.is_empty() && !from.is_empty() {
        return Err(Failure::message("cannot specify --from and command"));
    }
    let made = match from {
        "" => workloads::job(name, namespace.as_deref(), image, command),
        from => {
            let cron_job = crate::verbs::streams::containers::object(session, &[from.to_string()]).await?;
            workloads::job_from_cron_job(name, namespace.as_deref(), &cron_job.object)
        }
    };
    create(session, matches, made).await
}

async fn cron_job(session: &Session, matches: &Matches) -> Result<()> {
    let (name, command) = name_and_command(matches)?;
    let missing: Vec<String> =
        ["image", "schedule"].iter().filter(|f| matches.opt(f).is_none()).map(|f| format!("{f:?}")).collect();
    if !missing.is_empty() {
        return Err(Failure::message(format!("required flag(s) {} not set", missing.join(", "))));
    }
    let namespace = given_namespace(session)?;
    let parts = (matches.str("image"), matches.str("schedule"), matches.str("restart"));
    create(session, matches, Ok(workloads::cron_job(name, namespace.as_deref(), parts, command))).await
}
