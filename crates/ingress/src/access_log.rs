//! The access log: one line per request, in the combined form that log readers know, written behind the requests' backs.
//! Lines come from `proxy`; a thread of its own writes them.
//! Invariant: a disk that is slow or full delays no request; what it can't take is counted and dropped.

use std::{
    fs::{File, OpenOptions},
    io::{BufWriter, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

const WAITING_LINES_MAX: usize = 16 << 10;

/// Where lines go. Cheap to clone; the last one that is dropped ends the log.
#[derive(Clone)]
pub struct AccessLog {
    lines: SyncSender<String>,
    dropped: Arc<AtomicU64>,
}

impl AccessLog {
    /// Appends to `path`, which is made where it is not there.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let (lines, waiting) = sync_channel(WAITING_LINES_MAX);
        std::thread::Builder::new().name("access-log".into()).spawn(move || write(file, &waiting))?;
        Ok(Self { lines, dropped: Arc::default() })
    }

    pub fn line(&self, line: String) {
        if self.lines.try_send(line).is_err() && self.dropped.fetch_add(1, Ordering::Relaxed) % 10_000 == 0 {
            tracing::warn!("the access log can't keep up: lines are lost");
        }
    }
}

/// Writes what has gathered in one go.
fn write(file: File, waiting: &Receiver<String>) {
    let mut out = BufWriter::with_capacity(64 << 10, file);
    while let Ok(first) = waiting.recv() {
        let lines = std::iter::once(first).chain(waiting.try_iter());
        let written = lines.into_iter().try_for_each(|line| out.write_all(line.as_bytes()));
        if let Err(error) = written.and_then(|()| out.flush()) {
            tracing::warn!(%error, "failed to write to the access log");
        }
    }
}
