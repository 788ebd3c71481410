//! Withdraws tokens that old clusters put into Secrets of their own accord, when nobody has used them for a year, and
//! deletes them a year later.
//! The API server notes their use, and believes those that are withdrawn no longer; taking the label off brings one back.
//! Only Secrets that their account lists, which people who make one do not do, and that no pod mounts.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use client::{Informer, Patch};
use jiff::{Timestamp, civil::Date, tz::TimeZone};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions},
};
use serde_json::{Value, json};

use crate::{
    common::{
        indexes,
        meta::{self, Object},
    },
    runner::{Context, Controller, Outcome, Setup},
    service_account::tokens::{ACCOUNT, TYPE, UID},
};

const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const DAY: Duration = Duration::from_secs(24 * 3600);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let pods = setup.informer::<Pod>();
    indexes::by_namespace(&pods);
    let cleaner = Cleaner {
        context: setup.context.clone(),
        secrets: setup.informer(),
        accounts: setup.informer(),
        pods,
        maps: setup.informer(),
    };
    setup.queue.add("tokens".into());
    Arc::new(cleaner)
}

#[derive(Debug, PartialEq)]
enum Verdict {
    Keep,
    Withdraw,
    Delete,
}

/// A day as labels write it.
fn day(text: &str) -> Option<Timestamp> {
    let date: Date = text.parse().ok().filter(|_| text.len() == "2026-01-01".len())?;
    date.to_zoned(TimeZone::UTC).ok().map(|midnight| midnight.timestamp())
}

/// `since`: what was used on that day or later stays. `is_mounted` is asked only about those that nobody used.
fn verdict(
    secret: &Secret,
    account: Option<&ServiceAccount>,
    since: Timestamp,
    is_mounted: impl FnOnce() -> bool,
) -> Verdict {
    let made = secret.metadata.creation_timestamp.as_ref().map(|at| at.0);
    let is_young = made.is_none_or(|made| made >= since);
    if secret.type_.as_deref() != Some(TYPE) || is_young || secret.deleting() {
        return Verdict::Keep;
    }
    let first_kept = since.strftime("%Y-%m-%d").to_string();
    // What can't be read says nothing about its use.
    if secret.label(LAST_USED).is_some_and(|used| day(used).is_none() || *used >= *first_kept) {
        return Verdict::Keep;
    }
    let bound = secret.annotation(UID).unwrap_or_default();
    let account = account.filter(|account| bound.is_empty() || account.uid() == bound);
    let lists = |account: &ServiceAccount| {
        account.secrets.iter().flatten().any(|listed| listed.name.as_deref() == Some(secret.name()))
    };
    if !account.is_some_and(lists) || is_mounted() {
        return Verdict::Keep;
    }
    match secret.label(INVALID_SINCE).filter(|since| day(since).is_some()) {
        None => Verdict::Withdraw,
        Some(invalid) if *invalid >= *first_kept => Verdict::Keep,
        Some(_) => Verdict::Delete,
    }
}

/// Every Secret that a pod's spec names, wherever it does.
fn named_secrets(spec: &Value, found: &mut HashSet<String>) {
    let mut add = |name: &Value| found.extend(name.as_str().map(str::to_string));
    match spec {
        Value::Object(fields) => {
            for (key, value) in fields {
                match key.as_str() {
                    "secretName" => add(value),
                    "secret" | "secretRef" | "secretKeyRef" | "nodePublishSecretRef" => add(&value["name"]),
                    "imagePullSecrets" => value.as_array().into_iter().flatten().for_each(|one| add(&one["name"])),
                    _ => {}
                }
            }
            fields.values().for_each(|value| named_secrets(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| named_secrets(item, found)),
        _ => {}
    }
}

struct Cleaner {
    context: Context,
    secrets: Informer<Secret>,
    accounts: Informer<ServiceAccount>,
    pods: Informer<Pod>,
    maps: Informer<ConfigMap>,
}

impl Cleaner {
    /// Midnight after the day on which the API servers began to note uses.
    fn tracked_since(&self) -> Option<Timestamp> {
        let map = self.maps.get(&meta::key("kube-system", TRACKING))?;
        day(map.data.as_ref()?.get("since")?).map(|since| since + DAY)
    }

    fn is_mounted(&self, secret: &Secret) -> bool {
        let mut found = HashSet::new();
        for pod in self.pods.objects().by_index(indexes::NAMESPACE, secret.namespace()) {
            named_secrets(&pod.value()["spec"], &mut found);
        }
        found.contains(secret.name())
    }
}

#[async_trait]
impl Controller for Cleaner {
    /// Once a day: nothing about days changes sooner.
    async fn reconcile(&self, _: &str) -> Outcome {
        let now = self.context.env.now();
        let since = now - self.context.config.legacy_token_clean_up_period;
        if self.tracked_since().is_none_or(|tracked| tracked > since) {
            return Ok(Some(DAY));
        }
        let candidates = self.secrets.objects().list().into_iter().filter(|o| o.meta.annotations.contains_key(ACCOUNT));
        let secrets: Vec<Arc<Secret>> = candidates.filter_map(|object| object.typed().ok()).collect();
        for secret in secrets {
            let account =
                secret.annotation(ACCOUNT).and_then(|name| self.accounts.get(&meta::key(secret.namespace(), name)));
            let api = self.context.client.namespaced::<Secret>(secret.namespace());
            let done = match verdict(&secret, account.as_deref(), since, || self.is_mounted(&secret)) {
                Verdict::Keep => continue,
                Verdict::Withdraw => {
                    let labels = json!({ INVALID_SINCE: now.strftime("%Y-%m-%d").to_string() });
                    let patch = json!({ "metadata": { "uid": secret.uid(), "labels": labels } });
                    api.patch(secret.name(), &Patch::Merge(patch)).await.map(drop)
                }
                Verdict::Delete => {
                    // It may have been used, or brought back, since it was looked at.
                    let resource_version = secret.metadata.resource_version.clone();
                    let preconditions = Some(Preconditions { resource_version, uid: None });
                    api.delete(secret.name(), &DeleteOptions { preconditions, ..DeleteOptions::default() })
                        .await
                        .map(drop)
                }
            };
            match done {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
        Ok(Some(DAY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_when_nobody_uses_them() {
        let account = |secret: &str| -> ServiceAccount {
            let metadata = json!({ "name": "a", "namespace": "d", "uid": "u" });
            serde_json::from_value(json!({ "metadata": metadata, "secrets": [{ "name": secret }] })).unwrap()
        };
        let since: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let check = |change: Value, lists: &str, mounted: bool, expected: Verdict| {
            let metadata = json!({ "name": "t", "namespace": "d", "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": { ACCOUNT: "a", UID: "u" } });
            let mut secret = json!({ "metadata": metadata, "type": TYPE });
            for (key, value) in change.as_object().into_iter().flatten() {
                match key.as_str() {
                    "type" => secret["type"] = value.clone(),
                    key => secret["metadata"][key] = value.clone(),
                }
            }
            let secret: Secret = serde_json::from_value(secret).unwrap();
            assert_eq!(verdict(&secret, Some(&account(lists)), since, || mounted), expected, "{change}");
        };
        let labels = |label: &str, day: &str| json!({ "labels": { label: day } });
        check(json!({}), "t", false, Verdict::Withdraw);
        check(json!({}), "other", false, Verdict::Keep);
        check(json!({}), "t", true, Verdict::Keep);
        check(json!({ "type": "Opaque" }), "t", false, Verdict::Keep);
        check(json!({ "creationTimestamp": "2026-01-02T03:04:05Z" }), "t", false, Verdict::Keep);
        check(json!({ "deletionTimestamp": "2026-01-02T03:04:05Z" }), "t", false, Verdict::Keep);
        check(json!({ "annotations": { ACCOUNT: "a", UID: "before" } }), "t", false, Verdict::Keep);
        check(labels(LAST_USED, "2026-01-02"), "t", false, Verdict::Keep);
        check(labels(LAST_USED, "2026-01-01"), "t", false, Verdict::Withdraw);
        check(labels(LAST_USED, "yesterday"), "t", false, Verdict::Keep);
        check(labels(INVALID_SINCE, "2026-01-02"), "t", false, Verdict::Keep);
        check(labels(INVALID_SINCE, "2026-01-01"), "t", false, Verdict::Delete);
        check(labels(INVALID_SINCE, "yesterday"), "t", false, Verdict::Withdraw);
    }

    #[test]
    fn secrets_are_found_wherever_a_pod_names_them() {
        let reference = |name: &str| json!({ "name": name });
        let env = json!([{ "name": "E", "valueFrom": { "secretKeyRef": { "name": "b", "key": "k" } } }]);
        let spec = json!({
            "imagePullSecrets": [reference("a")],
            "containers": [{ "name": "c", "env": env, "envFrom": [{ "secretRef": reference("c") }] }],
            "volumes": [
                { "name": "v", "secret": { "secretName": "d" } },
                { "name": "w", "projected": { "sources": [{ "secret": reference("e") }] } },
                { "name": "x", "configMap": reference("not") },
            ],
        });
        let mut found = HashSet::new();
        named_secrets(&spec, &mut found);
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort();
        assert_eq!(found, ["a", "b", "c", "d", "e"]);
    }
}
