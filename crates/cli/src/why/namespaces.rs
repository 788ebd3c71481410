//! Why a Namespace does not go.
//! Neighbours: `terminating` has every other kind.
//! What remains is taken from the conditions that the namespace controller publishes.

use serde_json::Value;

use super::{Inquiry, Verdict, clause, condition_line};
use crate::{
    describe::fields::{condition, list, name, string, strings},
    object_reader::ObjectReader,
};

/// The resources in `Some resources are remaining: pods. has 2 resource instances, widgets.example.com has 1 …`.
fn remaining_resources(message: &str) -> Vec<&str> {
    let Some((_, listed)) = message.split_once(": ") else { return Vec::new() };
    let parts = listed.split(", ").filter_map(|part| part.split_once(" has "));
    parts.map(|(resource, _)| resource.trim_end_matches('.')).collect()
}

pub async fn explain<R: ObjectReader>(inquiry: &Inquiry<'_, R>, namespace: &Value) -> Verdict {
    if namespace["metadata"]["deletionTimestamp"].is_null() {
        return Verdict::fine("Active", "Nothing is wrong: it is active.");
    }
    let asked = inquiry.ago(&namespace["metadata"]["deletionTimestamp"]);
    let is_true = |kind: &str| Some(condition(namespace, kind)).filter(|found| string(&found["status"]) == "True");
    let message = |found: &Value| clause(string(&found["message"])).to_string();
    let causes = [
        ("NamespaceDeletionDiscoveryFailure", "Discovery", "the server cannot say which kinds there are"),
        ("NamespaceDeletionGroupVersionParsingFailure", "Discovery", "a group of the API cannot be read"),
        ("NamespaceDeletionContentFailure", "ContentFailure", "some of its objects could not be deleted"),
        ("NamespaceFinalizersRemaining", "FinalizersRemaining", "objects in it have finalizers that nobody removes"),
        ("NamespaceContentRemaining", "ContentRemaining", "objects in it still exist"),
    ];
    let found = causes.iter().find_map(|(kind, reason, words)| Some((*reason, *words, is_true(kind)?)));
    let mut verdict = match found {
        Some((reason, words, found)) => Verdict::wrong(
            reason,
            format!("It was deleted {asked} and does not go because {words}: {}.", message(found)),
        ),
        None => match strings(&namespace["spec"]["finalizers"]).as_slice() {
            [] | ["kubernetes"] => Verdict::fine(
                "Terminating",
                format!("It was deleted {asked}; the namespace controller is emptying it and has met no obstacle."),
            ),
            others => {
                let others: Vec<&str> = others.iter().filter(|own| **own != "kubernetes").copied().collect();
                Verdict::wrong(
                    "Finalizers",
                    format!("It was deleted {asked} and waits for its own finalizers {}.", others.join(", ")),
                )
            }
        },
    };
    for found in list(&namespace["status"]["conditions"]) {
        if string(&found["status"]) == "True" {
            verdict = verdict.because(condition_line(found, inquiry.now));
        }
    }
    if !verdict.wrong {
        return verdict;
    }
    if verdict.reason == "Discovery" {
        return verdict.try_command("kubectl get apiservices | grep False");
    }
    let remaining = remaining_resources(string(&condition(namespace, "NamespaceContentRemaining")["message"]));
    if !remaining.is_empty() {
        return verdict.try_command(format!(
            "kubectl get {} -n {} -o custom-columns=KIND:.kind,NAME:.metadata.name,FINALIZERS:.metadata.finalizers",
            remaining.join(","),
            name(namespace)
        ));
    }
    verdict.try_command(format!(
        "kubectl api-resources --verbs=list --namespaced -o name | xargs -n 1 kubectl get --show-kind --ignore-not-found -n {}",
        name(namespace)
    ))
}
