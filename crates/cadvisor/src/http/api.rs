//! cAdvisor's JSON, v1.x and v2.x, and the list that the page shows.
//! Part of `http`.
//! Names of groups come from whoever asks: one that leads elsewhere is no group, and is not found.

use ::http::StatusCode;
use serde_json::{Map, Value, json};

use crate::{
    cgroup::ROOT,
    info::ContainerStats,
    monitor::{GroupKind, HISTORY_SAMPLES_MAX, ListedGroup, Monitor, ViewedGroup},
};

pub struct Refusal {
    pub code: StatusCode,
    pub message: String,
}

type Answer = Result<Value, Refusal>;
type Parameters<'a> = dyn Fn(&str) -> Option<&'a str> + 'a;

fn not_found(what: &str) -> Refusal {
    Refusal { code: StatusCode::NOT_FOUND, message: format!("{what} not found") }
}

fn bad_request(message: String) -> Refusal {
    Refusal { code: StatusCode::BAD_REQUEST, message }
}

pub fn answer(monitor: &Monitor, path: &str, parameters: &Parameters) -> Answer {
    if path == "/ui/list" {
        return Ok(list(monitor, parameters("name").unwrap_or(ROOT)));
    }
    let rest = path.strip_prefix("/api/").ok_or_else(|| not_found("page"))?;
    let (version, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let (kind, name) = rest.split_once('/').unwrap_or((rest, ""));
    let name = group_name(name);
    match (version, kind) {
        ("v1.0" | "v1.1" | "v1.2" | "v1.3", "machine") | ("v2.0" | "v2.1", "machine") => Ok(json!(&*monitor.machine())),
        ("v1.0" | "v1.1" | "v1.2" | "v1.3", "containers") => {
            let samples = samples(parameters("num_stats"))?;
            Ok(container(&view(monitor, &name)?, samples))
        }
        ("v1.1" | "v1.2" | "v1.3", "subcontainers") => {
            let samples = samples(parameters("num_stats"))?;
            let views = below(monitor, &name).into_iter().filter_map(|name| monitor.view(&name));
            Ok(views.map(|view| container(&view, samples)).collect())
        }
        ("v2.0" | "v2.1", "version") => Ok(json!(monitor.versions().own)),
        ("v2.0" | "v2.1", "attributes") => Ok(attributes(monitor)),
        ("v2.0" | "v2.1", "ps") => {
            view(monitor, &name)?;
            Ok(json!(monitor.processes(&name)))
        }
        ("v2.0" | "v2.1", "storage") => Ok(storage(monitor)),
        ("v2.0" | "v2.1", "spec" | "stats") => {
            let samples = samples(parameters("count"))?;
            match parameters("type").unwrap_or("name") {
                "name" => {}
                other => return Err(bad_request(format!("unknown id type {other:?}: only \"name\" is known"))),
            }
            let names = match parameters("recursive") {
                Some("true" | "1") => below(monitor, &name),
                _ => vec![name.clone()],
            };
            let views: Vec<ViewedGroup> = names.iter().filter_map(|name| monitor.view(name)).collect();
            if views.is_empty() {
                return Err(not_found(&format!("container {name:?}")));
            }
            let value = |view: &ViewedGroup| match (version, kind) {
                (_, "spec") => specification(view),
                ("v2.0", _) => newest(view, samples).map(statistics).collect(),
                _ => {
                    let stats: Vec<Value> = newest(view, samples).map(statistics).collect();
                    json!({"spec": specification(view), "stats": stats})
                }
            };
            Ok(views.iter().map(|view| (view.id.clone(), value(view))).collect::<Map<_, _>>().into())
        }
        _ => Err(not_found("page")),
    }
}

fn group_name(path: &str) -> String {
    format!("/{}", path.trim_matches('/'))
}

fn samples(text: Option<&str>) -> Result<usize, Refusal> {
    match text {
        None | Some("-1") => Ok(HISTORY_SAMPLES_MAX),
        Some(text) => text.parse().map_err(|_| bad_request(format!("{text:?} is no number of samples"))),
    }
}

fn view(monitor: &Monitor, name: &str) -> Result<ViewedGroup, Refusal> {
    monitor.view(name).ok_or_else(|| not_found(&format!("container {name:?}")))
}

/// The group itself and those below it that are told of.
fn below(monitor: &Monitor, name: &str) -> Vec<String> {
    let inside = format!("{}/", name.trim_end_matches('/'));
    monitor.group_names().into_iter().filter(|found| found == name || found.starts_with(&inside)).collect()
}

fn newest(view: &ViewedGroup, samples: usize) -> impl Iterator<Item = &ContainerStats> {
    view.history[view.history.len().saturating_sub(samples)..].iter().map(|sample| &**sample)
}

fn container(view: &ViewedGroup, samples: usize) -> Value {
    let children: Vec<Value> = view.children.iter().map(|name| json!({ "name": name })).collect();
    let mut value = json!({"name": view.id, "spec": view.spec, "stats": newest(view, samples).collect::<Vec<_>>()});
    if !children.is_empty() {
        value["subcontainers"] = children.into();
    }
    if let Some(id) = view.identity.aliases.first() {
        value["id"] = id.as_str().into();
        value["aliases"] = json!(view.identity.aliases);
        value["namespace"] = "k8s.io".into();
    }
    value
}

fn specification(view: &ViewedGroup) -> Value {
    let mut value = json!(view.spec);
    if !view.identity.aliases.is_empty() {
        value["aliases"] = json!(view.identity.aliases);
        value["namespace"] = "k8s.io".into();
    }
    value
}

/// v2 calls some fields otherwise.
fn statistics(stats: &ContainerStats) -> Value {
    let mut value = json!(stats);
    if let Some(fields) = value.as_object_mut() {
        let load = fields.remove("task_stats").unwrap_or_default();
        fields.insert("load_stats".into(), load);
        fields.remove("filesystem");
        fields.insert("network".into(), json!({"interfaces": stats.network.interfaces}));
    }
    value
}

fn attributes(monitor: &Monitor) -> Value {
    let (machine, versions) = (monitor.machine(), monitor.versions());
    json!({
        "kernel_version": versions.kernel,
        "container_os_version": versions.system,
        "docker_version": "",
        "docker_api_version": "",
        "cadvisor_version": versions.own,
        "num_cores": machine.num_cores,
        "cpu_frequency_khz": machine.cpu_frequency_khz,
        "memory_capacity": machine.memory_capacity,
        "machine_id": machine.machine_id,
        "system_uuid": machine.system_uuid,
        "hugepages": machine.hugepages,
        "filesystems": machine.filesystems,
        "disk_map": machine.disk_map,
        "network_devices": machine.network_devices,
        "cloud_provider": machine.cloud_provider,
        "instance_type": machine.instance_type,
    })
}

fn storage(monitor: &Monitor) -> Value {
    let root = monitor.view(ROOT);
    let newest = root.as_ref().and_then(|view| view.history.last());
    let systems =
        newest.into_iter().flat_map(|sample| sample.filesystem.iter().map(|system| (sample.timestamp, system)));
    let systems = systems.map(|(timestamp, system)| {
        json!({"timestamp": timestamp, "device": system.device, "mountpoint": "", "capacity": system.capacity,
            "available": system.available, "usage": system.usage, "labels": [], "inodes": system.inodes,
            "inodes_free": system.inodes_free})
    });
    systems.collect()
}

/// What the page shows below its graphs.
fn list(monitor: &Monitor, name: &str) -> Value {
    let row = |row: &ListedGroup| {
        let kind = match row.identity.kind {
            GroupKind::Pod => "pod",
            GroupKind::Sandbox => "sandbox",
            GroupKind::Container => "container",
            GroupKind::Other => "group",
        };
        json!({"name": row.id, "kind": kind, "pod": row.identity.pod, "namespace": row.identity.namespace,
            "container": row.identity.container, "image": row.identity.image, "timestamp": row.at,
            "cpu": row.usage.cpu_nanoseconds, "memory": row.usage.memory_bytes,
            "working_set": row.usage.working_set_bytes})
    };
    monitor.list(name).iter().map(row).collect()
}
