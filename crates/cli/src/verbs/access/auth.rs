//! `kubectl auth`: can-i, whoami, reconcile.
//! A row of `verbs::ROOT`.
//! `whoami` is here; the others have files of their own.

use http::Method;
use serde_json::{Value, json};

use super::{can_i, reconcile};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::Matches,
    printers::{PRINT, format::Printer, operation::ALLOWED, table::TabWriter},
    run,
    session::Session,
};

pub static COMMAND: Command = Command {
    name: "auth",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Inspect authorization",
    flags: &[],
    commands: &[&can_i::COMMAND, &reconcile::COMMAND, &WHOAMI],
    run: None,
};

static WHOAMI: Command = Command {
    name: "whoami",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Experimental: Check self subject attributes",
    flags: &[PRINT],
    commands: &[],
    run: run!(whoami),
};

async fn whoami(session: &Session, matches: &Matches) -> Result<()> {
    let printer = Printer::of(matches, ALLOWED)?;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let call = session.rest().await?.call(Method::POST, "/apis/authentication.k8s.io/v1/selfsubjectreviews");
    let answer = call.json(&review).value().await.map_err(|failure| match failure.is_not_found() {
        true => Failure::message("the selfsubjectreviews API is not enabled in the cluster\nenable APISelfSubjectReview feature gate and authentication.k8s.io/v1alpha1 or authentication.k8s.io/v1beta1 API"),
        false => failure,
    })?;
    if let Some(mut printer) = printer {
        session.output.print(&printer.text(&answer)?);
        return Ok(());
    }
    let user = &answer["status"]["userInfo"];
    let list = |value: &Value| {
        let items: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        format!("[{}]", items.join(" "))
    };
    let mut writer = TabWriter::default();
    writer.row(vec!["ATTRIBUTE".into(), "VALUE".into()]);
    writer.row(vec!["Username".into(), user["username"].as_str().unwrap_or_default().into()]);
    if let Some(uid) = user["uid"].as_str().filter(|u| !u.is_empty()) {
        writer.row(vec!["UID".into(), uid.into()]);
    }
    if user["groups"].as_array().is_some_and(|g| !g.is_empty()) {
        writer.row(vec!["Groups".into(), list(&user["groups"])]);
    }
    for (key, value) in user["extra"].as_object().into_iter().flatten() {
        writer.row(vec![format!("Extra: {key}"), list(value)]);
    }
    session.output.print(&writer.flush());
    Ok(())
}
