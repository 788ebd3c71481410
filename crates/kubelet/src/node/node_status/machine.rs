//! What this machine is: processors, memory, disk, kernel, addresses.
//! Used by `node_status`.
//! Only reads.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machine {
    pub cpus: i64,
    pub memory_bytes: i64,
    pub swap_bytes: i64,
    pub disk_bytes: i64,
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel: String,
    pub os_image: String,
    pub hostname: String,
    pub hugepages: Vec<(String, i64)>,
    pub most_processes: i64,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

impl Machine {
    pub fn probe(data_dir: &Path) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as i64);
        let (memory_bytes, swap_bytes) = memory(&read("/proc/meminfo"));
        let disk_bytes = nix::sys::statvfs::statvfs(data_dir).map_or(0, |fs| (fs.blocks() * fs.fragment_size()) as i64);
        let machine_id = match read("/etc/machine-id") {
            id if id.is_empty() => read("/var/lib/dbus/machine-id"),
            id => id,
        };
        Self {
            cpus,
            memory_bytes,
            swap_bytes,
            disk_bytes,
            system_uuid: match read("/sys/class/dmi/id/product_uuid") {
                id if id.is_empty() => machine_id.clone(),
                id => id,
            },
            machine_id,
            boot_id: read("/proc/sys/kernel/random/boot_id"),
            kernel: read("/proc/sys/kernel/osrelease"),
            os_image: os_image(&read("/etc/os-release")),
            hostname: read("/proc/sys/kernel/hostname"),
            hugepages: hugepages(),
            most_processes: most_processes(&read("/proc/sys/kernel/pid_max"), &read("/proc/sys/kernel/threads-max")),
        }
    }
}

/// Total memory and swap in bytes.
fn memory(meminfo: &str) -> (i64, i64) {
    let field = |name: &str| {
        let line = meminfo.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<i64>().ok())
            .map_or(0, |kilobytes| kilobytes * 1024)
    };
    (field("MemTotal:"), field("SwapTotal:"))
}

/// The lesser of the kernel's two limits.
fn most_processes(pid_max: &str, threads_max: &str) -> i64 {
    [pid_max, threads_max].into_iter().filter_map(|text| text.parse().ok()).min().unwrap_or(i64::MAX)
}

fn os_image(os_release: &str) -> String {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or("Linux".into(), |name| name.trim_matches('"').to_string())
}

/// Sizes ("2Mi") with the bytes reserved for them.
fn hugepages() -> Vec<(String, i64)> {
    let entries = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let mut sizes: Vec<(String, i64)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kilobytes: i64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count: i64 = std::fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
            let text = match kilobytes {
                k if k % (1 << 20) == 0 => format!("{}Gi", k >> 20),
                k if k % (1 << 10) == 0 => format!("{}Mi", k >> 10),
                k => format!("{k}Ki"),
            };
            Some((text, count * kilobytes * 1024))
        })
        .collect();
    sizes.sort();
    sizes
}

/// The address that packets to elsewhere leave from. No packet is sent.
pub fn default_address() -> Option<IpAddr> {
    let towards = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        socket.local_addr().ok().map(|own| own.ip()).filter(|ip| !ip.is_unspecified())
    };
    towards("0.0.0.0:0", "192.0.2.1:9").or_else(|| towards("[::]:0", "[2001:db8::1]:9"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!(memory("MemTotal:  2 kB\nMemFree: 1 kB\nSwapTotal: 3 kB\n"), (2048, 3072));
        assert_eq!((most_processes("32768", "5000"), most_processes("", "7")), (5000, 7));
        assert_eq!(os_image("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n"), "Debian GNU/Linux 12");
    }
}
