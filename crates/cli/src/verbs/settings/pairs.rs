//! `key=value` and `key-` words, as `label`, `annotate` and `taint` take them behind the objects.
//! Used by those verbs.
//! A word with an equals sign, or with a dash at its end, belongs to the pairs.

use serde_json::{Map, Value, json};

use crate::{
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    printers::{Operation, operation::DryRun},
    resource::{Info, Selection},
    session::Session,
    verbs::change::{Change, MERGE, record::record},
};

/// What `label` and `annotate` both take.
pub const FLAGS: &[Flag] = &[
    boolean("all", "false", "All objects of the types, in the namespace"),
    boolean("local", "false", "Change what the file says; ask no server"),
    boolean("overwrite", "false", "Change values that are there"),
    string("resource-version", "", "Only if the object has this version"),
];

#[derive(Debug, Default, PartialEq)]
pub struct Pairs {
    pub set: Vec<(String, String)>,
    pub remove: Vec<String>,
}

/// Objects and pairs of a command line.
pub fn split(words: &[String]) -> (Vec<String>, Vec<String>) {
    let is_pair = |word: &String| word.find('=').is_some_and(|at| at > 0) || (word.ends_with('-') && word.len() > 1);
    let at = words.iter().position(is_pair).unwrap_or(words.len());
    (words[..at].to_vec(), words[at..].to_vec())
}

pub fn parse(words: &[String], what: &str) -> Result<Pairs> {
    let mut pairs = Pairs::default();
    for word in words {
        if let Some((key, value)) = word.split_once('=').filter(|(key, _)| !key.is_empty()) {
            if what == "label"
                && let Some(why) = api::names::label_value(value).first()
            {
                return Err(Failure::message(format!("invalid label value: {word:?}: {why}")));
            }
            pairs.set.push((key.to_string(), value.to_string()));
        } else if let Some(key) = word.strip_suffix('-').filter(|key| !key.is_empty()) {
            pairs.remove.push(key.to_string());
        } else {
            return Err(Failure::message(format!("unexpected {what} format: {word}")));
        }
    }
    let both: Vec<&str> =
        pairs.set.iter().filter(|(key, _)| pairs.remove.contains(key)).map(|(key, _)| key.as_str()).collect();
    if !both.is_empty() {
        return Err(Failure::message(match what {
            "label" => "can not both modify and remove a label in the same command".to_string(),
            _ => format!(
                "can not both modify and remove the following {what}(s) in the same command: {}",
                both.join(", ")
            ),
        }));
    }
    Ok(pairs)
}

/// What `label` and `annotate` differ in.
pub struct Subject {
    /// `labels` or `annotations`.
    pub field: &'static str,
    /// `label` or `annotation`.
    pub word: &'static str,
    /// `labeled` or `annotated`.
    pub done: &'static str,
}

/// Runs the verb.
pub async fn run(session: &Session, matches: &Matches, subject: &Subject) -> Result<()> {
    let (objects, words) = split(&matches.args);
    let pairs = parse(&words, subject.word)?;
    let mut selection = Selection::of(session, matches)?;
    selection.arguments = objects;
    selection.latest = !selection.local;
    let listing = matches.bool("list");
    if selection.arguments.is_empty() && !selection.has_files() {
        return Err(Failure::Plain(
            "error: one or more resources must be specified as <resource> <name> or <resource>/<name>".into(),
        ));
    }
    if pairs == Pairs::default() && !listing {
        return Err(Failure::message(format!("at least one {} update is required", subject.word)));
    }
    if selection.local && !selection.arguments.is_empty() {
        let file = if subject.word == "label" { "pod" } else { "rsrc" };
        return Err(Failure::message(format!(
            "can only use local files by -f {file}.yaml or --filename={file}.json when --local=true is set"
        )));
    }
    let version = matches.str("resource-version");
    let mut operation = Operation::of(session, matches)?;
    let (infos, mut failures) = selection.select(session).await?;
    if !version.is_empty() && infos.len() != 1 {
        return Err(Failure::message("--resource-version may only be used with a single resource"));
    }
    let several = infos.len() > 1;
    for info in infos {
        if listing {
            if several {
                session.output.line(&format!(
                    "Listing {} for {}.{}/{}:",
                    subject.field, info.resource.kind, info.resource.group, info.name
                ));
            }
            for (key, value) in info.object["metadata"][subject.field].as_object().into_iter().flatten() {
                session.output.line(&format!("{key}={}", value.as_str().unwrap_or_default()));
            }
            if pairs == Pairs::default() {
                continue;
            }
        }
        if let Err(failure) = one(session, matches, subject, &pairs, &mut operation, &info).await {
            failures.push(failure);
        }
    }
    Failure::aggregate(failures)
}

async fn one(
    session: &Session,
    matches: &Matches,
    subject: &Subject,
    pairs: &Pairs,
    operation: &mut Operation,
    info: &Info,
) -> Result<()> {
    let now = &info.object["metadata"][subject.field];
    if !matches.bool("overwrite") {
        let clash = |(key, value): &&(String, String)| now[key].as_str().is_some_and(|old| old != value);
        if subject.word == "label" {
            if let Some((key, _)) = pairs.set.iter().find(clash) {
                let old = now[key].as_str().unwrap_or_default();
                return Err(Failure::message(format!("'{key}' already has a value ({old}), and --overwrite is false")));
            }
        } else {
            let taken: Vec<String> =
                pairs.set.iter().filter(|(k, _)| now[k].is_string()).map(|(k, _)| k.clone()).collect();
            if !taken.is_empty() {
                let lines: Vec<String> = taken
                    .iter()
                    .map(|key| format!("'{key}' already has a value ({})", now[key].as_str().unwrap_or_default()))
                    .collect();
                return Err(Failure::message(format!(
                    "--overwrite is false but found the following declared annotation(s): {}",
                    lines.join("; ")
                )));
            }
        }
    }
    let mut values = Map::new();
    for (key, value) in &pairs.set {
        values.insert(key.clone(), value.clone().into());
    }
    for key in &pairs.remove {
        if now[key].is_null() && subject.word == "label" {
            session.output.line(&format!("label {key:?} not found."));
        }
        values.insert(key.clone(), Value::Null);
    }
    let mut patch = json!({"metadata": {subject.field: values}});
    record(&mut patch, matches);
    if let Some(version) = matches.opt("resource-version") {
        patch["metadata"]["resourceVersion"] = version.into();
    }
    let changed_set = pairs.set.iter().any(|(key, value)| now[key].as_str() != Some(value));
    let changed_removed = pairs.remove.iter().any(|key| !now[key].is_null());
    let here = matches.bool("local") || operation.dry_run == DryRun::Client;
    let object = match here {
        true => crate::verbs::change::patch::patched(info, MERGE, &patch)?,
        false if !changed_set && !changed_removed && subject.word == "label" => info.object.clone(),
        false => {
            let change =
                Change { session, manager: matches.str("field-manager"), validation: "", dry_run: operation.dry_run };
            change.patch(info, MERGE, &patch).await?
        }
    };
    let done = match (changed_set, changed_removed) {
        _ if subject.word != "label" => subject.done.to_string(),
        (true, _) => subject.done.to_string(),
        (false, true) => format!("un{}", subject.done),
        // A removal first makes the map that it removes from.
        (false, false) if now.is_null() && !pairs.remove.is_empty() => subject.done.to_string(),
        (false, false) => format!("not {}", subject.done),
    };
    if matches.bool("list") {
        return Ok(());
    }
    operation.print(session, info, &object, &done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_behind_the_objects_are_pairs() {
        let words = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_string).collect() };
        let check = |line: &str, objects: &str, set: &[(&str, &str)], remove: &[&str]| {
            let (found, pairs) = split(&words(line));
            assert_eq!(found, words(objects), "{line}");
            let pairs = parse(&pairs, "label").unwrap_or_else(|e| panic!("{}", e.text()));
            let set: Vec<(String, String)> = set.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            assert_eq!(pairs.set, set, "{line}");
            assert_eq!(pairs.remove, remove, "{line}");
        };
        check("pods web a=b c-", "pods web", &[("a", "b")], &["c"]);
        check("pod/web a=", "pod/web", &[("a", "")], &[]);
        let clash = parse(&words("a=b a-"), "label").err().map(|e| e.text());
        assert_eq!(clash.as_deref(), Some("can not both modify and remove a label in the same command"));
    }
}
