//! What every Prometheus client says of its process, from the kernel and the allocator.
//! Shown at the end of every component's metrics.
//! What can't be read is left out.

use crate::Text;

/// The kernel counts processor time and start times in hundredths of a second for programs.
const TICKS_PER_SECOND: f64 = 100.0;

/// When the machine was booted, in Unix time, as the kernel's `/proc/stat` says it.
pub fn boot_time(stat: &str) -> Option<i64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

pub fn process(out: &mut Text) {
    out.registry();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let kibibytes = |field: &str| -> Option<u64> {
        status.lines().find_map(|l| l.strip_prefix(field)?.trim().strip_suffix(" kB")?.trim().parse().ok())
    };
    if let Some(resident) = kibibytes("VmRSS:") {
        out.single("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident * 1024);
    }
    if let Some(virtual_size) = kibibytes("VmSize:") {
        out.single("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", virtual_size * 1024);
    }
    if let Some(heap) = env::memory::heap() {
        let rows = [
            ("process_heap_allocated_bytes", "What the program holds of its heap.", heap.allocated),
            ("process_heap_active_bytes", "Pages of the heap that hold something.", heap.active),
            ("process_heap_resident_bytes", "Memory of the kernel's that the heap takes.", heap.resident),
            ("process_heap_retained_bytes", "Addresses that the heap keeps without memory.", heap.retained),
        ];
        for (name, help, bytes) in rows {
            out.single(name, "gauge", help, bytes);
        }
    }
    let stat = read("/proc/self/stat");
    // The name in the second field may hold spaces; it ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|t| t.parse::<f64>().ok());
    if let (Some(user), Some(system)) = (ticks(11), ticks(12)) {
        let seconds = (user + system) / TICKS_PER_SECOND;
        out.single("process_cpu_seconds_total", "counter", "User and system CPU time spent in seconds.", seconds);
    }
    if let (Some(booted), Some(started)) = (boot_time(&read("/proc/stat")), ticks(19)) {
        let seconds = booted as f64 + started / TICKS_PER_SECOND;
        out.single("process_start_time_seconds", "gauge", "Start of the process since the unix epoch.", seconds);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        out.single("process_open_fds", "gauge", "Open file descriptors.", open.count());
    }
    let limits = read("/proc/self/limits");
    let most =
        limits.lines().find_map(|l| l.strip_prefix("Max open files")?.split_whitespace().next()?.parse::<u64>().ok());
    if let Some(most) = most {
        out.single("process_max_fds", "gauge", "File descriptors the process may open.", most);
    }
}
