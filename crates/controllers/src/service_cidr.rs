//! Says when a ServiceCIDR is ready, and keeps it while Services have addresses that only it contains.
//! The API server hands the addresses out, from none that is going; `IPAddress` objects show which are in use.
//! The finalizer goes only when the ServiceCIDR is being deleted and leaves no address behind.

use std::{net::IpAddr, sync::Arc, time::Duration};

use api::ApiError;
use async_trait::async_trait;
use client::{EventRecorder, Informer, Patch, reference};
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use serde_json::json;

use crate::{
    common::{
        meta::{Object, time},
        pods,
    },
    runner::{Context, Controller, Outcome, Setup},
};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// An API server may not know yet that no more addresses are to come from here.
const DELETION_GRACE_PERIOD: Duration = Duration::from_secs(10);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (cidrs, addresses) = (setup.informer::<ServiceCIDR>(), setup.informer::<IPAddress>());
    setup.on(&cidrs, {
        let cidrs = cidrs.clone();
        move |change, queue| {
            queue.add(change.key.clone());
            // A new one may take over what another waits for.
            if change.old.is_none() {
                cidrs.list().iter().filter(|c| c.deleting()).for_each(|c| queue.add(c.key()));
            }
        }
    });
    setup.on(&addresses, {
        let cidrs = cidrs.clone();
        move |change, queue| {
            let Some(address) = change.new.as_ref().or(change.old.as_ref()).and_then(|a| handed_out(a)) else { return };
            let concerned = |c: &&Arc<ServiceCIDR>| c.deleting() && has(c, address);
            cidrs.list().iter().filter(concerned).for_each(|c| queue.add(c.key()));
        }
    });
    let recorder = setup.context.recorder("service-cidr-controller");
    Arc::new(ServiceCidrs { context: setup.context.clone(), cidrs, addresses, recorder })
}

/// The address, where the API server's allocator gave it away.
fn handed_out(address: &IPAddress) -> Option<IpAddr> {
    address.name().parse().ok().filter(|_| address.label(MANAGED_BY) == Some(ALLOCATOR))
}

fn networks(cidr: &ServiceCIDR) -> impl Iterator<Item = IpNet> {
    let texts = cidr.spec.as_ref().and_then(|s| s.cidrs.as_ref()).into_iter().flatten();
    texts.filter_map(|text| text.parse().ok())
}

/// Whether a Service may have this address from here: not that of the network itself, nor the one for all of it.
fn has(cidr: &ServiceCIDR, address: IpAddr) -> bool {
    networks(cidr).any(|net| {
        let for_all = address.is_ipv4() && net.broadcast() == address;
        net.contains(&address) && net.network() != address && !for_all
    })
}

/// Whether no address would be left without a ServiceCIDR.
fn may_go(cidr: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[IpAddr]) -> bool {
    let others = || all.iter().filter(move |other| other.uid() != cidr.uid());
    let within = |net: &IpNet| others().any(|other| networks(other).any(|larger| larger.contains(net)));
    if networks(cidr).all(|net| within(&net)) {
        return true;
    }
    let lost = |address: &&IpAddr| has(cidr, **address) && !others().any(|other| has(other, **address));
    !addresses.iter().any(|address| lost(&address))
}

struct ServiceCidrs {
    context: Context,
    cidrs: Informer<ServiceCIDR>,
    addresses: Informer<IPAddress>,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for ServiceCidrs {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(cidr) = self.cidrs.get(key) else { return Ok(None) };
        let now = self.context.env.now();
        let held = cidr.finalizers().iter().any(|f| f == FINALIZER);
        if !cidr.deleting() {
            if !held {
                let with = cidr.finalizers().iter().cloned().chain([FINALIZER.to_string()]);
                self.set_finalizers(&cidr, with.collect()).await?;
            }
            let ready = self.set_ready(&cidr, ("True", "", "Kubernetes Service CIDR is ready"), now).await;
            if ready.as_ref().is_err_and(|error| !error.is_conflict()) {
                let message = "The ServiceCIDR Status can not be set to Ready=True";
                self.recorder.warning(&reference(&*cidr), "KubernetesServiceCIDRError", message);
            }
            return ready.map(|()| None);
        }
        if !held {
            return Ok(None);
        }
        let addresses: Vec<IpAddr> = self.addresses.list().iter().filter_map(|a| handed_out(a)).collect();
        if !may_go(&cidr, &self.cidrs.list(), &addresses) {
            let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new \
                           ServiceCIDR";
            return self.set_ready(&cidr, ("False", "Terminating", message), now).await.map(|()| None);
        }
        let since = cidr.metadata.deletion_timestamp.as_ref().map_or(now, |at| at.0);
        let left = pods::until(now, since + DELETION_GRACE_PERIOD);
        if !left.is_zero() {
            return Ok(Some(left));
        }
        let without = cidr.finalizers().iter().filter(|f| *f != FINALIZER).cloned();
        self.set_finalizers(&cidr, without.collect()).await.map(|()| None)
    }
}

impl ServiceCidrs {
    async fn set_finalizers(&self, cidr: &ServiceCIDR, finalizers: Vec<String>) -> Result<(), ApiError> {
        let version = &cidr.metadata.resource_version;
        let meta = json!({ "uid": cidr.uid(), "resourceVersion": version, "finalizers": finalizers });
        let api = self.context.client.api::<ServiceCIDR>();
        match api.patch(cidr.name(), &Patch::Merge(json!({ "metadata": meta }))).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    async fn set_ready(
        &self,
        cidr: &ServiceCIDR,
        (status, reason, message): (&str, &str, &str),
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let known = cidr.status.as_ref().and_then(|s| s.conditions.as_ref()).into_iter().flatten();
        let same = known
            .filter(|c| c.type_ == "Ready")
            .any(|c| (c.status.as_str(), c.reason.as_str(), c.message.as_str()) == (status, reason, message));
        if same {
            return Ok(());
        }
        let condition = json!({ "type": "Ready", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": time(now) });
        let patch = json!({ "metadata": { "uid": cidr.uid() }, "status": { "conditions": [condition] } });
        match self.context.client.api::<ServiceCIDR>().patch_status(cidr.name(), &Patch::Merge(patch)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(name: &str, nets: &[&str]) -> Arc<ServiceCIDR> {
        let meta = json!({ "name": name, "uid": name });
        Arc::new(serde_json::from_value(json!({ "metadata": meta, "spec": { "cidrs": nets } })).unwrap())
    }

    #[test]
    fn no_address_is_left_behind() {
        let check = |others: &[Arc<ServiceCIDR>], addresses: &[&str], expected: bool| {
            let going = cidr("going", &["10.1.0.0/24"]);
            let all: Vec<_> = others.iter().cloned().chain([going.clone()]).collect();
            let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
            assert_eq!(may_go(&going, &all, &addresses), expected, "{addresses:?}");
        };
        check(&[], &[], true);
        check(&[], &["10.2.0.1", "fd00::1"], true);
        check(&[], &["10.1.0.7"], false);
        // Nobody gets these from here.
        check(&[], &["10.1.0.0", "10.1.0.255"], true);
        check(&[cidr("larger", &["10.1.0.0/16"])], &["10.1.0.7"], true);
        check(&[cidr("half", &["10.1.0.0/25"])], &["10.1.0.7"], true);
        check(&[cidr("half", &["10.1.0.0/25"])], &["10.1.0.7", "10.1.0.200"], false);
    }
}
