//! `pods/eviction`: a deletion that asks the disruption budgets first.
//! Part of `registry`.
//! Invariant: a budget is charged, compare-and-set, before its pod is deleted.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use api::{ApiError, Object, selectors::LabelSelector};

use super::{
    Lost, Registry,
    delete::preconditions,
    object_meta,
    options::{DeleteOptions, WriteOptions},
    subresource::created,
};
use crate::{call::Call, respond::Reply, served::Served};

/// The status of a budget remembers evicted pods only so long as it has fewer than this many.
const MAX_DISRUPTED: usize = 2000;

impl Registry {
    pub(super) async fn evict(&self, call: &Call, served: &Arc<Served>, body: &[u8]) -> Result<Reply, ApiError> {
        let write = WriteOptions::from_query(call, "CreateOptions")?;
        let eviction = self.decode_as(call, body, "policy", "v1", "Eviction")?;
        let name = object_meta::text(&eviction, "name");
        if !name.is_empty() && name != call.info.name {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        let mut options = DeleteOptions::from_value(&eviction["deleteOptions"])?;
        options.dry_run |= write.dry_run;
        let pod = self.get_object(call, served).await?;
        let value = pod.value();
        if counts(&value)
            && let Some(budget) = self.budget_of(&pod)?
        {
            self.charge(&pod, &value, &budget, options.dry_run).await?;
        }
        if !options.dry_run {
            self.mark_disrupted(served, &call.info.namespace, &call.info.name, &mut options).await?;
        }
        self.delete_object(call, served, &call.info.namespace, &call.info.name, &options).await?;
        Ok(Reply::Value(StatusCode::CREATED, created()))
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
                Err(Lost(newer)) => current = newer,
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
    async fn charge(&self, pod: &Object, value: &Value, budget: &Arc<Object>, dry_run: bool) -> Result<(), ApiError> {
        let served = self.cluster.served.find("policy", "v1", "poddisruptionbudgets");
        let served = served.ok_or_else(|| ApiError::internal("disruption budgets are not served"))?;
        let namespace = budget.meta.namespace.clone().unwrap_or_default();
        let mut current = self.cluster.live(&served, &namespace, &budget.meta.name).await?;
        loop {
            let Some(object) = current else { return Ok(()) };
            let mut new = object.value();
            if !must_charge(value, &new) {
                return Ok(());
            }
            take_one(&mut new, &pod.meta.name, object_meta::timestamp(self.cluster.env.now()))?;
            if dry_run {
                return Ok(());
            }
            let key = served.key(&namespace, &budget.meta.name);
            match self.commit(&served, &key, Some(&new), object.meta.resource_version).await? {
                Ok(_) => return Ok(()),
                Err(Lost(newer)) => current = newer,
            }
        }
    }
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
fn counts(pod: &Value) -> bool {
    let phase = pod["status"]["phase"].as_str().unwrap_or("Pending");
    matches!(phase, "Running" | "Unknown") && !pod["metadata"]["deletionTimestamp"].is_string()
}

/// A pod that is not ready disrupts nobody while the budget is healthy, or always if the budget says so.
fn must_charge(pod: &Value, budget: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let ready = conditions.is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
    if ready {
        return true;
    }
    let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    let healthy = number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0;
    budget["spec"]["unhealthyPodEvictionPolicy"] != "AlwaysAllow" && !healthy
}

fn take_one(budget: &mut Value, pod: &str, now: String) -> Result<(), ApiError> {
    let number = |v: &Value, field: &str| v["status"][field].as_i64().unwrap_or(0);
    let name = object_meta::text(budget, "name").to_string();
    let refuse = |text: String| {
        let cause = json!([{ "reason": "DisruptionBudget", "message": text }]);
        let details = json!({ "causes": cause, "retryAfterSeconds": 10 });
        Err(ApiError::too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
            .with_details(details))
    };
    if number(budget, "observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return refuse(format!("The disruption budget {name} is still being processed by the server."));
    }
    let allowed = number(budget, "disruptionsAllowed");
    let disrupted = budget["status"]["disruptedPods"].as_object().map_or(0, |d| d.len());
    if allowed <= 0 || disrupted > MAX_DISRUPTED {
        let (needed, healthy) = (number(budget, "desiredHealthy"), number(budget, "currentHealthy"));
        return refuse(format!("The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"));
    }
    budget["status"]["disruptionsAllowed"] = (allowed - 1).into();
    budget["status"]["disruptedPods"][pod] = now.into();
    Ok(())
}
