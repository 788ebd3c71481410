//! Control groups as systemd has them: slices, asked for over its bus by `busctl`.
//! Used by `container_manager` where the driver is systemd; the runtime puts its scopes below these slices.
//! Invariant: names and properties are pure; only `call` does anything (tidy: `pure_files`).

use std::{io, process::Command};

use crate::runtime::container_config::resources::{PodLimits, QUOTA_PERIOD};

/// systemd's word for "no limit".
const INFINITY: u64 = u64::MAX;

/// systemd reads dashes in a slice's name as levels, so those of a component become underscores.
pub fn slice(components: &[String]) -> String {
    match components.is_empty() {
        true => "-.slice".into(),
        false => {
            let escaped: Vec<String> = components.iter().map(|part| part.replace('-', "_")).collect();
            format!("{}.slice", escaped.join("-"))
        }
    }
}

/// Directories of a slice below the top of a hierarchy: a slice is inside all those whose names begin its own.
pub fn directories(components: &[String]) -> Vec<String> {
    (1..=components.len()).map(|depth| slice(&components[..depth])).collect()
}

/// A property of a unit, in the bus's types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property(&'static str, &'static str, Vec<String>);

impl Property {
    fn number(name: &'static str, value: u64) -> Self {
        Self(name, "t", vec![value.to_string()])
    }

    fn flag(name: &'static str) -> Self {
        Self(name, "b", vec!["true".into()])
    }
}

/// What limits mean to systemd, which has its own units for each.
pub fn properties(limits: PodLimits, pids: Option<i64>, unified: bool) -> Vec<Property> {
    let mut list = Vec::new();
    list.push(shares(limits.cpu_shares, unified));
    // Microseconds per second, in steps of ten milliseconds, so that the kernel's period divides it.
    let per_second = match limits.cpu_quota {
        quota if quota > 0 => (quota as u64 * 1_000_000 / QUOTA_PERIOD as u64).div_ceil(10_000) * 10_000,
        _ => INFINITY,
    };
    list.push(Property::number("CPUQuotaPerSecUSec", per_second));
    list.extend(limits.memory_bytes.map(|bytes| memory_max(bytes, unified)));
    list.extend(pids.map(tasks_max));
    list
}

pub fn shares(shares: i64, unified: bool) -> Property {
    match unified {
        // The kernel's own mapping of [2, 262144] to [1, 10000].
        true => Property::number("CPUWeight", super::hierarchy::weight(shares) as u64),
        false => Property::number("CPUShares", shares as u64),
    }
}

pub fn memory_max(bytes: i64, unified: bool) -> Property {
    Property::number(if unified { "MemoryMax" } else { "MemoryLimit" }, bytes as u64)
}

pub fn tasks_max(most: i64) -> Property {
    Property::number("TasksMax", most as u64)
}

fn arguments(method: &str, signature: &str, head: &[&str], properties: &[Property], tail: &[&str]) -> Vec<String> {
    let mut list: Vec<String> = [
        "call",
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager",
        method,
        signature,
    ]
    .map(String::from)
    .to_vec();
    list.extend(head.iter().map(|word| word.to_string()));
    if signature.contains("a(sv)") {
        list.push(properties.len().to_string());
    }
    for Property(name, kind, values) in properties {
        list.extend([name.to_string(), kind.to_string()]);
        list.extend(values.iter().cloned());
    }
    list.extend(tail.iter().map(|word| word.to_string()));
    list
}

/// Starts a slice with limits.
pub fn start(components: &[String], limits: &[Property]) -> Vec<String> {
    let name = slice(components);
    let parent = slice(&components[..components.len().saturating_sub(1)]);
    let mut properties = vec![
        Property("Description", "s", vec![format!("Kubernetes pods below {name}")]),
        Property("Wants", "as", vec!["1".into(), parent]),
        Property::flag("MemoryAccounting"),
        Property::flag("CPUAccounting"),
        Property::flag("TasksAccounting"),
        Property("DefaultDependencies", "b", vec!["false".into()]),
    ];
    properties.extend_from_slice(limits);
    arguments("StartTransientUnit", "ssa(sv)a(sa(sv))", &[&name, "replace"], &properties, &["0"])
}

/// Changes the limits of a slice that is there.
pub fn set(components: &[String], limits: &[Property]) -> Vec<String> {
    arguments("SetUnitProperties", "sba(sv)", &[&slice(components), "true"], limits, &[])
}

pub fn stop(components: &[String]) -> Vec<String> {
    arguments("StopUnit", "ss", &[&slice(components), "replace"], &[], &[])
}

fn command(arguments: &[String]) -> Command {
    let mut command = Command::new("busctl");
    // The slice above all others, `-.slice`, begins like an option.
    command.arg("--").args(arguments);
    command
}

/// What is there stays; what is gone is gone.
fn is_settled(answer: &str) -> bool {
    ["UnitExists", "NoSuchUnit", "not loaded", "already exists", "already loaded"]
        .iter()
        .any(|word| answer.contains(word))
}

pub fn call(arguments: &[String]) -> io::Result<()> {
    let output = command(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    match output.status.success() || is_settled(&text) {
        true => Ok(()),
        false => Err(io::Error::other(format!("systemd refused {}: {}", arguments[4], text.trim()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: &str) -> Vec<String> {
        path.split('/').filter(|part| !part.is_empty()).map(String::from).collect()
    }

    #[test]
    fn what_is_as_it_should_be_is_no_failure() {
        for (answer, expected) in [
            ("Call failed: Unit kubepods.slice was already loaded or has a fragment file.", true),
            ("Call failed: Unit kubepods.slice not loaded.", true),
            ("Call failed: Access denied", false),
        ] {
            assert_eq!(is_settled(answer), expected, "{answer}");
        }
    }

    #[test]
    fn no_slice_is_taken_for_an_option() {
        let command = command(&start(&parts("kubepods"), &[]));
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
        let position = |wanted: &str| arguments.iter().position(|argument| argument == wanted);
        assert!(position("-.slice").is_some(), "its parent is the slice above all others");
        assert_eq!(position("--"), Some(0), "{arguments:?}");
    }

    #[test]
    fn slices_lie_inside_those_that_begin_their_names() {
        for (path, expected) in [
            ("", "-.slice"),
            ("kubepods", "kubepods.slice"),
            ("kubepods/burstable/podab-cd", "kubepods-burstable-podab_cd.slice"),
            ("minke-1/kubepods", "minke_1-kubepods.slice"),
        ] {
            assert_eq!(slice(&parts(path)), expected, "{path}");
        }
        let below = directories(&parts("kubepods/burstable/poda-b"));
        assert_eq!(below, ["kubepods.slice", "kubepods-burstable.slice", "kubepods-burstable-poda_b.slice"]);
    }

    #[test]
    fn limits_in_systemds_units() {
        let check = |shares, quota, memory, pids, unified, expected: &[(&str, u64)]| {
            let limits = PodLimits { cpu_shares: shares, cpu_quota: quota, memory_bytes: memory };
            let found = properties(limits, pids, unified);
            let expected: Vec<_> = expected.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            let found: Vec<_> = found.into_iter().map(|p| (p.0.to_string(), p.2[0].clone())).collect();
            assert_eq!(found, expected);
        };
        check(2, 0, None, None, true, &[("CPUWeight", 1), ("CPUQuotaPerSecUSec", INFINITY)]);
        check(
            1024,
            50_000,
            Some(1 << 20),
            Some(100),
            true,
            &[("CPUWeight", 39), ("CPUQuotaPerSecUSec", 500_000), ("MemoryMax", 1 << 20), ("TasksMax", 100)],
        );
        check(
            1024,
            12_345,
            Some(1),
            None,
            false,
            &[("CPUShares", 1024), ("CPUQuotaPerSecUSec", 130_000), ("MemoryLimit", 1)],
        );
    }

    #[test]
    fn calls_are_as_busctl_wants_them() {
        let limits = [Property::number("CPUWeight", 5)];
        let joined = |arguments: Vec<String>| arguments[4..].join(" ");
        assert_eq!(
            joined(set(&parts("kubepods/podx"), &limits)),
            "SetUnitProperties sba(sv) kubepods-podx.slice true 1 CPUWeight t 5"
        );
        assert_eq!(joined(stop(&parts("kubepods/podx"))), "StopUnit ss kubepods-podx.slice replace");
        let started = joined(start(&parts("kubepods/podx"), &limits));
        assert!(started.starts_with("StartTransientUnit ssa(sv)a(sa(sv)) kubepods-podx.slice replace 7 "), "{started}");
        assert!(started.contains(" Wants as 1 kubepods.slice ") && started.ends_with(" CPUWeight t 5 0"), "{started}");
    }
}
