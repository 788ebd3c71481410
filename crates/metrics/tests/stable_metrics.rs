//! Upstream's stable and beta metrics by the component that serves them, as far as its source names them.
//! Neighbour: `stability.table`, which has the names.

use std::{collections::BTreeMap, fs, path::Path};

use metrics::stability;

/// The crates that serve what begins like this; the longest beginning counts.
const SERVED_BY: &[(&str, &[&str])] = &[
    ("apiserver_", &["apiserver"]),
    ("container_", &["kubelet"]),
    ("cronjob_controller_", &["controllers"]),
    ("job_controller_", &["controllers"]),
    ("kubernetes_feature_enabled", &["apiserver", "kubelet"]),
    ("kubernetes_health", &["metrics"]),
    ("node_", &["kubelet"]),
    ("node_collector_", &["controllers"]),
    ("pod_", &["kubelet"]),
    ("prober_", &["kubelet"]),
    ("registered_metrics_total", &["metrics"]),
    ("resource_scrape_error", &["kubelet"]),
    ("scheduler_", &["scheduler"]),
];

/// The beginning is a part of its own in the source, since two files are read again in the same way.
const SPLIT: &[(&str, &str)] = &[
    ("apiserver_authentication_config_controller", "_automatic_reload"),
    ("apiserver_authorization_config_controller", "_automatic_reload"),
];

/// Nobody serves these.
const ABSENT: &[&str] = &[
    // How long expressions take is not measured.
    "apiserver_cel_compilation_duration_seconds",
    "apiserver_cel_evaluation_duration_seconds",
    // There is one validation of each kind, so no two that could disagree.
    "apiserver_validation_declarative_validation_mismatch_total",
    "apiserver_validation_declarative_validation_panic_total",
    // No metric is hidden, and none can be turned off.
    "disabled_metrics_total",
    "hidden_metrics_total",
    // The scheduler's page of resources.
    "kube_pod_resource_limit",
    "kube_pod_resource_request",
];

fn source_of(crate_name: &str) -> String {
    fn read(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut text = String::new();
    read(&testkit::workspace_root().join("crates").join(crate_name).join("src"), &mut text);
    text
}

fn is_named(source: &str, name: &str) -> bool {
    let split = SPLIT.iter().find(|(head, _)| name.starts_with(head));
    match split {
        Some((head, middle)) => {
            let rest = name.strip_prefix(head).is_some_and(|rest| rest.starts_with(middle));
            rest && source.contains(&format!("\"{head}\"")) && source.contains(&format!("\"{}\"", &name[head.len()..]))
        }
        None => source.contains(&format!("\"{name}\"")),
    }
}

#[test]
fn stable_metrics_have_a_component() {
    let crates = SERVED_BY.iter().flat_map(|(_, crates)| crates.iter().copied());
    let sources: BTreeMap<&str, String> = crates.map(|name| (name, source_of(name))).collect();
    let names = ["STABLE", "BETA"].into_iter().flat_map(stability::names);
    let missing: Vec<String> = names
        .filter(|name| !ABSENT.contains(name))
        .flat_map(|name| {
            let rows = SERVED_BY.iter().filter(|(head, _)| name.starts_with(head));
            let row = rows.max_by_key(|(head, _)| head.len());
            let crates = row.map_or(&["no component"][..], |(_, crates)| crates);
            let lacks = |of: &&&str| !sources.get(**of).is_some_and(|source| is_named(source, name));
            crates.iter().filter(lacks).map(|of| format!("{of}: {name}")).collect::<Vec<_>>()
        })
        .collect();
    assert!(missing.is_empty(), "not named where they should be:\n{}", missing.join("\n"));
}
