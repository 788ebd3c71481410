//! Who starts minke at boot: systemd, OpenRC, or nobody.
//! Used by `install`; the service files are in `packaging`, where the Debian package takes them from.
//! A restart ends the minke process only: containers go on.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::cluster::{instance::Instance, process};

const SYSTEMD_UNIT: &str = include_str!("../../../packaging/minke.service");
const OPENRC_SCRIPT: &str = include_str!("../../../packaging/minke.openrc");
const STOP_TIMEOUT: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    Systemd,
    OpenRc,
    Nobody,
}

impl Service {
    pub fn of(root: &Path) -> Self {
        let is_this_system = root == Path::new("/");
        // A container may have systemd's files without systemd.
        let systemd = if is_this_system { "/run/systemd/system" } else { "lib/systemd/system" };
        match () {
            () if root.join(systemd).is_dir() => Self::Systemd,
            () if root.join("sbin/openrc-run").exists() && root.join("etc/init.d").is_dir() => Self::OpenRc,
            () => Self::Nobody,
        }
    }

    pub fn files(self) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::Systemd => vec![("etc/systemd/system/minke.service", SYSTEMD_UNIT)],
            Self::OpenRc => vec![("etc/init.d/minke", OPENRC_SCRIPT)],
            Self::Nobody => Vec::new(),
        }
    }

    pub fn file_mode(self) -> u32 {
        if self == Self::OpenRc { 0o755 } else { 0o644 }
    }

    pub fn start_hint(self) -> &'static str {
        match self {
            Self::Systemd => "systemctl enable --now minke",
            Self::OpenRc => "rc-update add minke default && rc-service minke start",
            Self::Nobody => "minke up",
        }
    }

    /// Starts the new program in the place of one that runs.
    pub fn restart(self, instance: &Instance) -> Result<()> {
        match self {
            Self::Systemd => {
                run("systemctl", &["daemon-reload"])?;
                run("systemctl", &["enable", "--quiet", "minke.service"])?;
                end_unsupervised(instance)?;
                run("systemctl", &["restart", "minke.service"])
                    .context("it did not start: see `journalctl -u minke`, and `minke doctor`")?;
                println!("✓ minke runs as a service of systemd");
            }
            Self::OpenRc => {
                run("rc-update", &["add", "minke", "default"])?;
                end_unsupervised(instance)?;
                run("rc-service", &["minke", "restart"])
                    .context("it did not start: see /var/log/minke.log, and `minke doctor`")?;
                println!("✓ minke runs as a service of OpenRC");
            }
            Self::Nobody => match process::running(instance)? {
                Some(pid) => {
                    let arguments = arguments_of(pid)?;
                    process::stop(pid, STOP_TIMEOUT)?;
                    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
                    run("/usr/local/bin/minke", &words)?;
                }
                None => println!("neither systemd nor OpenRC runs here: start it with `minke up`"),
            },
        }
        Ok(())
    }

    /// Ends the minke process; containers are `down`'s.
    pub fn stop(self) -> Result<()> {
        match self {
            Self::Systemd if Path::new("/etc/systemd/system/minke.service").exists() => {
                run("systemctl", &["disable", "--quiet", "--now", "minke.service"])
            }
            Self::OpenRc if Path::new("/etc/init.d/minke").exists() => {
                run("rc-service", &["--ifstarted", "minke", "stop"])?;
                run("rc-update", &["delete", "minke"])
            }
            _ => Ok(()),
        }
    }

    pub fn forget(self) -> Result<()> {
        if self == Self::Systemd { run("systemctl", &["daemon-reload"]) } else { Ok(()) }
    }
}

/// A cluster that somebody started by hand makes room for the service; its containers are taken over.
fn end_unsupervised(instance: &Instance) -> Result<()> {
    let Some(pid) = process::running(instance)? else { return Ok(()) };
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    if !cgroup.contains("minke.service") {
        process::stop(pid, STOP_TIMEOUT)?;
    }
    Ok(())
}

/// What a process in the background was started with.
fn arguments_of(pid: i32) -> Result<Vec<String>> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).with_context(|| format!("can't look at process {pid}"))?;
    let words = line.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    Ok(words.skip(1).filter(|word| !word.is_empty() && word != "--foreground").collect())
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let status = Command::new(program).args(arguments).stdin(Stdio::null()).status();
    match status.with_context(|| format!("failed to run {program}"))? {
        status if status.success() => Ok(()),
        status => bail!("`{program} {}` failed ({status})", arguments.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_whose_files_are_there() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert_eq!(Service::of(root), Service::Nobody);
        fs::create_dir_all(root.join("etc/init.d")).unwrap();
        fs::create_dir_all(root.join("sbin")).unwrap();
        fs::write(root.join("sbin/openrc-run"), "").unwrap();
        assert_eq!(Service::of(root), Service::OpenRc);
        fs::create_dir_all(root.join("lib/systemd/system")).unwrap();
        assert_eq!(Service::of(root), Service::Systemd);
        for service in [Service::Systemd, Service::OpenRc] {
            let (_, text) = service.files()[0];
            assert!(text.contains("@BINARY@") && text.contains("up --foreground"), "{text}");
        }
    }

    #[test]
    fn a_process_tells_what_it_was_started_with() {
        let mut child = Command::new("sleep").args(["1000"]).spawn().unwrap();
        // The kernel lets the parent go on before the child's arguments can be read.
        let mut told = arguments_of(child.id() as i32).unwrap();
        while told.is_empty() {
            std::thread::yield_now();
            told = arguments_of(child.id() as i32).unwrap();
        }
        assert_eq!(told, ["1000"]);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
