//! The access log: one line per request, in the combined form that log readers know, written behind the requests' backs.
//! Lines come from `proxy`; a thread of its own writes them. A log that has grown large becomes `<name>.1`, in the place of
//! the one before it.
//! Invariant: a disk that is slow or full delays no request; what it can't take is dropped (type: a bounded channel that
//! nobody waits for).

use std::{
    fs::{File, OpenOptions},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

const WAITING_LINES_MAX: usize = 16 << 10;
/// Of one file; there are two of them.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Where lines go. Cheap to clone; the last one that is dropped ends the log.
#[derive(Clone)]
pub struct AccessLog {
    lines: SyncSender<String>,
    dropped: Arc<AtomicU64>,
}

impl AccessLog {
    /// Appends to `path`, which is made where it is not there.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Self::open_limited(path, FILE_BYTES_MAX)
    }

    fn open_limited(path: &Path, bytes_max: u64) -> std::io::Result<Self> {
        let file = LogFile::open(path.to_owned(), bytes_max)?;
        let (lines, waiting) = sync_channel(WAITING_LINES_MAX);
        std::thread::Builder::new().name("access-log".into()).spawn(move || write(file, &waiting))?;
        Ok(Self { lines, dropped: Arc::default() })
    }

    pub fn line(&self, line: String) {
        if self.lines.try_send(line).is_err() && self.dropped.fetch_add(1, Ordering::Relaxed).is_multiple_of(10_000) {
            tracing::warn!("the access log can't keep up: lines are lost");
        }
    }
}

struct LogFile {
    path: PathBuf,
    bytes_max: u64,
    bytes: u64,
    out: BufWriter<File>,
}

impl LogFile {
    fn open(path: PathBuf, bytes_max: u64) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, bytes_max, bytes, out: BufWriter::with_capacity(64 << 10, file) })
    }

    fn line(&mut self, line: &str) -> std::io::Result<()> {
        self.bytes += line.len() as u64;
        self.out.write_all(line.as_bytes())
    }

    /// Begins a new file when this one is full. One that is no file, as a pipe, grows nowhere.
    fn rotate(&mut self) -> std::io::Result<()> {
        if self.bytes < self.bytes_max || !self.out.get_ref().metadata()?.is_file() {
            return Ok(());
        }
        let mut former = self.path.clone().into_os_string();
        former.push(".1");
        std::fs::rename(&self.path, former)?;
        *self = Self::open(self.path.clone(), self.bytes_max)?;
        Ok(())
    }
}

/// Writes what has gathered in one go.
fn write(mut file: LogFile, waiting: &Receiver<String>) {
    while let Ok(first) = waiting.recv() {
        let mut lines = std::iter::once(first).chain(waiting.try_iter());
        let written = lines.try_for_each(|line| file.line(&line));
        if let Err(error) = written.and_then(|()| file.out.flush()).and_then(|()| file.rotate()) {
            tracing::warn!(%error, "failed to write to the access log");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_has_grown_large_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access");
        let mut file = LogFile::open(path.clone(), 100).unwrap();
        for number in 0..100 {
            file.line(&format!("line {number:3}\n")).unwrap();
            file.out.flush().unwrap();
            file.rotate().unwrap();
        }
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let (now, former) = (read(&path), read(&directory.path().join("access.1")));
        assert!(now.len() <= 100 && former.len() <= 110 && former.len() >= 100, "{} {}", now.len(), former.len());
        let both = former + &now;
        assert!(both.ends_with("line  99\n"), "{both}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
