//! The file of `--audit-log-path`: lines are appended, a full file is set aside under the time of its end.
//! Written by the log backend in `backend`.
//! Whoever has written a line has handed it to the kernel: nothing waits in this process.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use parking_lot::Mutex;

use env::Env;

use super::options::LogOptions;

const MEGABYTE: u64 = 1 << 20;
const MAX_SIZE_MEGABYTES: u64 = 100;
/// How old files are named, after what comes before the ending.
const BACKUP_TIME: &str = "%Y-%m-%dT%H-%M-%S%.3f";

pub struct LogFile {
    out: Out,
    env: Env,
}

enum Out {
    Stdout,
    File(Mutex<Rotating>, Retention),
}

/// Which old files stay, and in which form.
#[derive(Clone)]
struct Retention {
    path: PathBuf,
    max_backups: usize,
    max_age: Option<Duration>,
    compress: bool,
}

struct Rotating {
    file: File,
    bytes: u64,
    bytes_max: u64,
    /// A line broke off: the next one begins a new one.
    is_torn: bool,
}

impl LogFile {
    pub fn open(options: &LogOptions, path: &Path, env: &Env) -> Result<Self, String> {
        if path == Path::new("-") {
            return Ok(Self { out: Out::Stdout, env: env.clone() });
        }
        let attempt = |e: io::Error| format!("failed to open the audit log {}: {e}", path.display());
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(attempt)?;
        }
        let file = append(path).map_err(attempt)?;
        let bytes = file.metadata().map_err(attempt)?.len();
        let megabytes = if options.max_size_megabytes == 0 { MAX_SIZE_MEGABYTES } else { options.max_size_megabytes };
        let rotating = Rotating { file, bytes, bytes_max: megabytes.saturating_mul(MEGABYTE), is_torn: false };
        let age = Duration::from_secs(u64::from(options.max_age_days) * 24 * 3600);
        let retention = Retention {
            path: path.to_path_buf(),
            max_backups: options.max_backups,
            max_age: (!age.is_zero()).then_some(age),
            compress: options.compress,
        };
        Ok(Self { out: Out::File(Mutex::new(rotating), retention), env: env.clone() })
    }

    /// One line, or several, as a whole.
    pub fn write(&self, lines: &[u8]) -> io::Result<()> {
        let (rotating, retention) = match &self.out {
            Out::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(lines)?;
                return out.flush();
            }
            Out::File(rotating, retention) => (rotating, retention),
        };
        let mut current = rotating.lock();
        if current.bytes > 0 && current.bytes + lines.len() as u64 > current.bytes_max {
            let now = self.env.now();
            // What cannot be set aside goes on: a large file is better than none.
            match set_aside(&retention.path, now) {
                Ok(file) => {
                    (current.file, current.bytes, current.is_torn) = (file, 0, false);
                    let retention = retention.clone();
                    env::spawn_blocking(move || retention.tidy(now));
                }
                Err(error) => {
                    let path = retention.path.display();
                    tracing::error!(%error, %path, "failed to set the full audit log aside");
                }
            }
        }
        current.write(lines)
    }
}

impl Rotating {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.file.write_all(b"\n")?;
            (self.bytes, self.is_torn) = (self.bytes + 1, false);
        }
        self.is_torn = true;
        self.file.write_all(lines)?;
        (self.bytes, self.is_torn) = (self.bytes + lines.len() as u64, false);
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Gives the file its name among the old ones and begins another.
fn set_aside(path: &Path, now: Timestamp) -> io::Result<File> {
    let (stem, ending) = name_parts(path);
    let mut at = now;
    let mut old = path.with_file_name(format!("{stem}{}{ending}", at.strftime(BACKUP_TIME)));
    // Two within a millisecond must not replace each other.
    while old.exists() {
        at += jiff::SignedDuration::from_millis(1);
        old = path.with_file_name(format!("{stem}{}{ending}", at.strftime(BACKUP_TIME)));
    }
    fs::rename(path, &old)?;
    append(path)
}

/// `audit-` and `.log` of `/var/log/audit.log`.
fn name_parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let ending = path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    (format!("{}-", text(path.file_stem())), ending)
}

impl Retention {
    /// Removes what is too old or too many, newest kept, and compresses the rest.
    fn tidy(&self, now: Timestamp) {
        let mut old = self.backups();
        old.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (index, (at, path)) in old.into_iter().enumerate() {
            let aged = self
                .max_age
                .is_some_and(|max| now.duration_since(at) > jiff::SignedDuration::try_from(max).unwrap_or_default());
            let surplus = self.max_backups > 0 && index >= self.max_backups;
            let done = match aged || surplus {
                true => fs::remove_file(&path),
                false if self.compress && path.extension().is_none_or(|e| e != "gz") => compress(&path),
                false => Ok(()),
            };
            if let Err(error) = done {
                tracing::warn!(%error, path = %path.display(), "failed to tidy up an old audit log");
            }
        }
    }

    fn backups(&self) -> Vec<(Timestamp, PathBuf)> {
        let (stem, ending) = name_parts(&self.path);
        let folder = self.path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let dated = entries.filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let rest = name.strip_prefix(&stem)?;
            let rest = rest.strip_suffix(".gz").unwrap_or(rest).strip_suffix(&ending)?;
            let at = jiff::civil::DateTime::strptime(BACKUP_TIME, rest).ok()?;
            Some((at.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp(), entry.path()))
        });
        dated.collect()
    }
}

fn compress(path: &Path) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".gz");
    let target = PathBuf::from(name);
    let out = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&target)?;
    let mut encoder = GzEncoder::new(out, Compression::default());
    io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn full_files_are_set_aside_and_no_line_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log/audit.log");
        let options = LogOptions { max_size_megabytes: 1, ..LogOptions::default() };
        let log = LogFile::open(&options, &path, &Env::real()).unwrap();
        let line = format!("{}\n", "x".repeat(400 << 10));
        for _ in 0..5 {
            log.write(line.as_bytes()).unwrap();
        }
        let files = names(path.parent().unwrap());
        assert_eq!(files.len(), 3, "{files:?}");
        let bytes: u64 = files.iter().map(|f| fs::metadata(path.with_file_name(f)).unwrap().len()).sum();
        assert_eq!(bytes as usize, 5 * line.len());
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // One that is larger than a file has a file to itself.
        log.write(&vec![b'y'; 2 << 20]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 2 << 20);
    }

    #[test]
    fn old_files_are_compressed_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        for name in [
            "a-2026-01-01T00-00-00.000.log",
            "a-2026-01-05T00-00-00.000.log",
            "a-2026-01-06T00-00-00.000.log.gz",
            "a-2026-01-07T00-00-00.000.log",
            "a-other.log",
            "b-2026-01-01T00-00-00.000.log",
        ] {
            fs::write(folder.path().join(name), "line\n").unwrap();
        }
        let day = Duration::from_secs(24 * 3600);
        let retention = Retention { path, max_backups: 2, max_age: Some(5 * day), compress: true };
        retention.tidy("2026-01-08T00:00:00Z".parse().unwrap());
        let expected = [
            "a-2026-01-06T00-00-00.000.log.gz",
            "a-2026-01-07T00-00-00.000.log.gz",
            "a-other.log",
            "b-2026-01-01T00-00-00.000.log",
        ];
        assert_eq!(names(folder.path()), expected);
        let all = Retention { max_backups: 0, ..retention };
        all.tidy("2026-01-12T00:00:00Z".parse().unwrap());
        assert_eq!(names(folder.path()).len(), 3, "one is older than five days");
    }
}
