//! `minke install` and `uninstall`: minke as a service on systems without a package of it.
//! `files` puts files in their places, `service` tells systemd or OpenRC; the Debian package does the same with dpkg.
//! Every step can be done again: an install that was cut off is healed by the next.

mod files;
mod service;

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};

use self::{files::Files, service::Service};
use crate::{
    cluster::{
        data_version, file_modes,
        instance::{DEFAULT_DATA_DIRECTORY, Instance},
        preflight,
    },
    commands::down,
    flags::{self, DataDirectory},
};

const BINARY: &str = "usr/local/bin/minke";
const BUSY_TRIES_MAX: u32 = 100;
const BUSY_INTERVAL: Duration = Duration::from_millis(20);
const CONFIG: &str = "etc/minke/config.yaml";

pub fn install(flags: &flags::Install) -> Result<()> {
    preflight::root()?;
    let _lock = lock(&flags.root)?;
    let own = std::env::current_exe().context("can't find this program")?;
    let service = Service::of(&flags.root);
    let former = install_files(&flags.root, &own, &service)?;
    match former {
        Some(former) if former == data_version::own() => println!("✓ minke {former} installed again"),
        Some(former) => println!("✓ minke {former} replaced by {}", data_version::own()),
        None => println!("✓ minke {} installed", data_version::own()),
    }
    if flags.no_start || !is_this_system(&flags.root) {
        println!("start it with: {}", service.start_hint());
        return Ok(());
    }
    service.restart(&Instance::new(Path::new(DEFAULT_DATA_DIRECTORY)))
}

fn is_this_system(root: &Path) -> bool {
    root == Path::new("/")
}

/// Only one at a time.
fn lock(root: &Path) -> Result<Flock<fs::File>> {
    let directory = root.join("run");
    fs::create_dir_all(&directory).with_context(|| format!("can't make {}", directory.display()))?;
    let path = directory.join("minke-install.lock");
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).mode(file_modes::PRIVATE_FILE_MODE).open(&path);
    let file = file.with_context(|| format!("can't write {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| anyhow::anyhow!("another install or uninstall is under way: wait for it, then try again"))
}

/// Returns the version that was there before.
fn install_files(root: &Path, program: &Path, service: &Service) -> Result<Option<String>> {
    refuse_package(root)?;
    let binary = root.join(BINARY);
    let former = installed_version(&binary);
    if let Some(former) = &former {
        refuse_downgrade(former)?;
    }
    if let Some(newer) = data_version::newer(&root.join(DEFAULT_DATA_DIRECTORY.trim_start_matches('/'))) {
        refuse_downgrade(&newer)?;
    }
    let mut files = Files::open(root)?;
    files.copy(program, BINARY, 0o755)?;
    for (path, content) in service.files() {
        files.write(path, content.replace("@BINARY@", &format!("/{BINARY}")).as_bytes(), service.file_mode())?;
    }
    files.write_documentation()?;
    // The owner's from now on: an install never changes it again, and an uninstall leaves it.
    if !root.join(CONFIG).exists() {
        let command = flags::config_file::command();
        files::put(&root.join(CONFIG), flags::config_file::example(&command).as_bytes(), 0o644)?;
    }
    Ok(former)
}

fn refuse_package(root: &Path) -> Result<()> {
    // One that was removed leaves the names of its configuration there.
    let listed = fs::read_to_string(root.join("var/lib/dpkg/info/minke.list")).unwrap_or_default();
    if listed.lines().any(|file| file == "/usr/bin/minke") {
        bail!(
            "minke is installed here as a Debian package, which dpkg looks after: upgrade with \
             `apt-get install ./minke_VERSION_ARCH.deb`, or remove it first with `apt-get remove minke`"
        );
    }
    Ok(())
}

fn refuse_downgrade(former: &str) -> Result<()> {
    if data_version::parse(former) > data_version::parse(data_version::own()) {
        bail!(
            "minke {former} is installed or has written the data here, and this is {}: an older version may not understand \
             what a newer one wrote. Install {former} or newer; or uninstall it, and restore a backup that was made with \
             {} (`minke store restore`)",
            data_version::own(),
            data_version::own()
        );
    }
    Ok(())
}

/// What the installed program says; none if it is not there, or does not run because an install was cut off.
fn installed_version(binary: &Path) -> Option<String> {
    let mut tries = 0;
    let output = loop {
        match Command::new(binary).arg("--version").output() {
            // Whoever wrote it has not closed it yet.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES_MAX => {
                tries += 1
            }
            ran => break ran.ok().filter(|output| output.status.success())?,
        }
        std::thread::sleep(BUSY_INTERVAL);
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.trim().strip_prefix("minke ")?.to_string();
    data_version::parse(&version).map(|_| version)
}

pub fn uninstall(flags: &flags::Uninstall) -> Result<()> {
    preflight::root()?;
    let _lock = lock(&flags.root)?;
    refuse_package(&flags.root)?;
    let service = Service::of(&flags.root);
    if is_this_system(&flags.root) {
        service.stop()?;
        let data = DataDirectory { path: PathBuf::from(DEFAULT_DATA_DIRECTORY) };
        down::down(&flags::Down { data, purge: flags.purge })?;
    }
    let removed = uninstall_files(&flags.root, flags.purge)?;
    if is_this_system(&flags.root) {
        service.forget()?;
    }
    match removed {
        0 => println!("nothing of minke was installed"),
        _ => println!("✓ minke uninstalled ({removed} files)"),
    }
    if !flags.purge && flags.root.join(CONFIG).exists() {
        println!("the configuration is kept in /{CONFIG} (remove it with --purge)");
    }
    Ok(())
}

fn uninstall_files(root: &Path, purge: bool) -> Result<usize> {
    let removed = Files::open(root)?.remove_all()?;
    if purge {
        let directory = root.join("etc/minke");
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("can't remove {}", directory.display()));
            }
            _ => {}
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn program(directory: &Path, version: &str) -> PathBuf {
        let path = directory.join(format!("minke-{version}"));
        fs::write(&path, format!("#!/bin/sh\necho minke {version}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn listed(root: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut directories = vec![root.to_path_buf()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => directories.push(entry.path()),
                    false => found.push(entry.path().strip_prefix(root).unwrap().display().to_string()),
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn installs_again_heals_and_leaves_nothing_but_the_configuration() {
        let (directory, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = directory.path();
        fs::create_dir_all(root.join("lib/systemd/system")).unwrap();
        let own = program(programs.path(), data_version::own());
        let service = Service::of(root);
        assert_eq!(service, Service::Systemd);
        assert_eq!(install_files(root, &own, &service).unwrap(), None);
        let first = listed(root);
        let unit = fs::read_to_string(root.join("etc/systemd/system/minke.service")).unwrap();
        assert!(unit.contains("ExecStart=/usr/local/bin/minke $MINKE_COMMAND") && !unit.contains('@'), "{unit}");
        for file in
            [BINARY, CONFIG, "usr/local/share/man/man1/minke-up.1", "usr/local/share/bash-completion/completions/minke"]
        {
            assert!(first.iter().any(|found| found == file), "{file} in {first:?}");
        }
        // An install that was cut off: half a program, and what it was written to.
        fs::write(root.join(BINARY), "half").unwrap();
        fs::write(root.join("usr/local/bin/.minke.partial"), "hal").unwrap();
        fs::write(root.join(CONFIG), "up: {nodes: 3}\n").unwrap();
        assert_eq!(install_files(root, &own, &service).unwrap(), None);
        assert_eq!(listed(root), first);
        assert_eq!(install_files(root, &own, &service).unwrap().as_deref(), Some(data_version::own()));
        assert_eq!(fs::read_to_string(root.join(CONFIG)).unwrap(), "up: {nodes: 3}\n", "the owner's stays");
        assert_eq!(fs::read(root.join(BINARY)).unwrap(), fs::read(&own).unwrap());
        assert!(uninstall_files(root, false).unwrap() > 10);
        assert_eq!(listed(root), [CONFIG]);
        assert_eq!(uninstall_files(root, true).unwrap(), 0);
        assert_eq!(listed(root), Vec::<String>::new());
    }

    #[test]
    fn an_older_one_is_refused_with_the_reason() {
        let (directory, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = directory.path();
        let own = program(programs.path(), data_version::own());
        let refused = |expected: &str| {
            let error = install_files(root, &own, &Service::of(root)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!root.join(CONFIG).exists(), "nothing was changed");
        };
        fs::create_dir_all(root.join("usr/local/bin")).unwrap();
        fs::copy(program(programs.path(), "99.0.0"), root.join(BINARY)).unwrap();
        refused("minke 99.0.0 is installed");
        fs::copy(program(programs.path(), "0.0.1"), root.join(BINARY)).unwrap();
        fs::create_dir_all(root.join("var/lib/minke")).unwrap();
        fs::write(root.join("var/lib/minke/version"), "99.1.0\n").unwrap();
        refused("restore a backup");
        fs::remove_file(root.join("var/lib/minke/version")).unwrap();
        fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
        let list = root.join("var/lib/dpkg/info/minke.list");
        fs::write(&list, "/.\n/usr/bin\n/usr/bin/minke\n").unwrap();
        refused("Debian package");
        fs::write(&list, "/etc/minke/config.yaml\n").unwrap();
        assert_eq!(install_files(root, &own, &Service::of(root)).unwrap().as_deref(), Some("0.0.1"));
    }

    #[test]
    fn one_at_a_time_and_only_where_it_can_be_written() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock(directory.path()).unwrap();
        let error = lock(directory.path()).err().unwrap().to_string();
        assert!(error.contains("wait for it"), "{error}");
        drop(held);
        lock(directory.path()).unwrap();
        let error = format!("{:#}", lock(Path::new("/proc")).err().unwrap());
        assert!(error.contains("/proc/run"), "{error}");
    }
}
