//! Why a Service has no endpoints.
//! Neighbours: `pods` explains a pod that is not ready.
//! A Service without a selector is its owner's business and not wrong by itself.

use serde_json::Value;

use super::{Inquiry, Verdict, counted, namespace_flag, pods};
use crate::{
    describe::fields::{condition, format_labels, list, members, name, namespace, string, text},
    object_reader::{ObjectReader, Query},
};

pub async fn explain<R: ObjectReader>(inquiry: &Inquiry<'_, R>, service: &Value) -> Verdict {
    let spec = &service["spec"];
    if string(&spec["type"]) == "ExternalName" {
        return Verdict::fine(
            "ExternalName",
            format!("It is an alias for {} and has no endpoints.", text(&spec["externalName"])),
        );
    }
    let selector = format!("kubernetes.io/service-name={}", name(service));
    let query = Query::list("discovery.k8s.io/v1", "endpointslices", namespace(service)).labels(selector);
    let slices = inquiry.reader.read(query).await.unwrap_or_default();
    let endpoints: Vec<&Value> = slices.iter().flat_map(|slice| list(&slice["endpoints"])).collect();
    let ready = endpoints.iter().filter(|endpoint| endpoint["conditions"]["ready"] != false).count();
    let has_ports = slices.iter().any(|slice| !list(&slice["ports"]).is_empty()) || list(&spec["ports"]).is_empty();
    if ready > 0 && has_ports {
        return pending_load_balancer(inquiry, service, ready).await;
    }
    if members(&spec["selector"]).next().is_none() {
        let cause = "It has no selector, so its EndpointSlices are made by hand, and they name no ready endpoint.";
        return Verdict::wrong("NoEndpoints", cause).try_command(format!(
            "kubectl get endpointslices -l kubernetes.io/service-name={}{}",
            name(service),
            namespace_flag(service)
        ));
    }
    let pods = inquiry.reader.read(Query::list("v1", "pods", namespace(service))).await.unwrap_or_default();
    let matches =
        |pod: &&Value| members(&spec["selector"]).all(|(key, value)| &pod["metadata"]["labels"][key] == value);
    let selected: Vec<&Value> = pods.iter().filter(matches).collect();
    if selected.is_empty() {
        return nothing_selected(service, &pods);
    }
    if ready > 0 || !endpoints.is_empty() && !has_ports {
        return wrong_port(service, &selected);
    }
    let unready: Vec<&&Value> =
        selected.iter().filter(|pod| string(&condition(pod, "Ready")["status"]) != "True").collect();
    let Some(first) = unready.first() else {
        return wrong_port(service, &selected);
    };
    let inner = Box::pin(pods::explain(inquiry, first)).await;
    let cause = format!(
        "Its selector finds {}, and none is ready. Pod {}: {}",
        counted(selected.len(), "pod"),
        name(first),
        inner.cause
    );
    let mut verdict = Verdict::wrong("NoReadyPods", cause);
    verdict.evidence = inner.evidence;
    verdict.try_command(format!("minke why pod/{}{}", name(first), namespace_flag(service)))
}

async fn pending_load_balancer<R: ObjectReader>(inquiry: &Inquiry<'_, R>, service: &Value, ready: usize) -> Verdict {
    let waits = string(&service["spec"]["type"]) == "LoadBalancer"
        && list(&service["status"]["loadBalancer"]["ingress"]).is_empty();
    if !waits {
        return Verdict::fine("Ready", format!("Nothing is wrong: it has {}.", counted(ready, "ready endpoint")));
    }
    let events = inquiry.events(service).await;
    Verdict::wrong(
        "LoadBalancerPending",
        format!("It has {}, but no load balancer has given it an address.", counted(ready, "ready endpoint")),
    )
    .with_events(events.iter(), inquiry.now)
    .because("status.loadBalancer.ingress is empty")
    .try_command(format!("kubectl describe service {}{}", name(service), namespace_flag(service)))
}

fn nothing_selected(service: &Value, pods: &[Value]) -> Verdict {
    let selector = &service["spec"]["selector"];
    let shown = format_labels(selector);
    let wanted = members(selector).count();
    // The pod that fits all but one label is what the author most likely meant.
    let fits =
        |pod: &Value| members(selector).filter(|(key, value)| &pod["metadata"]["labels"][*key] == *value).count();
    let nearest = pods.iter().filter(|pod| wanted > 1 && fits(pod) + 1 == wanted).max_by_key(|pod| fits(pod));
    let by_key = || {
        let keys: Vec<&str> = members(selector).map(|(key, _)| key).collect();
        pods.iter().find(|pod| keys.iter().all(|key| !pod["metadata"]["labels"][*key].is_null()))
    };
    let mut cause = format!("No pod in namespace {} has the labels {shown} that it selects.", namespace(service));
    let mut verdict = Verdict::wrong("NoMatchingPods", "");
    if let Some(pod) = nearest.or_else(by_key) {
        let labels = format_labels(&pod["metadata"]["labels"]);
        cause.push_str(&format!(" Pod {} comes nearest with {labels}.", name(pod)));
        verdict = verdict.because(format!("labels of pod {}: {labels}", name(pod)));
    }
    verdict.cause = cause;
    verdict
        .because(format!("spec.selector: {shown}; {} in the namespace", counted(pods.len(), "pod")))
        .try_command(format!("kubectl get pods{} --show-labels", namespace_flag(service)))
}

fn wrong_port(service: &Value, pods: &[&Value]) -> Verdict {
    let ports = list(&service["spec"]["ports"]);
    let names = |pod: &Value| -> Vec<String> {
        let containers = list(&pod["spec"]["containers"]).iter();
        containers
            .flat_map(|container| list(&container["ports"]))
            .map(|port| text(&port["name"]))
            .filter(|n| !n.is_empty())
            .collect()
    };
    for port in ports {
        let Some(target) = port["targetPort"].as_str() else { continue };
        if !pods.iter().any(|pod| names(pod).iter().any(|own| own == target)) {
            let has = names(pods[0]);
            let has = if has.is_empty() { "no named port".to_string() } else { has.join(", ") };
            return Verdict::wrong(
                "NoSuchPort",
                format!("Its target port {target} is a name that no container of its pods has."),
            )
            .because(format!("containers of pod {} have {has}", name(pods[0])))
            .try_command(format!("kubectl describe service {}{}", name(service), namespace_flag(service)));
        }
    }
    Verdict::wrong(
        "NoEndpoints",
        "Its pods are ready, but its EndpointSlices do not list them yet; is the EndpointSlice controller running?",
    )
    .because(format!("{} pods match its selector", pods.len()))
    .try_command(format!("kubectl get endpointslices{}", namespace_flag(service)))
}
