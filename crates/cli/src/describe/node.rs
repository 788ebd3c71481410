//! Describes a Node with its lease and the pods on it.
//! Neighbours: `api::pod_resources` sums what pods request.
//! Pods that ended do not count.

use std::collections::{BTreeMap, BTreeSet};

use api::quantity::{Format, Quantity};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::{
    Context, Related,
    fields::{list, members, name, namespace, quantity, rfc1123, since, string, strings, text, text_or, truth},
    is_empty,
    sections::{labels_and_annotations, taints},
    writer::{Writer, put},
};
use crate::object_reader::Query;

pub fn queries(node: &Value) -> Vec<Query> {
    let name = name(node);
    let running = format!("spec.nodeName={name},status.phase!=Failed,status.phase!=Succeeded");
    vec![
        Query::list("v1", "pods", "").fields(running),
        Query::get("coordination.k8s.io/v1", "leases", "kube-node-lease", name),
    ]
}

/// Roles from `node-role.kubernetes.io/ROLE` and `kubernetes.io/role=ROLE`.
fn roles(node: &Value) -> Vec<String> {
    let role = |(key, value): (&str, &Value)| match key.strip_prefix("node-role.kubernetes.io/") {
        Some(role) => Some(role.to_string()),
        None => (key == "kubernetes.io/role").then(|| text(value)),
    };
    let roles: BTreeSet<String> =
        members(&node["metadata"]["labels"]).filter_map(role).filter(|role| !role.is_empty()).collect();
    roles.into_iter().collect()
}

pub fn describe(w: &mut Writer, node: &Value, related: &Related, context: &Context) -> Result<(), String> {
    let (spec, status) = (&node["spec"], &node["status"]);
    put!(w, 0, "Name:\t{}\n", name(node));
    let roles = roles(node);
    put!(w, 0, "Roles:\t{}\n", if roles.is_empty() { "<none>".to_string() } else { roles.join(",") });
    labels_and_annotations(w, node);
    put!(w, 0, "CreationTimestamp:\t{}\n", rfc1123(&node["metadata"]["creationTimestamp"], &context.zone));
    taints(w, &spec["taints"]);
    put!(w, 0, "Unschedulable:\t{}\n", truth(&spec["unschedulable"]));
    lease(w, related, context);
    conditions(w, status, context);
    w.write(0, "Addresses:\n");
    for address in list(&status["addresses"]) {
        put!(w, 1, "{}:\t{}\n", text(&address["type"]), text(&address["address"]));
    }
    for (title, field) in [("Capacity", "capacity"), ("Allocatable", "allocatable")] {
        let mut listed = members(&status[field]).peekable();
        if listed.peek().is_some() {
            put!(w, 0, "{title}:\n");
        }
        for (resource, amount) in listed {
            put!(w, 0, "  {resource}:\t{}\n", quantity(amount));
        }
    }
    w.write(0, "System Info:\n");
    let information = [
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
        ("Kube-Proxy Version", "kubeProxyVersion"),
    ];
    for (title, field) in information {
        put!(w, 0, "  {title}:\t{}\n", text(&status["nodeInfo"][field]));
    }
    if !string(&spec["podCIDR"]).is_empty() {
        put!(w, 0, "PodCIDR:\t{}\n", string(&spec["podCIDR"]));
    }
    if !is_empty(&spec["podCIDRs"]) {
        put!(w, 0, "PodCIDRs:\t{}\n", strings(&spec["podCIDRs"]).join(","));
    }
    if !string(&spec["providerID"]).is_empty() {
        put!(w, 0, "ProviderID:\t{}\n", string(&spec["providerID"]));
    }
    match related.answers.first() {
        Some(Ok(pods)) => resources(w, node, pods, context),
        Some(Err(error)) if !error.contains("forbidden") => return Err(error.clone()),
        _ => w.write(0, "Pods:\tnot authorized\n"),
    }
    Ok(())
}

fn lease(w: &mut Writer, related: &Related, context: &Context) {
    match related.answers.get(1) {
        Some(Ok(leases)) => {
            let spec = &leases.first().unwrap_or(&Value::Null)["spec"];
            let time = |value: &Value| match value {
                Value::Null => "<unset>".to_string(),
                value => rfc1123(value, &context.zone),
            };
            w.write(0, "Lease:\n");
            put!(w, 1, "HolderIdentity:\t{}\n", text_or(&spec["holderIdentity"], "<unset>"));
            put!(w, 1, "AcquireTime:\t{}\n", time(&spec["acquireTime"]));
            put!(w, 1, "RenewTime:\t{}\n", time(&spec["renewTime"]));
        }
        Some(Err(error)) => put!(w, 0, "Lease:\tFailed to get lease: {error}\n"),
        None => {}
    }
}

fn conditions(w: &mut Writer, status: &Value, context: &Context) {
    if is_empty(&status["conditions"]) {
        return;
    }
    w.write(0, "Conditions:\n  Type\tStatus\tLastHeartbeatTime\tLastTransitionTime\tReason\tMessage\n");
    w.write(1, "----\t------\t-----------------\t------------------\t------\t-------\n");
    for c in list(&status["conditions"]) {
        let (kind, status) = (text(&c["type"]), text(&c["status"]));
        let heartbeat = rfc1123(&c["lastHeartbeatTime"], &context.zone);
        let transition = rfc1123(&c["lastTransitionTime"], &context.zone);
        let (reason, message) = (text(&c["reason"]), text(&c["message"]));
        put!(w, 1, "{kind} \t{status} \t{heartbeat} \t{transition} \t{reason} \t{message}\n");
    }
}

type Totals = BTreeMap<String, Quantity>;

fn requests_and_limits(pod: &Value) -> (Totals, Totals) {
    match serde_json::from_value::<Pod>(pod.clone()) {
        Ok(pod) => (api::pod_resources::requests(&pod), api::pod_resources::limits(&pod)),
        Err(_) => Default::default(),
    }
}

fn amount(totals: &Totals, resource: &str) -> Quantity {
    totals.get(resource).cloned().unwrap_or_else(|| Quantity::new(0, Format::DecimalSI))
}

/// `amount (percent of what can be allocated)`.
fn share(totals: &Totals, resource: &str, allocatable: &Value) -> String {
    let amount = amount(totals, resource);
    let whole = Quantity::from_value(&allocatable[resource]);
    let milli = |quantity: &Quantity| if resource == "cpu" { quantity.milli_value() } else { quantity.value() };
    let percent = match whole.as_ref().map(milli) {
        Some(whole) if whole != 0 => (milli(&amount) as f64 / whole as f64 * 100.0) as i64,
        _ => 0,
    };
    format!("{} ({percent}%)", amount.canonical())
}

fn resources(w: &mut Writer, node: &Value, pods: &[Value], context: &Context) {
    let status = &node["status"];
    let allocatable = match members(&status["allocatable"]).next() {
        Some(_) => &status["allocatable"],
        None => &status["capacity"],
    };
    put!(w, 0, "Non-terminated Pods:\t({} in total)\n", pods.len());
    w.write(1, "Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge\n");
    w.write(1, "---------\t----\t\t------------\t----------\t---------------\t-------------\t---\n");
    let (mut all_requests, mut all_limits) = (Totals::new(), Totals::new());
    let add = |all: &mut Totals, one: &Totals| {
        for (resource, amount) in one {
            match all.get_mut(resource) {
                Some(total) => total.add(amount),
                None => drop(all.insert(resource.clone(), amount.clone())),
            }
        }
    };
    for pod in pods {
        let (requests, limits) = requests_and_limits(pod);
        let columns: Vec<String> = ["cpu", "memory"]
            .iter()
            .flat_map(|resource| [&requests, &limits].map(|totals| share(totals, resource, allocatable)))
            .collect();
        let age = since(&pod["metadata"]["creationTimestamp"], context.now);
        put!(w, 1, "{}\t{}\t\t{}\t{age}\n", namespace(pod), name(pod), columns.join("\t"));
        add(&mut all_requests, &requests);
        add(&mut all_limits, &limits);
    }
    w.write(0, "Allocated resources:\n  (Total limits may be over 100 percent, i.e., overcommitted.)\n");
    w.write(1, "Resource\tRequests\tLimits\n");
    w.write(1, "--------\t--------\t------\n");
    let huge_pages = members(allocatable).map(|(resource, _)| resource).filter(|r| r.starts_with("hugepages-"));
    for resource in ["cpu", "memory", "ephemeral-storage"].into_iter().chain(huge_pages) {
        let (requested, limited) =
            (share(&all_requests, resource, allocatable), share(&all_limits, resource, allocatable));
        put!(w, 1, "{resource}\t{requested}\t{limited}\n");
    }
    let standard = ["cpu", "memory", "ephemeral-storage", "pods"];
    for (resource, _) in members(allocatable) {
        if !standard.contains(&resource) && !resource.starts_with("hugepages-") {
            let (requested, limited) = (amount(&all_requests, resource), amount(&all_limits, resource));
            put!(w, 1, "{resource}\t{}\t{}\n", requested.canonical(), limited.canonical());
        }
    }
}
