//! `kubectl rollout history` and `undo`: the revisions of a workload.
//! Subcommands of `rollout`.
//! Revisions are ReplicaSets of a Deployment, ControllerRevisions of the others.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::rollout::{has_rollouts, selected};
use crate::{
    failure::{Failure, Result},
    flags::Matches,
    printers::{
        Operation,
        columns::TabWriter,
        format::Printer,
        operation::{ALLOWED, DryRun},
    },
    resource::{Info, each, items_of},
    session::Session,
    verbs::change::{Change, JSON, STRATEGIC},
};

const REVISION: &str = "deployment.kubernetes.io/revision";
const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";

/// Revision number, its cause, its pod template (or patch), the object that keeps it.
struct Revision {
    cause: String,
    template: Value,
    keeper: Value,
}

fn selector_of(object: &Value) -> Result<String> {
    let mut parts: Vec<String> = Vec::new();
    let selector = &object["spec"]["selector"];
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        parts.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let values: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        parts.push(match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("Exists") => key.to_string(),
            Some("DoesNotExist") => format!("!{key}"),
            other => return Err(Failure::message(format!("{other:?} is not a valid label selector operator"))),
        });
    }
    Ok(parts.join(","))
}

/// The group and kind as upstream's visitors name them; `what` is who would have been visited.
fn refused(info: &Info, what: &str) -> Failure {
    let (group, kind) = (info.resource.group.as_str(), info.resource.kind.as_str());
    let shown = if group.is_empty() { kind.to_string() } else { format!("{kind}.{group}") };
    let visited =
        [("batch", "Job"), ("", "Pod"), ("apps", "ReplicaSet"), ("", "ReplicationController"), ("batch", "CronJob")];
    Failure::message(match visited.contains(&(group, kind)) {
        true => {
            format!("no {} has been implemented for {shown:?}", if what == "history" { "history viewer" } else { what })
        }
        false => format!("error retrieving {what} for {shown:?}, no visitor method exists for {{{group} {kind}}}"),
    })
}

async fn revisions(session: &Session, info: &Info) -> Result<BTreeMap<i64, Revision>> {
    let deployment = info.resource.kind == "Deployment";
    let kept_in = if deployment { "replicasets" } else { "controllerrevisions" };
    let path = format!("/apis/apps/v1/namespaces/{}/{kept_in}", info.namespace);
    let listed = session.rest().await?.get(path).query("labelSelector", selector_of(&info.object)?).value().await?;
    let uid = &info.object["metadata"]["uid"];
    let mut found = BTreeMap::new();
    for mut keeper in items_of(listed) {
        let owned = keeper["metadata"]["ownerReferences"].as_array().into_iter().flatten().any(|o| &o["uid"] == uid);
        if !owned {
            continue;
        }
        let annotations = &keeper["metadata"]["annotations"];
        let cause = annotations[CHANGE_CAUSE].as_str().unwrap_or_default().to_string();
        let (number, template) = match deployment {
            true => {
                let number = annotations[REVISION].as_str().and_then(|r| r.parse().ok()).unwrap_or(0);
                (number, keeper["spec"]["template"].clone())
            }
            false => (keeper["revision"].as_i64().unwrap_or(0), keeper["data"]["spec"]["template"].clone()),
        };
        let (version, kind) = if deployment { ("apps/v1", "ReplicaSet") } else { ("apps/v1", "ControllerRevision") };
        keeper["apiVersion"] = version.into();
        keeper["kind"] = kind.into();
        found.insert(number, Revision { cause, template: without_directive(template), keeper });
    }
    Ok(found)
}

/// A template out of a ControllerRevision is a patch that replaces.
fn without_directive(mut template: Value) -> Value {
    if let Some(fields) = template.as_object_mut() {
        fields.remove("$patch");
    }
    template
}

impl Revision {
    /// The object that `-o` prints: the ReplicaSet, or the workload as it was.
    fn object(&self, info: &Info) -> Value {
        if info.resource.kind == "Deployment" {
            return self.keeper.clone();
        }
        let mut object = info.object.clone();
        object["spec"]["template"] = self.template.clone();
        object
    }

    /// The pod template as `describe` shows it, but for its columns.
    fn template_text(&self, session: &Session, info: &Info) -> String {
        let mut template = self.template.clone();
        if info.resource.kind == "Deployment" && !self.cause.is_empty() {
            template["metadata"]["annotations"][CHANGE_CAUSE] = self.cause.clone().into();
        }
        crate::describe::pod_template(&template, session.env.now())
    }
}

pub async fn history(session: &Session, matches: &Matches) -> Result<()> {
    let wanted = matches.int("revision");
    let found = selected(session, matches).await;
    if wanted < 0 {
        return Err(Failure::message(format!("revision must be a positive integer: {wanted}")));
    }
    let mut printer = Printer::of(matches, ALLOWED)?;
    let (infos, failures) = found?;
    each(infos, failures, async |info| {
        if !has_rollouts(&info) {
            return Err(refused(&info, "history"));
        }
        // Only -o asks for the objects of the revisions; a template alone is filled from the workload.
        if let (Some(printer), false) = (&mut printer, matches.changed("output")) {
            session.output.print(&printer.text(&info.object)?);
            return Ok(());
        }
        let found = revisions(session, &info).await?;
        let missing = || Failure::message("unable to find the specified revision");
        if let Some(printer) = &mut printer {
            let chosen: Vec<&Revision> = match wanted {
                0 => found.values().collect(),
                number => vec![found.get(&number).ok_or_else(missing)?],
            };
            for revision in chosen {
                session.output.print(&printer.text(&revision.object(&info))?);
            }
            return Ok(());
        }
        let (with, text) = match wanted {
            _ if found.is_empty() => (String::new(), "No rollout history found.".to_string()),
            0 => (String::new(), overview(&found)),
            number => {
                let revision = found.get(&number).ok_or_else(missing)?;
                (format!("with revision #{number}"), revision.template_text(session, &info))
            }
        };
        session.output.line(&format!("{}/{} {with}\n{text}", info.resource.qualified_kind(), info.name));
        Ok(())
    })
    .await
}

fn overview(found: &BTreeMap<i64, Revision>) -> String {
    let mut writer = TabWriter::narrow();
    writer.row(vec!["REVISION".into(), "CHANGE-CAUSE".into()]);
    for (number, revision) in found {
        let cause = if revision.cause.is_empty() { "<none>" } else { &revision.cause };
        writer.row(vec![number.to_string(), cause.to_string()]);
    }
    writer.flush()
}

pub async fn undo(session: &Session, matches: &Matches) -> Result<()> {
    let mut operation = Operation::of(session, matches)?;
    let wanted = matches.int("to-revision");
    let (infos, failures) = selected(session, matches).await?;
    each(infos, failures, async |info| {
        if !has_rollouts(&info) {
            return Err(refused(&info, "rollbacker"));
        }
        let found = revisions(session, &info).await?;
        let deployment = info.resource.kind == "Deployment";
        let target = match wanted {
            0 => found.values().rev().nth(1),
            number => found.get(&number),
        };
        let Some(target) = target else {
            return Err(Failure::message(match wanted {
                0 if deployment => format!("no rollout history found for deployment {:?}", info.name),
                0 => "no last revision to roll back to".to_string(),
                number => format!("unable to find specified revision {number} in history"),
            }));
        };
        let done = roll_back(session, &operation, &info, target, wanted).await?;
        operation.print(session, &info, &info.object, &done)
    })
    .await
}

/// Does it; what is said of it.
async fn roll_back(
    session: &Session,
    operation: &Operation,
    info: &Info,
    target: &Revision,
    wanted: i64,
) -> Result<String> {
    let deployment = info.resource.kind == "Deployment";
    let change = Change { session, manager: "kubectl-rollout", validation: "", dry_run: operation.dry_run };
    if operation.dry_run == DryRun::Client {
        let text = target.template_text(session, info);
        return Ok(if deployment { text } else { format!("will roll back to {text}") });
    }
    if deployment && info.object["spec"]["paused"] == true {
        return Err(Failure::message(
            "you cannot rollback a paused deployment; resume it first with 'kubectl rollout resume' and try again",
        ));
    }
    let mut template = target.template.clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove("pod-template-hash");
    }
    if same_template(&template, &info.object["spec"]["template"]) {
        return Ok(format!("skipped rollback (current template already matches revision {wanted})"));
    }
    let failed = |failure: Failure| Failure::message(format!("failed restoring revision {wanted}: {}", failure.text()));
    if !deployment {
        change.patch(info, STRATEGIC, &target.keeper["data"]).await.map_err(failed)?;
        return Ok("rolled back".to_string());
    }
    let mut annotations = serde_json::Map::new();
    let keep = [
        "kubectl.kubernetes.io/last-applied-configuration",
        REVISION,
        "deployment.kubernetes.io/revision-history",
        "deployment.kubernetes.io/desired-replicas",
        "deployment.kubernetes.io/max-replicas",
        "deprecated.deployment.rollback.to",
    ];
    for (key, value) in info.object["metadata"]["annotations"].as_object().into_iter().flatten() {
        if keep.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    for (key, value) in target.keeper["metadata"]["annotations"].as_object().into_iter().flatten() {
        if !keep.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let patch = json!([
        {"op": "replace", "path": "/spec/template", "value": template},
        {"op": "replace", "path": "/metadata/annotations", "value": annotations},
    ]);
    change.patch(info, JSON, &patch).await.map_err(failed)?;
    Ok("rolled back".to_string())
}

/// Whether two templates say the same; an absent creation time may be written as null.
fn same_template(one: &Value, other: &Value) -> bool {
    let plain = |template: &Value| {
        let mut template = template.clone();
        if let Some(meta) = template["metadata"].as_object_mut() {
            meta.retain(|_, value| !value.is_null());
        }
        template
    };
    plain(one) == plain(other)
}
