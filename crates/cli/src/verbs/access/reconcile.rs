//! `kubectl auth reconcile`: RBAC objects that hold at least what files say.
//! A subcommand of `auth`.
//! Adds what is missing; removes what is too much only if told to.

use serde_json::{Value, json};

use crate::{
    command::Command,
    failure::Result,
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
    let mut operation = Operation::of(session, matches)?;
    for info in selection.all_or_nothing(session).await? {
        let (field, remove) = match info.resource.kind.as_str() {
            "Role" | "ClusterRole" => ("rules", matches.bool("remove-extra-permissions")),
            "RoleBinding" | "ClusterRoleBinding" => ("subjects", matches.bool("remove-extra-subjects")),
            _ => continue,
        };
        let object = one(session, &info, field, remove, operation.dry_run).await?;
        operation.print(session, &info, &object, "reconciled")?;
    }
    Ok(())
}

async fn one(session: &Session, info: &Info, field: &str, remove: bool, dry_run: DryRun) -> Result<Value> {
    let change = Change { session, manager: "kubectl-auth-reconcile", validation: "", dry_run };
    match info.get(session).await {
        Ok(live) => match merged(&live, &info.object, field, remove) {
            None => Ok(live),
            Some(object) if dry_run == DryRun::Client => Ok(object),
            Some(object) => change.update(info, &object).await,
        },
        Err(failure) if failure.is_not_found() => {
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
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
