//! The families of `/metrics/cadvisor` about the machine.
//! Written beside those of `container_metrics`.
//! Invariant: pure (tidy: `pure_files`).

use metrics::Text;

use crate::info::MachineInfo;

type Emit<'a> = dyn FnMut(&[&str], f64) + 'a;
type Row = (&'static str, &'static str, &'static [&'static str], fn(&MachineInfo, &mut Emit));

#[rustfmt::skip]
const FAMILIES: &[Row] = &[
    ("machine_cpu_cores", "Number of logical CPU cores.", &[], |m, emit| emit(&[], m.num_cores as f64)),
    ("machine_cpu_physical_cores", "Number of physical CPU cores.", &[], |m, emit| emit(&[], m.num_physical_cores as f64)),
    ("machine_cpu_sockets", "Number of CPU sockets.", &[], |m, emit| emit(&[], m.num_sockets as f64)),
    ("machine_dimm_capacity_bytes", "Total RAM DIMM capacity (all types memory modules) value labeled by dimm type.", &["type"], |m, emit| m.memory_by_type.iter().for_each(|(kind, memory)| emit(&[kind], memory.capacity as f64))),
    ("machine_dimm_count", "Number of RAM DIMM (all types memory modules) value labeled by dimm type.", &["type"], |m, emit| m.memory_by_type.iter().for_each(|(kind, memory)| emit(&[kind], memory.dimm_count as f64))),
    ("machine_memory_bytes", "Amount of memory installed on the machine.", &[], |m, emit| emit(&[], m.memory_capacity as f64)),
    // As upstream's kubelet, which is built without the library that would know.
    ("machine_nvm_avg_power_budget_watts", "NVM power budget.", &[], |_, emit| emit(&[], 0.0)),
    ("machine_nvm_capacity", "NVM capacity value labeled by NVM mode (memory mode or app direct mode).", &["mode"], |_, emit| ["app_direct_mode", "memory_mode"].iter().for_each(|mode| emit(&[mode], 0.0))),
    ("machine_swap_bytes", "Amount of swap memory available on the machine.", &[], |m, emit| emit(&[], m.swap_capacity as f64)),
];

/// What runs on the machine: its kernel, its system and our version.
pub struct Versions {
    pub kernel: String,
    pub system: String,
    pub own: String,
}

pub fn write(text: &mut Text, machine: &MachineInfo, versions: &Versions) {
    let help = "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.";
    let labels = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", versions.own.as_str()),
        ("dockerVersion", ""),
        ("kernelVersion", &versions.kernel),
        ("osVersion", &versions.system),
    ];
    text.family("cadvisor_version_info", "gauge", help).sample(&labels, 1);
    let base =
        [("boot_id", &machine.boot_id), ("machine_id", &machine.machine_id), ("system_uuid", &machine.system_uuid)];
    for (name, help, names, emit) in FAMILIES {
        let mut out = text.family(name, "gauge", help);
        emit(machine, &mut |values, value| {
            let mut labels: Vec<(&'static str, &str)> = base.iter().map(|(name, id)| (*name, id.as_str())).collect();
            labels.extend(names.iter().copied().zip(values.iter().copied()));
            labels.sort_unstable();
            out.sample_at(&labels, value, machine.timestamp.as_millisecond());
        });
    }
    let help = "1 if there was an error while getting machine metrics, 0 otherwise.";
    text.single("machine_scrape_error", "gauge", help, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::MemoryInfo;

    #[test]
    fn the_machine_is_told_of_under_its_ids() {
        let mut machine =
            MachineInfo { num_cores: 4, machine_id: "m".into(), boot_id: "b".into(), ..MachineInfo::default() };
        machine.memory_by_type.insert("DDR4".into(), MemoryInfo { capacity: 9, dimm_count: 2 });
        let mut text = Text::default();
        let versions = Versions { kernel: "6.1".into(), system: "Some \"OS\"".into(), own: "v1".into() };
        write(&mut text, &machine, &versions);
        let page = text.finish();
        for line in [
            "machine_cpu_cores{boot_id=\"b\",machine_id=\"m\",system_uuid=\"\"} 4 0",
            "machine_dimm_count{boot_id=\"b\",machine_id=\"m\",system_uuid=\"\",type=\"DDR4\"} 2 0",
            "machine_nvm_capacity{boot_id=\"b\",machine_id=\"m\",mode=\"memory_mode\",system_uuid=\"\"} 0 0",
            "cadvisor_version_info{cadvisorRevision=\"\",cadvisorVersion=\"v1\",dockerVersion=\"\",kernelVersion=\"6.1\",osVersion=\"Some \\\"OS\\\"\"} 1",
            "machine_scrape_error 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
