//! `kubectl auth can-i`: whether an action is allowed, or with `--list` which are.
//! A subcommand of `auth`.
//! The exit code is the answer.

use http::Method;
use serde_json::{Value, json};

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    printers::columns::TabWriter,
    resource::ALL_NAMESPACES,
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    boolean("list", "false", "All that is allowed"),
    boolean("no-headers", "false", "Leave out the headers"),
    boolean("quiet", "false", "Only the exit code").short('q'),
    string("subresource", "", "Subresource, such as log"),
];

pub static COMMAND: Command = Command {
    name: "can-i",
    aliases: &[],
    usage: "VERB [TYPE | TYPE/NAME | NONRESOURCEURL] [options]",
    about: "Check whether an action is allowed",
    flags: &[FLAGS, ALL_NAMESPACES],
    commands: &[],
    run: run!(can_i),
};

async fn can_i(session: &Session, matches: &Matches) -> Result<()> {
    let (namespace, _) = session.namespace()?;
    let namespace = if matches.bool("all-namespaces") { String::new() } else { namespace };
    if matches.bool("list") {
        if !matches.args.is_empty() {
            return Err(Failure::message("list option must be specified with no arguments"));
        }
        return list(session, matches, &namespace).await;
    }
    let attributes = match matches.args.as_slice() {
        [_, url] if url.starts_with('/') && !matches.str("subresource").is_empty() => {
            return Err(Failure::message("--subresource can not be used with NonResourceURL"));
        }
        [verb, url] if url.starts_with('/') => {
            json!({"nonResourceAttributes": {"verb": verb, "path": url}})
        }
        [verb, resource] => resource_attributes(session, matches, &namespace, verb, resource, "").await?,
        [verb, resource, name] => resource_attributes(session, matches, &namespace, verb, resource, name).await?,
        _ => {
            return Err(Failure::message(
                "you must specify two arguments: verb resource or verb resource/resourceName.\nSee 'kubectl auth can-i -h' for help and examples.",
            ));
        }
    };
    let review =
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": attributes});
    let call = session.rest().await?.call(Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
    let status = call.json(&review).value().await?["status"].clone();
    let allowed = status["allowed"] == true;
    if !matches.bool("quiet") {
        let mut line = if allowed { "yes" } else { "no" }.to_string();
        if !allowed {
            if let Some(reason) = status["reason"].as_str().filter(|r| !r.is_empty()) {
                line.push_str(&format!(" - {reason}"));
            }
            if let Some(error) = status["evaluationError"].as_str().filter(|r| !r.is_empty()) {
                line.push_str(&format!(" - {error}"));
            }
        }
        session.output.line(&line);
    }
    match allowed {
        true => Ok(()),
        false => Err(Failure::Exit(1)),
    }
}

const KNOWN_VERBS: [&str; 16] = [
    "*",
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "use",
    "bind",
    "impersonate",
    "escalate",
    "approve",
    "sign",
    "attest",
];

async fn resource_attributes(
    session: &Session,
    matches: &Matches,
    namespace: &str,
    verb: &str,
    word: &str,
    name: &str,
) -> Result<Value> {
    let (word, name) = match word.split_once('/') {
        Some((word, name)) => (word, name),
        None => (word, name),
    };
    let (resource, group, version, namespaced) = match word {
        "*" => ("*".to_string(), "*".to_string(), String::new(), true),
        word => match session.resource_if_any(word).await? {
            Some(found) => (found.name.clone(), found.group.clone(), String::new(), found.namespaced),
            None => {
                let (resource, group) = word.split_once('.').unwrap_or((word, ""));
                session.output.warn(&format!(
                    "Warning: the server doesn't have a resource type '{resource}'{}\n",
                    if group.is_empty() { String::new() } else { format!(" in group '{group}'") }
                ));
                (resource.to_string(), group.to_string(), String::new(), true)
            }
        },
    };
    if !namespaced && !namespace.is_empty() && !matches.bool("quiet") {
        let of = if group.is_empty() { String::new() } else { format!(" in group '{group}'") };
        session.output.warn(&format!("Warning: resource '{resource}' is not namespace scoped{of}\n"));
    }
    if !KNOWN_VERBS.contains(&verb) && !matches.bool("quiet") {
        session.output.warn(&format!("Warning: verb '{verb}' is not a known verb\n"));
    }
    Ok(json!({"resourceAttributes": {
        "namespace": namespace, "verb": verb, "group": group, "version": version, "resource": resource,
        "subresource": matches.str("subresource"), "name": name}}))
}

async fn list(session: &Session, matches: &Matches, namespace: &str) -> Result<()> {
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}});
    let call = session.rest().await?.call(Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews");
    let status = call.json(&review).value().await?["status"].clone();
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_string).collect()
    };
    let mut rows: Vec<[String; 4]> = Vec::new();
    let shown = |list: &[String]| format!("[{}]", list.join(" "));
    for rule in status["resourceRules"].as_array().into_iter().flatten() {
        let (groups, names, verbs) = (texts(&rule["apiGroups"]), texts(&rule["resourceNames"]), texts(&rule["verbs"]));
        for resource in texts(&rule["resources"]) {
            for group in &groups {
                let name = if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
                rows.push([name, "[]".to_string(), shown(&names), shown(&verbs)]);
            }
        }
    }
    for rule in status["nonResourceRules"].as_array().into_iter().flatten() {
        for url in texts(&rule["nonResourceURLs"]) {
            rows.push([String::new(), format!("[{url}]"), "[]".to_string(), shown(&texts(&rule["verbs"]))]);
        }
    }
    // By group, then by resource.
    let key = |row: &[String; 4]| match row[0].split_once('.') {
        Some((resource, group)) => (group.to_string(), resource.to_string(), row[1].clone()),
        None => (String::new(), row[0].clone(), row[1].clone()),
    };
    rows.sort_by_key(key);
    // Those without a resource stand behind the others.
    rows.sort_by_key(|row| row[0].is_empty());
    let mut writer = TabWriter::default();
    if !matches.bool("no-headers") {
        writer.row(["Resources", "Non-Resource URLs", "Resource Names", "Verbs"].map(str::to_string).to_vec());
    }
    rows.into_iter().for_each(|row| writer.row(row.to_vec()));
    session.output.print(&writer.flush());
    if status["incomplete"] == true {
        session.output.warn(&format!(
            "warning: the list may be incomplete: {}",
            status["evaluationError"].as_str().unwrap_or_default()
        ));
    }
    Ok(())
}
