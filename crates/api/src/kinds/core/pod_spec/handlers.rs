//! Validation of probes and lifecycle hooks.
//! Neighbours: `containers`.
//! A handler has one action.

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::common::{
        access::{int, is_set, items, part, text},
        checks::{complaints, not_negative, port_number, port_or_name},
    },
    names,
};

pub fn lifecycle_and_probes(errors: &mut ErrorList, path: &Path, container: &Value, spec: &Value) {
    let grace_period_seconds = int(spec, "terminationGracePeriodSeconds");
    if let Some(lifecycle) = part(container, "lifecycle") {
        let path = path.child("lifecycle");
        for hook in ["postStart", "preStop"] {
            if let Some(found) = part(lifecycle, hook) {
                handler(errors, &path.child(hook), found, grace_period_seconds);
            }
        }
        stop_signal(errors, &path.child("stopSignal"), lifecycle, spec);
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(found) = part(container, name) {
            probe(errors, &path.child(name), found, name == "readinessProbe", grace_period_seconds);
        }
    }
}

fn probe(errors: &mut ErrorList, path: &Path, probe: &Value, readiness: bool, grace_period_seconds: Option<i64>) {
    handler(errors, path, probe, grace_period_seconds);
    not_negative(
        errors,
        path,
        probe,
        &["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"],
    );
    let grace = int(probe, "terminationGracePeriodSeconds");
    if let Some(seconds) = grace.filter(|seconds| *seconds <= 0) {
        errors.invalid(&path.child("terminationGracePeriodSeconds"), seconds, "must be greater than 0");
    }
    if readiness {
        if let Some(seconds) = grace {
            let path = path.child("terminationGracePeriodSeconds");
            errors.invalid(&path, seconds, "must not be set for readinessProbes");
        }
    } else if int(probe, "successThreshold") != Some(1) {
        errors.invalid(&path.child("successThreshold"), int(probe, "successThreshold"), "must be 1");
    }
}

fn handler(errors: &mut ErrorList, path: &Path, handler: &Value, grace_period_seconds: Option<i64>) {
    let mut count = 0;
    for kind in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(action) = part(handler, kind) else { continue };
        let path = path.child(kind);
        count += 1;
        if count > 1 {
            errors.forbidden(&path, "may not specify more than 1 handler type");
            continue;
        }
        match kind {
            "exec" if !is_set(action, "command") => errors.required(&path.child("command"), ""),
            "exec" => {}
            "httpGet" => http_get(errors, &path, action),
            "tcpSocket" => port_or_name(errors, &path.child("port"), &action["port"]),
            "grpc" => port_number(errors, &path.child("port"), int(action, "port").unwrap_or(0)),
            _ => sleep(errors, &path, action, grace_period_seconds),
        }
    }
    if count == 0 {
        errors.required(path, "must specify a handler type");
    }
}

fn http_get(errors: &mut ErrorList, path: &Path, action: &Value) {
    if text(action, "path").is_empty() {
        errors.required(&path.child("path"), "");
    }
    port_or_name(errors, &path.child("port"), &action["port"]);
    if !matches!(text(action, "scheme"), "HTTP" | "HTTPS") {
        errors.not_supported(&path.child("scheme"), text(action, "scheme"), &["HTTP", "HTTPS"]);
    }
    for header in items(action, "httpHeaders") {
        let name = text(header, "name");
        complaints(errors, &path.child("httpHeaders"), name, names::http_header(name));
    }
}

fn sleep(errors: &mut ErrorList, path: &Path, action: &Value, grace_period_seconds: Option<i64>) {
    let seconds = int(action, "seconds").unwrap_or(0);
    if let Some(most) = grace_period_seconds.filter(|most| seconds < 0 || seconds > *most) {
        errors.invalid(
            path,
            seconds,
            format!("must be non-negative and less than terminationGracePeriodSeconds ({most})"),
        );
    }
}

fn stop_signal(errors: &mut ErrorList, path: &Path, lifecycle: &Value, spec: &Value) {
    let Some(signal) = lifecycle.get("stopSignal").and_then(Value::as_str) else { return };
    match text(&spec["os"], "name") {
        "" => errors.forbidden(path, "may not be set for containers with empty `spec.os.name`"),
        "windows" if !matches!(signal, "SIGKILL" | "SIGTERM") => {
            errors.not_supported(path, signal, &["SIGKILL", "SIGTERM"]);
        }
        "linux" if !is_linux_signal(signal) => errors.not_supported(path, signal, &LINUX_SIGNALS),
        _ => {}
    }
}

const LINUX_SIGNALS: [&str; 36] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMIN",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

fn is_linux_signal(signal: &str) -> bool {
    let offset = |prefix: &str, most: u8| {
        signal.strip_prefix(prefix).and_then(|n| n.parse::<u8>().ok()).is_some_and(|n| (1..=most).contains(&n))
    };
    LINUX_SIGNALS.contains(&signal) || offset("SIGRTMIN+", 15) || offset("SIGRTMAX-", 14)
}
