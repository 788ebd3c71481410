//! `kubectl run`: one pod of one image, perhaps attached to and removed afterwards.
//! A row of `verbs::ROOT`; the object is made in `generate::workloads`.
//! With `--rm` the pod goes however the session ends.

use std::time::Duration;

use serde_json::Value;

use super::info_of;
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, array, boolean, duration, int, string},
    generate::{
        service::{Service, service},
        workloads::{Run, is_image_reference, pod},
    },
    printers::{
        Operation, PRINT,
        operation::{DRY_RUN, DryRun},
    },
    resource::{FILENAME, Info},
    run,
    session::Session,
    terminal,
    verbs::{
        change::{
            JSON, MERGE, STRATEGIC,
            create::{SAVE_CONFIG, create_one},
            delete,
            patch::patched,
            record::RECORD,
        },
        streams::attach::attach_to,
    },
};

const FLAGS: &[Flag] = &[
    array("annotations", "Annotation, as KEY=value; may be repeated"),
    boolean("attach", "false", "Attach to the pod when it runs"),
    boolean("command", "false", "What stands behind -- is the command, not its arguments"),
    array("env", "Variable, as NAME=value; may be repeated"),
    boolean("expose", "false", "Also make a Service; needs --port"),
    int("grace-period", "-1", "With --rm: seconds the pod gets to end"),
    string("image", "", "Image of the container; required"),
    string("image-pull-policy", "", "Always, Never or IfNotPresent"),
    string("labels", "", "Labels, as KEY=value,…").short('l'),
    boolean("leave-stdin-open", "false", "Standard input stays open after the first attach"),
    string("override-type", "merge", "json, merge or strategic"),
    string("overrides", "", "JSON that is merged into the pod"),
    duration("pod-running-timeout", "1m0s", "How long to wait for the pod"),
    string("port", "", "Port of the container"),
    boolean("privileged", "false", "Run the container privileged"),
    boolean("quiet", "false", "Only what the pod prints").short('q'),
    string("restart", "Always", "Always, OnFailure or Never"),
    boolean("rm", "false", "Delete the pod after the session"),
    boolean("stdin", "false", "Keep standard input open").short('i'),
    duration("timeout", "0s", "With --rm: how long to wait for the deletion"),
    boolean("tty", "false", "Give the container a terminal").short('t'),
    boolean("wait", "false", "").hidden(),
    boolean("force", "false", "").hidden(),
    string("cascade", "background", "").bare("background").hidden(),
    string("field-manager", "kubectl-run", "Name of the field manager"),
];

pub static COMMAND: Command = Command {
    name: "run",
    aliases: &[],
    usage: "NAME --image=image [--env=\"key=value\"] [--port=port] [--dry-run=server|client] [--overrides=inline-json] [--command] -- [COMMAND] [args...] [options]",
    about: "Run a particular image on the cluster",
    flags: &[FLAGS, SAVE_CONFIG, PRINT, FILENAME, DRY_RUN, RECORD],
    commands: &[],
    run: run!(run_pod),
};

async fn run_pod(session: &Session, matches: &Matches) -> Result<()> {
    let Some((name, arguments)) = matches.args.split_first() else {
        return Err(Failure::usage("NAME is required for run"));
    };
    let image = matches.str("image");
    if image.is_empty() {
        return Err(Failure::message("required flag(s) \"image\" not set"));
    }
    if !is_image_reference(image) {
        return Err(Failure::message(format!("Invalid image name {image:?}: invalid reference format")));
    }
    let (stdin, tty, remove) = (matches.bool("stdin"), matches.bool("tty"), matches.bool("rm"));
    if tty && !stdin {
        return Err(Failure::message("-i/--stdin is required for containers with -t/--tty=true"));
    }
    let mut operation = Operation::of(session, matches)?.typed();
    let attach = if matches.changed("attach") { matches.bool("attach") } else { stdin };
    if remove && !attach {
        return Err(Failure::usage("--rm should only be used for attached containers"));
    }
    if attach && operation.dry_run != DryRun::None {
        return Err(Failure::message(
            "--dry-run=[server|client] can't be used with attached containers options (--attach, --stdin, or --tty)",
        ));
    }
    if matches.bool("expose") && matches.opt("port").is_none() {
        return Err(Failure::usage("--port must be set when exposing a service"));
    }
    let namespace = super::given_namespace(session)?;
    let (annotations, env) = (matches.list("annotations"), matches.list("env"));
    let made = pod(&Run {
        name,
        namespace: namespace.as_deref(),
        image,
        image_pull_policy: matches.str("image-pull-policy"),
        labels: matches.str("labels"),
        annotations: &annotations,
        env: &env,
        port: matches.str("port"),
        restart: matches.str("restart"),
        stdin,
        leave_stdin_open: matches.bool("leave-stdin-open"),
        tty,
        privileged: matches.bool("privileged"),
        command: matches.bool("command"),
        arguments,
    });
    let mut info = info_of(session, made.map_err(Failure::Message)?, operation.dry_run).await?;
    override_object(&mut info, matches)?;
    if matches.bool("expose") {
        let ports = [matches.str("port").to_string()];
        let made = service(&Service {
            name,
            namespace: namespace.as_deref(),
            kind: "ClusterIP",
            tcp: &ports,
            ..Service::default()
        });
        let mut object = made.map_err(Failure::Message)?;
        let labels = info.object["metadata"]["labels"].clone();
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("labels");
        }
        object["spec"]["selector"] = labels;
        if let Some(spec) = object["spec"].as_object_mut() {
            spec.remove("type");
        }
        if let Some(port) = object["spec"]["ports"][0].as_object_mut() {
            port.remove("name");
        }
        let place = info_of(session, object, operation.dry_run).await?;
        create_one(session, matches, &mut operation, place).await?;
        if operation.prints_objects() {
            session.output.line("---");
        }
    }
    if !attach {
        return create_one(session, matches, &mut operation, info).await;
    }
    let quiet = crate::output::Output::to(std::io::sink(), std::io::sink());
    create_one(&session.with_output(quiet), matches, &mut operation, info.clone()).await?;
    let ended = attached(session, matches, &info).await;
    if remove {
        let plan = delete::Plan {
            grace_period_seconds: (matches.int("grace-period") >= 0).then(|| matches.int("grace-period")),
            cascade: "Background",
            ignore_not_found: true,
            word: if matches.bool("quiet") { "" } else { "deleted" },
            ..delete::Plan::default()
        };
        delete::delete_all(session, &plan, std::slice::from_ref(&info), matches.duration("timeout")).await?;
    }
    ended
}

/// `--overrides`.
pub fn override_object(info: &mut Info, matches: &Matches) -> Result<()> {
    let Some(text) = matches.opt("overrides") else { return Ok(()) };
    let content = match matches.str("override-type") {
        "json" => JSON,
        "strategic" => STRATEGIC,
        "merge" => MERGE,
        other => return Err(Failure::message(format!("invalid override type: {other}"))),
    };
    let body = crate::resource::yaml::read(text.as_bytes())
        .map_err(|e| Failure::message(format!("invalid overrides: {e}")))?;
    if content == MERGE && !body.is_object() {
        return Err(Failure::message("Invalid JSON Patch"));
    }
    info.object = patched(info, content, &body)?;
    Ok(())
}

/// Waits until the pod runs or is done, then attaches or prints its log; the container's exit code is ours.
async fn attached(session: &Session, matches: &Matches, info: &Info) -> Result<()> {
    let pod = until_started(session, info, matches.duration("pod-running-timeout")).await?;
    let container = pod["spec"]["containers"][0]["name"].as_str().unwrap_or_default().to_string();
    let done = ["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or_default());
    let (stdin, tty, quiet) = (matches.bool("stdin"), matches.bool("tty"), matches.bool("quiet"));
    let talked = match done {
        true => Ok(false),
        false => attach_to(session, &pod, &container, stdin, tty, quiet).await,
    };
    let was_heard = match talked {
        Ok(was_heard) => was_heard,
        Err(failure @ Failure::Exit(_)) => return Err(failure),
        Err(failure) => {
            session.output.warn(&format!(
                "warning: couldn't attach to pod/{}, falling back to streaming logs: {}",
                info.name,
                failure.text()
            ));
            false
        }
    };
    // A container that was too quick for us has left a log.
    if !was_heard {
        let call = session.rest().await?.get(format!("{}/log", info.path()?)).query("container", container.as_str());
        session.output.bytes(&call.bytes().await?);
    }
    let restart = matches.str("restart");
    if restart == "Always" || matches.bool("leave-stdin-open") {
        if restart == "Always" && !matches.bool("rm") && !quiet {
            session.output.line(&format!(
                "Session ended, resume using 'kubectl attach {} -c {container} -i -t' command when the pod is running",
                info.name
            ));
        }
        return Ok(());
    }
    // What failed is started again under OnFailure.
    let ends: &[&str] = if restart == "OnFailure" { &["Succeeded"] } else { &["Succeeded", "Failed"] };
    let ended = until(session, info, matches.duration("pod-running-timeout"), |pod| {
        ends.contains(&pod["status"]["phase"].as_str().unwrap_or_default())
    });
    let pod = ended.await?;
    match pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"].as_u64() {
        None | Some(0) => Ok(()),
        Some(code) => {
            session.output.warn(&format!(
                "pod {}/{} terminated ({})",
                info.namespace,
                info.name,
                pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"].as_str().unwrap_or("Error")
            ));
            Err(Failure::Exit(code as u8))
        }
    }
}

pub async fn until_started(session: &Session, info: &Info, timeout: Duration) -> Result<Value> {
    until(session, info, timeout, |pod| {
        ["Running", "Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or_default())
    })
    .await
}

/// Waits until the object is as `there` says.
pub async fn until(session: &Session, info: &Info, timeout: Duration, there: impl Fn(&Value) -> bool) -> Result<Value> {
    let now = info.get(session).await?;
    if there(&now) {
        return Ok(now);
    }
    terminal::end_at_signals(&session.output)?;
    let watched = env::timeout(timeout, info.watch_until(session, there)).await;
    watched.unwrap_or_else(|| Err(Failure::message("timed out waiting for the condition")))
}
