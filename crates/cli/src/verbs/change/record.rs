//! `--record`: the command line kept in the change-cause annotation of what it changes.
//! Used by the verbs that change objects; read by `rollout history`.
//! A credential never gets into the annotation.

use serde_json::{Value, json};

use super::{Change, MERGE};
use crate::{
    failure::Result,
    flags::{Flag, Matches, boolean},
    printers::operation::DryRun,
    resource::Info,
    session::Session,
};

pub const RECORD: &[Flag] = &[boolean("record", "false", "Keep the command line in an annotation")
    .hidden()
    .deprecated("--record will be removed in the future")];

pub const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";

const SECRET: [&str; 8] =
    ["as", "as-group", "as-uid", "client-certificate", "client-key", "password", "token", "username"];

/// The command line, if it is to be kept: arguments first, then the flags as they were given.
fn cause(matches: &Matches) -> Option<String> {
    if !matches.has("record") || !matches.bool("record") {
        return None;
    }
    let mut words = vec![matches.command.clone()];
    words.extend(matches.args.iter().cloned());
    for (name, value) in &matches.given {
        let shown = if SECRET.contains(name) { "CLASSIFIED" } else { value };
        words.push(format!("--{name}={shown}"));
    }
    Some(words.join(" "))
}

/// Puts the command line into an object that is about to be sent.
pub fn record(object: &mut Value, matches: &Matches) {
    let Some(cause) = cause(matches) else { return };
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    object["metadata"]["annotations"][CHANGE_CAUSE] = cause.into();
}

/// Adds the command line to an object that was changed already.
pub async fn record_after(
    session: &Session,
    matches: &Matches,
    manager: &str,
    dry_run: DryRun,
    info: &Info,
) -> Result<()> {
    let Some(cause) = cause(matches) else { return Ok(()) };
    let patch = json!({"metadata": {"annotations": {CHANGE_CAUSE: cause}}});
    Change { session, manager, validation: "", dry_run }.patch(info, MERGE, &patch).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Invocation;

    #[test]
    fn the_command_line_is_kept_without_its_credentials() {
        let check = |line: &str, wanted: Option<&str>| {
            let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
            let Ok(Invocation::Run(_, matches)) = Invocation::parse(&crate::verbs::ROOT, &words) else {
                panic!("{line} is no command")
            };
            let mut object = json!({});
            record(&mut object, &matches);
            assert_eq!(object["metadata"]["annotations"][CHANGE_CAUSE].as_str(), wanted, "{line}");
        };
        check("apply -f x.yaml", None);
        check("apply -f x.yaml --record=false", None);
        check("apply -f x.yaml --record", Some("kubectl apply --filename=x.yaml --record=true"));
        check(
            "--token abc set image deploy/web c=i --record -n shop",
            Some("kubectl set image deploy/web c=i --token=CLASSIFIED --record=true --namespace=shop"),
        );
    }
}
