//! Entering network namespaces, and the kernel switches inside them.
//! Used by `attach`; everything here acts on the calling thread only.
//! A thread leaves `within` in the namespace it came from, whatever happened inside.

use std::{fs, fs::File, path::Path};

use nix::sched::{CloneFlags, setns};

use crate::types::Error;

/// Opens a namespace by path. `None` when it is gone: that is normal for DEL.
pub fn open(path: &str) -> Result<Option<File>, Error> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("failed to open network namespace {path}: {error}"))),
    }
}

/// Runs `inside` with this thread in `namespace`.
pub fn within<T>(namespace: &File, inside: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    struct Back(File);
    impl Drop for Back {
        fn drop(&mut self) {
            // Staying in the wrong namespace would configure the wrong machine.
            setns(&self.0, CloneFlags::CLONE_NEWNET).expect("a thread can return to the namespace it came from");
        }
    }
    let own = File::open("/proc/thread-self/ns/net")
        .map_err(|error| Error::io(format!("failed to open the own network namespace: {error}")))?;
    setns(namespace, CloneFlags::CLONE_NEWNET)
        .map_err(|errno| Error::io(format!("failed to enter the container's network namespace: {errno}")))?;
    let _back = Back(own);
    inside()
}

/// Sets `net.<key>` in the current namespace; a value already there is not written again.
pub fn sysctl(key: &str, value: &str) -> Result<(), Error> {
    let path = Path::new("/proc/sys/net").join(key);
    if fs::read_to_string(&path).is_ok_and(|now| now.trim() == value) {
        return Ok(());
    }
    fs::write(&path, value).map_err(|error| Error::io(format!("failed to set {}={value}: {error}", path.display())))
}

/// The same for a switch that a kernel may lack.
pub fn sysctl_if_present(key: &str, value: &str) {
    if Path::new("/proc/sys/net").join(key).exists() {
        // A read-only /proc/sys is the host's choice; what depends on it reports its own failure.
        let _ = sysctl(key, value);
    }
}
