//! `minke down`: ends the cluster's process, its containers and its containerd, and removes what they made.
//! Works as well when the process was killed, or never got far.
//! Touches only what carries this instance's names; keeps the data unless told to purge it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{
    cluster::{
        instance::Instance,
        members::{self, switch},
        preflight, process, sysctls,
    },
    flags,
    network::cni_directories,
};

pub fn down(flags: &flags::Down) -> Result<()> {
    preflight::root()?;
    let instance = flags.data.instance();
    if let Some(pid) = process::running(&instance)? {
        process::stop(pid, Duration::from_secs(30))?;
        println!("✓ minke (process {pid}) stopped");
    }
    members::remove(&instance)?;
    let ended = end_containers(&instance);
    if ended > 0 {
        println!("✓ {ended} container processes ended");
    }
    unmount_below(&[instance.data.clone(), instance.run()])?;
    remove_network(&instance)?;
    remove_cgroups(&instance)?;
    sysctls::restore(&instance)?;
    remove_directory(&instance.run())?;
    remove_directory(&instance.pid_file())?;
    if flags.purge {
        remove_directory(&instance.data)?;
        println!("✓ {} removed", instance.data.display());
    } else if instance.data.exists() {
        println!("data is kept in {} (remove it with --purge)", instance.data.display());
    }
    Ok(())
}

/// What a member in a namespace of its own left outside it.
pub fn remove_member(member: &Instance) -> Result<()> {
    end_containers(member);
    unmount_below(&[member.data.clone(), member.run()])?;
    remove_cgroups(member)?;
    remove_directory(&member.cni_data())?;
    remove_directory(&member.run())?;
    remove_directory(&member.pid_file())
}

/// Kills containerd, its shims and everything in our cgroups. Returns how many processes that were.
pub fn end_containers(instance: &Instance) -> usize {
    let address = instance.containerd_socket();
    let address = address.to_string_lossy();
    let config = instance.containerd_root().to_string_lossy().into_owned();
    let mut ended = 0;
    // containerd first, or it would report (and clean up after) every shim that ends.
    for wanted in ["containerd", "containerd-shim-runc-v2"] {
        let ours = |words: &[String]| {
            words.first().is_some_and(|program| program.ends_with(wanted))
                && words.iter().any(|w| w.contains(address.as_ref()) || w.contains(&config))
        };
        ended += end_all(processes().into_iter().filter(|(_, words)| ours(words)).map(|(pid, _)| pid));
    }
    ended + end_all(cgroup_directories(instance).iter().flat_map(|d| pids_below(d)))
}

fn end_all(pids: impl Iterator<Item = i32>) -> usize {
    let mut ended = 0;
    for pid in pids {
        let Some(handle) = rustix::process::Pid::from_raw(pid)
            .and_then(|p| rustix::process::pidfd_open(p, rustix::process::PidfdFlags::empty()).ok())
        else {
            continue;
        };
        if rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL).is_ok() {
            ended += 1;
            use std::os::fd::AsFd;
            let mut waiting = [nix::poll::PollFd::new(handle.as_fd(), nix::poll::PollFlags::POLLIN)];
            // A process in uninterruptible sleep may outlive this; its cgroup then says so below.
            if let Err(error) = nix::poll::poll(&mut waiting, nix::poll::PollTimeout::from(5000u16)) {
                tracing::debug!(%error, pid, "couldn't wait for a process");
            }
        }
    }
    ended
}

fn processes() -> Vec<(i32, Vec<String>)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some((pid, line.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect()))
    })
    .collect()
}

/// Our cgroup in every hierarchy: one on v2, one per controller on v1.
fn cgroup_directories(instance: &Instance) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let name = instance.cgroup();
    let name = name.trim_start_matches('/');
    let controllers = fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path());
    controllers.chain([root.to_path_buf()]).map(|d| d.join(name)).filter(|d| d.is_dir()).collect()
}

fn directories_below(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_path_buf()];
    let mut next = 0;
    while next < found.len() {
        let entries = fs::read_dir(&found[next]).into_iter().flatten().flatten();
        found.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
        next += 1;
    }
    found
}

fn pids_below(cgroup: &Path) -> Vec<i32> {
    let read = |d: &PathBuf| fs::read_to_string(d.join("cgroup.procs")).unwrap_or_default();
    let own = std::process::id() as i32;
    directories_below(cgroup)
        .iter()
        .flat_map(|d| read(d).lines().filter_map(|l| l.parse().ok()).collect::<Vec<i32>>())
        .filter(|pid| *pid != own)
        .collect()
}

fn remove_cgroups(instance: &Instance) -> Result<()> {
    for top in cgroup_directories(instance) {
        // Children before parents: a cgroup can only go when it is empty.
        for directory in directories_below(&top).iter().rev() {
            fs::remove_dir(directory).with_context(|| format!("failed to remove cgroup {}", directory.display()))?;
        }
    }
    Ok(())
}

/// Unmounts everything mounted below these directories, innermost first. What another mount covers comes to light when that
/// is gone, so it is looked again until nothing is left.
fn unmount_below(directories: &[PathBuf]) -> Result<()> {
    loop {
        let mounts = fs::read_to_string("/proc/self/mounts").context("failed to read the mount table")?;
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let points = points.map(|p| PathBuf::from(p.replace("\\040", " ")));
        let mut ours: Vec<_> = points.filter(|p| directories.iter().any(|d| p.starts_with(d) && p != d)).collect();
        ours.sort();
        let (mut unmounted, mut failed) = (0, None);
        for point in ours.iter().rev() {
            match nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH) {
                Ok(()) => unmounted += 1,
                Err(error) => failed = failed.or(Some((point.clone(), error))),
            }
        }
        match failed {
            None => return Ok(()),
            Some((point, error)) if unmounted == 0 => {
                return Err(error).with_context(|| format!("failed to unmount {}", point.display()));
            }
            Some(_) => {}
        }
    }
}

fn remove_network(instance: &Instance) -> Result<()> {
    if switch::exists(&instance.vxlan()) {
        switch::ip(&["link", "del", &instance.vxlan()], "")?;
    }
    let params = cni::CleanupParams {
        name: instance.id.clone(),
        bridge: instance.bridge(),
        table: instance.cni_table(),
        data_dir: instance.cni_data(),
    };
    cni::cleanup(&params).map_err(|e| anyhow::anyhow!("failed to remove the pod network: {e:?}"))?;
    cni_directories::remove_recorded(instance)?;
    proxy::withdraw_recorded(&instance.announced_addresses());
    let tables = [instance.proxy_table(), instance.policy_table()];
    let tables = tables.iter().flat_map(|table| ["ip", "ip6", "inet"].map(|family| (family, table)));
    for (family, table) in tables {
        // `add` first, so that `delete` does not fail when there is none.
        for verb in ["add", "delete"] {
            let done = Command::new("nft").args([verb, "table", family, table]).output();
            let done = done.context("failed to run nft: install it with apt-get install nftables")?;
            if !done.status.success() {
                tracing::debug!(family, table, error = %String::from_utf8_lossy(&done.stderr), "nft refused");
            }
        }
    }
    Ok(())
}

fn remove_directory(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
