//! `pods/eviction`: a deletion that asks the disruption budgets first.
//! Part of `registry`; what a budget says is `disruption_budget`'s.
//! A budget is charged, compare-and-set, before its pod is deleted.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use api::{ApiError, Object, selectors::LabelSelector};

use super::{
    Registry, Superseded,
    delete::preconditions,
    disruption_budget::{must_charge, still_processed, take_one},
    object_meta,
    options::{DeleteOptions, WriteOptions},
    subresource::created,
};
use crate::{discovery::served::Served, handlers::respond::Reply, request::call::Call};

/// How often a pod that changes while it is being judged is judged anew.
const EVICTION_ATTEMPTS_MAX: usize = 20;

impl Registry {
    pub(super) async fn evict(&self, call: &Call, served: &Arc<Served>, body: &[u8]) -> Result<Reply, ApiError> {
        let write = WriteOptions::from_query(call, "CreateOptions")?;
        let eviction = self.decode_as(call, body, "policy", "v1", "Eviction")?;
        let name = object_meta::text(&eviction, "name");
        if name != call.info.name {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        let eviction = self.admit_body(call, served, &write, eviction).await?;
        let mut options = DeleteOptions { admitted: true, ..DeleteOptions::from_value(&eviction["deleteOptions"])? };
        options.dry_run |= write.dry_run;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let pod = self.get_object(call, served).await?;
            let leave = self.ask(&pod, options.dry_run).await?;
            let judged = judged(&options, &leave, &pod);
            let ours = judged.resource_version != options.resource_version;
            match (self.let_go(call, served, judged).await, leave) {
                (Err(error), EvictionVerdict::OnlyThisVersion(Some(budget))) if ours && error.is_conflict() => {
                    return Err(still_processed(&budget));
                }
                (Err(error), EvictionVerdict::OnlyThisVersion(None))
                    if ours && error.is_conflict() && attempts < EVICTION_ATTEMPTS_MAX => {}
                (gone, _) => return gone.map(|()| Reply::Value(StatusCode::CREATED, created())),
            }
        }
    }

    async fn let_go(&self, call: &Call, served: &Arc<Served>, mut options: DeleteOptions) -> Result<(), ApiError> {
        let (namespace, name) = (&call.info.namespace, &call.info.name);
        if !options.dry_run {
            self.mark_disrupted(served, namespace, name, &mut options).await?;
        }
        self.delete_object(call, served, namespace, name, &options).await.map(drop)
    }

    /// Asks the pod's budget where that must be, and takes from it.
    async fn ask(&self, pod: &Object, dry_run: bool) -> Result<EvictionVerdict, ApiError> {
        let value = pod.value();
        let Some(leave) = unasked(&value) else {
            let Some(budget) = self.budget_of(pod)? else { return Ok(EvictionVerdict::AnyVersion) };
            return self.charge(pod, &value, &budget, dry_run).await;
        };
        Ok(leave)
    }

    /// Says on the pod why it goes, for Jobs that do not count such a failure.
    async fn mark_disrupted(
        &self,
        served: &Served,
        namespace: &str,
        name: &str,
        options: &mut DeleteOptions,
    ) -> Result<(), ApiError> {
        let mut current = self.cluster.live(served, namespace, name).await?;
        loop {
            let Some(object) = current else { return Ok(()) };
            preconditions(served, &object, options)?;
            let mut new = object.value();
            add_disruption(&mut new, object_meta::timestamp(self.cluster.env.now()));
            match self.commit(served, &served.key(namespace, name), Some(&new), object.meta.resource_version).await? {
                Ok((_, revision)) => {
                    // The version that the caller asked for has become this one, by our own doing.
                    options.resource_version = options.resource_version.take().map(|_| revision.to_string());
                    return Ok(());
                }
                Err(Superseded(newer)) => current = newer,
            }
        }
    }

    fn budget_of(&self, pod: &Object) -> Result<Option<Arc<Object>>, ApiError> {
        let namespace = pod.meta.namespace.as_deref().unwrap_or_default();
        let fits = |budget: &Arc<Object>| {
            let selector = LabelSelector::from_value(&budget.value()["spec"]["selector"]);
            selector.is_ok_and(|s| s.matches(&pod.meta.labels))
        };
        let mut budgets: Vec<_> =
            self.cluster.list("poddisruptionbudgets", namespace).into_iter().filter(fits).collect();
        if budgets.len() > 1 {
            return Err(ApiError::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
        Ok(budgets.pop())
    }

    /// Takes one allowed disruption from the budget.
    async fn charge(
        &self,
        pod: &Object,
        value: &Value,
        budget: &Arc<Object>,
        dry_run: bool,
    ) -> Result<EvictionVerdict, ApiError> {
        let served = self.cluster.served.find("policy", "v1", "poddisruptionbudgets");
        let served = served.ok_or_else(|| ApiError::internal("disruption budgets are not served"))?;
        let namespace = budget.meta.namespace.clone().unwrap_or_default();
        let mut current = self.cluster.live(&served, &namespace, &budget.meta.name).await?;
        loop {
            let Some(object) = current else { return Ok(EvictionVerdict::AnyVersion) };
            let mut new = object.value();
            if !must_charge(value, &new) {
                return Ok(EvictionVerdict::OnlyThisVersion(Some(budget.meta.name.clone())));
            }
            take_one(&mut new, &pod.meta.name, &object_meta::timestamp(self.cluster.env.now()))?;
            if dry_run {
                return Ok(EvictionVerdict::AnyVersion);
            }
            let key = served.key(&namespace, &budget.meta.name);
            match self.commit(&served, &key, Some(&new), object.meta.resource_version).await? {
                Ok(_) => return Ok(EvictionVerdict::AnyVersion),
                Err(Superseded(newer)) => current = newer,
            }
        }
    }
}

/// How a pod may go.
#[derive(Debug, PartialEq)]
enum EvictionVerdict {
    AnyVersion,
    /// Only in the version that was judged: another may be ready, and then its budget must be charged. Names the budget
    /// that let it go.
    OnlyThisVersion(Option<String>),
}

/// The caller's options, and the version where it matters and the caller has not said one.
fn judged(options: &DeleteOptions, leave: &EvictionVerdict, pod: &Object) -> DeleteOptions {
    let mut options = options.clone();
    if matches!(leave, EvictionVerdict::OnlyThisVersion(_)) && options.resource_version.is_none() {
        options.resource_version = Some(pod.meta.resource_version.to_string());
    }
    options
}

fn add_disruption(pod: &mut Value, now: String) {
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastTransitionTime": now,
        "observedGeneration": pod["metadata"]["generation"],
    });
    let conditions = &mut pod["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let list = conditions.as_array_mut().expect("made above");
    match list.iter_mut().find(|c| c["type"] == "DisruptionTarget") {
        Some(known) => *known = condition,
        None => list.push(condition),
    }
}

/// Pods that run nothing any more, or nothing yet, go without asking.
fn unasked(pod: &Value) -> Option<EvictionVerdict> {
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return Some(EvictionVerdict::AnyVersion);
    }
    match pod["status"]["phase"].as_str().unwrap_or("Pending") {
        "Running" | "Unknown" => None,
        "Pending" => Some(EvictionVerdict::OnlyThisVersion(None)),
        _ => Some(EvictionVerdict::AnyVersion),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_not_charged_goes_only_in_the_version_that_was_judged() {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "resourceVersion": "7" } });
        let pod = Object::from_value(&pod).unwrap();
        let check = |leave: Option<EvictionVerdict>, asked: Option<&str>, expected: Option<&str>| {
            let options = DeleteOptions { resource_version: asked.map(String::from), ..DeleteOptions::default() };
            let judged = judged(&options, &leave.expect("no budget is asked"), &pod);
            assert_eq!(judged.resource_version.as_deref(), expected);
        };
        let phase = |phase: &str| unasked(&json!({ "status": { "phase": phase } }));
        check(phase("Pending"), None, Some("7"));
        check(phase("Pending"), Some("6"), Some("6"));
        check(phase("Succeeded"), None, None);
        check(phase("Failed"), None, None);
        check(Some(EvictionVerdict::OnlyThisVersion(Some("budget".into()))), None, Some("7"));
        check(Some(EvictionVerdict::AnyVersion), Some("6"), Some("6"));
        assert_eq!(phase("Running"), None);
        let going =
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" }, "status": { "phase": "Running" } });
        assert_eq!(unasked(&going), Some(EvictionVerdict::AnyVersion));
    }
}
