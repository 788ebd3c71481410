//! The process that stays behind: its pid file, its signals, and how others find and end it.
//! Used by `up` and `down`.
//! One process per data directory, held by a lock that dies with it.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::cluster::{file_modes::PRIVATE_FILE_MODE, instance::Instance};

const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Half a minute.
const EXIT_POLLS_MAX: u32 = 3000;

/// Held for the life of the process.
pub struct PidFile {
    _lock: Flock<File>,
}

impl PidFile {
    /// Whoever holds the lock without being named in the file has been killed a moment ago, or only looks whether a
    /// process runs (`running`): that is waited for.
    pub fn take(instance: &Instance) -> Result<Self> {
        let path = instance.pid_file();
        for _ in 0..EXIT_POLLS_MAX {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .mode(PRIVATE_FILE_MODE)
                .open(&path)?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(mut lock) => {
                    lock.set_len(0)?;
                    lock.rewind()?;
                    writeln!(lock, "{}", std::process::id())?;
                    lock.sync_all()?;
                    return Ok(Self { _lock: lock });
                }
                Err((mut file, Errno::EWOULDBLOCK)) => match live_process(&mut file)? {
                    None => std::thread::sleep(EXIT_POLL_INTERVAL),
                    Some(_) => bail!(
                        "another minke uses {}: stop it with `minke down`, or choose another place with --data-dir",
                        instance.data.display()
                    ),
                },
                Err((_, error)) => return Err(error).with_context(|| format!("can't lock {}", path.display())),
            }
        }
        bail!("{}", still_held(instance))
    }
}

impl PidFile {
    /// Held on by the program that this process becomes.
    pub fn hand_over(self) -> Result<()> {
        let keep = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty());
        nix::fcntl::fcntl(&*self._lock, keep).context("failed to hand the lock of the data directory over")?;
        std::mem::forget(self);
        Ok(())
    }
}

/// The process of a running cluster, if there is one. One that was killed is waited for: it holds its lock until the
/// last of its threads has ended.
pub fn running(instance: &Instance) -> Result<Option<i32>> {
    for _ in 0..EXIT_POLLS_MAX {
        let file = match OpenOptions::new().read(true).write(true).open(instance.pid_file()) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("can't open {}", instance.pid_file().display())),
        };
        // Shared: those who only look do not see each other.
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_) => return Ok(None),
            Err((mut file, Errno::EWOULDBLOCK)) => match live_process(&mut file)? {
                Some(pid) => return Ok(Some(pid)),
                None => std::thread::sleep(EXIT_POLL_INTERVAL),
            },
            Err((_, error)) => return Err(error.into()),
        }
    }
    bail!("{}", still_held(instance))
}

fn still_held(instance: &Instance) -> String {
    format!("something still holds {}, though its process is gone: see `fuser` for what", instance.pid_file().display())
}

/// The process that the file names, if it lives. Without a number it has only just begun to write it.
fn live_process(file: &mut File) -> Result<Option<i32>> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text.trim().parse().ok().filter(|pid| is_alive(*pid)))
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Asks the process to end and waits; kills it when it takes too long.
pub fn stop(pid: i32, patience: Duration) -> Result<()> {
    let Some(handle) = open_pidfd(pid) else { return Ok(()) };
    match kill(Pid::from_raw(pid), Signal::SIGTERM) {
        Ok(()) => {}
        Err(Errno::ESRCH) => return Ok(()),
        Err(error) => return Err(error).context(format!("can't stop process {pid}")),
    }
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    let mut waiting = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
    if poll(&mut waiting, timeout)? == 0 {
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        let mut waiting = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
        poll(&mut waiting, PollTimeout::try_from(Duration::from_secs(5)).unwrap_or(PollTimeout::MAX))?;
    }
    Ok(())
}

/// A handle that becomes readable when the process ends; `None` if it has.
fn open_pidfd(pid: i32) -> Option<std::os::fd::OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// Returns when the process has ended, whoever's child it is.
pub async fn ended(pid: i32) {
    let Some(handle) = open_pidfd(pid) else { return };
    // Deprecated because a type may lie about its descriptor; an OwnedFd does not, and this way needs no unsafe.
    #[allow(deprecated)]
    let waited = match tokio::io::unix::AsyncFd::new(handle) {
        Ok(handle) => handle.readable().await.map(drop),
        Err(error) => Err(error),
    };
    if let Err(error) = waited {
        tracing::warn!(%error, pid, "failed to wait for a process");
    }
}

/// Returns on SIGTERM or SIGINT.
pub async fn until_stopped() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_counts_only_while_its_process_lives() {
        let directory = tempfile::tempdir().unwrap();
        let instance = Instance::new(directory.path());
        assert_eq!(running(&instance).unwrap(), None);
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let hold = || {
            let mut lock = PidFile::take(&instance).unwrap();
            lock._lock.set_len(0).unwrap();
            lock._lock.rewind().unwrap();
            writeln!(lock._lock, "{}", child.id()).unwrap();
            lock
        };
        let lock = hold();
        assert_eq!(running(&instance).unwrap(), Some(child.id() as i32));
        child.kill().unwrap();
        while is_alive(child.id() as i32) {
            std::thread::sleep(EXIT_POLL_INTERVAL);
        }
        // Nobody has waited for it: it is a zombie, and something of it still holds the lock.
        let released = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(lock);
        });
        assert_eq!(running(&instance).unwrap(), None);
        released.join().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_only_looks_whether_a_process_runs_keeps_none_from_starting() {
        let directory = tempfile::tempdir().unwrap();
        let instance = Instance::new(directory.path());
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        std::fs::write(instance.pid_file(), ended.id().to_string()).unwrap();
        let file = File::open(instance.pid_file()).unwrap();
        let look = Flock::lock(file, FlockArg::LockSharedNonblock).unwrap();
        assert_eq!(running(&instance).unwrap(), None, "another who looks is no process");
        let looked = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(look);
        });
        let lock = PidFile::take(&instance).unwrap();
        looked.join().unwrap();
        assert!(PidFile::take(&instance).is_err_and(|error| error.to_string().contains("another minke uses")));
        drop(lock);
    }
}
