//! Clusters, users and contexts: set, delete, rename, use.
//! Subcommands of `config`.
//! An entry keeps the fields that no flag names.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{merged, open};
use crate::{
    failure::{Failure, Result, go_error},
    flags::{Flag, Matches, boolean, list, string},
    kubeconfig::{Config, Entry},
    session::Session,
    subcommand,
};

subcommand!(
    USE_CONTEXT,
    "use-context",
    &["use"],
    "CONTEXT_NAME [options]",
    "Set the current-context in a kubeconfig file",
    &[],
    use_context
);
subcommand!(
    DELETE_CONTEXT,
    "delete-context",
    &[],
    "NAME [options]",
    "Delete the specified context from the kubeconfig",
    &[],
    delete_context
);
subcommand!(
    DELETE_CLUSTER,
    "delete-cluster",
    &[],
    "NAME [options]",
    "Delete the specified cluster from the kubeconfig",
    &[],
    delete_cluster
);
subcommand!(
    DELETE_USER,
    "delete-user",
    &[],
    "NAME [options]",
    "Delete the specified user from the kubeconfig",
    &[],
    delete_user
);
subcommand!(
    RENAME_CONTEXT,
    "rename-context",
    &[],
    "CONTEXT_NAME NEW_NAME [options]",
    "Rename a context from the kubeconfig file",
    &[],
    rename_context
);
subcommand!(
    SET_CONTEXT,
    "set-context",
    &[],
    "[NAME | --current] [--cluster=cluster_nickname] [--user=user_nickname] [--namespace=namespace] [options]",
    "Set a context entry in kubeconfig",
    &[CURRENT],
    set_context
);
subcommand!(
    SET_CLUSTER,
    "set-cluster",
    &[],
    "NAME [--server=server] [--certificate-authority=path/to/certificate/authority] [--insecure-skip-tls-verify=true] [--tls-server-name=example.com] [options]",
    "Set a cluster entry in kubeconfig",
    &[CLUSTER],
    set_cluster
);
subcommand!(
    SET_CREDENTIALS,
    "set-credentials",
    &[],
    "NAME [options]",
    "Set a user entry in kubeconfig",
    &[CREDENTIALS],
    set_credentials
);

const CURRENT: &[Flag] = &[boolean("current", "false", "Change the current context")];
const CLUSTER: &[Flag] = &[
    boolean("embed-certs", "false", "Put the certificate into the kubeconfig"),
    string("proxy-url", "", "Proxy on the way to the cluster"),
];
const CREDENTIALS: &[Flag] = &[
    boolean("embed-certs", "false", "Put certificate and key into the kubeconfig"),
    string("auth-provider", "", "Name of the authentication provider"),
    list("auth-provider-arg", "key=value for the authentication provider"),
    string("exec-command", "", "Program that prints credentials"),
    string("exec-api-version", "", "API version of the program"),
    string("exec-interactive-mode", "", "Whether the program may use the terminal"),
    boolean("exec-provide-cluster-info", "false", "Tell the program about the cluster"),
    list("exec-arg", "Argument of the program"),
    list("exec-env", "key=value in the environment of the program"),
];

fn one_name(matches: &Matches) -> Result<&str> {
    match matches.args.as_slice() {
        [name] => Ok(name),
        args => Err(unexpected(args)),
    }
}

fn unexpected(args: &[String]) -> Failure {
    Failure::Help(Some(format!("Unexpected args: [{}]", args.join(" "))))
}

async fn use_context(session: &Session, matches: &Matches) -> Result<()> {
    let name = one_name(matches)?;
    let all = merged(session)?;
    if all.context(name).is_none() {
        return Err(Failure::message(format!("no context exists with the name: {name:?}")));
    }
    // The file that is read first decides; where none names one, the default file gets it.
    let file = match all.current_context.as_str() {
        "" => session.places().default_file(),
        _ => all.current_context_file.clone(),
    };
    let mut config = open(&file)?;
    config.current_context = name.to_string();
    config.write(&file)?;
    session.output.line(&format!("Switched to context {name:?}."));
    Ok(())
}

fn entries<'a>(config: &'a mut Config, kind: &str) -> &'a mut Vec<Entry> {
    match kind {
        "cluster" => &mut config.clusters,
        "user" => &mut config.users,
        _ => &mut config.contexts,
    }
}

fn delete(session: &Session, matches: &Matches, kind: &str) -> Result<()> {
    let name = match (matches.args.as_slice(), kind) {
        ([name], _) => name.as_str(),
        (_, "user") => return Err(Failure::message("user to delete is required")),
        _ => return Err(Failure::Help(None)),
    };
    let mut all = merged(session)?;
    let shown = session.places().default_file();
    let current = all.current_context.clone();
    let Some(entry) = entries(&mut all, kind).iter().find(|e| e.name == name) else {
        return Err(Failure::message(format!("cannot delete {kind} {name}, not in {}", shown.display())));
    };
    let file = entry.file.clone();
    if kind == "context" && current == name {
        session.output.warn(
            "warning: this removed your active context, use \"kubectl config use-context\" to select a different one",
        );
    }
    let mut config = open(&file)?;
    entries(&mut config, kind).retain(|e| e.name != name);
    config.write(&file)?;
    session.output.line(&format!("deleted {kind} {name} from {}", shown.display()));
    Ok(())
}

async fn delete_context(session: &Session, matches: &Matches) -> Result<()> {
    delete(session, matches, "context")
}

async fn delete_cluster(session: &Session, matches: &Matches) -> Result<()> {
    delete(session, matches, "cluster")
}

async fn delete_user(session: &Session, matches: &Matches) -> Result<()> {
    delete(session, matches, "user")
}

async fn rename_context(session: &Session, matches: &Matches) -> Result<()> {
    let [old, new] = matches.args.as_slice() else {
        return Err(unexpected(&matches.args));
    };
    let all = merged(session)?;
    let shown = session.places().default_file();
    let Some(entry) = all.context(old) else {
        return Err(Failure::message(format!("cannot rename the context {old:?}, it's not in {}", shown.display())));
    };
    if all.context(new).is_some() {
        return Err(Failure::message(format!(
            "cannot rename the context {old:?}, the context {new:?} already exists in {}",
            shown.display()
        )));
    }
    let file = entry.file.clone();
    let mut config = open(&file)?;
    config.contexts.iter_mut().filter(|e| e.name == *old).for_each(|e| e.name = new.clone());
    if config.current_context == *old {
        config.current_context = new.clone();
    }
    config.write(&file)?;
    session.output.line(&format!("Context {old:?} renamed to {new:?}."));
    Ok(())
}

/// Changes an entry, or makes it; whether it was there.
fn upsert(session: &Session, kind: &str, name: &str, change: impl FnOnce(&mut Value) -> Result<()>) -> Result<bool> {
    let mut all = merged(session)?;
    let known = entries(&mut all, kind).iter().find(|e| e.name == name).map(|e| e.file.clone());
    let file = known.clone().unwrap_or_else(|| session.places().default_file());
    let mut config = open(&file)?;
    let list = entries(&mut config, kind);
    let at = match list.iter().position(|e| e.name == name) {
        Some(at) => at,
        None => {
            list.push(Entry { name: name.to_string(), value: json!({}), file: file.clone() });
            list.len() - 1
        }
    };
    change(&mut list[at].value)?;
    if let Some(map) = list[at].value.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    config.write(&file)?;
    Ok(known.is_some())
}

async fn set_context(session: &Session, matches: &Matches) -> Result<()> {
    let all = merged(session)?;
    let name = match (matches.args.as_slice(), matches.bool("current")) {
        ([], true) if all.current_context.is_empty() => return Err(Failure::message("no current context is set")),
        ([], true) => all.current_context.clone(),
        ([_], true) => return Err(Failure::message("you cannot specify both a context name and --current")),
        ([], false) => return Err(Failure::message("you must specify a non-empty context name or --current")),
        _ => one_name(matches)?.to_string(),
    };
    let there = upsert(session, "context", &name, |value| {
        for field in ["cluster", "user", "namespace"] {
            if matches.changed(field) {
                value[field] = matches.opt(field).map_or(Value::Null, Into::into);
            }
        }
        for field in ["cluster", "user"] {
            if value[field].is_null() {
                value[field] = "".into();
            }
        }
        Ok(())
    })?;
    let done = if there { "modified" } else { "created" };
    session.output.line(&format!("Context {name:?} {done}."));
    Ok(())
}

fn embed(value: &mut Value, field: &str, path: &str, embed: bool) -> Result<()> {
    let data = format!("{field}-data");
    if embed {
        std::fs::metadata(path).map_err(|e| {
            Failure::message(format!("could not stat {field} file {path}: stat {path}: {}", go_error(&e)))
        })?;
        let bytes = std::fs::read(path)
            .map_err(|e| Failure::message(format!("could not read {field} data from {path}: {}", go_error(&e))))?;
        value[data] = BASE64_STANDARD.encode(bytes).into();
        value[field] = Value::Null;
    } else {
        let whole = std::path::absolute(path).map(|p| p.display().to_string()).unwrap_or_else(|_| path.to_string());
        value[field] = whole.into();
        value[data] = Value::Null;
    }
    Ok(())
}

async fn set_cluster(session: &Session, matches: &Matches) -> Result<()> {
    let name = one_name(matches)?;
    if matches.bool("embed-certs") && matches.opt("certificate-authority").is_none() {
        return Err(Failure::message("you must specify a --certificate-authority to embed"));
    }
    upsert(session, "cluster", name, |value| {
        for field in ["server", "tls-server-name", "proxy-url"] {
            if matches.changed(field) {
                value[field] = matches.opt(field).map_or(Value::Null, Into::into);
            }
        }
        if matches.changed("insecure-skip-tls-verify") {
            value["insecure-skip-tls-verify"] =
                matches.bool("insecure-skip-tls-verify").then_some(true).map_or(Value::Null, Into::into);
            if matches.bool("insecure-skip-tls-verify") {
                value["certificate-authority"] = Value::Null;
                value["certificate-authority-data"] = Value::Null;
            }
        }
        if let Some(path) = matches.opt("certificate-authority") {
            embed(value, "certificate-authority", path, matches.bool("embed-certs"))?;
            value["insecure-skip-tls-verify"] = Value::Null;
        }
        if value["server"].is_null() {
            value["server"] = "".into();
        }
        Ok(())
    })?;
    session.output.line(&format!("Cluster {name:?} set."));
    Ok(())
}

async fn set_credentials(session: &Session, matches: &Matches) -> Result<()> {
    let [name] = matches.args.as_slice() else {
        return Err(Failure::Help(Some(format!("unexpected args: [{}]", matches.args.join(" ")))));
    };
    let mut methods = Vec::new();
    if matches.opt("token").is_some() {
        methods.push("--token");
    }
    if matches.opt("username").is_some() || matches.opt("password").is_some() {
        methods.push("--username/--password");
    }
    if methods.len() > 1 {
        return Err(Failure::message(format!(
            "you cannot specify more than one authentication method at the same time: {}",
            methods.join(", ")
        )));
    }
    let embeds = matches.bool("embed-certs");
    if embeds && matches.opt("client-certificate").is_none() && matches.opt("client-key").is_none() {
        return Err(Failure::message("you must specify a --client-certificate or --client-key to embed"));
    }
    upsert(session, "user", name, |value| {
        for field in ["client-certificate", "client-key"] {
            if let Some(path) = matches.opt(field) {
                embed(value, field, path, embeds)?;
            }
        }
        for field in ["token", "username", "password"] {
            if matches.changed(field) {
                value[field] = matches.opt(field).map_or(Value::Null, Into::into);
            }
        }
        if matches.opt("token").is_some() {
            value["username"] = Value::Null;
            value["password"] = Value::Null;
        }
        if matches.opt("username").is_some() {
            value["token"] = Value::Null;
        }
        provider(value, matches);
        program(value, matches)
    })?;
    session.output.line(&format!("User {name:?} set."));
    Ok(())
}

fn provider(value: &mut Value, matches: &Matches) {
    if let Some(name) = matches.opt("auth-provider") {
        value["auth-provider"]["name"] = name.into();
    }
    for pair in matches.list("auth-provider-arg") {
        match (pair.split_once('='), pair.strip_suffix('-')) {
            (Some((key, text)), _) => value["auth-provider"]["config"][key] = text.into(),
            (None, Some(key)) => {
                if let Some(config) = value["auth-provider"]["config"].as_object_mut() {
                    config.remove(key);
                }
            }
            _ => {}
        }
    }
}

fn program(value: &mut Value, matches: &Matches) -> Result<()> {
    if let Some(command) = matches.opt("exec-command") {
        value["exec"]["command"] = command.into();
        for field in ["args", "env"] {
            if value["exec"][field].is_null() {
                value["exec"][field] = Value::Null;
            }
        }
        if value["exec"]["provideClusterInfo"].is_null() {
            value["exec"]["provideClusterInfo"] = false.into();
        }
    }
    if let Some(version) = matches.opt("exec-api-version") {
        value["exec"]["apiVersion"] = version.into();
    }
    if let Some(mode) = matches.opt("exec-interactive-mode") {
        if !["IfAvailable", "Never", "Always"].contains(&mode) {
            return Err(Failure::message("invalid interactive mode type, can be only IfAvailable, Never, Always"));
        }
        value["exec"]["interactiveMode"] = mode.into();
    }
    if matches.changed("exec-provide-cluster-info") {
        value["exec"]["provideClusterInfo"] = matches.bool("exec-provide-cluster-info").into();
    }
    if matches.changed("exec-arg") {
        value["exec"]["args"] = json!(matches.list("exec-arg"));
    }
    for pair in matches.list("exec-env") {
        let mut list = value["exec"]["env"].as_array().cloned().unwrap_or_default();
        match (pair.split_once('='), pair.strip_suffix('-')) {
            (Some((name, text)), _) => match list.iter_mut().find(|e| e["name"] == name) {
                Some(there) => there["value"] = text.into(),
                None => list.push(json!({"name": name, "value": text})),
            },
            (None, Some(removed)) => list.retain(|e| e["name"] != removed),
            (None, None) => return Err(Failure::message(format!("invalid exec-env format: {pair}"))),
        }
        value["exec"]["env"] = list.into();
    }
    Ok(())
}
