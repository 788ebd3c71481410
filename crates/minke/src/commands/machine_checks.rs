//! The checks of `minke doctor`: one function each, with what to do where something is missing.
//! Called by `doctor`.
//! Changes nothing: what may be loaded or set at the next start is not loaded or set here.

use std::{fs, path::Path};

use env::Env;

use crate::{
    certificates::inventory,
    cluster::{data_version, instance::Instance, ports, preflight},
    commands::{
        doctor::Check,
        status::{bytes, disk_free},
        versions,
    },
    flags::config_file,
};

const KERNEL_MIN: (u32, u32) = (5, 6);
const DATA_FREE_BYTES_MIN: u64 = 256 << 20;
const DATA_FREE_PERCENT_MIN: u64 = 10;
const INODES_FREE_PERCENT_MIN: u64 = 5;
const MEMORY_BYTES_MIN: u64 = 512 << 20;
/// Every kubelet, containerd and follower of files has some.
const INOTIFY_INSTANCES_MIN: u64 = 512;
/// Minke was not there before.
const CLOCK_EARLIEST: &str = "2026-01-01T00:00:00Z";

pub async fn all(instance: &Instance, env: &Env) -> Vec<Check> {
    let mut checks = vec![root(), kernel(&versions::kernel()), cgroups(), memory()];
    for (program, package, is_needed) in [
        ("containerd", "containerd", true),
        ("runc", "runc", true),
        ("ctr", "containerd", true),
        ("nft", "nftables", true),
        ("ip", "iproute2", true),
        ("conntrack", "conntrack", false),
    ] {
        checks.push(program_check(program, package, is_needed).await);
    }
    checks.push(nft().await);
    checks.extend([overlay(), bridge_filter(), forwarding(), inotify(), clock(instance, env)]);
    checks.extend([disk(&instance.data), inodes(&instance.data), name_servers(), configuration()]);
    checks.extend([data_directory(&instance.data), certificates(instance, env)]);
    checks.push(ports_check(instance));
    checks
}

fn root() -> Check {
    match nix::unistd::geteuid().is_root() {
        true => Check::ok("root", "yes"),
        false => Check::fail("root", "not root", "run it as root: sudo minke …"),
    }
}

fn kernel(version: &str) -> Check {
    match versions::major_minor(version) {
        Some(found) if found >= KERNEL_MIN => Check::ok("kernel", version),
        Some(_) => Check::fail("kernel", version, "Linux 5.6 or newer is needed: install a newer kernel"),
        None => Check::warn("kernel", format!("unknown ({version:?})"), "mount /proc, so that its version can be read"),
    }
}

fn cgroups() -> Check {
    let root = Path::new("/sys/fs/cgroup");
    let needed = ["cpu", "memory", "pids"];
    if let Ok(text) = fs::read_to_string(root.join("cgroup.controllers")) {
        return controllers("v2", &text.split_whitespace().collect::<Vec<_>>(), &needed);
    }
    let present: Vec<&str> = needed.into_iter().filter(|name| root.join(name).join("tasks").exists()).collect();
    if present.is_empty() {
        return Check::fail(
            "cgroups",
            "none are mounted",
            "mount cgroup2 at /sys/fs/cgroup (systemd and OpenRC do at boot)",
        );
    }
    controllers("v1", &present, &needed)
}

fn controllers(version: &str, present: &[&str], needed: &[&str]) -> Check {
    let missing: Vec<&str> = needed.iter().filter(|name| !present.contains(name)).copied().collect();
    match missing.is_empty() {
        true => Check::ok("cgroups", format!("{version} with {}", needed.join(", "))),
        false => Check::fail(
            "cgroups",
            format!("{version} without {}", missing.join(", ")),
            "turn them on: boot with cgroup_enable=memory, and without cgroup_disable",
        ),
    }
}

fn memory() -> Check {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    match kib.unwrap_or(0) << 10 {
        0 => Check::warn("memory", "unknown", "mount /proc, so that it can be read"),
        total if total < MEMORY_BYTES_MIN => Check::warn("memory", bytes(total), "512 MiB or more leave room for pods"),
        total => Check::ok("memory", bytes(total)),
    }
}

async fn program_check(program: &'static str, package: &str, is_needed: bool) -> Check {
    let advice = format!("apt-get install {package}, or your system's package of that name");
    match (preflight::find_program(program), is_needed) {
        (Some(path), _) => {
            let version = if program == "ip" { None } else { versions::of_program(program, "--version").await };
            Check::ok(program, format!("{} {}", path.display(), version.unwrap_or_default()).trim_end())
        }
        (None, true) => Check::fail(program, "not found", advice),
        (None, false) => {
            Check::warn(program, "not found: connections to removed endpoints end by their timeouts", advice)
        }
    }
}

async fn nft() -> Check {
    let Some(program) = preflight::find_program("nft") else {
        return Check::fail("nftables", "can't be asked without nft", "apt-get install nftables");
    };
    match tokio::process::Command::new(program).args(["list", "tables"]).output().await {
        Ok(output) if output.status.success() => Check::ok("nftables", "the kernel answers"),
        Ok(output) => {
            let error = String::from_utf8_lossy(&output.stderr);
            let advice = "run it as root, on a kernel with nf_tables: modprobe nf_tables";
            Check::fail("nftables", error.lines().next().unwrap_or("refused").to_string(), advice)
        }
        Err(error) => Check::fail("nftables", error.to_string(), "apt-get install nftables"),
    }
}

/// Part of the kernel, or a module that is there to be loaded.
fn has_module(name: &str) -> bool {
    let release = versions::kernel();
    let listed = |file: &str| {
        let path = format!("/lib/modules/{release}/{file}");
        fs::read_to_string(path).is_ok_and(|text| text.contains(&format!("/{name}.ko")))
    };
    Path::new("/sys/module").join(name).exists() || listed("modules.builtin") || listed("modules.dep")
}

fn overlay() -> Check {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = known.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    match is_known || has_module("overlay") {
        true => Check::ok("overlay", "known to the kernel"),
        false => Check::warn(
            "overlay",
            "unknown to the kernel: images are copied",
            "modprobe overlay, or install the kernel's modules",
        ),
    }
}

fn bridge_filter() -> Check {
    let file = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    match fs::read_to_string(file) {
        Ok(text) => Check::ok("br_netfilter", format!("loaded, bridge-nf-call-iptables is {}", text.trim())),
        Err(_) if has_module("br_netfilter") => Check::ok("br_netfilter", "there to be loaded when a cluster starts"),
        Err(_) => Check::warn(
            "br_netfilter",
            "not there",
            "pods of one node may not reach each other through Services: install the kernel's modules",
        ),
    }
}

fn forwarding() -> Check {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_string();
    let (four, six) = (read("/proc/sys/net/ipv4/ip_forward"), read("/proc/sys/net/ipv6/conf/all/forwarding"));
    match four.as_str() {
        "1" => Check::ok("ip_forward", format!("on (IPv6: {})", if six == "1" { "on" } else { "off" })),
        "0" => Check::ok("ip_forward", "off; a cluster turns it on while it runs"),
        _ => Check::fail("ip_forward", "can't be read", "mount /proc, with /proc/sys writable for root"),
    }
}

fn inotify() -> Check {
    let text = fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap_or_default();
    match text.trim().parse::<u64>() {
        Ok(found) if found < INOTIFY_INSTANCES_MIN => Check::warn(
            "inotify",
            format!("{found} instances for each user"),
            "many pods and nodes need more: sysctl -w fs.inotify.max_user_instances=8192",
        ),
        Ok(found) => Check::ok("inotify", format!("{found} instances for each user")),
        Err(_) => Check::warn("inotify", "can't be read", "mount /proc, so that it can be read"),
    }
}

/// Certificates are valid between two moments: a clock that is far off makes all of them invalid.
fn clock(instance: &Instance, env: &Env) -> Check {
    let now = env.now();
    let advice = "set it, and keep it right: apt-get install systemd-timesyncd, or chrony";
    let earliest = CLOCK_EARLIEST.parse().unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let latest_start = inventory::list(instance, env).iter().map(|certificate| certificate.not_before).max();
    let told = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
    match latest_start {
        _ if now < earliest => Check::fail("clock", format!("{told}, which is in the past"), advice),
        Some(start) if now < start => {
            Check::fail("clock", format!("{told}, before the cluster's certificates begin ({start})"), advice)
        }
        _ => Check::ok("clock", told.to_string()),
    }
}

/// The first directory above that is there.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

fn disk(data: &Path) -> Check {
    let Some((free, total)) = disk_free(existing(data)) else {
        return Check::fail("disk", format!("{} can't be looked at", data.display()), "choose another --data-dir");
    };
    let found = format!("{} of {} free at {}", bytes(free), bytes(total), data.display());
    let advice = "free some space, or choose another place with --data-dir";
    match free {
        _ if free < DATA_FREE_BYTES_MIN => Check::fail("disk", found, advice),
        _ if free < total / 100 * DATA_FREE_PERCENT_MIN => {
            Check::warn("disk", found, "pods are evicted below a tenth: free some space, or choose another --data-dir")
        }
        _ => Check::ok("disk", found),
    }
}

fn inodes(data: &Path) -> Check {
    let Ok(stat) = nix::sys::statvfs::statvfs(existing(data)) else {
        return Check::fail("inodes", "can't be looked at", "choose another --data-dir");
    };
    let (free, total) = (stat.files_available(), stat.files());
    match total {
        // Some file systems make them as they need them.
        0 => Check::ok("inodes", "no fixed number"),
        _ if free < total / 100 * INODES_FREE_PERCENT_MIN => Check::warn(
            "inodes",
            format!("{free} of {total} free"),
            "pods are evicted below 5 %: remove small files there",
        ),
        _ => Check::ok("inodes", format!("{free} of {total} free")),
    }
}

fn name_servers() -> Check {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    resolver(&text)
}

fn resolver(text: &str) -> Check {
    let servers: Vec<&str> =
        text.lines().filter_map(|line| line.trim().strip_prefix("nameserver")).map(str::trim).collect();
    match servers.is_empty() {
        true => Check::warn(
            "DNS",
            "/etc/resolv.conf names no server",
            "pods resolve names of the cluster only: add a line `nameserver ADDRESS`",
        ),
        false => Check::ok("DNS", format!("outside names are asked of {}", servers.join(", "))),
    }
}

fn configuration() -> Check {
    let file = Path::new(config_file::DEFAULT_FILE);
    if !file.exists() {
        return Check::ok("configuration", format!("no {}: flags have their defaults", file.display()));
    }
    match config_file::check_file(&config_file::command(), file) {
        Ok(_) => Check::ok("configuration", format!("{} can be used", file.display())),
        Err(error) => {
            Check::fail("configuration", format!("{error:#}"), "mend it: `minke config check` tells when it is good")
        }
    }
}

fn data_directory(data: &Path) -> Check {
    match (data.exists(), data_version::newer(data)) {
        (_, Some(newer)) => Check::fail(
            "data directory",
            format!("last used by minke {newer}; this is {}", data_version::own()),
            format!("install minke {newer} or newer"),
        ),
        (true, None) => Check::ok("data directory", data.display().to_string()),
        (false, None) => Check::ok("data directory", format!("{} is made at the first start", data.display())),
    }
}

fn certificates(instance: &Instance, env: &Env) -> Check {
    let found = inventory::list(instance, env);
    let warnings: Vec<String> = found.iter().filter_map(inventory::Found::warning).collect();
    match (found.first(), warnings.is_empty()) {
        (None, _) => Check::ok("certificates", "made at the first start"),
        (Some(first), true) => Check::ok("certificates", format!("the first ends in {} days", first.days_left)),
        (Some(_), false) => Check::warn(
            "certificates",
            warnings.join("; "),
            "start the cluster, which renews them, or `minke certs renew`",
        ),
    }
}

fn ports_check(instance: &Instance) -> Check {
    let wanted = [
        (ports::API_PORT, "--port"),
        (ports::KUBELET_PORT, "--kubelet-port"),
        (ports::KUBELET_HEALTHZ_PORT, "--healthz-port"),
        (ports::PROXY_HEALTHZ_PORT, "--proxy-healthz-port"),
        (ports::PROXY_METRICS_PORT, "--proxy-metrics-port"),
    ];
    let taken: Vec<String> = wanted
        .iter()
        .filter_map(|(port, flag)| match ports::holder_of(*port)? {
            // A cluster beside another takes ports of its own.
            (_, true) => None,
            (holder, false) => Some(format!("{port} ({flag}) is held by {holder}")),
        })
        .collect();
    let is_running = crate::cluster::process::running(instance).ok().flatten().is_some();
    match taken.is_empty() {
        true if is_running => Check::ok("ports", "held by this cluster, or free"),
        true => Check::ok("ports", "free"),
        false => Check::fail("ports", taken.join("; "), "stop who holds them, or choose others with those flags"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    #[test]
    fn verdicts_follow_from_what_is_found() {
        let check = |check: Check, verdict: Verdict, found: &str| {
            assert!(check.verdict == verdict && check.found.contains(found), "{check:?}");
        };
        check(kernel("6.1.0-18-amd64"), Verdict::Ok, "6.1");
        check(kernel("4.19.0"), Verdict::Fail, "4.19");
        check(
            controllers("v2", &["cpu", "memory", "pids", "io"], &["cpu", "memory"]),
            Verdict::Ok,
            "v2 with cpu, memory",
        );
        check(controllers("v1", &["cpu"], &["cpu", "memory"]), Verdict::Fail, "v1 without memory");
        check(resolver("# none\n"), Verdict::Warn, "no server");
        check(resolver("nameserver 192.0.2.53\n"), Verdict::Ok, "192.0.2.53");
        check(disk(Path::new("/proc/1")), Verdict::Fail, "free");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (holder, _) = ports::holder_of(listener.local_addr().unwrap().port()).unwrap();
        assert!(holder.contains(&std::process::id().to_string()), "{holder}");
    }

    #[test]
    fn data_of_a_newer_version_fail() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(data_directory(directory.path()).verdict, Verdict::Ok);
        fs::write(directory.path().join("version"), "99.0.0").unwrap();
        let found = data_directory(directory.path());
        assert!(found.verdict == Verdict::Fail && found.advice.contains("99.0.0"), "{found:?}");
    }
}
