//! Container logs from the runtime's files: tail, since, timestamps, limits, across the last rotation and the next ones.
//! Called by the server for `/containerLogs`; the lines reach `kubectl logs` as they are written.
//! Reads forward only what it needs; following waits for the file to change, never polls.

use std::{
    io::{self, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use bytes::{Bytes, BytesMut};
use env::Env;
use futures::{Stream, StreamExt, stream};
use inotify::{Inotify, WatchMask};
use jiff::Timestamp;
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};

use crate::{
    files::safe_open,
    logs::{log_file, log_rotation},
    runtime::container_exits::ContainerExit,
};

const CHUNK_BYTES: usize = 64 << 10;
/// A runtime splits longer lines into partial ones of 16 KiB.
const LINE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub since: Option<Timestamp>,
    /// `Stdout`, `Stderr` or both.
    pub stream: Option<&'static str>,
}

/// A parameter of a request for logs that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("invalid {name}: {value:?}")]
pub struct LogOptionsError {
    name: String,
    value: String,
}

impl LogOptions {
    /// From the query of a request.
    pub fn parse(query: &[(String, String)], now: Timestamp) -> Result<Self, LogOptionsError> {
        let mut options = Self::default();
        for (name, value) in query {
            let invalid = || LogOptionsError { name: name.clone(), value: value.clone() };
            let number = || value.parse::<u64>().map_err(|_| invalid());
            let flag = || value.is_empty() || super::is_true(value);
            match name.as_str() {
                "follow" => options.follow = flag(),
                "previous" => options.previous = flag(),
                "timestamps" => options.timestamps = flag(),
                "tailLines" => options.tail_lines = Some(number()?),
                "limitBytes" => options.limit_bytes = Some(number()?),
                "sinceSeconds" => {
                    let seconds = i64::try_from(number()?).map_err(|_| invalid())?;
                    let since = now.checked_sub(jiff::SignedDuration::from_secs(seconds));
                    options.since = Some(since.unwrap_or(Timestamp::MIN));
                }
                "sinceTime" => options.since = Some(value.parse().map_err(|_| invalid())?),
                "stream" if value == "Stdout" => options.stream = Some("stdout"),
                "stream" if value == "Stderr" => options.stream = Some("stderr"),
                "stream" if value != "All" => return Err(invalid()),
                _ => {}
            }
        }
        Ok(options)
    }
}

/// One line of a CRI log file: `<time> <stream> <P|F> <text>`.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    time: &'a str,
    stream: &'a str,
    partial: bool,
    text: &'a [u8],
}

fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |b| *b == b' ');
    let mut word = || parts.next().and_then(|w| std::str::from_utf8(w).ok());
    let (time, stream, tag) = (word()?, word()?, word()?);
    let known = matches!(stream, "stdout" | "stderr") && tag.starts_with(['P', 'F']);
    known.then_some(())?;
    Some(Line { time, stream, partial: tag.starts_with('P'), text: parts.next().unwrap_or_default() })
}

/// The time with all nine digits after the point, as clients see it whatever the runtime leaves out.
fn fixed(time: &str) -> String {
    let zone = time.rfind(['Z', '+', '-']).filter(|at| *at > "2006-01-02".len()).unwrap_or(time.len());
    let (clock, zone) = time.split_at(zone);
    let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    format!("{seconds}.{fraction:0<9.9}{zone}")
}

/// Formats lines for the client until the byte limit is reached.
struct Formatter {
    options: LogOptions,
    left: u64,
    /// What comes next goes on with a line that the runtime has split.
    inside: bool,
}

impl Formatter {
    fn new(options: LogOptions) -> Self {
        let left = options.limit_bytes.unwrap_or(u64::MAX);
        Self { options, left, inside: false }
    }

    fn wanted(&self, line: &Line<'_>) -> bool {
        let recent = self.options.since.is_none_or(|since| line.time.parse::<Timestamp>().is_ok_and(|t| t >= since));
        recent && self.options.stream.is_none_or(|stream| stream == line.stream)
    }

    fn push(&mut self, line: &[u8], out: &mut BytesMut) {
        let Some(line) = parse(line).filter(|l| self.wanted(l)) else { return };
        let start = out.len();
        if self.options.timestamps && !self.inside {
            out.extend_from_slice(fixed(line.time).as_bytes());
            out.extend_from_slice(b" ");
        }
        self.inside = line.partial;
        out.extend_from_slice(line.text);
        if !line.partial {
            out.extend_from_slice(b"\n");
        }
        let added = (out.len() - start) as u64;
        if added > self.left {
            out.truncate(start + self.left as usize);
        }
        self.left = self.left.saturating_sub(added);
    }
}

/// Where reading starts so that `tail` lines follow, and how many of them must come from an earlier file.
/// Looks backward in blocks.
async fn tail_offset(file: &mut File, tail: u64) -> io::Result<(u64, u64)> {
    let length = file.seek(SeekFrom::End(0)).await?;
    if tail == 0 || length == 0 {
        return Ok((length, tail));
    }
    let (mut position, mut found) = (length, 0);
    let mut block = vec![0; CHUNK_BYTES];
    while position > 0 {
        let size = position.min(CHUNK_BYTES as u64);
        position -= size;
        file.seek(SeekFrom::Start(position)).await?;
        let block = &mut block[..size as usize];
        file.read_exact(block).await?;
        for (i, byte) in block.iter().enumerate().rev() {
            // The newline that ends the last line starts nothing.
            if *byte == b'\n' && position + (i as u64) + 1 < length {
                found += 1;
                if found == tail {
                    return Ok((position + i as u64 + 1, 0));
                }
            }
        }
    }
    Ok((0, tail - found - 1))
}

/// A log, where pods may have put something else in its place.
async fn open_plain(path: &Path) -> io::Result<File> {
    let path = path.to_path_buf();
    let opened = env::spawn_blocking(move || safe_open::file(&path)).await.map_err(io::Error::other)?;
    opened.map(File::from_std)
}

async fn rotated(path: &Path) -> Vec<PathBuf> {
    let path = path.to_path_buf();
    env::spawn_blocking(move || log_rotation::rotated(&path)).await.unwrap_or_default()
}

/// The container's file and, where the node has just rotated the log, the one before it: each where reading starts.
async fn open(path: &Path, tail: Option<u64>) -> io::Result<(File, Option<File>)> {
    let mut file = match open_plain(path).await {
        // In the middle of a rotation.
        Err(error) if error.kind() == io::ErrorKind::NotFound => match rotated(path).await.pop() {
            Some(newest) => open_plain(&newest).await?,
            None => return Err(error),
        },
        opened => opened?,
    };
    let (start, missing) = match tail {
        Some(lines) => tail_offset(&mut file, lines).await?,
        None => (0, u64::MAX),
    };
    file.seek(SeekFrom::Start(start)).await?;
    if missing == 0 {
        return Ok((file, None));
    }
    // Looked for after the other was opened: a rotation in between only makes it its own predecessor.
    let own = file.metadata().await?.ino();
    let mut earlier = None;
    for part in rotated(path).await.iter().rev() {
        if let Ok(part) = open_plain(part).await
            && part.metadata().await?.ino() != own
        {
            earlier = Some(part);
            break;
        }
    }
    let Some(mut earlier) = earlier else { return Ok((file, None)) };
    if tail.is_some() {
        let (start, _) = tail_offset(&mut earlier, missing).await?;
        earlier.seek(SeekFrom::Start(start)).await?;
    }
    Ok((earlier, Some(file)))
}

struct Tailer<F> {
    env: Env,
    path: PathBuf,
    file: File,
    /// The file that follows a rotated one.
    following: Option<File>,
    buffer: BytesMut,
    /// Inside something too long to be a line of a runtime's: dropped up to the next one.
    skipping: bool,
    formatter: Formatter,
    /// Tells whether the container still runs; asked when the file has nothing new.
    running: F,
    /// The container's end, which writes nothing to the file.
    exit: ContainerExit,
    changes: Option<inotify::EventStream<Vec<u8>>>,
    done: bool,
}

/// The lines as a stream of chunks, of a container that has `ended` or not. With `follow`, it ends when `running` is false and everything was read.
pub async fn read<F>(
    path: &Path,
    options: LogOptions,
    ended: bool,
    running: F,
    exit: ContainerExit,
    env: &Env,
) -> io::Result<impl Stream<Item = io::Result<Bytes>> + use<F>>
where
    F: AsyncFn() -> bool + Send + 'static,
{
    if ended {
        // Just before the end a rotation may have begun, or left the last lines to be written to the file before.
        for part in rotated(path).await.pop().into_iter().chain([path.to_path_buf()]) {
            if let Ok(file) = open_plain(&part).await {
                log_file::complete(env, &file).await;
            }
        }
    }
    // Before the first read, so that no write falls between reading and watching.
    let changes = if options.follow { Some(watch(path)?) } else { None };
    let (file, following) = open(path, options.tail_lines).await?;
    let tailer = Tailer {
        env: env.clone(),
        path: path.to_path_buf(),
        file,
        following,
        buffer: BytesMut::new(),
        skipping: false,
        formatter: Formatter::new(options),
        running,
        exit,
        changes,
        done: false,
    };
    Ok(stream::try_unfold(tailer, |mut tailer| async move { Ok(tailer.next().await?.map(|chunk| (chunk, tailer))) }))
}

/// Changes of the file, and of its directory: rotation moves it away and makes a new one.
fn watch(path: &Path) -> io::Result<inotify::EventStream<Vec<u8>>> {
    let inotify = Inotify::init()?;
    inotify.watches().add(path, WatchMask::MODIFY | WatchMask::MOVE_SELF | WatchMask::DELETE_SELF)?;
    if let Some(directory) = path.parent() {
        inotify.watches().add(directory, WatchMask::CREATE | WatchMask::DELETE_SELF)?;
    }
    inotify.into_event_stream(vec![0; 4096])
}

impl<F: AsyncFn() -> bool> Tailer<F> {
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut out = BytesMut::new();
        loop {
            if self.done || self.formatter.left == 0 {
                return Ok(None);
            }
            // Asked before reading: what was written before the end is read after the answer.
            let over = self.changes.is_some() && !(self.running)().await;
            if over {
                log_file::complete(&self.env, &self.file).await;
            }
            while self.fill(&mut out).await? {
                if out.len() >= CHUNK_BYTES || self.formatter.left == 0 {
                    return Ok(Some(out.freeze()));
                }
            }
            if !out.is_empty() {
                return Ok(Some(out.freeze()));
            }
            if let Some(next) = self.following.take() {
                self.file = next;
                self.buffer.clear();
                continue;
            }
            if self.changes.is_some() && self.rotated().await? {
                // The runtime writes to the old file until it has turned to the new one.
                log_file::complete(&self.env, &self.file).await;
                while self.fill(&mut out).await? {}
                self.reopen().await?;
                continue;
            }
            match &mut self.changes {
                Some(changes) if !over => {
                    self.done = tokio::select! {
                        change = changes.next() => change.is_none(),
                        () = self.exit.wait() => false,
                    };
                }
                _ => self.done = true,
            }
        }
    }

    /// Reads one block and formats its whole lines. `false` at the end of the file.
    async fn fill(&mut self, out: &mut BytesMut) -> io::Result<bool> {
        self.buffer.reserve(CHUNK_BYTES);
        if self.file.read_buf(&mut self.buffer).await? == 0 {
            return Ok(false);
        }
        while let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
            let line = self.buffer.split_to(end + 1);
            if !std::mem::take(&mut self.skipping) {
                self.formatter.push(&line[..end], out);
            }
        }
        if self.buffer.len() > LINE_BYTES_MAX {
            self.buffer.clear();
            self.skipping = true;
        }
        Ok(true)
    }

    async fn rotated(&self) -> io::Result<bool> {
        let ours = self.file.metadata().await?.ino();
        Ok(tokio::fs::symlink_metadata(&self.path).await.is_ok_and(|now| now.ino() != ours))
    }

    async fn reopen(&mut self) -> io::Result<()> {
        self.file = open_plain(&self.path).await?;
        self.changes = Some(watch(&self.path)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::container_exits::ContainerExits;

    const FILE: &str = "2026-01-01T00:00:00.1Z stdout F one\n2026-01-01T00:00:01.1Z stderr F two\n\
        2026-01-01T00:00:02.1Z stdout P thr\n2026-01-01T00:00:02.1Z stdout F ee\n";

    async fn collect(query: &[(&str, &str)]) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        std::fs::write(&path, FILE).unwrap();
        let query: Vec<_> = query.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        let options = LogOptions::parse(&query, "2026-01-01T00:00:03Z".parse().unwrap()).unwrap();
        let chunks: Vec<_> = Box::pin(
            read(&path, options, true, async || false, ContainerExits::default().watch("c"), &Env::real())
                .await
                .unwrap(),
        )
        .collect()
        .await;
        chunks.into_iter().map(|c| String::from_utf8(c.unwrap().to_vec()).unwrap()).collect()
    }

    #[tokio::test]
    async fn options_select_lines() {
        let check =
            async |query: &[(&str, &str)], expected: &str| assert_eq!(collect(query).await, expected, "{query:?}");
        check(&[], "one\ntwo\nthree\n").await;
        check(&[("tailLines", "1")], "ee\n").await;
        check(&[("tailLines", "3")], "two\nthree\n").await;
        check(&[("tailLines", "0")], "").await;
        check(&[("limitBytes", "5")], "one\nt").await;
        check(&[("sinceSeconds", "2")], "two\nthree\n").await;
        check(&[("sinceSeconds", "9223372036854775807")], "one\ntwo\nthree\n").await;
        check(&[("sinceTime", "2026-01-01T00:00:02Z")], "three\n").await;
        let stamped = "2026-01-01T00:00:00.100000000Z one\n2026-01-01T00:00:01.100000000Z two\n\
            2026-01-01T00:00:02.100000000Z three\n";
        check(&[("timestamps", "true")], stamped).await;
        check(&[("timestamps", "true"), ("limitBytes", "34")], &stamped[..34]).await;
        check(&[("stream", "Stderr")], "two\n").await;
        check(&[("follow", "true")], "one\ntwo\nthree\n").await;
    }

    #[tokio::test]
    async fn following_ends_with_the_container() {
        use std::sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        std::fs::write(&path, "2026-01-01T00:00:00Z stdout F one\n").unwrap();
        let (exits, alive) = (ContainerExits::default(), Arc::new(AtomicBool::new(true)));
        let running = alive.clone();
        let running = async move || running.load(Ordering::SeqCst);
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let mut lines = Box::pin(read(&path, options, false, running, exits.watch("c"), &Env::real()).await.unwrap());
        assert_eq!(lines.next().await.unwrap().unwrap(), "one\n");
        alive.store(false, Ordering::SeqCst);
        exits.announce("c");
        assert!(lines.next().await.is_none());
    }

    #[tokio::test]
    async fn following_sees_new_lines_and_rotation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        std::fs::write(&path, "2026-01-01T00:00:00Z stdout F one\n").unwrap();
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let mut lines = Box::pin(
            read(&path, options, false, async || true, ContainerExits::default().watch("c"), &Env::real())
                .await
                .unwrap(),
        );
        assert_eq!(lines.next().await.unwrap().unwrap(), "one\n");
        std::fs::rename(&path, directory.path().join("0.log.1")).unwrap();
        std::fs::write(&path, "2026-01-01T00:00:01Z stdout F two\n").unwrap();
        assert_eq!(lines.next().await.unwrap().unwrap(), "two\n");
    }

    /// The runtime says that a container has ended while its log writer still holds the last line.
    #[tokio::test]
    async fn the_last_line_may_come_after_the_end() {
        use std::io::Write;
        for (query, expected) in [
            (&[][..], "one\ntwo\nlast\n"),
            (&[("tailLines", "1")], "last\n"),
            (&[("tailLines", "2"), ("follow", "true")], "two\nlast\n"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("0.log");
            let mut writer = std::fs::File::create(&path).unwrap();
            writer.write_all(b"2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stdout F two\n").unwrap();
            let query: Vec<_> = query.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            let options = LogOptions::parse(&query, Timestamp::UNIX_EPOCH).unwrap();
            let reading = async {
                let lines =
                    read(&path, options, true, async || false, ContainerExits::default().watch("c"), &Env::real())
                        .await
                        .unwrap();
                let chunks: Vec<_> = Box::pin(lines).collect().await;
                chunks.into_iter().map(|c| String::from_utf8(c.unwrap().to_vec()).unwrap()).collect::<String>()
            };
            let writing = async {
                Env::real().sleep(std::time::Duration::from_millis(50)).await;
                writer.write_all(b"2026-01-01T00:00:01Z stdout F last\n").unwrap();
                drop(writer);
            };
            let (found, ()) = tokio::join!(reading, writing);
            assert_eq!(found, expected, "{query:?}");
        }
    }

    /// A rotation just before the end leaves the last lines in the file before.
    #[tokio::test]
    async fn lines_come_from_before_the_last_rotation_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let line = |text: &str| format!("2026-01-01T00:00:00Z stdout F {text}\n");
        std::fs::write(directory.path().join("0.log.20260101-000000"), line("oldest")).unwrap();
        std::fs::write(directory.path().join("0.log.20260102-000000"), line("one") + &line("two")).unwrap();
        let check = async |present: Option<&str>, tail: Option<u64>, expected: &str| {
            let _ = std::fs::remove_file(&path);
            if let Some(present) = present {
                std::fs::write(&path, present).unwrap();
            }
            let options = LogOptions { tail_lines: tail, ..LogOptions::default() };
            let lines = read(&path, options, true, async || false, ContainerExits::default().watch("c"), &Env::real())
                .await
                .unwrap();
            let chunks: Vec<_> = Box::pin(lines).collect().await;
            let all: Vec<u8> = chunks.into_iter().flat_map(|chunk| chunk.unwrap().to_vec()).collect();
            assert_eq!(String::from_utf8(all).unwrap(), expected, "{present:?} {tail:?}");
        };
        check(Some(""), Some(1), "two\n").await;
        check(Some(""), None, "one\ntwo\n").await;
        check(Some(&line("three")), Some(1), "three\n").await;
        check(Some(&line("three")), Some(2), "two\nthree\n").await;
        check(Some(&line("three")), Some(9), "one\ntwo\nthree\n").await;
        check(Some(&line("three")), Some(0), "").await;
        check(None, Some(1), "two\n").await;
    }

    /// The runtime has turned to the new file, and what it still held for the old one comes after the end.
    #[tokio::test]
    async fn the_file_before_is_waited_for_too() {
        use std::io::Write;
        for turned in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("0.log");
            let mut old = std::fs::File::create(directory.path().join("0.log.20260101-000000")).unwrap();
            old.write_all(b"2026-01-01T00:00:00Z stdout F one\n").unwrap();
            if turned {
                std::fs::write(&path, "").unwrap();
            }
            let reading = async {
                let options = LogOptions { tail_lines: Some(1), ..LogOptions::default() };
                let lines =
                    read(&path, options, true, async || false, ContainerExits::default().watch("c"), &Env::real())
                        .await
                        .unwrap();
                Box::pin(lines).next().await.unwrap().unwrap()
            };
            let writing = async {
                Env::real().sleep(std::time::Duration::from_millis(50)).await;
                old.write_all(b"2026-01-01T00:00:01Z stdout F last\n").unwrap();
                drop(old);
            };
            let (found, ()) = tokio::join!(reading, writing);
            assert_eq!(found, "last\n", "{turned}");
        }
    }

    /// What the runtime wrote to the old file after the reader had seen its end.
    #[tokio::test]
    async fn following_loses_nothing_in_a_rotation() {
        use std::io::Write;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let mut old = std::fs::File::create(&path).unwrap();
        old.write_all(b"2026-01-01T00:00:00Z stdout F one\n").unwrap();
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let lines = read(&path, options, false, async || true, ContainerExits::default().watch("c"), &Env::real())
            .await
            .unwrap();
        let mut lines = Box::pin(lines);
        assert_eq!(lines.next().await.unwrap().unwrap(), "one\n");
        std::fs::rename(&path, directory.path().join("0.log.20260101-000000")).unwrap();
        std::fs::write(&path, "2026-01-01T00:00:01Z stdout F three\n").unwrap();
        let writing = async {
            Env::real().sleep(std::time::Duration::from_millis(50)).await;
            old.write_all(b"2026-01-01T00:00:01Z stdout F two\n").unwrap();
            drop(old);
        };
        let (found, ()) = tokio::join!(lines.next(), writing);
        assert_eq!(found.unwrap().unwrap(), "two\nthree\n");
    }

    #[tokio::test]
    async fn junk_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let mut content = vec![0xff; 3 * LINE_BYTES_MAX];
        content.extend_from_slice(b"\n\n \nno line at all\n2026-01-01T00:00:00Z stdout F \xfe\x00binary\n");
        content.extend_from_slice(b"2026-01-01T00:00:00Z stdout P cut of");
        std::fs::write(&path, content).unwrap();
        for (tail, expected) in [(None, &b"\xfe\x00binary\n"[..]), (Some(2), b"\xfe\x00binary\n"), (Some(1), b"")] {
            let options = LogOptions { tail_lines: tail, ..LogOptions::default() };
            let lines = read(&path, options, true, async || false, ContainerExits::default().watch("c"), &Env::real())
                .await
                .unwrap();
            let chunks: Vec<_> = Box::pin(lines).collect().await;
            let all: Vec<u8> = chunks.into_iter().flat_map(|chunk| chunk.unwrap().to_vec()).collect();
            assert_eq!(all, expected, "tail {tail:?}");
        }
    }

    #[test]
    fn times_have_nine_digits() {
        let check = |time: &str, expected: &str| assert_eq!(fixed(time), expected);
        check("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000000Z");
        check("2026-01-01T00:00:00.12Z", "2026-01-01T00:00:00.120000000Z");
        check("2026-01-01T00:00:00.123456789+02:00", "2026-01-01T00:00:00.123456789+02:00");
        check("2026-01-01T00:00:00-03:00", "2026-01-01T00:00:00.000000000-03:00");
    }

    #[test]
    fn bad_options_are_named() {
        let query = [("tailLines".to_string(), "many".to_string())];
        assert_eq!(
            LogOptions::parse(&query, Timestamp::UNIX_EPOCH).unwrap_err().to_string(),
            "invalid tailLines: \"many\""
        );
    }
}
