//! What must hold of devices at every commit: each belongs to one ResourceClaim, and no pod loses one that it uses.
//! Part of `invariants::World`, which tells it of claims and of pods that are bound.
//! Knows devices by driver, pool and name only; which ones fit a claim is the allocator's business.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};

use crate::facts::{self, finished, uid};

/// Driver, pool and name.
type DeviceId = (String, String, String);

#[derive(Default)]
pub struct DeviceWorld {
    claims: BTreeMap<String, ResourceClaim>,
}

fn devices(claim: &ResourceClaim) -> BTreeSet<DeviceId> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
    // Whoever only looks after devices has them beside their users.
    let used = results.into_iter().flatten().filter(|result| result.admin_access != Some(true));
    used.map(|result| (result.driver.clone(), result.pool.clone(), result.device.clone())).collect()
}

fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.allocation.is_some())
}

/// Uids of the pods that may use the claim.
fn users(claim: &ResourceClaim) -> BTreeSet<String> {
    let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
    reserved.into_iter().flatten().map(|user| user.uid.clone()).collect()
}

impl DeviceWorld {
    /// What is wrong with this change of a claim; `pods` are all that there are.
    pub fn claim<'a>(
        &mut self,
        key: &str,
        new: Option<ResourceClaim>,
        pods: impl Iterator<Item = &'a Pod>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let old = self.claims.get(key).filter(|old| new.as_ref().is_none_or(|new| uid(new) == uid(*old)));
        let had = old.map(users).unwrap_or_default();
        let has = new.as_ref().map(users).unwrap_or_default();
        let at_work = |pod: &&Pod| facts::node_name(pod).is_some() && !finished(pod);
        for pod in pods.filter(at_work).filter(|pod| had.contains(uid(*pod)) && !has.contains(uid(*pod))) {
            wrong.push(format!("claim {key} is no longer kept for {}, which is at work", facts::name(pod)));
        }
        if let Some(new) = &new {
            if !is_allocated(new) && !has.is_empty() {
                wrong.push(format!("claim {key} has users and no devices: {has:?}"));
            }
            let before = old.map(devices).unwrap_or_default();
            let now = devices(new);
            if old.is_some_and(is_allocated) && is_allocated(new) && before != now {
                wrong.push(format!("claim {key} changed its devices from {before:?} to {now:?}"));
            }
            for (other, claim) in self.claims.iter().filter(|(other, _)| *other != key) {
                let twice: Vec<_> =
                    devices(claim).into_iter().filter(|d| now.contains(d) && !before.contains(d)).collect();
                if !twice.is_empty() {
                    wrong.push(format!("claims {key} and {other} both have {twice:?}"));
                }
            }
        }
        match new {
            Some(new) => self.claims.insert(key.to_string(), new),
            None => self.claims.remove(key),
        };
        wrong
    }

    /// What is wrong with the claims of a pod that has just been bound.
    pub fn bound(&self, key: &str, pod: &Pod) -> Vec<String> {
        let mut wrong = Vec::new();
        let wanted = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref());
        for reference in wanted.into_iter().flatten() {
            let generated = || {
                let statuses = pod.status.as_ref()?.resource_claim_statuses.as_ref()?;
                statuses.iter().find(|status| status.name == reference.name)?.resource_claim_name.clone()
            };
            let name = reference.resource_claim_name.clone().or_else(generated).unwrap_or_default();
            let claim = self.claims.get(&format!("{}/{name}", facts::namespace(pod)));
            match claim.filter(|claim| is_allocated(claim) && users(claim).contains(uid(pod))) {
                None => wrong.push(format!("pod {key} was bound without its claim {} ({name})", reference.name)),
                Some(claim) => {
                    // Pools of the simulation have the names of their nodes.
                    let elsewhere = |(_, pool, _): &DeviceId| Some(pool.as_str()) != facts::node_name(pod);
                    if let Some(device) = devices(claim).into_iter().find(elsewhere) {
                        let node = facts::node_name(pod).unwrap_or_default();
                        wrong.push(format!("pod {key} was bound to {node}, its device is {device:?}"));
                    }
                }
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `name: device device for uid uid`, as committed one after the other with pods `p` and `q` at work on node `n`;
    /// the number of complaints about the last one.
    fn check(commits: &[&str], complaints: usize) {
        let pod = |name: &str| -> Pod {
            let metadata = json!({ "name": name, "namespace": "team", "uid": name });
            serde_json::from_value(json!({ "metadata": metadata, "spec": { "nodeName": "n", "containers": [] } }))
                .unwrap()
        };
        let pods = [pod("p"), pod("q")];
        let (mut world, mut found) = (DeviceWorld::default(), Vec::new());
        for commit in commits {
            let (name, rest) = commit.split_once(':').unwrap();
            let (devices, users) = rest.split_once(" for ").unwrap_or((rest, ""));
            let result = |device| json!({ "request": "r", "driver": "d", "pool": "n", "device": device });
            let results: Vec<_> = devices.split_whitespace().map(result).collect();
            let user = |uid| json!({ "resource": "pods", "name": uid, "uid": uid });
            let users: Vec<_> = users.split_whitespace().map(user).collect();
            let mut status = json!({ "reservedFor": users });
            if !results.is_empty() {
                status["allocation"] = json!({ "devices": { "results": results } });
            }
            let claim = json!({ "metadata": { "name": name, "uid": name }, "spec": {}, "status": status });
            let claim = (rest != " gone").then(|| serde_json::from_value(claim).unwrap());
            found = world.claim(&format!("team/{name}"), claim, pods.iter());
        }
        assert_eq!(found.len(), complaints, "{commits:?}: {found:?}");
    }

    #[test]
    fn a_device_has_one_claim_and_stays_while_it_is_used() {
        check(&["a: x for p", "b: y for q"], 0);
        check(&["a: x for p", "b: x for q"], 1);
        check(&["a: x", "a:", "b: x for q"], 0);
        check(&["a: x for p", "a: y for p"], 1);
        check(&["a: x for p", "a:"], 1);
        check(&["a: x for p", "a: gone"], 1);
        check(&["a: x for other", "a: gone"], 0);
        check(&["a: for p"], 1);
        // Told once, when it happened.
        check(&["a: x for p", "b: x for q", "b: x for q"], 0);
    }

    #[test]
    fn a_pod_is_bound_where_its_devices_are() {
        let pod = |node: &str| -> Pod {
            let metadata = json!({ "name": "p", "namespace": "team", "uid": "p" });
            let claims = json!([{ "name": "gpu", "resourceClaimName": "a" }]);
            let spec = json!({ "nodeName": node, "containers": [], "resourceClaims": claims });
            serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
        };
        let mut world = DeviceWorld::default();
        assert_eq!(world.bound("team/p", &pod("n")).len(), 1, "there is no claim");
        let results = json!([{ "request": "r", "driver": "d", "pool": "n", "device": "x" }]);
        let users = json!([{ "resource": "pods", "name": "p", "uid": "p" }]);
        let status = json!({ "allocation": { "devices": { "results": results } }, "reservedFor": users });
        let claim = json!({ "metadata": { "name": "a", "uid": "a" }, "spec": {}, "status": status });
        world.claim("team/a", Some(serde_json::from_value(claim).unwrap()), [].iter());
        assert_eq!(world.bound("team/p", &pod("n")), [""; 0]);
        assert_eq!(world.bound("team/p", &pod("m")).len(), 1);
    }
}
