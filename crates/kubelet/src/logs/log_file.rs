//! Knows when a container's log is complete: runtimes report an exit before their log writers have written all they hold.
//! Used by `server::logs` and for termination messages.
//! Waits for the writer to close the file, never by looking again and again, and never longer than
//! `WRITER_CLOSE_TIMEOUT`.

use std::{
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use env::Env;
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use nix::libc;

/// A busy disk may hold up the writer for seconds; one that takes longer does not write what the container said.
const WRITER_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// From the kernel's `fcntl.h`; `libc` leaves it out.
const F_SETSIG: libc::c_int = 10;

/// Returns when nobody has the file open for writing any more.
pub async fn complete(env: &Env, file: &impl AsFd) {
    if !is_being_written(file) {
        return;
    }
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let watch = || {
        let inotify = Inotify::init()?;
        inotify.watches().add(path, WatchMask::CLOSE_WRITE)?;
        inotify.into_event_stream(vec![0; 1024])
    };
    let Ok(mut closed) = watch() else { return };
    let wait = async {
        // Looked at once more after the watch began, so that no end falls in between.
        while is_being_written(file) && closed.next().await.is_some() {}
    };
    if env.timeout(WRITER_CLOSE_TIMEOUT, wait).await.is_none() {
        tracing::debug!("a log is still held open for writing long after its container has ended");
    }
}

/// The kernel grants a read lease only on a file that nobody has open for writing.
fn is_being_written(file: &impl AsFd) -> bool {
    let file = file.as_fd().as_raw_fd();
    let control = |command: libc::c_int, argument: libc::c_int| {
        // SAFETY: these commands take a number and touch no memory of ours; the descriptor is borrowed, so it is open.
        #[allow(unsafe_code)]
        unsafe {
            libc::fcntl(file, command, argument)
        }
    };
    // Somebody who opens the file for writing just now makes the kernel signal us: with one that is ignored unless wanted.
    control(F_SETSIG, libc::SIGURG);
    if control(libc::F_SETLEASE, libc::F_RDLCK) == 0 {
        control(libc::F_SETLEASE, libc::F_UNLCK);
        return false;
    }
    // File systems without leases can't tell.
    nix::errno::Errno::last() == nix::errno::Errno::EAGAIN
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write};

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_log_is_complete_when_its_writer_has_closed_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let mut writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        let env = Env::real();
        assert!(is_being_written(&reader));
        let mut waiting = Box::pin(complete(&env, &reader));
        assert!(waiting.as_mut().now_or_never().is_none());
        writer.write_all(b"last").unwrap();
        drop(writer);
        waiting.await;
        assert!(!is_being_written(&reader));
        assert!(complete(&env, &reader).now_or_never().is_some());
    }
}
