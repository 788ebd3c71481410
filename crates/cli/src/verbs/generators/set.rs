//! `kubectl set`: image, env, resources, selector, serviceaccount, subject.
//! A row of `verbs::ROOT`; objects are changed in `generate::set`.
//! What changes is sent as a patch of what was read.

use std::cell::RefCell;

use serde_json::Value;

use crate::{
    apply::strategic_two_way,
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, array, boolean, list, string},
    generate::{
        environment_list::{Sources, list_environment, references},
        rbac::Subjects,
        resource_list, set,
    },
    printers::{
        Operation, PRINT,
        operation::{DRY_RUN, DryRun},
    },
    resource::{FILENAME, Info, PLAIN_FILENAME, SELECTOR, Selection},
    session::Session,
    subcommand,
    verbs::change::{
        Change, MERGE, STRATEGIC, is_builtin,
        record::{RECORD, record},
    },
};

pub static COMMAND: Command = Command {
    name: "set",
    aliases: &[],
    usage: "SUBCOMMAND [options]",
    about: "Set specific features on objects",
    flags: &[],
    commands: &[&ENV, &IMAGE, &RESOURCES, &SELECTOR_COMMAND, &SERVICE_ACCOUNT, &SUBJECT],
    run: None,
};

const SHARED: &[Flag] = &[
    boolean("all", "false", "All objects of the types, in the namespace"),
    boolean("local", "false", "Change what the file says; ask no server"),
    string("field-manager", "kubectl-set", "Name of the field manager"),
];
const ENV_FLAGS: &[Flag] = &[
    string("containers", "*", "Containers that are changed; * for all").short('c'),
    array("env", "Variable, as NAME=value; may be repeated").short('e'),
    string("from", "", "ConfigMap or Secret that the variables come from: TYPE/NAME"),
    list("keys", "With --from: only these keys"),
    boolean("list", "false", "Print the variables"),
    boolean("overwrite", "true", "Change variables that are there"),
    string("prefix", "", "With --from: put before the names"),
    boolean("resolve", "false", "With --list: look up what variables refer to"),
];
const RESOURCE_FLAGS: &[Flag] = &[
    string("containers", "*", "Containers that are changed; * for all").short('c'),
    string("limits", "", "Limits, as cpu=200m,memory=512Mi"),
    string("requests", "", "Requests, as cpu=100m,memory=256Mi"),
];
const SUBJECT_FLAGS: &[Flag] = &[
    array("group", "Group to add; may be repeated"),
    array("serviceaccount", "Service account to add, as NAMESPACE:NAME; may be repeated"),
    array("user", "User to add; may be repeated"),
];

subcommand!(
    IMAGE,
    "image",
    &[],
    "(-f FILENAME | TYPE NAME) CONTAINER_NAME_1=CONTAINER_IMAGE_1 ... CONTAINER_NAME_N=CONTAINER_IMAGE_N [options]",
    "Update the image of a pod template",
    &[SHARED, PRINT, FILENAME, SELECTOR, DRY_RUN, RECORD],
    image
);
subcommand!(
    ENV,
    "env",
    &[],
    "RESOURCE/NAME KEY_1=VAL_1 ... KEY_N=VAL_N [options]",
    "Update environment variables on a pod template",
    &[ENV_FLAGS, SHARED, PRINT, FILENAME, SELECTOR, DRY_RUN],
    env
);
subcommand!(
    RESOURCES,
    "resources",
    &[],
    "(-f FILENAME | TYPE NAME)  ([--limits=LIMITS & --requests=REQUESTS] [options]",
    "Update resource requests/limits on objects with pod templates",
    &[RESOURCE_FLAGS, SHARED, PRINT, FILENAME, SELECTOR, DRY_RUN, RECORD],
    resources
);
subcommand!(
    SELECTOR_COMMAND,
    "selector",
    &[],
    "(-f FILENAME | TYPE NAME) EXPRESSIONS [--resource-version=version] [options]",
    "Set the selector on a resource",
    &[
        SHARED,
        &[string("resource-version", "", "Only if the object has this version")],
        PRINT,
        PLAIN_FILENAME,
        DRY_RUN,
        RECORD
    ],
    selector
);
subcommand!(
    SERVICE_ACCOUNT,
    "serviceaccount",
    &["sa"],
    "(-f FILENAME | TYPE NAME) SERVICE_ACCOUNT [options]",
    "Update the service account of a resource",
    &[SHARED, PRINT, FILENAME, DRY_RUN, RECORD],
    service_account
);
subcommand!(
    SUBJECT,
    "subject",
    &[],
    "(-f FILENAME | TYPE NAME) [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname] [--dry-run=server|client|none] [options]",
    "Update the user, group, or service account in a role binding or cluster role binding",
    &[SUBJECT_FLAGS, SHARED, PRINT, FILENAME, SELECTOR, DRY_RUN],
    subject
);

type Edit<'a> = &'a dyn Fn(&mut Value) -> std::result::Result<(), String>;

/// What a subcommand does to objects, and what it says of them.
struct Job<'a> {
    /// `image updated`.
    done: &'static str,
    /// Stands before what the server has against it; without it, no object is named in what is wrong with it either.
    refused: &'static str,
    edit: Edit<'a>,
    /// Whether objects that stay as they are are sent and spoken of.
    unchanged_too: bool,
}

async fn selected(session: &Session, matches: &Matches, words: &[String]) -> Result<Vec<Info>> {
    let mut selection = Selection::of(session, matches)?;
    selection.arguments = words.to_vec();
    selection.latest = !selection.local;
    // Only says that a type may stand without names.
    selection.allow_empty_selector = std::mem::take(&mut selection.all);
    if selection.arguments.is_empty() && !selection.has_files() {
        return Err(Failure::message(
            "one or more resources must be specified as <resource> <name> or <resource>/<name>",
        ));
    }
    selection.all_or_nothing(session).await
}

fn required_version(matches: &Matches) -> Option<&str> {
    match matches.has("resource-version") {
        true => matches.opt("resource-version"),
        false => None,
    }
}

/// Changes every object and prints those that changed. `failures` are what is wrong with the line itself.
async fn change_all(
    session: &Session,
    matches: &Matches,
    infos: Vec<Info>,
    mut failures: Vec<Failure>,
    job: Job<'_>,
) -> Result<()> {
    let mut operation = Operation::of(session, matches)?.typed();
    for info in infos {
        let mut wanted = info.object.clone();
        if let Err(why) = (job.edit)(&mut wanted) {
            let kind = if matches.bool("local") { &info.resource.singular } else { &info.resource.name };
            failures.push(Failure::Message(match job.refused {
                "" => why,
                _ => format!("error: {kind}/{} {why}\n", info.name),
            }));
            continue;
        }
        let unchanged = wanted == info.object && required_version(matches).is_none();
        if unchanged && !job.unchanged_too {
            continue;
        }
        record(&mut wanted, matches);
        if matches.bool("local") || operation.dry_run == DryRun::Client {
            operation.print(session, &info, &wanted, job.done)?;
            continue;
        }
        match send(session, matches, &info, &wanted, operation.dry_run).await {
            Ok(object) => operation.print(session, &info, &object, job.done)?,
            Err(failure) if job.refused.is_empty() => failures.push(failure),
            Err(failure) => failures.push(Failure::Message(format!("{}{}", job.refused, failure.text()))),
        }
    }
    Failure::aggregate(failures)
}

async fn send(session: &Session, matches: &Matches, info: &Info, wanted: &Value, dry_run: DryRun) -> Result<Value> {
    let resource = &info.resource;
    let kind = (resource.group.as_str(), resource.version.as_str(), resource.kind.as_str());
    let strategic = is_builtin(info).then(|| strategic_two_way(kind, &info.object, wanted)).flatten();
    let (mut patch, content) = match strategic {
        Some(patch) => (patch, STRATEGIC),
        None => (api::patch::merge_diff(&info.object, wanted), MERGE),
    };
    if let Some(version) = required_version(matches) {
        patch["metadata"]["resourceVersion"] = version.into();
    }
    Change { session, manager: matches.str("field-manager"), validation: "", dry_run }
        .patch(info, content, &patch)
        .await
}

fn split(words: &[String]) -> (Vec<String>, Vec<String>) {
    crate::verbs::settings::pairs::split(words)
}

async fn image(session: &Session, matches: &Matches) -> Result<()> {
    let (objects, pairs) = split(&matches.args);
    if pairs.is_empty() {
        return Err(Failure::message("at least one image update is required"));
    }
    let pairs: Vec<(String, String)> =
        pairs.iter().filter_map(|p| p.split_once('=')).map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let infos = selected(session, matches, &objects).await?;
    let missing = RefCell::new(Vec::new());
    let edit = |object: &mut Value| {
        let absent = set::image(object, &pairs)?;
        missing.borrow_mut().extend(absent);
        Ok(())
    };
    let refused = "failed to patch image update to pod template: ";
    let job = Job { done: "image updated", refused, edit: &edit, unchanged_too: false };
    let changed = change_all(session, matches, infos, Vec::new(), job).await;
    let missing = missing.into_inner().into_iter().map(|name: String| absent_container(&format!("{name:?}")));
    let mut failures: Vec<Failure> = missing.collect();
    match changed {
        Err(Failure::Several(all)) => failures.extend(all),
        Err(failure) => failures.push(failure),
        Ok(()) => {}
    }
    Failure::aggregate(failures)
}

fn absent_container(name: &str) -> Failure {
    Failure::Message(format!("error: unable to find container named {name}"))
}

async fn env(session: &Session, matches: &Matches) -> Result<()> {
    let mut arguments = matches.args.clone();
    arguments.retain(|word| word != "-");
    let (objects, mut words) = split(&arguments);
    words.extend(matches.list("env"));
    if arguments.len() < matches.args.len() {
        if matches.list("filename").iter().any(|file| file == "-") {
            return Err(Failure::message("standard input cannot be used for multiple arguments"));
        }
        let text = std::io::read_to_string(std::io::stdin())?;
        words.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string));
    }
    let infos = selected(session, matches, &objects).await?;
    let pattern = matches.str("containers").to_string();
    if matches.bool("list") {
        return list_env(session, infos, &pattern, matches.bool("resolve")).await;
    }
    let mut wanted = set::Environment::parse(&words, matches.bool("overwrite")).map_err(Failure::Message)?;
    if let Some(from) = matches.opt("from") {
        wanted.set.extend(from_object(session, matches, from).await?);
    }
    let mut fitting = Vec::new();
    for mut info in infos {
        let place = (info.resource.name.clone(), info.name.clone());
        let spec = set::pod_spec(&mut info.object)
            .map_err(|why| Failure::message(format!("{}/{} {why}", place.0, place.1)))?;
        let none = set::containers(spec, &pattern, true).is_empty();
        match none {
            true => session.output.warn(&format!(
                "Warning: {}/{} does not have any containers matching {pattern:?}",
                info.resource.kind, info.name
            )),
            false => fitting.push(info),
        }
    }
    let edit = |object: &mut Value| wanted.apply(object, &pattern);
    let refused = "failed to patch env update to pod template: ";
    let job = Job { done: "env updated", refused, edit: &edit, unchanged_too: false };
    change_all(session, matches, fitting, Vec::new(), job).await
}

async fn list_env(session: &Session, infos: Vec<Info>, pattern: &str, resolve: bool) -> Result<()> {
    for mut info in infos {
        let mut sources = Sources::new();
        if resolve {
            for (resource, name) in references(&mut info.object, pattern).map_err(Failure::Message)? {
                let path = format!("/api/v1/namespaces/{}/{resource}/{name}", info.namespace);
                let answer = session.rest().await?.get(path).about(resource, &name).value().await;
                sources.insert((resource, name), answer.map_err(|failure| failure.text()));
            }
        }
        let shown = format!("{} {}", info.resource.kind, info.name);
        let listed = list_environment(&mut info.object, &shown, pattern, resolve.then_some(&sources));
        let listed = listed.map_err(Failure::Message)?;
        if listed.text.is_empty() {
            let shown = format!("{}/{}", info.resource.kind, info.name);
            session.output.warn(&format!("Warning: {shown} does not have any containers matching {pattern:?}"));
        }
        session.output.print(&listed.text);
        for complaint in &listed.complaints {
            session.output.warn(complaint);
        }
    }
    Ok(())
}

/// Variables that refer to the keys of a ConfigMap or Secret.
async fn from_object(session: &Session, matches: &Matches, from: &str) -> Result<Vec<Value>> {
    let source = crate::verbs::streams::containers::object(session, &[from.to_string()]).await?;
    let reference = match source.resource.kind.as_str() {
        "ConfigMap" => "configMapKeyRef",
        "Secret" => "secretKeyRef",
        _ => return Err(Failure::message("unsupported resource specified in --from")),
    };
    let keys = matches.list("keys");
    let data = source.object["data"].as_object().into_iter().flatten();
    Ok(data
        .filter(|(key, _)| keys.is_empty() || keys.contains(key))
        .map(|(key, _)| {
            let plain: String = key.to_uppercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            if plain != **key {
                session.output.warn(&format!("Warning: key {key} transferred to {plain}"));
            }
            serde_json::json!({"name": format!("{}{plain}", matches.str("prefix")), "valueFrom": {reference: {"name": source.name, "key": key}}})
        })
        .collect())
}

async fn resources(session: &Session, matches: &Matches) -> Result<()> {
    let (limits, requests) = (matches.str("limits").to_string(), matches.str("requests").to_string());
    if limits.is_empty() && requests.is_empty() {
        return Err(Failure::message(
            "you must specify an update to requests or limits (in the form of --requests/--limits)",
        ));
    }
    let pattern = matches.str("containers").to_string();
    let infos = selected(session, matches, &matches.args).await?;
    let mut failures = Vec::new();
    for amounts in [&limits, &requests] {
        resource_list(amounts).map_err(Failure::Message)?;
    }
    for info in &infos {
        let mut object = info.object.clone();
        if set::pod_spec(&mut object).is_ok_and(|spec| set::containers(spec, &pattern, true).is_empty()) {
            failures.push(absent_container(&pattern));
        }
    }
    let edit = |object: &mut Value| set::resources(object, &pattern, &limits, &requests);
    let refused = "failed to patch resources update to pod template ";
    let job = Job { done: "resource requirements updated", refused, edit: &edit, unchanged_too: false };
    change_all(session, matches, infos, failures, job).await
}

async fn selector(session: &Session, matches: &Matches) -> Result<()> {
    let (objects, words) = split(&matches.args);
    let [text] = words.as_slice() else {
        return Err(Failure::message("one selector is required"));
    };
    let infos = selected(session, matches, &objects).await?;
    let edit = |object: &mut Value| set::selector(object, text);
    let job = Job { done: "selector updated", refused: "", edit: &edit, unchanged_too: true };
    change_all(session, matches, infos, Vec::new(), job).await
}

async fn service_account(session: &Session, matches: &Matches) -> Result<()> {
    let Some((account, objects)) = matches.args.split_last() else {
        return Err(Failure::message("serviceaccount is required"));
    };
    let infos = selected(session, matches, objects).await?;
    let edit = |object: &mut Value| set::service_account(object, account);
    let refused = "failed to patch ServiceAccountName ";
    let job = Job { done: "serviceaccount updated", refused, edit: &edit, unchanged_too: true };
    change_all(session, matches, infos, Vec::new(), job).await
}

async fn subject(session: &Session, matches: &Matches) -> Result<()> {
    let (users, groups, accounts) = (matches.list("user"), matches.list("group"), matches.list("serviceaccount"));
    if users.is_empty() && groups.is_empty() && accounts.is_empty() {
        return Err(Failure::message("you must specify at least one value of user, group or serviceaccount"));
    }
    let subjects = Subjects { users: &users, groups: &groups, service_accounts: &accounts };
    subjects.to_values().map_err(Failure::Message)?;
    let infos = selected(session, matches, &matches.args).await?;
    let edit = |object: &mut Value| set::subject(object, &subjects).map(drop);
    let refused = "failed to patch subjects to rolebinding: ";
    let job = Job { done: "subjects updated", refused, edit: &edit, unchanged_too: false };
    change_all(session, matches, infos, Vec::new(), job).await
}
