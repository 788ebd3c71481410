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
        format::Printer,
        operation::{ALLOWED, DryRun},
        table::TabWriter,
    },
    resource::{Info, items_of},
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

async fn revisions(session: &Session, info: &Info) -> Result<BTreeMap<i64, Revision>> {
    if !has_rollouts(info) {
        return Err(Failure::message(format!("no history viewer has been implemented for {}", info.resource.kind)));
    }
    let deployment = info.resource.kind == "Deployment";
    let kept_in = if deployment { "replicasets" } else { "controllerrevisions" };
    let path = format!("/apis/apps/v1/namespaces/{}/{kept_in}", info.namespace);
    let listed = session.rest().await?.get(path).query("labelSelector", selector_of(&info.object)?).value().await?;
    let uid = &info.object["metadata"]["uid"];
    let mut found = BTreeMap::new();
    for keeper in items_of(listed) {
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
        found.insert(number, Revision { cause, template, keeper });
    }
    Ok(found)
}

pub async fn history(session: &Session, matches: &Matches) -> Result<()> {
    let wanted = matches.int("revision");
    if wanted < 0 {
        return Err(Failure::message(format!("revision must be a positive integer: {wanted}")));
    }
    let mut printer = Printer::of(matches, ALLOWED)?;
    for info in selected(session, matches).await? {
        let mut found = revisions(session, &info).await?;
        if let Some(printer) = &mut printer {
            if wanted > 0 {
                let revision =
                    found.remove(&wanted).ok_or_else(|| Failure::message("unable to find the specified revision"))?;
                session.output.print(&printer.text(&revision.keeper)?);
            } else {
                for revision in found.values() {
                    session.output.print(&printer.text(&revision.keeper)?);
                }
            }
            continue;
        }
        let with = if wanted > 0 { format!(" with revision #{wanted}") } else { String::new() };
        session.output.line(&format!("{}/{}{with}", info.resource.qualified_kind(), info.name));
        if wanted > 0 {
            let revision =
                found.remove(&wanted).ok_or_else(|| Failure::message("unable to find the specified revision"))?;
            session.output.line(&template_text(&revision.template));
            continue;
        }
        let mut writer = TabWriter::default();
        writer.row(vec!["REVISION".into(), "CHANGE-CAUSE".into()]);
        for (number, revision) in &found {
            let cause = if revision.cause.is_empty() { "<none>" } else { &revision.cause };
            writer.row(vec![number.to_string(), cause.to_string()]);
        }
        session.output.line(&writer.flush());
    }
    Ok(())
}

/// The pod template as `describe` shows it.
fn template_text(template: &Value) -> String {
    let mut lines = vec!["Pod Template:".to_string()];
    let labels: Vec<String> = template["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
        .collect();
    for (index, label) in labels.iter().enumerate() {
        lines.push(match index {
            0 => format!("  Labels:\t{label}"),
            _ => format!("\t{label}"),
        });
    }
    lines.push("  Containers:".to_string());
    for container in template["spec"]["containers"].as_array().into_iter().flatten() {
        lines.push(format!("   {}:", container["name"].as_str().unwrap_or_default()));
        lines.push(format!("    Image:\t{}", container["image"].as_str().unwrap_or_default()));
    }
    lines.join("\n")
}

pub async fn undo(session: &Session, matches: &Matches) -> Result<()> {
    let mut operation = Operation::of(session, matches)?;
    let wanted = matches.int("to-revision");
    for info in selected(session, matches).await? {
        if !has_rollouts(&info) {
            return Err(Failure::message(format!("no rollbacker has been implemented for {}", info.resource.kind)));
        }
        if info.object["spec"]["paused"] == true {
            return Err(Failure::message(format!(
                "you cannot rollback a paused deployment; resume it first with 'kubectl rollout resume deployment/{}' and try again",
                info.name
            )));
        }
        let found = revisions(session, &info).await?;
        let target = match wanted {
            0 => found.keys().rev().nth(1).copied(),
            number => found.contains_key(&number).then_some(number),
        };
        let Some(target) = target.and_then(|number| found.get(&number).map(|r| (number, r))) else {
            return Err(Failure::message(match wanted {
                0 => "no rollout history found for deployment ".to_string() + &format!("{:?}", info.name),
                number => format!("unable to find specified revision {number} in history"),
            }));
        };
        let done = roll_back(session, &operation, &info, target.1).await?;
        operation.print(session, &info, &info.object, done)?;
    }
    Ok(())
}

async fn roll_back(session: &Session, operation: &Operation, info: &Info, target: &Revision) -> Result<&'static str> {
    let change = Change { session, manager: "kubectl-rollout", validation: "", dry_run: operation.dry_run };
    if operation.dry_run == DryRun::Client {
        return Ok("rolled back");
    }
    if info.resource.kind != "Deployment" {
        change.patch(info, STRATEGIC, &target.keeper["data"]).await?;
        return Ok("rolled back");
    }
    let mut template = target.template.clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove("pod-template-hash");
    }
    if template == info.object["spec"]["template"] {
        return Ok("skipped rollback (current template already matches revision)");
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
    change.patch(info, JSON, &patch).await?;
    Ok("rolled back")
}
