//! What the machine is: processors, memory, disks, interfaces and the names it goes by.
//! Used by `monitor`; shown by `machine_metrics` and `http`.
//! Only reads.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::Path,
};

use jiff::Timestamp;

use crate::{
    devices,
    info::{FsInfo, HugePagesInfo, MachineInfo, MemoryInfo, NetInfo},
    proc_files::Meminfo,
};

pub fn read(now: Timestamp) -> MachineInfo {
    let text = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_string();
    let processors = Processors::parse(&text("/proc/cpuinfo"));
    let memory = Meminfo::read();
    let systems = devices::filesystems().into_iter();
    MachineInfo {
        timestamp: now,
        vendor_id: processors.vendor,
        num_cores: processors.threads.max(1),
        num_physical_cores: processors.cores.max(1),
        num_sockets: processors.sockets.max(1),
        cpu_frequency_khz: processors.kilohertz,
        memory_capacity: memory.total,
        swap_capacity: memory.swap_total,
        memory_by_type: memory_modules(Path::new("/sys/devices/system/edac/mc")),
        hugepages: huge_pages(Path::new("/sys/kernel/mm/hugepages")),
        machine_id: [text("/etc/machine-id"), text("/var/lib/dbus/machine-id")]
            .into_iter()
            .find(|id| !id.is_empty())
            .unwrap_or_default(),
        system_uuid: text("/sys/class/dmi/id/product_uuid"),
        boot_id: text("/proc/sys/kernel/random/boot_id"),
        filesystems: systems
            .map(|system| FsInfo {
                device: system.device,
                capacity: system.capacity,
                kind: system.kind,
                inodes: system.inodes,
                has_inodes: system.has_inodes,
            })
            .collect(),
        disk_map: devices::disks(),
        network_devices: interfaces(Path::new("/sys/class/net")),
        cloud_provider: "Unknown".into(),
        instance_type: "Unknown".into(),
        instance_id: "None".into(),
    }
}

#[derive(Debug, Default, PartialEq)]
struct Processors {
    vendor: String,
    threads: u64,
    cores: u64,
    sockets: u64,
    kilohertz: u64,
}

impl Processors {
    /// Machines that name no cores or sockets (as on arm64) have one per thread, and one.
    fn parse(cpuinfo: &str) -> Self {
        let mut found = Self::default();
        let (mut cores, mut sockets) = (HashSet::new(), HashSet::new());
        for processor in cpuinfo.split("\n\n") {
            let field = |name: &str| {
                let mut lines = processor.lines().filter_map(|line| line.split_once(':'));
                lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
            };
            let Some(number) = field("processor") else { continue };
            found.threads += 1;
            if let Some(vendor) = field("vendor_id") {
                found.vendor = vendor.into();
            }
            let socket = field("physical id").unwrap_or("0");
            sockets.insert(socket);
            cores.insert((socket, field("core id").unwrap_or(number)));
            let megahertz: f64 = field("cpu MHz").and_then(|text| text.parse().ok()).unwrap_or(0.0);
            found.kilohertz = found.kilohertz.max((megahertz * 1000.0) as u64);
        }
        found.cores = cores.len() as u64;
        found.sockets = sockets.len() as u64;
        found
    }
}

/// Where the kernel knows the modules.
fn memory_modules(controllers: &Path) -> BTreeMap<String, MemoryInfo> {
    let mut found: BTreeMap<String, MemoryInfo> = BTreeMap::new();
    let below = |place: &Path, prefix: &str| -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(place).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            .map(|entry| entry.path())
            .collect()
    };
    for module in below(controllers, "mc").iter().flat_map(|controller| below(controller, "dimm")) {
        let read = |file: &str| fs::read_to_string(module.join(file)).unwrap_or_default().trim().to_string();
        let (kind, megabytes) = (read("dimm_mem_type"), read("size").parse::<u64>().unwrap_or(0));
        if !kind.is_empty() {
            let of_kind = found.entry(kind).or_default();
            of_kind.dimm_count += 1;
            of_kind.capacity += megabytes << 20;
        }
    }
    found
}

fn huge_pages(place: &Path) -> Vec<HugePagesInfo> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let page_size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let pages = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
        Some(HugePagesInfo { page_size, num_pages: pages.trim().parse().ok()? })
    };
    let mut found: Vec<HugePagesInfo> = entries.filter_map(size).collect();
    found.sort_by_key(|size| size.page_size);
    found
}

fn interfaces(place: &Path) -> Vec<NetInfo> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let interface = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        if ["lo", "veth", "docker", "nerdctl"].iter().any(|prefix| name.starts_with(prefix)) {
            return None;
        }
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default().trim().to_string();
        Some(NetInfo {
            mac_address: read("address"),
            speed: read("speed").parse().unwrap_or(0),
            mtu: read("mtu").parse().unwrap_or(0),
            name,
        })
    };
    let mut found: Vec<NetInfo> = entries.filter_map(interface).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_in_threads_cores_and_sockets() {
        let processor = |number: u8, socket: u8, core: u8| {
            format!(
                "processor\t: {number}\nvendor_id\t: V\ncpu MHz\t\t: 2000.5\nphysical id\t: {socket}\ncore id\t\t: {core}\n\n"
            )
        };
        let text = [processor(0, 0, 0), processor(1, 0, 0), processor(2, 1, 0), processor(3, 1, 1)].concat();
        let expected = Processors { vendor: "V".into(), threads: 4, cores: 3, sockets: 2, kilohertz: 2_000_500 };
        assert_eq!(Processors::parse(&text), expected);
        let plain = Processors::parse("processor : 0\n\nprocessor : 1\n\nHardware : x\n");
        assert_eq!((plain.threads, plain.cores, plain.sockets), (2, 2, 1));
    }

    #[test]
    fn modules_and_pages_are_read_from_the_kernels_directories() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("mc0/dimm0/dimm_mem_type", "DDR4\n"),
            ("mc0/dimm0/size", "1024\n"),
            ("mc0/dimm1/dimm_mem_type", "DDR4\n"),
            ("mc0/dimm1/size", "1024\n"),
            ("hugepages-2048kB/nr_hugepages", "3\n"),
            ("hugepages-oddkB/nr_hugepages", "3\n"),
        ] {
            let file = dir.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let modules = memory_modules(dir.path());
        assert_eq!(modules["DDR4"], MemoryInfo { capacity: 2 << 30, dimm_count: 2 });
        assert_eq!(huge_pages(dir.path()), [HugePagesInfo { page_size: 2048, num_pages: 3 }]);
        let machine = read(Timestamp::UNIX_EPOCH);
        assert!(machine.num_cores >= 1 && machine.memory_capacity > 0, "{machine:?}");
    }
}
