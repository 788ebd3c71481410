//! `kubectl auth reconcile`: RBAC objects that hold at least what files say.
//! A subcommand of `auth`.
//! Adds what is missing; removes what is too much only if told to.

use serde_json::{Value, json};

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean},
    printers::{
        Operation, PRINT,
        operation::{DRY_RUN, DryRun},
    },
    resource::{FILENAME, Info, Selection},
    run,
    session::Session,
    verbs::change::Change,
};

const FLAGS: &[Flag] = &[
    boolean("remove-extra-permissions", "false", "Remove rules that are in no file"),
    boolean("remove-extra-subjects", "false", "Remove subjects that are in no file"),
];

pub static COMMAND: Command = Command {
    name: "reconcile",
    aliases: &[],
    usage: "-f FILENAME [options]",
    about: "Reconciles rules for RBAC role, role binding, cluster role, and cluster role binding objects",
    flags: &[FLAGS, PRINT, FILENAME, DRY_RUN],
    commands: &[],
    run: run!(reconcile),
};

/// What is in one list and not in another; order and place do not count.
fn missing(from: &Value, of: &Value) -> Vec<Value> {
    let of = of.as_array().cloned().unwrap_or_default();
    from.as_array().into_iter().flatten().filter(|item| !of.contains(item)).cloned().collect()
}

/// The live object with what the file says; `None` if nothing changes.
fn merged(live: &Value, wanted: &Value, field: &str, remove_extra: bool) -> Option<Value> {
    let add = missing(&wanted[field], &live[field]);
    let extra = missing(&live[field], &wanted[field]);
    if add.is_empty() && (extra.is_empty() || !remove_extra) {
        return None;
    }
    let mut list = live[field].as_array().cloned().unwrap_or_default();
    if remove_extra {
        list.retain(|item| !extra.contains(item));
    }
    list.extend(add);
    let mut object = live.clone();
    object[field] = list.into();
    Some(object)
}

async fn reconcile(session: &Session, matches: &Matches) -> Result<()> {
    let selection = Selection::of(session, matches)?;
    if !selection.has_files() {
        return Err(Failure::message("must specify one of -f and -k"));
    }
    let mut operation = Operation::of(session, matches)?;
    let (documents, failures) = selection.documents(session).await?;
    if let Some(refused) = documents.iter().find_map(|document| older_version(&document.object)) {
        return Err(Failure::message(refused));
    }
    let (infos, failures) = selection.infos(session, documents, failures).await?;
    Failure::aggregate(failures)?;
    for info in infos {
        let (field, remove) = match info.resource.kind.as_str() {
            "Role" | "ClusterRole" => ("rules", matches.bool("remove-extra-permissions")),
            "RoleBinding" | "ClusterRoleBinding" => ("subjects", matches.bool("remove-extra-subjects")),
            _ => continue,
        };
        let live = match info.get(session).await {
            Ok(live) => Some(live),
            Err(failure) if failure.is_not_found() => None,
            Err(failure) => return Err(failure),
        };
        session.output.error_bytes(report(&info, live.as_ref(), field, remove).as_bytes());
        let object = one(session, &info, live, field, remove, operation.dry_run).await?;
        operation.print(session, &info, &object, "reconciled")?;
    }
    Ok(())
}

/// Why an object of a version before v1 is refused, before a server that may not serve it is asked.
fn older_version(object: &Value) -> Option<String> {
    let (group, version) = object["apiVersion"].as_str()?.split_once('/')?;
    let old = group == "rbac.authorization.k8s.io" && ["v1alpha1", "v1beta1"].contains(&version);
    let kind = object["kind"].as_str()?;
    old.then(|| format!("only rbac.authorization.k8s.io/v1 is supported: not *{version}.{kind}"))
}

/// What an attempt would do, in kubectl's words.
fn report(info: &Info, live: Option<&Value>, field: &str, remove: bool) -> String {
    let nothing = Value::Null;
    let list = |object: Option<&Value>| object.map_or(&nothing, |o| &o[field]).clone();
    let (add, extra) = (missing(&info.object[field], &list(live)), missing(&list(live), &info.object[field]));
    let verb = match live {
        None => "create",
        Some(_) if add.is_empty() && (extra.is_empty() || !remove) => return String::new(),
        Some(_) => "update",
    };
    let mut text = format!("\treconciliation required {verb}\n");
    let mut lines = |head: String, items: &[Value]| {
        if !items.is_empty() {
            text.push_str(&format!("\t{head}:\n"));
            items.iter().for_each(|item| text.push_str(&format!("\t\t{}\n", shown(item, field))));
        }
    };
    lines(format!("missing {field} added"), &add);
    lines(format!("extra {field} {}", if remove { "removed" } else { "kept" }), if remove { &extra } else { &[] });
    text
}

fn shown(item: &Value, field: &str) -> String {
    let names: &[(&str, &str)] = match field {
        "rules" => &[
            ("Verbs", "verbs"),
            ("APIGroups", "apiGroups"),
            ("Resources", "resources"),
            ("ResourceNames", "resourceNames"),
            ("NonResourceURLs", "nonResourceURLs"),
        ],
        _ => &[("Kind", "kind"), ("APIGroup", "apiGroup"), ("Name", "name"), ("Namespace", "namespace")],
    };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        _ if field == "rules" => {
            let words: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            format!("[{}]", words.join(" "))
        }
        _ => String::new(),
    };
    let parts: Vec<String> = names.iter().map(|(shown, field)| format!("{shown}:{}", text(&item[field]))).collect();
    format!("{{{}}}", parts.join(" "))
}

async fn one(
    session: &Session,
    info: &Info,
    live: Option<Value>,
    field: &str,
    remove: bool,
    dry_run: DryRun,
) -> Result<Value> {
    let change = Change { session, manager: "kubectl-auth-reconcile", validation: "", dry_run };
    match live {
        Some(live) => match merged(&live, &info.object, field, remove) {
            None => Ok(live),
            Some(object) if dry_run == DryRun::Client => Ok(object),
            Some(object) => change.update(info, &object).await,
        },
        None => {
            if dry_run == DryRun::Client {
                return Ok(info.object.clone());
            }
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": info.namespace}});
            if !info.namespace.is_empty() {
                let made =
                    session.rest().await?.call(http::Method::POST, "/api/v1/namespaces").json(&namespace).value().await;
                if let Err(failure) = made
                    && !["AlreadyExists", "Forbidden"].contains(&failure.reason())
                {
                    return Err(failure);
                }
            }
            change.create(info, &info.object).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_v1_are_refused() {
        let check = |api_version: &str, wanted: Option<&str>| {
            let found = older_version(&json!({"apiVersion": api_version, "kind": "ClusterRole"}));
            assert_eq!(found.as_deref(), wanted, "{api_version}");
        };
        let refused = "only rbac.authorization.k8s.io/v1 is supported: not *v1beta1.ClusterRole";
        check("rbac.authorization.k8s.io/v1beta1", Some(refused));
        check("rbac.authorization.k8s.io/v1", None);
        check("example.com/v1beta1", None);
        check("v1", None);
    }

    #[test]
    fn rules_are_added_and_extra_ones_removed_if_told() {
        let live = json!({"rules": [{"verbs": ["get"]}, {"verbs": ["list"]}]});
        let file = json!({"rules": [{"verbs": ["get"]}, {"verbs": ["watch"]}]});
        let check = |remove: bool, wanted: Value| {
            assert_eq!(merged(&live, &file, "rules", remove).map(|o| o["rules"].clone()), Some(wanted));
        };
        check(false, json!([{"verbs": ["get"]}, {"verbs": ["list"]}, {"verbs": ["watch"]}]));
        check(true, json!([{"verbs": ["get"]}, {"verbs": ["watch"]}]));
        assert_eq!(merged(&live, &live, "rules", true), None);
    }
}
