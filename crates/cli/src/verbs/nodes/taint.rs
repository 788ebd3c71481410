//! `kubectl taint`: `key=value:effect` adds, `key:effect-` and `key-` remove.
//! A row of `verbs::ROOT`.
//! A taint of the same key and effect is only changed with `--overwrite`.

use serde_json::{Value, json};

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    printers::{
        Operation, PRINT,
        operation::{DRY_RUN, DryRun},
    },
    resource::{Info, SELECTOR, Selection},
    run,
    session::Session,
    verbs::change::{Change, MERGE},
};

const FLAGS: &[Flag] = &[
    boolean("all", "false", "All nodes"),
    boolean("overwrite", "false", "Change taints that are there"),
    string("field-manager", "kubectl-taint", "Name of the field manager"),
    string("validate", "strict", "").bare("strict").hidden(),
];

pub static COMMAND: Command = Command {
    name: "taint",
    aliases: &[],
    usage: "NODE NAME KEY_1=VAL_1:TAINT_EFFECT_1 ... KEY_N=VAL_N:TAINT_EFFECT_N [options]",
    about: "Update the taints on one or more nodes",
    flags: &[FLAGS, PRINT, SELECTOR, DRY_RUN],
    commands: &[],
    run: run!(taint),
};

#[derive(Debug, PartialEq, Clone)]
struct Taint {
    key: String,
    value: String,
    effect: String,
}

fn effect(text: &str) -> Result<String> {
    match text {
        "NoSchedule" | "PreferNoSchedule" | "NoExecute" => Ok(text.to_string()),
        other => Err(Failure::usage(format!("invalid taint effect: {other}, unsupported taint effect"))),
    }
}

/// `KEY=VALUE:EFFECT`, `KEY:EFFECT` or `KEY`.
fn read_taint(text: &str) -> Result<Taint> {
    let invalid = |why: &str| Failure::usage(format!("invalid taint spec: {text}{why}"));
    let (pair, found) = match text.split(':').collect::<Vec<_>>().as_slice() {
        [key] => (vec![*key], String::new()),
        [pair, found] => (pair.split('=').collect(), effect(found)?),
        _ => return Err(invalid("")),
    };
    let (key, value) = match pair.as_slice() {
        [key] => (*key, ""),
        [key, value] => (*key, *value),
        _ => return Err(invalid("")),
    };
    let problems = [api::names::label_value(value), api::names::qualified_name(key)];
    match problems.iter().find(|problems| !problems.is_empty()) {
        Some(problems) => Err(invalid(&format!(", {}", problems.join("; ")))),
        None => Ok(Taint { key: key.to_string(), value: value.to_string(), effect: found }),
    }
}

/// What is added, and what is removed.
fn parse(words: &[String]) -> Result<(Vec<Taint>, Vec<Taint>)> {
    let (mut add, mut remove): (Vec<Taint>, Vec<Taint>) = (Vec::new(), Vec::new());
    for word in words {
        if let Some(removed) = word.strip_suffix('-') {
            remove.push(read_taint(removed)?);
            continue;
        }
        let new = read_taint(word)?;
        if new.effect.is_empty() {
            return Err(Failure::usage(format!("invalid taint spec: {word}")));
        }
        if add.iter().any(|old| old.key == new.key && old.effect == new.effect) {
            let shown = format!("{{{} {} {} <nil>}}", new.key, new.value, new.effect);
            return Err(Failure::usage(format!("duplicated taints with the same key and effect: {shown}")));
        }
        add.push(new);
    }
    Ok((add, remove))
}

async fn taint(session: &Session, matches: &Matches) -> Result<()> {
    let is_taint = |word: &String| word.contains(':') || word.contains('=') || word.ends_with('-');
    let at = matches.args.iter().position(is_taint).unwrap_or(matches.args.len());
    let (objects, words) = matches.args.split_at(at);
    if objects.is_empty() {
        return Err(Failure::message("one or more resources must be specified as <resource> <name>"));
    }
    if words.is_empty() {
        return Err(Failure::message("at least one taint update is required"));
    }
    let (add, remove) = parse(words)?;
    let both: Vec<String> = remove
        .iter()
        .filter(|gone| {
            add.iter().any(|new| new.key == gone.key && [new.effect.as_str(), ""].contains(&gone.effect.as_str()))
        })
        .map(|gone| format!("{}={}", gone.key, gone.effect))
        .collect();
    if !both.is_empty() {
        return Err(Failure::message(format!(
            "can not both modify and remove the following taint(s) in the same command: {}",
            both.join(", ")
        )));
    }
    if !["node", "nodes", "no"].contains(&objects[0].to_lowercase().split('/').next().unwrap_or_default()) {
        return Err(Failure::message(format!("invalid resource type {}, only node types are supported", objects[0])));
    }
    let mut operation = Operation::of(session, matches)?.typed().without_suffix();
    let mut selection = Selection::of(session, matches)?;
    selection.arguments = objects.to_vec();
    // Only says that a type may stand without names.
    selection.allow_empty_selector = std::mem::take(&mut selection.all);
    let mut failures = Vec::new();
    for info in selection.all_or_nothing(session).await? {
        if info.resource.name != "nodes" {
            return Err(Failure::message(format!(
                "invalid resource type {}, only node is supported",
                info.resource.name
            )));
        }
        if let Err(failure) = one(session, matches, &mut operation, &info, &add, &remove).await {
            failures.push(failure);
        }
    }
    Failure::aggregate(failures)
}

async fn one(
    session: &Session,
    matches: &Matches,
    operation: &mut Operation,
    info: &Info,
    add: &[Taint],
    remove: &[Taint],
) -> Result<()> {
    let mut taints: Vec<Value> = info.object["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let same = |old: &Value, taint: &Taint| {
        old["key"] == taint.key.as_str() && (taint.effect.is_empty() || old["effect"] == taint.effect.as_str())
    };
    for taint in remove {
        if !taints.iter().any(|old| same(old, taint)) {
            let shown = match taint.effect.as_str() {
                "" => taint.key.clone(),
                effect => format!("{}:{effect}", taint.key),
            };
            return Err(Failure::message(format!("taint {shown:?} not found")));
        }
        taints.retain(|old| !same(old, taint));
    }
    let mut modified = false;
    for taint in add {
        if taints.iter().any(|old| same(old, taint)) {
            if !matches.bool("overwrite") {
                return Err(Failure::message(format!(
                    "node {} already has {} taint(s) with same effect(s) and --overwrite is false",
                    info.name, taint.key
                )));
            }
            modified = true;
            taints.retain(|old| !same(old, taint));
        }
        let mut value = json!({"key": taint.key, "effect": taint.effect});
        if !taint.value.is_empty() {
            value["value"] = taint.value.clone().into();
        }
        taints.insert(0, value);
    }
    let done = match (modified, add.is_empty()) {
        (true, _) => "modified",
        (false, true) => "untainted",
        (false, false) => "tainted",
    };
    let patch = json!({"spec": {"taints": taints}, "metadata": {"resourceVersion": info.object["metadata"]["resourceVersion"]}});
    let object = match operation.dry_run {
        DryRun::Client => crate::verbs::change::patch::patched(info, MERGE, &patch)?,
        dry_run => {
            Change { session, manager: matches.str("field-manager"), validation: "", dry_run }
                .patch(info, MERGE, &patch)
                .await?
        }
    };
    operation.print(session, info, &object, done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_added_and_removed_by_word() {
        let check = |word: &str, wanted: Option<(&str, &str, &str, bool)>| {
            let found = parse(&[word.to_string()]).ok().map(|(add, remove)| {
                let removed = add.is_empty();
                let one = add.into_iter().chain(remove).next().unwrap_or_else(|| panic!("{word}"));
                (one.key, one.value, one.effect, removed)
            });
            let wanted = wanted.map(|(k, v, e, r)| (k.to_string(), v.to_string(), e.to_string(), r));
            assert_eq!(found, wanted, "{word}");
        };
        check("a=b:NoSchedule", Some(("a", "b", "NoSchedule", false)));
        check("a:NoExecute", Some(("a", "", "NoExecute", false)));
        check("a:NoExecute-", Some(("a", "", "NoExecute", true)));
        check("a-", Some(("a", "", "", true)));
        check("a=b:Nope", None);
        check("a=b", None);
    }
}
