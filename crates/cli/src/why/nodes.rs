//! Why a Node is not ready or takes no pods.
//! Neighbours: `pods` asks whether a node is silent.
//! A node that stopped reporting is told apart from one that reports trouble.

use serde_json::Value;

use super::{Inquiry, Verdict, clause, condition_line};
use crate::{
    describe::{
        fields::{condition, list, name, string, text, truth},
        sections::taint_text,
    },
    object_reader::{ObjectReader, Query},
};

const NEVER_REPORTED: &str = "Its kubelet has never reported a status.";

pub async fn explain<R: ObjectReader>(inquiry: &Inquiry<'_, R>, node: &Value) -> Verdict {
    let ready = condition(node, "Ready");
    let events = inquiry.events(node).await;
    let name = name(node);
    let verdict = match string(&ready["status"]) {
        "True" => pressure(inquiry, node),
        // Said of a Node that somebody made and no kubelet took up.
        "Unknown" if string(&ready["reason"]) == "NodeStatusNeverUpdated" => {
            let verdict = Verdict::wrong("NeverReported", NEVER_REPORTED).because(condition_line(ready, inquiry.now));
            lease(inquiry, name, verdict).await
        }
        "Unknown" => {
            let since = inquiry.ago(&ready["lastTransitionTime"]);
            let cause =
                format!("Its kubelet stopped reporting ({since}): the machine, its network or the kubelet is down.");
            let verdict = Verdict::wrong("NodeSilent", cause).because(condition_line(ready, inquiry.now));
            lease(inquiry, name, verdict).await
        }
        "False" => {
            let message = clause(string(&ready["message"]));
            let cause = if message.contains("cni") || message.contains("network plugin") {
                format!("Its kubelet runs, but its network is not ready: {message}.")
            } else if message.contains("container runtime") || message.contains("PLEG") {
                format!("Its kubelet runs, but the container runtime does not answer as it should: {message}.")
            } else {
                format!("Its kubelet says that it is not ready: {message}.")
            };
            Verdict::wrong("NotReady", cause).because(condition_line(ready, inquiry.now))
        }
        _ => {
            let verdict = Verdict::wrong("NeverReported", NEVER_REPORTED);
            lease(inquiry, name, verdict).await
        }
    };
    if !verdict.wrong {
        return verdict;
    }
    let recent: Vec<&Value> = events.iter().filter(|event| string(&event["type"]) == "Warning").collect();
    verdict.with_events(recent, inquiry.now).try_command(format!("kubectl describe node {name}"))
}

async fn lease<R: ObjectReader>(inquiry: &Inquiry<'_, R>, node: &str, verdict: Verdict) -> Verdict {
    let query = Query::get("coordination.k8s.io/v1", "leases", "kube-node-lease", node);
    let verdict = match inquiry.reader.read(query).await.ok().and_then(|mut found| found.pop()) {
        Some(lease) => {
            let renewed = inquiry.ago(&lease["spec"]["renewTime"]);
            let seconds = text(&lease["spec"]["leaseDurationSeconds"]);
            verdict.because(format!("its lease was renewed {renewed}, and is good for {seconds}s"))
        }
        None => verdict.because("it has no lease in kube-node-lease"),
    };
    verdict.try_command("journalctl -u kubelet")
}

/// A node that is ready: pressure, cordon and taints that keep pods away.
fn pressure<R: ObjectReader>(inquiry: &Inquiry<'_, R>, node: &Value) -> Verdict {
    let troubles = ["MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];
    let troubled = list(&node["status"]["conditions"])
        .iter()
        .find(|found| troubles.contains(&string(&found["type"])) && string(&found["status"]) == "True");
    if let Some(found) = troubled {
        let cause = match string(&found["type"]) {
            "MemoryPressure" => "It is ready but short of memory: it evicts pods and takes no new best-effort ones.",
            "DiskPressure" => "It is ready but short of disk: it evicts pods and takes no new ones.",
            "PIDPressure" => "It is ready but short of process ids: it evicts pods and takes no new ones.",
            _ => "It is ready, but its network is not set up.",
        };
        return Verdict::wrong(string(&found["type"]), cause).because(condition_line(found, inquiry.now));
    }
    let taints: Vec<String> = list(&node["spec"]["taints"]).iter().map(taint_text).collect();
    if truth(&node["spec"]["unschedulable"]) {
        return Verdict::fine("Cordoned", "It is ready, but cordoned: new pods go elsewhere until it is uncordoned.")
            .because("spec.unschedulable is true")
            .try_command(format!("kubectl uncordon {}", name(node)));
    }
    if !taints.is_empty() {
        return Verdict::fine("Tainted", "It is ready; only pods that tolerate its taints are placed on it.")
            .because(format!("taints: {}", taints.join(", ")));
    }
    Verdict::fine("Ready", "Nothing is wrong: it is ready.")
}
