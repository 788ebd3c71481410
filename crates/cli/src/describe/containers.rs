//! Describes the containers of a pod or of a pod template.
//! Used by `pod`.
//! A template's container shows no state, a pod's container shows its own.

use api::quantity::{Format, Quantity};
use serde_json::Value;

use super::{
    Context,
    fields::{go_list, list, members, number, quantity, rfc1123, string, text, truth},
    is_empty,
    writer::{Writer, put},
};
use crate::template::go_format::quote;

/// `of_pod` is the pod with the statuses of these containers; a template has neither.
pub fn containers(
    w: &mut Writer,
    title: &str,
    containers: &Value,
    of_pod: Option<(&Value, &Value)>,
    space: &str,
    context: &Context,
) {
    let none = if is_empty(containers) { " <none>" } else { "" };
    put!(w, 0, "{space}{title}:{none}\n");
    let name_indent = if space.is_empty() { "" } else { " " };
    for container in list(containers) {
        let statuses = of_pod.map_or(&[][..], |(_, statuses)| list(statuses));
        let status = statuses.iter().find(|status| status["name"] == container["name"]);
        put!(w, 1, "{name_indent}{}:\n", text(&container["name"]));
        basic_information(w, container, status);
        for (title, words) in [("Command", &container["command"]), ("Args", &container["args"])] {
            if is_empty(words) {
                continue;
            }
            put!(w, 2, "{title}:\n");
            for line in list(words).iter().flat_map(|word| string(word).split('\n')) {
                put!(w, 3, "{line}\n");
            }
        }
        if let Some(status) = status {
            state(w, "State", &status["state"], context);
            if status["lastState"]["terminated"].is_object() {
                state(w, "Last State", &status["lastState"], context);
            }
            put!(w, 2, "Ready:\t{}\n", if truth(&status["ready"]) { "True" } else { "False" });
            put!(w, 2, "Restart Count:\t{}\n", number(&status["restartCount"]));
        }
        resources(w, &container["resources"], 2);
        let probes = [("Liveness", "livenessProbe"), ("Readiness", "readinessProbe"), ("Startup", "startupProbe")];
        for (title, field) in probes {
            if container[field].is_object() {
                put!(w, 2, "{title}:\t{}\n", probe(&container[field]));
            }
        }
        if !is_empty(&container["envFrom"]) {
            environment_from(w, container);
        }
        environment(w, container, of_pod.map(|(pod, _)| pod));
        mounts(w, container);
    }
}

fn basic_information(w: &mut Writer, container: &Value, status: Option<&Value>) {
    if let Some(status) = status {
        put!(w, 2, "Container ID:\t{}\n", text(&status["containerID"]));
    }
    put!(w, 2, "Image:\t{}\n", text(&container["image"]));
    if let Some(status) = status {
        put!(w, 2, "Image ID:\t{}\n", text(&status["imageID"]));
    }
    for (title, field) in [("Port", "containerPort"), ("Host Port", "hostPort")] {
        let port = |port: &Value| {
            let mut shown = format!("{}/{}", number(&port[field]), text(&port["protocol"]));
            if !string(&port["name"]).is_empty() {
                shown.push_str(&format!(" ({})", string(&port["name"])));
            }
            shown
        };
        let ports: Vec<String> = list(&container["ports"]).iter().map(port).collect();
        match ports.len() {
            0 => put!(w, 2, "{title}:\t<none>\n"),
            1 => put!(w, 2, "{title}:\t{}\n", ports[0]),
            _ => put!(w, 2, "{title}s:\t{}\n", ports.join(", ")),
        }
    }
    seccomp_profile(w, &container["securityContext"], 2, 3);
}

pub fn seccomp_profile(w: &mut Writer, security_context: &Value, level: usize, file_level: usize) {
    let profile = &security_context["seccompProfile"];
    if profile.is_object() {
        put!(w, level, "SeccompProfile:\t{}\n", text(&profile["type"]));
        if string(&profile["type"]) == "Localhost" {
            put!(w, file_level, "LocalhostProfile:\t{}\n", text(&profile["localhostProfile"]));
        }
    }
}

pub fn resources(w: &mut Writer, resources: &Value, level: usize) {
    for (title, field) in [("Limits", "limits"), ("Requests", "requests")] {
        let mut listed = members(&resources[field]).peekable();
        if listed.peek().is_some() {
            put!(w, level, "{title}:\n");
        }
        for (name, amount) in listed {
            put!(w, level + 1, "{name}:\t{}\n", quantity(amount));
        }
    }
}

fn state(w: &mut Writer, title: &str, state: &Value, context: &Context) {
    let time = |value: &Value| rfc1123(value, &context.zone);
    if state["running"].is_object() {
        put!(w, 2, "{title}:\tRunning\n");
        put!(w, 3, "Started:\t{}\n", time(&state["running"]["startedAt"]));
    } else if state["terminated"].is_object() {
        let terminated = &state["terminated"];
        put!(w, 2, "{title}:\tTerminated\n");
        for (title, field) in [("Reason", "reason"), ("Message", "message")] {
            if !string(&terminated[field]).is_empty() {
                put!(w, 3, "{title}:\t{}\n", string(&terminated[field]));
            }
        }
        put!(w, 3, "Exit Code:\t{}\n", number(&terminated["exitCode"]));
        if number(&terminated["signal"]) > 0 {
            put!(w, 3, "Signal:\t{}\n", number(&terminated["signal"]));
        }
        put!(w, 3, "Started:\t{}\n", time(&terminated["startedAt"]));
        put!(w, 3, "Finished:\t{}\n", time(&terminated["finishedAt"]));
    } else {
        put!(w, 2, "{title}:\tWaiting\n");
        if !string(&state["waiting"]["reason"]).is_empty() {
            put!(w, 3, "Reason:\t{}\n", string(&state["waiting"]["reason"]));
        }
    }
}

fn probe(probe: &Value) -> String {
    let attributes = format!(
        "delay={}s timeout={}s period={}s #success={} #failure={}",
        number(&probe["initialDelaySeconds"]),
        number(&probe["timeoutSeconds"]),
        number(&probe["periodSeconds"]),
        number(&probe["successThreshold"]),
        number(&probe["failureThreshold"])
    );
    if probe["exec"].is_object() {
        return format!("exec {} {attributes}", go_list(&probe["exec"]["command"]));
    }
    if probe["httpGet"].is_object() {
        let get = &probe["httpGet"];
        let scheme = string(&get["scheme"]).to_lowercase();
        let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}:") };
        let (host, port) = (string(&get["host"]), text(&get["port"]));
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
        let authority = if port.is_empty() { host } else { format!("{host}:{port}") };
        let path = string(&get["path"]);
        let path = if path.is_empty() || path.starts_with('/') { path.to_string() } else { format!("/{path}") };
        return format!("http-get {scheme}//{authority}{path} {attributes}");
    }
    if probe["tcpSocket"].is_object() {
        let socket = &probe["tcpSocket"];
        return format!("tcp-socket {}:{} {attributes}", text(&socket["host"]), text(&socket["port"]));
    }
    if probe["grpc"].is_object() {
        let grpc = &probe["grpc"];
        return format!("grpc <pod>:{} {} {attributes}", number(&grpc["port"]), text(&grpc["service"]));
    }
    format!("unknown {attributes}")
}

fn environment_from(w: &mut Writer, container: &Value) {
    w.write(2, "Environment Variables from:\n");
    for source in list(&container["envFrom"]) {
        let (kind, reference) = match source["configMapRef"].is_object() {
            true => ("ConfigMap", &source["configMapRef"]),
            false => ("Secret", &source["secretRef"]),
        };
        let kind = if reference.is_object() { kind } else { "" };
        let prefix = match string(&source["prefix"]) {
            "" => String::new(),
            prefix => format!(" with prefix '{prefix}'"),
        };
        let optional = truth(&reference["optional"]);
        put!(w, 3, "{}\t{kind}{prefix}\tOptional: {optional}\n", text(&reference["name"]));
    }
}

fn environment(w: &mut Writer, container: &Value, pod: Option<&Value>) {
    let none = if is_empty(&container["env"]) { "\t<none>" } else { "" };
    put!(w, 2, "Environment:{none}\n");
    for variable in list(&container["env"]) {
        let (name, from) = (string(&variable["name"]), &variable["valueFrom"]);
        if !from.is_object() {
            for (i, line) in string(&variable["value"]).split('\n').enumerate() {
                let title = if i == 0 { format!("{name}:") } else { String::new() };
                put!(w, 3, "{title}\t{line}\n");
            }
        } else if from["fieldRef"].is_object() {
            let (version, path) = (string(&from["fieldRef"]["apiVersion"]), string(&from["fieldRef"]["fieldPath"]));
            let value = pod.map(|pod| field_of_pod(pod, path)).unwrap_or_default();
            put!(w, 3, "{name}:\t{value} ({version}:{path})\n");
        } else if from["resourceFieldRef"].is_object() {
            let reference = &from["resourceFieldRef"];
            let resource = string(&reference["resource"]);
            let mut value = resource_of_container(container, resource, &reference["divisor"]);
            if value == "0" && (resource == "limits.cpu" || resource == "limits.memory") {
                value = "node allocatable".to_string();
            }
            put!(w, 3, "{name}:\t{value} ({resource})\n");
        } else if from["secretKeyRef"].is_object() {
            let key = &from["secretKeyRef"];
            let (field, secret) = (string(&key["key"]), string(&key["name"]));
            let optional = truth(&key["optional"]);
            put!(w, 3, "{name}:\t<set to the key '{field}' in secret '{secret}'>\tOptional: {optional}\n");
        } else if from["configMapKeyRef"].is_object() {
            let key = &from["configMapKeyRef"];
            let (field, map) = (string(&key["key"]), string(&key["name"]));
            let optional = truth(&key["optional"]);
            put!(w, 3, "{name}:\t<set to the key '{field}' of config map '{map}'>\tOptional: {optional}\n");
        }
    }
}

/// What the downward API would give for a field path.
fn field_of_pod(pod: &Value, path: &str) -> String {
    let meta = &pod["metadata"];
    if let Some((field, key)) = path.split_once("['") {
        let key = key.trim_end_matches("']");
        return match field {
            "metadata.annotations" => text(&meta["annotations"][key]),
            "metadata.labels" => text(&meta["labels"][key]),
            _ => String::new(),
        };
    }
    let map = |value: &Value| {
        members(value).map(|(key, value)| format!("{key}={}", quote(string(value)))).collect::<Vec<_>>().join("\n")
    };
    match path {
        "metadata.annotations" => map(&meta["annotations"]),
        "metadata.labels" => map(&meta["labels"]),
        "metadata.name" | "metadata.namespace" | "metadata.uid" => text(&meta[&path["metadata.".len()..]]),
        // Upstream resolves only what the pod's metadata holds.
        _ => String::new(),
    }
}

/// A request or limit divided and rounded up; memory in bytes, cpu in cores.
fn resource_of_container(container: &Value, resource: &str, divisor: &Value) -> String {
    let Some((which, name)) = resource.split_once('.') else { return String::new() };
    if which != "limits" && which != "requests" {
        return String::new();
    }
    let zero = Quantity::new(0, Format::DecimalSI);
    let amount = Quantity::from_value(&container["resources"][which][name]).unwrap_or(zero);
    let divisor = Quantity::from_value(divisor).filter(|divisor| !divisor.is_zero());
    let divide = |amount: i64, divisor: i64| (amount as f64 / divisor.max(1) as f64).ceil() as i64;
    match name {
        "cpu" => divide(amount.milli_value(), divisor.map_or(1_000, |d| d.milli_value())).to_string(),
        _ => divide(amount.value(), divisor.map_or(1, |d| d.value())).to_string(),
    }
}

fn mounts(w: &mut Writer, container: &Value) {
    let none = if is_empty(&container["volumeMounts"]) { "\t<none>" } else { "" };
    put!(w, 2, "Mounts:{none}\n");
    let mut mounts: Vec<&Value> = list(&container["volumeMounts"]).iter().collect();
    mounts.sort_by_key(|mount| string(&mount["mountPath"]));
    for mount in mounts {
        let mut flags = vec![if truth(&mount["readOnly"]) { "ro".to_string() } else { "rw".to_string() }];
        if !string(&mount["subPath"]).is_empty() {
            flags.push(format!("path={}", quote(string(&mount["subPath"]))));
        }
        put!(w, 3, "{} from {} ({})\n", text(&mount["mountPath"]), text(&mount["name"]), flags.join(","));
    }
    let mut devices: Vec<&Value> = list(&container["volumeDevices"]).iter().collect();
    if !devices.is_empty() {
        put!(w, 2, "Devices:{none}\n");
        devices.sort_by_key(|device| string(&device["devicePath"]));
        for device in devices {
            put!(w, 3, "{} from {}\n", text(&device["devicePath"]), text(&device["name"]));
        }
    }
}
