//! Where network configurations and plugins of a node are: in the data directory for our own containerd, at the usual places
//! for a runtime that was there before, or where the flags say.
//! Used by `node::container_runtime`, `pod_network` and `down`.
//! What others have put there is never replaced; what we have put outside the data directory is recorded, and goes with it.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{cluster::instance::Instance, flags};

/// Where runtimes look unless they are told otherwise.
const USUAL_CONF_DIR: &str = "/etc/cni/net.d";
const USUAL_BIN_DIR: &str = "/opt/cni/bin";
/// Plugins of the machine, for configurations that name them; the first that has a name counts.
const MACHINE_BIN_DIRS: [&str; 2] = [USUAL_BIN_DIR, "/usr/lib/cni"];
/// In the data directory: what `down` has to remove elsewhere.
const RECORD: &str = "cni/elsewhere";

pub fn conf_dir(flags: &flags::Node, instance: &Instance) -> PathBuf {
    directory(flags, flags.cni_directories.cni_conf_dir.as_ref(), USUAL_CONF_DIR, instance.cni_conf())
}

pub fn bin_dir(flags: &flags::Node, instance: &Instance) -> PathBuf {
    directory(flags, flags.cni_directories.cni_bin_dir.as_ref(), USUAL_BIN_DIR, instance.cni_bin())
}

fn directory(flags: &flags::Node, asked: Option<&PathBuf>, usual: &str, ours: PathBuf) -> PathBuf {
    match asked {
        Some(directory) => directory.clone(),
        None if flags.container_runtime_endpoint.is_some() => usual.into(),
        None => ours,
    }
}

/// Our plugin is this very binary, called under other names: those of our own network, and those of the standard plugins
/// where the machine has none.
pub fn install_plugins(directory: &Path, instance: &Instance) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("failed to make {}", directory.display()))?;
    let binary = std::env::current_exe()?;
    let is_own_directory = directory.starts_with(&instance.data);
    for name in cni::PLUGIN_NAMES.into_iter().chain(cni::STANDARD_NAMES) {
        let of_machine = MACHINE_BIN_DIRS.iter().map(|machine| Path::new(machine).join(name));
        let of_machine = of_machine.filter(|_| cni::STANDARD_NAMES.contains(&name) && is_own_directory);
        let target = of_machine.into_iter().find(|plugin| plugin.is_file()).unwrap_or_else(|| binary.clone());
        link(&directory.join(name), &target, is_own_directory, instance)?;
    }
    if is_own_directory {
        // Configurations may name other plugins of the machine.
        let others = MACHINE_BIN_DIRS.iter().flat_map(|machine| fs::read_dir(machine).into_iter().flatten().flatten());
        for entry in others {
            link(&directory.join(entry.file_name()), &entry.path(), false, instance)?;
        }
    }
    Ok(())
}

fn link(at: &Path, target: &Path, replaces: bool, instance: &Instance) -> Result<()> {
    if fs::read_link(at).is_ok_and(|held| held == target) {
        return Ok(());
    }
    let is_taken = at.symlink_metadata().is_ok();
    // One whose program is gone is nobody's.
    if is_taken && !replaces && at.exists() {
        return Ok(());
    }
    if is_taken {
        fs::remove_file(at)?;
    }
    record(at, instance)?;
    symlink(target, at).with_context(|| format!("failed to install the network plugin {}", at.display()))
}

/// Before a file is made that `down` has to remove.
pub fn record(file: &Path, instance: &Instance) -> Result<()> {
    if file.starts_with(&instance.data) {
        return Ok(());
    }
    let list = instance.data.join(RECORD);
    let mut text = fs::read_to_string(&list).unwrap_or_default();
    let line = file.display().to_string();
    if !text.lines().any(|held| held == line) {
        text.push_str(&line);
        text.push('\n');
        fs::create_dir_all(instance.data.join("cni"))?;
        crate::certificates::pki::write_private(&list, &text)?;
    }
    Ok(())
}

/// What was made outside the data directory.
pub fn remove_recorded(instance: &Instance) -> Result<()> {
    let list = instance.data.join(RECORD);
    let Ok(text) = fs::read_to_string(&list) else { return Ok(()) };
    for file in text.lines() {
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("failed to remove {file}"));
            }
            _ => {}
        }
    }
    fs::remove_file(&list).with_context(|| format!("failed to remove {}", list.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_installed_stays_and_what_we_did_goes() {
        let (data, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (instance, directory) = (Instance::new(data.path()), elsewhere.path().join("bin"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("bridge"), "theirs").unwrap();
        for _ in 0..2 {
            install_plugins(&directory, &instance).unwrap();
        }
        let names = || {
            let mut names: Vec<String> =
                fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["bandwidth", "bridge", "host-local", "loopback", "minke-cni", "portmap"]);
        assert_eq!(fs::read_to_string(directory.join("bridge")).unwrap(), "theirs");
        assert_eq!(fs::read_link(directory.join("portmap")).unwrap(), std::env::current_exe().unwrap());
        remove_recorded(&instance).unwrap();
        assert_eq!(names(), ["bridge"]);
        // In our own directory everything is ours, or the machine's.
        install_plugins(&instance.cni_bin(), &instance).unwrap();
        assert!(instance.cni_bin().join("host-local").exists() && instance.cni_bin().join("minke-cni").exists());
        remove_recorded(&instance).unwrap();
        assert!(instance.cni_bin().join("minke-cni").exists());
    }
}
