//! The process that stays behind: its pid file, its signals, and how others find and end it.
//! Used by `up` and `down`.
//! Invariant: one process per data directory, held by a lock that dies with it.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    os::fd::AsFd,
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

use crate::instance::Instance;

/// Held for the life of the process.
pub struct PidFile {
    _lock: Flock<File>,
}

impl PidFile {
    pub fn take(instance: &Instance) -> Result<Self> {
        let path = instance.pid_file();
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                lock.set_len(0)?;
                lock.rewind()?;
                writeln!(lock, "{}", std::process::id())?;
                lock.sync_all()?;
                Ok(Self { _lock: lock })
            }
            Err((_, Errno::EWOULDBLOCK)) => bail!(
                "another minke uses {}: stop it with `minke down`, or choose another place with --data-dir",
                instance.data.display()
            ),
            Err((_, error)) => Err(error).with_context(|| format!("can't lock {}", path.display())),
        }
    }
}

/// The process of a running cluster, if there is one.
pub fn running(instance: &Instance) -> Result<Option<i32>> {
    let mut file = match OpenOptions::new().read(true).write(true).open(instance.pid_file()) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("can't open {}", instance.pid_file().display())),
    };
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => Ok(None),
        Err((_, Errno::EWOULDBLOCK)) => Ok(text.trim().parse().ok()),
        Err((_, error)) => Err(error.into()),
    }
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
