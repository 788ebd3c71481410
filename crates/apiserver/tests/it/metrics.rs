//! `/metrics` as Prometheus reads it: parsed strictly, with the names and labels dashboards ask for.
//! Every line is understood or the test fails.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use http_body_util::BodyExt;
use serde_json::json;

use crate::harness::*;

type Labels = BTreeMap<String, String>;

struct Family {
    kind: String,
    samples: Vec<(String, Labels, f64)>,
}

/// The text format 0.0.4, as strict as it can be read.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line has no end");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut helped = String::new();
    let mut open = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            helped = rest.split_once(' ').unwrap_or_else(|| panic!("no help: {line}")).0.to_string();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, helped, "the help is of another family");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            let new = Family { kind: kind.into(), samples: Vec::new() };
            assert!(families.insert(name.into(), new).is_none(), "{name} comes twice");
            open = name.to_string();
        } else {
            let (name, labels, value) = sample(line);
            let family = families.get_mut(&open).unwrap();
            let belongs = match family.kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"].iter().any(|s| name == format!("{open}{s}")),
                _ => name == open,
            };
            assert!(belongs, "{name} is under {open}");
            family.samples.push((name, labels, value));
        }
    }
    families.iter().for_each(|(name, family)| check_family(name, family));
    families
}

fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, rest) = line.split_at(end);
    let good = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    assert!(good(name) && !name.starts_with(|c: char| c.is_ascii_digit()), "{line}");
    let mut labels = Labels::new();
    let mut rest = rest;
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (label, after) = inside.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(good(label) && !label.is_empty(), "{line}");
            let mut value = String::new();
            let mut chars = after.char_indices();
            let close = loop {
                match chars.next().unwrap_or_else(|| panic!("{line}")) {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next().map(|(_, c)| c) {
                        Some('n') => '\n',
                        Some(c @ ('\\' | '"')) => c,
                        other => panic!("{other:?} escaped in {line}"),
                    }),
                    (_, c) => value.push(c),
                }
            };
            assert!(labels.insert(label.into(), value).is_none(), "{label} comes twice in {line}");
            let next = &after[close + 1..];
            if let Some(more) = next.strip_prefix(',') {
                inside = more;
            } else {
                rest = next.strip_prefix('}').unwrap_or_else(|| panic!("{line}"));
                break;
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    (name.into(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

fn check_family(name: &str, family: &Family) {
    let mut seen = BTreeSet::new();
    for (sample, labels, value) in &family.samples {
        assert!(seen.insert((sample, labels)), "{sample}{labels:?} comes twice");
        assert!(family.kind == "gauge" || *value >= 0.0, "{sample} is negative");
    }
    if family.kind != "histogram" {
        return;
    }
    let mut buckets: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    for (_, labels, value) in family.samples.iter().filter(|(n, ..)| n.ends_with("_bucket")) {
        let mut labels = labels.clone();
        let bound = labels.remove("le").unwrap_or_else(|| panic!("{name} has a bucket without a bound"));
        buckets.entry(labels).or_default().push((bound.replace("+Inf", "inf").parse().unwrap(), *value));
    }
    for (labels, series) in buckets {
        assert!(series.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name}{labels:?}: {series:?}");
        let last = series.last().unwrap();
        let count = family.samples.iter().find(|(n, l, _)| *n == format!("{name}_count") && *l == labels);
        assert_eq!((last.0, Some(last.1)), (f64::INFINITY, count.map(|c| c.2)), "{name}{labels:?}");
    }
}

/// The value of the one sample with these labels among its own.
fn value(families: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let family = name.trim_end_matches("_count").trim_end_matches("_sum");
    let family = families.get(name).or_else(|| families.get(family)).unwrap_or_else(|| panic!("no {name}"));
    let matches = |found: &Labels| labels.iter().all(|(k, v)| found.get(*k).map(String::as_str) == Some(v));
    let mut found = family.samples.iter().filter(|(n, l, _)| n == name && matches(l));
    let (_, _, first) = found.next().unwrap_or_else(|| panic!("no {name} with {labels:?}"));
    assert!(found.next().is_none(), "several {name} with {labels:?}");
    *first
}

#[tokio::test]
async fn figures_have_upstreams_names_and_add_up() {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let s = server().await;
    let watch = s.raw("GET", "/api/v1/configmaps?watch=1&resourceVersion=0", &[], Vec::new()).await;
    let mut watch = watch.into_body().into_data_stream();
    s.create_config_map("a").await.expect(201);
    s.patch("apply", &format!("{MAPS}/a?fieldManager=f&force=true"), config_map("a")).await.expect(200);
    s.patch("merge-patch", &format!("{MAPS}/a?dryRun=All"), json!({ "data": { "x": "y" } })).await.expect(200);
    s.get(MAPS).await.expect(200);
    s.get(&format!("{MAPS}/a")).await.expect(200);
    s.get("/api/v1/namespaces/default/\"strange\\things/x").await.expect(404);
    s.delete(&format!("{MAPS}/a"), json!(null)).await.expect(200);
    let mut events = 0;
    while events < 3 {
        let piece = watch.next().await.unwrap().unwrap();
        events += piece.iter().filter(|b| **b == b'\n').count();
    }
    let text = String::from_utf8(s.get("/metrics").await.bytes.to_vec()).unwrap();
    let all = parse(&text);
    let maps = |verb, scope, dry_run| {
        let labels = [("resource", "configmaps"), ("verb", verb), ("scope", scope), ("dry_run", dry_run)];
        value(&all, "apiserver_request_total", &labels)
    };
    for (verb, scope, dry_run, expected) in [
        ("POST", "resource", "", 1.0),
        ("APPLY", "resource", "", 1.0),
        ("PATCH", "resource", "All", 1.0),
        ("LIST", "namespace", "", 1.0),
        ("GET", "resource", "", 1.0),
        ("DELETE", "resource", "", 1.0),
        ("WATCH", "cluster", "", 1.0),
    ] {
        assert!(maps(verb, scope, dry_run) >= expected, "{verb}");
    }
    let configmaps: &[(&str, &str)] = &[("group", ""), ("resource", "configmaps")];
    let with = |more: (&'static str, &'static str)| [configmaps, &[more]].concat();
    for (name, labels, least) in [
        ("apiserver_watch_events_total", with(("version", "v1")), 3.0),
        ("apiserver_watch_events_sizes_count", with(("version", "v1")), 3.0),
        ("apiserver_watch_events_sizes_sum", with(("version", "v1")), 300.0),
        ("apiserver_longrunning_requests", with(("verb", "WATCH")), 1.0),
        ("apiserver_request_sli_duration_seconds_count", with(("verb", "LIST")), 1.0),
        ("apiserver_response_sizes_sum", with(("verb", "LIST")), 100.0),
        ("etcd_request_duration_seconds_count", with(("operation", "create")), 1.0),
        ("etcd_requests_total", with(("operation", "update")), 1.0),
        ("etcd_requests_total", with(("operation", "delete")), 1.0),
        ("etcd_request_errors_total", with(("operation", "create")), 0.0),
        ("apiserver_cache_list_total", with(("index", "")), 1.0),
        ("apiserver_cache_list_returned_objects_total", configmaps.to_vec(), 1.0),
        ("apiserver_watch_cache_events_dispatched_total", configmaps.to_vec(), 3.0),
        ("apiserver_watch_cache_events_received_total", configmaps.to_vec(), 3.0),
        ("apiserver_watch_cache_resource_version", configmaps.to_vec(), 3.0),
        ("apiserver_terminated_watchers_total", configmaps.to_vec(), 0.0),
        ("apiserver_init_events_total", configmaps.to_vec(), 0.0),
        ("apiserver_resource_objects", configmaps.to_vec(), 0.0),
        (
            "apiserver_resource_objects",
            vec![("group", "rbac.authorization.k8s.io"), ("resource", "clusterroles")],
            50.0,
        ),
        ("apiserver_storage_objects", vec![("resource", "clusterroles.rbac.authorization.k8s.io")], 50.0),
        ("apiserver_storage_size_bytes", vec![("storage_cluster_id", "etcd-0")], 0.0),
        ("apiserver_current_inflight_requests", vec![("request_kind", "mutating")], 0.0),
        ("apiserver_dropped_requests_total", vec![("request_kind", "readOnly")], 0.0),
        ("aggregator_unavailable_apiservice", vec![("name", "v1.apps")], 0.0),
        ("apiserver_tls_handshake_errors_total", vec![], 0.0),
        ("kubernetes_build_info", vec![("major", "1"), ("minor", "35")], 1.0),
        ("process_resident_memory_bytes", vec![], 1.0),
        ("process_start_time_seconds", vec![], 1.0),
        ("process_open_fds", vec![], 1.0),
        ("process_cpu_seconds_total", vec![], 0.0),
    ] {
        let found = value(&all, name, &labels);
        assert!(found >= least, "{name} is {found}, expected at least {least}");
    }
    assert!(!text.contains("strange"), "a client wrote a label");
    drop(watch);
    let all = parse(std::str::from_utf8(&s.get("/metrics").await.bytes).unwrap());
    assert_eq!(value(&all, "apiserver_longrunning_requests", &with(("verb", "WATCH"))), 0.0, "the watch is over");
}

#[tokio::test]
async fn what_the_chain_does_has_upstreams_names() {
    let s = server().await;
    let registration = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({ "metadata": { "name": "short" }, "spec": {
        "matchConstraints": { "resourceRules": [
            { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"] }] },
        "validations": [{ "expression": "object.metadata.name.size() < 4" }, { "expression": "object.nothing == 1" }] } });
    let binding = json!({ "metadata": { "name": "short" }, "spec": {
        "policyName": "short", "validationActions": ["Deny", "Audit"] } });
    s.create_config_map("before").await.expect(201);
    s.post(&format!("{registration}/validatingadmissionpolicies"), policy).await.expect(201);
    s.post(&format!("{registration}/validatingadmissionpolicybindings"), binding).await.expect(201);
    // Dry runs until the plugin has heard of the policy.
    let dry_run = "/api/v1/namespaces/default/configmaps?dryRun=All";
    while s.post(dry_run, config_map("much-too-long")).await.code == 201 {
        env::sleep(std::time::Duration::from_millis(10)).await;
    }
    s.create_config_map("much-too-long").await.expect(422);
    s.get("/api/v1/namespaces").await.expect(200);
    let token = [("authorization", "Bearer nobody")];
    s.anonymous().send("GET", "/api/v1/pods", &token, Vec::new()).await.expect(401);
    let account = apiserver::authn::User::new("system:serviceaccount:kube-system:namespace-controller", &[]);
    let request = http::Request::get("/api/v1/namespaces").body(apiserver::body::empty()).unwrap();
    s.api.handle(apiserver::ApiServer::in_process_request(account, request)).await;
    let text = String::from_utf8(s.get("/metrics").await.bytes.to_vec()).unwrap();
    let all = parse(&text);
    let check = |error: &'static str, action: &'static str| {
        vec![("policy", "short"), ("policy_binding", "short"), ("error_type", error), ("enforcement_action", action)]
    };
    let plugin = |name: &'static str, step: &'static str| {
        vec![("name", name), ("type", step), ("operation", "CREATE"), ("rejected", "false")]
    };
    let step = |step: &'static str, rejected: &'static str| {
        vec![("type", step), ("operation", "CREATE"), ("rejected", rejected)]
    };
    let controllers = "apiserver_admission_controller_admission_duration_seconds_count";
    let steps = "apiserver_admission_step_admission_duration_seconds_count";
    for (name, labels, least) in [
        ("authentication_attempts", vec![("result", "success")], 1.0),
        ("authentication_attempts", vec![("result", "error")], 1.0),
        ("authentication_duration_seconds_count", vec![("result", "success")], 1.0),
        ("authenticated_user_requests", vec![("username", "admin")], 1.0),
        ("apiserver_client_certificate_expiration_seconds_count", vec![], 1.0),
        ("authorization_attempts_total", vec![("result", "allowed")], 1.0),
        ("authorization_duration_seconds_count", vec![("result", "allowed")], 1.0),
        (
            "apiserver_authorization_decisions_total",
            vec![("type", "RBAC"), ("name", "rbac"), ("decision", "allowed")],
            1.0,
        ),
        (controllers, plugin("NamespaceLifecycle", "admit"), 1.0),
        (controllers, plugin("ResourceQuota", "validate"), 1.0),
        (controllers, plugin("LimitRanger", "admit"), 1.0),
        (controllers, plugin("MutatingAdmissionWebhook", "admit"), 1.0),
        (controllers, plugin("ValidatingAdmissionPolicy", "validate"), 1.0),
        (steps, step("admit", "false"), 1.0),
        (steps, step("validate", "true"), 1.0),
        ("apiserver_validating_admission_policy_check_total", check("no_error", "deny"), 1.0),
        ("apiserver_validating_admission_policy_check_total", check("no_error", "audit"), 1.0),
        ("apiserver_validating_admission_policy_check_total", check("invalid_error", "deny"), 1.0),
        ("apiserver_validating_admission_policy_check_duration_seconds_count", check("no_error", "deny"), 1.0),
    ] {
        let found = value(&all, name, &labels);
        assert!(found >= least, "{name}{labels:?} is {found}, expected at least {least}");
    }
    let validated = plugin("ResourceQuota", "admit");
    let mutates = |labels: &Labels| validated.iter().all(|(k, v)| labels.get(*k).map(String::as_str) == Some(*v));
    let family = controllers.trim_end_matches("_count");
    assert!(!all[family].samples.iter().any(|(_, labels, _)| mutates(labels)), "it changes nothing");
}
