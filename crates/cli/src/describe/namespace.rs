//! Describes Namespaces, ResourceQuotas and LimitRanges.
//! Neighbours: `sections`.
//! A server without quotas or limit ranges shows a namespace without that part.

use std::collections::BTreeSet;

use api::quantity::Quantity;
use serde_json::Value;

use super::{
    Context, Related,
    fields::{list, members, name, quantity, string, strings, text},
    is_empty,
    sections::{conditions_with_times, labels_and_annotations, name_and_namespace},
    writer::{Writer, put},
};
use crate::object_reader::Query;

pub fn queries(namespace: &Value) -> Vec<Query> {
    let name = name(namespace);
    vec![Query::list("v1", "resourcequotas", name), Query::list("v1", "limitranges", name)]
}

pub fn describe(w: &mut Writer, namespace: &Value, related: &Related, context: &Context) -> Result<(), String> {
    put!(w, 0, "Name:\t{}\n", name(namespace));
    labels_and_annotations(w, namespace);
    put!(w, 0, "Status:\t{}\n", text(&namespace["status"]["phase"]));
    if !is_empty(&namespace["status"]["conditions"]) {
        w.write(0, "Conditions:\n");
        conditions_with_times(w, namespace, context);
    }
    if let Some(Ok(quotas)) = related.answers.first() {
        w.write(0, "\n");
        resource_quotas(w, quotas);
    }
    if let Some(Ok(ranges)) = related.answers.get(1) {
        w.write(0, "\n");
        limit_ranges(w, ranges);
    }
    Ok(())
}

fn scope_help(scope: &str) -> Option<&'static str> {
    Some(match scope {
        "Terminating" => {
            "Matches all pods that have an active deadline. These pods have a limited lifespan on a node before being \
             actively terminated by the system."
        }
        "NotTerminating" => {
            "Matches all pods that do not have an active deadline. These pods usually include long running pods whose \
             container command is not expected to terminate."
        }
        "BestEffort" => {
            "Matches all pods that do not have resource requirements set. These pods have a best effort quality of service."
        }
        "NotBestEffort" => {
            "Matches all pods that have at least one resource requirement set. These pods have a burstable or guaranteed \
             quality of service."
        }
        _ => return None,
    })
}

fn scopes(w: &mut Writer, quota: &Value, level: usize, bullet: &str) {
    let mut scopes = strings(&quota["spec"]["scopes"]);
    if scopes.is_empty() {
        return;
    }
    scopes.sort_unstable();
    put!(w, level, "Scopes:\t{}\n", scopes.join(", "));
    for help in scopes.iter().filter_map(|scope| scope_help(scope)) {
        put!(w, level, "{bullet}{help}\n");
    }
}

fn resource_quotas(w: &mut Writer, quotas: &[Value]) {
    if quotas.is_empty() {
        w.write(0, "No resource quota.\n");
        return;
    }
    let mut sorted: Vec<&Value> = quotas.iter().collect();
    sorted.sort_by_key(|quota| name(quota));
    w.write(0, "Resource Quotas\n");
    for quota in sorted {
        put!(w, 1, "Name:\t{}\n", name(quota));
        scopes(w, quota, 1, "* ");
        w.write(1, "Resource\tUsed\tHard\n");
        w.write(1, "--------\t---\t---\n");
        for (resource, hard) in members(&quota["status"]["hard"]) {
            let used = quantity(&quota["status"]["used"][resource]);
            put!(w, 1, "{resource}\t{used}\t{}\n", quantity(hard));
        }
    }
}

pub fn resource_quota(w: &mut Writer, quota: &Value, _: &Related, _: &Context) -> Result<(), String> {
    name_and_namespace(w, quota);
    scopes(w, quota, 0, " * ");
    w.write(0, "Resource\tUsed\tHard\n");
    w.write(0, "--------\t----\t----\n");
    for (resource, hard) in members(&quota["status"]["hard"]) {
        let used = &quota["status"]["used"][resource];
        let shown = match (Quantity::from_value(used), Quantity::from_value(hard)) {
            (Some(used), Some(hard)) if used.format() != hard.format() => {
                Quantity::new(used.value(), hard.format()).canonical()
            }
            _ => quantity(used),
        };
        put!(w, 0, "{resource}\t{shown}\t{}\n", quantity(hard));
    }
    Ok(())
}

const LIMIT_HEADERS: &str = "Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio\n";
const LIMIT_LINES: &str = "----\t--------\t---\t---\t---------------\t-------------\t-----------------------\n";

fn limit_ranges(w: &mut Writer, ranges: &[Value]) {
    if ranges.is_empty() {
        w.write(0, "No LimitRange resource.\n");
        return;
    }
    put!(w, 0, "Resource Limits\n {LIMIT_HEADERS}");
    put!(w, 0, " {LIMIT_LINES}");
    for range in ranges {
        limits(w, range, " ");
    }
}

fn limits(w: &mut Writer, range: &Value, prefix: &str) {
    let columns = ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"];
    for limit in list(&range["spec"]["limits"]) {
        let resources: BTreeSet<&str> =
            columns.iter().flat_map(|column| members(&limit[*column])).map(|(k, _)| k).collect();
        for resource in resources {
            let cell = |column: &&str| match &limit[*column][resource] {
                Value::Null => "-".to_string(),
                amount => quantity(amount),
            };
            let cells: Vec<String> = columns.iter().map(cell).collect();
            put!(w, 0, "{prefix}{}\t{resource}\t{}\n", string(&limit["type"]), cells.join("\t"));
        }
    }
}

pub fn limit_range(w: &mut Writer, range: &Value, _: &Related, _: &Context) -> Result<(), String> {
    name_and_namespace(w, range);
    w.write(0, LIMIT_HEADERS);
    w.write(0, LIMIT_LINES);
    limits(w, range, "");
    Ok(())
}
