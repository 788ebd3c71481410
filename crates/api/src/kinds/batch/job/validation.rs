//! Validation of jobs.
//! Neighbours: `job`; `cron_job`, whose template is a job's spec.
//! What a running job does never changes under it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{CONTROLLER_UID, JOB_NAME, LEGACY_CONTROLLER_UID, LEGACY_JOB_NAME};
use crate::{
    field::{ErrorList, Path},
    kinds::{
        common::{
            access::{flag, int, int_at, is_set, items, part, part_mut, set, text, text_at},
            checks::{self, complaints, immutable, not_negative, optional_one_of, same},
            columns::condition_is_true,
            workload,
        },
        core::pod_spec,
    },
    names,
};

const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const INDEXED_PARALLELISM_MAX: i64 = 100_000;

/// The selector that the server made, and the labels that go with it.
pub fn generated_selector(errors: &mut ErrorList, job: &Value) {
    let spec = &job["spec"];
    if flag(spec, "manualSelector") || part(spec, "selector").is_none() {
        return;
    }
    let (uid, name) = (text_at(job, "metadata.uid"), text_at(job, "metadata.name"));
    if uid.is_empty() {
        errors.required(&Path::new("metadata").child("uid"), "");
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let path = Path::new("spec").child("template").child("metadata").child("labels");
    let expected = [(LEGACY_CONTROLLER_UID, uid), (LEGACY_JOB_NAME, name), (CONTROLLER_UID, uid), (JOB_NAME, name)];
    for (key, value) in expected {
        match labels.get(key).and_then(Value::as_str) {
            None => errors.required(&path.key(key), &format!("must be '{value}'")),
            Some(found) if found != value => {
                errors.invalid(&path.key(key), labels.clone(), format!("must be '{value}'"));
            }
            Some(_) => {}
        }
    }
    let all: serde_json::Map<String, Value> =
        expected.map(|(key, value)| (key.to_string(), json!(value))).into_iter().collect();
    if !checks::selector_matches(&spec["selector"], &Value::Object(all)) {
        errors.invalid(&Path::new("spec").child("selector"), spec["selector"].clone(), "`selector` not auto-generated");
    }
}

pub fn spec_with_selector(errors: &mut ErrorList, path: &Path, spec: &Value) {
    self::spec(errors, path, spec);
    match part(spec, "selector") {
        None => errors.required(&path.child("selector"), ""),
        Some(selector) => checks::label_selector(errors, &path.child("selector"), selector),
    }
    workload::template_matches(errors, path, spec);
}

/// A job's spec without its selector, which templates do not have.
pub fn spec(errors: &mut ErrorList, path: &Path, spec: &Value) {
    not_negative(
        errors,
        path,
        spec,
        &[
            "parallelism",
            "completions",
            "activeDeadlineSeconds",
            "backoffLimit",
            "ttlSecondsAfterFinished",
            "backoffLimitPerIndex",
            "maxFailedIndexes",
        ],
    );
    if is_set(spec, "maxFailedIndexes") && !is_set(spec, "backoffLimitPerIndex") {
        errors.required(&path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    managed_by(errors, &path.child("managedBy"), spec);
    completion_mode(errors, path, spec);
    if let Some(policy) = part(spec, "podFailurePolicy") {
        failure_policy(errors, &path.child("podFailurePolicy").child("rules"), spec, policy);
    }
    if let Some(policy) = part(spec, "successPolicy") {
        success_policy(errors, &path.child("successPolicy"), spec, policy);
    }
    let replacement: &[&str] =
        if is_set(spec, "podFailurePolicy") { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    optional_one_of(errors, path, spec, "podReplacementPolicy", replacement);
    pod_spec::validation::template(errors, &path.child("template"), &spec["template"]);
    let policy = text(&spec["template"]["spec"], "restartPolicy");
    let at = path.child("template").child("spec").child("restartPolicy");
    match policy {
        "Always" | "" => errors.required(&at, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if is_set(spec, "podFailurePolicy") => {
            errors.invalid(&at, policy, "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" | "Never" => {}
        _ => errors.not_supported_as_listed(&at, policy, &["OnFailure", "Never"]),
    }
}

fn managed_by(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let Some(manager) = spec.get("managedBy").and_then(Value::as_str) else { return };
    match manager.split_once('/') {
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            complaints(errors, path, domain, names::dns_subdomain(domain, false));
        }
        _ if manager.is_empty() => errors.required(path, ""),
        _ => errors.invalid(path, manager, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
    if manager.len() > 63 {
        errors.too_long(path, 63);
    }
}

fn completion_mode(errors: &mut ErrorList, path: &Path, spec: &Value) {
    optional_one_of(errors, path, spec, "completionMode", &["NonIndexed", "Indexed"]);
    if text(spec, "completionMode") != "Indexed" {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(number) = int(spec, field) {
                errors.invalid(&path.child(field), number, "requires indexed completion mode");
            }
        }
        return;
    }
    let completions = int(spec, "completions");
    if completions.is_none() {
        errors.required(&path.child("completions"), "when completion mode is Indexed");
    }
    if let Some(number) = int(spec, "parallelism").filter(|n| *n > INDEXED_PARALLELISM_MAX) {
        errors.invalid(
            &path.child("parallelism"),
            number,
            format!("must be less than or equal to {INDEXED_PARALLELISM_MAX} when completion mode is Indexed"),
        );
    }
    if let (Some(most), Some(completions)) = (int(spec, "maxFailedIndexes"), completions)
        && most > completions
    {
        errors.invalid(&path.child("maxFailedIndexes"), most, "must be less than or equal to completions");
    }
}

fn failure_policy(errors: &mut ErrorList, path: &Path, spec: &Value, policy: &Value) {
    const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
    let rules = items(policy, "rules");
    if rules.len() > RULES_MAX {
        errors.too_many(path, rules.len(), RULES_MAX);
    }
    let pod = &spec["template"]["spec"];
    let containers: BTreeSet<&str> =
        items(pod, "containers").iter().chain(items(pod, "initContainers")).map(|c| text(c, "name")).collect();
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        match text(rule, "action") {
            "" => {
                errors.required(&path.child("action"), "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]")
            }
            "FailIndex" if !is_set(spec, "backoffLimitPerIndex") => {
                errors.invalid(&path.child("action"), "FailIndex", "requires the backoffLimitPerIndex to be set");
            }
            action if !ACTIONS.contains(&action) => errors.not_supported(&path.child("action"), action, &ACTIONS),
            _ => {}
        }
        let conditions = items(rule, "onPodConditions");
        let codes = part(rule, "onExitCodes");
        if let Some(codes) = codes {
            exit_codes(errors, &path.child("onExitCodes"), codes, &containers);
        }
        if conditions.len() > RULES_MAX {
            errors.too_many(&path.child("onPodConditions"), conditions.len(), RULES_MAX);
        }
        for (index, pattern) in conditions.iter().enumerate() {
            let path = path.child("onPodConditions").index(index);
            let kind = text(pattern, "type");
            complaints(errors, &path.child("type"), kind, names::qualified_name(kind));
            checks::one_of(errors, &path, pattern, "status", &["False", "True", "Unknown"]);
        }
        match (codes.is_some(), conditions.is_empty()) {
            (true, false) => {
                errors.invalid_quiet(&path, "specifying both OnExitCodes and OnPodConditions is not supported");
            }
            (false, true) => {
                errors.invalid_quiet(&path, "specifying one of OnExitCodes and OnPodConditions is required");
            }
            _ => {}
        }
    }
}

fn exit_codes(errors: &mut ErrorList, path: &Path, codes: &Value, containers: &BTreeSet<&str>) {
    let operator = text(codes, "operator");
    match operator {
        "" => errors.required(&path.child("operator"), "valid values: [\"In\" \"NotIn\"]"),
        "In" | "NotIn" => {}
        _ => errors.not_supported(&path.child("operator"), operator, &["In", "NotIn"]),
    }
    if let Some(name) = codes["containerName"].as_str().filter(|name| !containers.contains(name)) {
        errors.invalid(
            &path.child("containerName"),
            name,
            "must be one of the container or initContainer names in the pod template",
        );
    }
    let path = path.child("values");
    let values: Vec<i64> = items(codes, "values").iter().filter_map(Value::as_i64).collect();
    if values.is_empty() {
        errors.invalid(&path, json!([]), "at least one value is required");
    } else if values.len() > EXIT_CODES_MAX {
        errors.too_many(&path, values.len(), EXIT_CODES_MAX);
    }
    let mut seen = BTreeSet::new();
    for (index, code) in values.iter().enumerate() {
        if operator == "In" && *code == 0 {
            errors.invalid(&path.index(index), 0, "must not be 0 for the In operator");
        }
        if !seen.insert(code) {
            errors.duplicate(&path.index(index), *code);
        }
    }
    if !values.is_sorted() {
        errors.invalid(&path, codes["values"].clone(), "must be ordered");
    }
}

fn success_policy(errors: &mut ErrorList, path: &Path, spec: &Value, policy: &Value) {
    if text(spec, "completionMode") != "Indexed" {
        return errors.invalid(path, policy.clone(), "requires indexed completion mode");
    }
    let path = path.child("rules");
    let rules = items(policy, "rules");
    if rules.is_empty() {
        errors.required(&path, "at least one rules must be specified when the successPolicy is specified");
    }
    if rules.len() > RULES_MAX {
        errors.too_many(&path, rules.len(), RULES_MAX);
    }
    let completions = int_at(spec, "completions");
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        let count = int(rule, "succeededCount");
        let indexes = rule.get("succeededIndexes").and_then(Value::as_str);
        if count.is_none() && indexes.is_none() {
            errors.required(&path, "at least one of succeededCount or succeededIndexes must be specified");
        }
        let total = indexes.map(|text| (text, indexes_in(text, completions)));
        if let Some((text, Err(problem))) = &total {
            errors.invalid(
                &path.child("succeededIndexes"),
                *text,
                format!("error parsing succeededIndexes: {problem}"),
            );
        }
        not_negative(errors, &path, rule, &["succeededCount"]);
        let at = path.child("succeededCount");
        if let Some(count) = count.filter(|count| *count > completions) {
            let words = format!("must be less than or equal to {completions} (the number of specified completions)");
            errors.invalid(&at, count, words);
        }
        if let (Some(count), Some((_, Ok(total)))) = (count, &total)
            && count > *total
        {
            let words = format!(
                "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            );
            errors.invalid(&at, count, words);
        }
    }
}

/// How many indexes a text such as `1,3-5` names.
fn indexes_in(text: &str, completions: i64) -> Result<i64, String> {
    let number =
        |text: &str| text.parse::<i64>().map_err(|_| format!("cannot convert string to integer for index: {text:?}"));
    let (mut total, mut last) = (0, -1);
    for interval in text.split(',').filter(|interval| !interval.is_empty()) {
        let (low, high) = match interval.split_once('-') {
            Some((low, high)) => (number(low)?, number(high)?),
            None => (number(interval)?, number(interval)?),
        };
        if low >= completions || high >= completions {
            return Err(format!("too large index: {interval:?}"));
        }
        if low <= last {
            return Err(format!("non-increasing order, previous: {last}, current: {low}"));
        }
        if high < low {
            return Err(format!("non-increasing order, previous: {low}, current: {high}"));
        }
        total += high - low + 1;
        last = high;
    }
    Ok(total)
}

/// What may change in a job that exists.
pub fn update(errors: &mut ErrorList, new: &Value, old: &Value) {
    let path = Path::new("spec");
    let held_back = flag(&old["spec"], "suspend") && !is_set(&old["status"], "startTime");
    let (new, old) = (&new["spec"], &old["spec"]);
    // The completions of an indexed job may follow its parallelism.
    let elastic = text(new, "completionMode") == "Indexed" && int(new, "completions") == int(new, "parallelism");
    if !elastic {
        immutable(errors, &path, new, old, "completions");
    }
    immutable(errors, &path, new, old, "selector");
    let mut before = old["template"].clone();
    if held_back {
        for field in ["nodeSelector", "tolerations", "schedulingGates", "affinity"] {
            if let Some(pod) = part_mut(&mut before, "spec") {
                set(pod, field, new["template"]["spec"][field].clone());
            }
        }
        set(&mut before, "metadata", new["template"]["metadata"].clone());
    }
    if !same(&new["template"], &before) {
        errors.invalid(&path.child("template"), new["template"].clone(), checks::IMMUTABLE);
    }
    for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        immutable(errors, &path, new, old, field);
    }
}

pub fn status(errors: &mut ErrorList, new: &Value, old: &Value) {
    let path = Path::new("status");
    let now = &new["status"];
    not_negative(errors, &path, now, &["active", "succeeded", "failed", "ready", "terminating"]);
    let (complete, failed) = (condition_is_true(new, "Complete"), condition_is_true(new, "Failed"));
    let conditions = path.child("conditions");
    if complete && failed {
        errors.invalid_quiet(&conditions, "cannot set Complete=True and Failed=true conditions");
    }
    if is_set(now, "completionTime") && !complete {
        errors.invalid(
            &path.child("completionTime"),
            now["completionTime"].clone(),
            "cannot set completionTime when there is no Complete=True condition",
        );
    }
    if complete && !is_set(now, "completionTime") {
        errors.required(&path.child("completionTime"), "completionTime is required for Complete jobs");
    }
    if (complete || failed) && int_at(now, "active") > 0 {
        errors.invalid(&path.child("active"), int_at(now, "active"), "active>0 is invalid for finished job");
    }
    if int_at(now, "ready") > int_at(now, "active") {
        errors.invalid(&path.child("ready"), int_at(now, "ready"), "cannot set more ready pods than active");
    }
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if condition_is_true(old, kind) && !condition_is_true(new, kind) {
            errors.invalid_quiet(&conditions, format!("cannot disable the terminal {kind}=True condition"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{Behavior, batch::job::Job};

    fn job(change: impl Fn(&mut Value)) -> Value {
        let mut job = json!({
            "metadata": { "name": "j", "uid": "u" },
            "spec": { "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }],
            } } },
        });
        change(&mut job);
        Job.default(&mut job);
        Job.prepare_create(&mut job);
        job
    }

    #[test]
    fn creates() {
        let check = |change: fn(&mut Value), expected: &[&str]| {
            let mut errors = ErrorList::new();
            Job.validate_create(&job(change), &mut errors);
            let found: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
            assert_eq!(found, expected);
        };
        check(|_| (), &[]);
        check(
            |j| j["spec"]["template"]["spec"]["restartPolicy"] = json!("Always"),
            &["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""],
        );
        check(
            |j| j["spec"]["podFailurePolicy"] = json!({ "rules": [{ "action": "Ignore" }] }),
            &["spec.podFailurePolicy.rules[0]: Invalid value: specifying one of OnExitCodes and OnPodConditions is \
                 required"],
        );
        check(|j| j["spec"]["completionMode"] = json!("Indexed"), &[]);
        check(
            |j| j["spec"]["selector"] = json!({ "matchLabels": { "a": "b" } }),
            &[
                "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"batch.kubernetes.io/controller-uid\":\"u\"}}: \
                 `selector` not auto-generated",
                "spec.template.metadata.labels: Invalid value: {\"batch.kubernetes.io/controller-uid\":\"u\",\
                 \"batch.kubernetes.io/job-name\":\"j\",\"controller-uid\":\"u\",\"job-name\":\"j\"}: \
                 `selector` does not match template `labels`",
            ],
        );
    }

    #[test]
    fn indexes() {
        assert_eq!(indexes_in("0,2-4", 5), Ok(4));
        assert!(indexes_in("5", 5).is_err());
        assert!(indexes_in("2,1", 5).is_err());
    }
}
