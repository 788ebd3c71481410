//! The log file of a process in the background, kept from growing without end: one that is full becomes `<name>.1`, in
//! the place of the one before it.
//! Lines come from `logging`; `commands::up` and `cluster::members` have opened the file as such a process's stderr.
//! A log that somebody else opened (a terminal, a shell's `>`, a service manager) is left alone.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use parking_lot::Mutex;

use crate::{cluster::file_modes, commands::report::SUPERVISED};

/// Of one file; there are two of them.
const FILE_BYTES_MAX: u64 = 64 << 20;

static OWN: LazyLock<Option<Mutex<LogFile>>> = LazyLock::new(|| {
    std::env::var_os(SUPERVISED)?;
    let path = fs::read_link("/proc/self/fd/2").ok().filter(|path| path.is_file())?;
    LogFile::new(path, FILE_BYTES_MAX).ok().map(Mutex::new)
});

/// Where log lines go.
pub fn stderr() -> Stderr {
    Stderr
}

pub struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = io::stderr().write(bytes)?;
        if let Some(own) = &*OWN {
            // Whatever else writes to it, as a panic does, follows to the new file.
            let replace = |file: &File| nix::unistd::dup2_stderr(file.as_fd()).map_err(io::Error::from);
            // There is no other log to tell of it; the next line tries again.
            let _ = own.lock().grew(written, replace);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

struct LogFile {
    path: PathBuf,
    bytes: u64,
    bytes_max: u64,
}

impl LogFile {
    fn new(path: PathBuf, bytes_max: u64) -> io::Result<Self> {
        let bytes = fs::metadata(&path)?.len();
        Ok(Self { path, bytes, bytes_max })
    }

    /// Begins a new file when this one is full; `replace` has lines go there.
    fn grew(&mut self, by: usize, replace: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        self.bytes += by as u64;
        if self.bytes < self.bytes_max {
            return Ok(());
        }
        // Tried again after as much once more, not with every line.
        self.bytes = 0;
        fs::rename(&self.path, former(&self.path))?;
        let file = file_modes::open_log(&self.path).map_err(io::Error::other)?;
        replace(&file)
    }
}

fn former(path: &Path) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_full_log_makes_room_for_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("minke.log");
        let mut out = file_modes::open_log(&path).unwrap();
        let mut log = LogFile::new(path.clone(), 100).unwrap();
        for number in 0..100 {
            let line = format!("line {number:3}\n");
            out.write_all(line.as_bytes()).unwrap();
            let mut next = None;
            log.grew(line.len(), |file| file.try_clone().map(|file| next = Some(file))).unwrap();
            out = next.unwrap_or(out);
        }
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let (old, new) = (read(&former(&path)), read(&path));
        assert!(old.len() >= 100 && old.len() <= 110 && new.len() < 100, "{} {}", old.len(), new.len());
        assert!(format!("{old}{new}").ends_with("line  98\nline  99\n"), "{new}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
