//! Collects what sysfs says of processors and NUMA nodes.
//! Used once, when the node starts; `resource_managers::machine_topology` understands it.
//! Only reads.

use std::path::Path;

use resource_managers::machine_topology::SysfsFiles;

const SYSTEM_DEVICES: &str = "/sys/devices/system";

/// Of this machine.
pub fn read() -> SysfsFiles {
    collect(Path::new(SYSTEM_DEVICES))
}

fn collect(root: &Path) -> SysfsFiles {
    let mut files = SysfsFiles::new();
    let mut read = |path: String| {
        if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
            files.insert(path, text);
        }
    };
    read("cpu/online".into());
    for cpu in numbered(root, "cpu", "cpu") {
        for file in ["core_id", "physical_package_id"] {
            read(format!("cpu/{cpu}/topology/{file}"));
        }
        for index in numbered(root, &format!("cpu/{cpu}/cache"), "index") {
            for file in ["level", "id", "shared_cpu_list"] {
                read(format!("cpu/{cpu}/cache/{index}/{file}"));
            }
        }
    }
    for node in numbered(root, "node", "node") {
        for file in ["cpulist", "meminfo", "distance"] {
            read(format!("node/{node}/{file}"));
        }
        for size in numbered(root, &format!("node/{node}/hugepages"), "hugepages-") {
            read(format!("node/{node}/hugepages/{size}/nr_hugepages"));
        }
    }
    files
}

/// Names in a directory that have a number behind the prefix.
fn numbered(root: &Path, directory: &str, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root.join(directory)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())))
        .collect()
}

#[cfg(test)]
mod tests {
    use resource_managers::MachineTopology;

    use super::*;

    #[test]
    fn this_machine_is_understood() {
        let machine = MachineTopology::from_sysfs(&read()).unwrap();
        assert!(!machine.cpus.details.is_empty() && !machine.nodes.is_empty());
        assert!(machine.cpus.cores <= machine.cpus.details.len());
    }
}
