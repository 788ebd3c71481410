//! Disks of the network on a machine of paper: programs and a /sys of our own, and where possible a real device behind them.

use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use super::{fibre_channel::FibreChannelDisk, iscsi::IscsiDisk, *};

const TARGET: &str = "iqn.2001-04.com.example:disk";
const PORTAL: &str = "10.0.0.1:3260";

struct Machine {
    directory: tempfile::TempDir,
}

impl Machine {
    /// Programs write what they are asked into `said`; a login makes what the kernel and udev make.
    fn new() -> Self {
        let machine = Self { directory: tempfile::tempdir().unwrap() };
        machine.write("said", "");
        machine.write("sys/class/scsi_host/host4/scan", "");
        machine.write("sys/class/iscsi_host/host4/.keep", "");
        let root = machine.root();
        let connection =
            root.join("sys/class/iscsi_host/host4/device/session1/connection1:0/iscsi_connection/connection1:0");
        let session = root.join("sys/class/iscsi_host/host4/device/session1");
        let lun = session.join("target4:0:0/4:0:0:2/block/sdz");
        let link = root.join(format!("dev/disk/by-path/ip-{PORTAL}-iscsi-{TARGET}-lun-2"));
        let iscsiadm = format!(
            "#!/bin/sh\necho \"iscsiadm $*\" >> {root}/said\ncase \"$*\" in\n\
             *'-o show') echo '# BEGIN RECORD'; echo 'iface.transport_name = tcp'; echo 'iface.hwaddress = <empty>' ;;\n\
             *--discover) if [ -e {root}/unreachable ]; then echo 'connection refused' >&2; exit 4; fi ;;\n\
             *--login) mkdir -p {connection} {session}/iscsi_session/session1 {lun} {link_directory}\n\
             echo 10.0.0.1 > {connection}/address; echo 3260 > {connection}/port\n\
             echo {TARGET} > {session}/iscsi_session/session1/targetname\n\
             ln -sf {root}/dev/sdz {link} ;;\n\
             *--logout) rm -rf {session} {link} ;;\nesac\n",
            root = root.display(),
            connection = connection.display(),
            session = session.display(),
            lun = lun.display(),
            link = link.display(),
            link_directory = link.parent().unwrap().display(),
        );
        machine.program("iscsiadm", &iscsiadm);
        for name in ["multipath", "blockdev"] {
            machine.program(name, &format!("#!/bin/sh\necho \"{name} $*\" >> {}/said\n", root.display()));
        }
        machine.write("sys/block/sdz/device/delete", "");
        machine.write("dev/sdz", "");
        machine
    }

    fn root(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn program(&self, name: &str, text: &str) {
        self.write(&format!("bin/{name}"), text);
        std::fs::set_permissions(self.root().join("bin").join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn disks(&self) -> NetworkDisks {
        let root = self.root();
        let programs = format!("{}:{}", root.join("bin").display(), Host::default().programs);
        let host = Host { sys: root.join("sys"), dev: root.join("dev"), programs, device_wait_seconds: 0 };
        NetworkDisks { root_dir: root.join("kubelet"), host, turn: Arc::default() }
    }

    /// What programs were asked since the last time.
    fn said(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.root().join("said")).unwrap();
        self.write("said", "");
        text.lines().map(String::from).collect()
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root().join(path)).unwrap()
    }
}

fn iscsi() -> IscsiDisk {
    IscsiDisk {
        volume: "pv".into(),
        portals: vec![PORTAL.into()],
        iqn: TARGET.into(),
        lun: 2,
        base_interface: "default".into(),
        ..IscsiDisk::default()
    }
}

fn request(machine: &Machine, uid: &str, disk: Disk, is_block: bool) -> DiskRequest {
    DiskRequest {
        disk,
        pod_uid: uid.into(),
        volume_name: "pv".into(),
        file_system: FileSystem::default(),
        is_block,
        read_only: false,
        selinux_label: None,
        secret: BTreeMap::new(),
        target: machine.root().join("kubelet/pods").join(uid).join("volumes/kubernetes.io~iscsi/pv"),
    }
}

#[test]
fn an_iscsi_disk_is_logged_in_to_once_and_out_of_after_the_last_pod() {
    let (machine, disk) = (Machine::new(), Disk::Iscsi(iscsi()));
    let disks = machine.disks();
    let device = disks.mount(&request(&machine, "one", disk.clone(), true)).unwrap();
    assert_eq!(device.canonicalize().unwrap(), machine.root().join("dev/sdz"));
    let node = format!("iscsiadm -m node -p {PORTAL} -T {TARGET} -I default");
    let discovery = format!("iscsiadm -m discoverydb -t sendtargets -p {PORTAL} -I default");
    let expected = [
        "iscsiadm -m iface -I default -o show".to_string(),
        format!("{discovery} -o new"),
        format!("{discovery} --discover"),
        format!("{node} -o update -n node.session.scan -v manual"),
        format!("{node} --login"),
        format!("{node} -o update -n node.startup -v manual"),
    ];
    assert_eq!(machine.said(), expected);
    assert_eq!(machine.read("sys/class/scsi_host/host4/scan"), "0 0 2");
    // A second pod, also of a process that has just begun, needs no login.
    let later = machine.disks();
    later.mount(&request(&machine, "two", disk.clone(), true)).unwrap();
    assert_eq!(machine.said(), ["iscsiadm -m iface -I default -o show"]);
    later.release("one").unwrap();
    later.release("nobody").unwrap();
    assert!(machine.said().is_empty(), "the other pod has it");
    later.release("two").unwrap();
    assert_eq!(machine.said(), [format!("{node} --logout"), format!("{node} -o delete")]);
    assert_eq!(machine.read("sys/block/sdz/device/delete"), "1");
    assert!(later.directories().unwrap().is_empty());
}

#[test]
fn another_disk_of_the_target_keeps_its_session() {
    let machine = Machine::new();
    let disks = machine.disks();
    let other = Disk::Iscsi(IscsiDisk { lun: 2, base_interface: "other".into(), ..iscsi() });
    disks.mount(&request(&machine, "one", Disk::Iscsi(iscsi()), true)).unwrap();
    disks.mount(&request(&machine, "two", other, true)).unwrap();
    machine.said();
    disks.release("one").unwrap();
    assert!(machine.said().is_empty(), "no logout");
    disks.release("two").unwrap();
    assert!(machine.said().iter().any(|line| line.ends_with("--logout")));
}

#[test]
fn credentials_and_an_initiators_name_go_to_iscsiadm_and_nowhere_else() {
    let machine = Machine::new();
    let disks = machine.disks();
    let name = Some("iqn.2001-04.com.example:host".to_string());
    let disk = IscsiDisk { initiator_name: name, chap_discovery: true, chap_session: true, ..iscsi() };
    let mut wanted = request(&machine, "one", Disk::Iscsi(disk), true);
    wanted.secret = BTreeMap::from([
        ("discovery.sendtargets.auth.username".to_string(), "finder".to_string()),
        ("node.session.auth.password".to_string(), "hush".to_string()),
    ]);
    disks.mount(&wanted).unwrap();
    let said = machine.said();
    let has = |part: &str| assert!(said.iter().any(|line| line.contains(part)), "{part}: {said:#?}");
    has(&format!("-I {PORTAL}:pv -o new"));
    has("-n iface.initiatorname -v iqn.2001-04.com.example:host");
    has("-n iface.transport_name -v tcp");
    has("-n discovery.sendtargets.auth.authmethod -v CHAP");
    has("-n discovery.sendtargets.auth.username -v finder");
    has("-n node.session.auth.password -v hush");
    assert!(!said.iter().any(|line| line.contains("hwaddress")), "what is not set is not copied: {said:#?}");
    let directory = disks.directories().unwrap().remove(0);
    let kept = std::fs::read_to_string(record_file(&directory)).unwrap();
    assert!(kept.contains("10.0.0.1") && !kept.contains("hush"), "{kept}");
    disks.release("one").unwrap();
    assert_eq!(machine.said().last().unwrap(), &format!("iscsiadm -m iface -I {PORTAL}:pv -o delete"));
}

#[test]
fn what_cannot_be_had_is_told_and_tried_again() {
    let machine = Machine::new();
    let disks = machine.disks();
    let wanted = || request(&machine, "one", Disk::Iscsi(iscsi()), true);
    machine.write("unreachable", "");
    let error = disks.mount(&wanted()).unwrap_err().to_string();
    assert!(error.contains("failed to get any path for iscsi disk, last err seen:"), "{error}");
    assert!(error.contains("failed to sendtargets to portal 10.0.0.1:3260: connection refused"), "{error}");
    std::fs::remove_file(machine.root().join("unreachable")).unwrap();
    disks.mount(&wanted()).unwrap();
    machine.said();
    for (portal, target) in [("--logout", TARGET), (PORTAL, "-Tother")] {
        let disk = IscsiDisk { portals: vec![portal.into()], iqn: target.into(), ..iscsi() };
        let error = disks.mount(&request(&machine, "two", Disk::Iscsi(disk), true)).unwrap_err().to_string();
        assert!(error.contains("is no name of a portal"), "{error}");
    }
    assert!(machine.said().is_empty());
    let elsewhere = IscsiDisk { portals: vec!["../../../x:1".into()], ..iscsi() };
    assert_eq!(elsewhere.directory_name().components().count(), 2, "{elsewhere:?}");
}

#[test]
fn a_fibre_channel_disk_is_found_by_its_names() {
    let machine = Machine::new();
    let disks = machine.disks();
    let root = machine.root();
    let by = |name: &str, device: &str| {
        let link = root.join("dev/disk").join(name);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(root.join("dev").join(device), link).unwrap();
    };
    let targets = |name: &str, lun| {
        let disk = FibreChannelDisk { target_names: vec![name.into()], lun, ..FibreChannelDisk::default() };
        request(&machine, "one", Disk::FibreChannel(disk), true)
    };
    let error = disks.mount(&targets("500a0982991b8dc5", 0)).unwrap_err().to_string();
    assert_eq!(error, "no fc disk found");
    assert_eq!(machine.read("sys/class/scsi_host/host4/scan"), "- - -", "it was looked for");
    by("by-path/pci-0000:41:00.0-fc-0x500a0982991b8dc5-lun-0", "sdz");
    assert_eq!(disks.mount(&targets("500a0982991b8dc5", 0)).unwrap(), root.join("dev/sdz"));
    assert!(disks.mount(&targets("500a0982991b8dc5", 1)).is_err());
    // Several paths to one disk are one device.
    machine.write("dev/dm-3", "");
    machine.write("sys/block/dm-3/slaves/sdz", "");
    by("by-id/scsi-3600508b4_0x", "sdz");
    let source = serde_json::json!({"wwids": ["3600508b4 0x"]});
    let named = FibreChannelDisk::new(&serde_json::from_value(source).unwrap());
    let wanted = request(&machine, "two", Disk::FibreChannel(named), true);
    assert_eq!(disks.mount(&wanted).unwrap(), root.join("dev/dm-3"));
    machine.said();
    disks.release("two").unwrap();
    let expected = [
        format!("multipath -f {}", root.join("dev/dm-3").display()),
        format!("blockdev --flushbufs {}", root.join("dev/sdz").display()),
    ];
    assert_eq!(machine.said(), expected);
    assert_eq!(machine.read("sys/block/sdz/device/delete"), "1");
}

/// Detached in the end, whatever fails before.
struct Loop(PathBuf);

impl Loop {
    /// `None` where there are no such devices.
    fn new(file: &Path) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("left out: needs root");
            return None;
        }
        std::fs::File::create(file).and_then(|file| file.set_len(16 << 20)).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let device = String::from_utf8_lossy(&output.stdout).trim().to_string();
        let has_mkfs = Command::new("mkfs.ext4").arg("-V").output().is_ok();
        if device.is_empty() || !has_mkfs {
            eprintln!("left out: no loop devices here");
            return None;
        }
        Some(Self(device.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).output();
    }
}

#[test]
fn what_one_pod_wrote_another_reads_and_nothing_stays_mounted() {
    let machine = Machine::new();
    let Some(device) = Loop::new(&machine.root().join("disk")) else { return };
    std::fs::remove_file(machine.root().join("dev/sdz")).unwrap();
    std::os::unix::fs::symlink(&device.0, machine.root().join("dev/sdz")).unwrap();
    let disks = machine.disks();
    let one = disks.mount(&request(&machine, "one", Disk::Iscsi(iscsi()), false)).unwrap();
    std::fs::write(one.join("kept"), "yes").unwrap();
    let mut reader = request(&machine, "two", Disk::Iscsi(iscsi()), false);
    reader.read_only = true;
    let two = disks.mount(&reader).unwrap();
    assert_eq!(std::fs::read_to_string(two.join("kept")).unwrap(), "yes");
    assert!(std::fs::write(two.join("more"), "").is_err(), "read-only");
    let mut labelled = request(&machine, "three", Disk::Iscsi(iscsi()), false);
    labelled.selinux_label = Some("system_u:object_r:container_file_t:s0:c1".into());
    let refused = disks.mount(&labelled).unwrap_err().to_string();
    assert!(refused.contains("already mounted to a different pod with a different SELinux label"), "{refused}");
    for uid in ["one", "two"] {
        file_system::remove(&machine.root().join("kubelet/pods").join(uid)).unwrap();
        disks.release(uid).unwrap();
    }
    assert!(file_system::mounts_below(&machine.root()).unwrap().is_empty());
    assert!(disks.directories().unwrap().is_empty());
}
