//! Reads on in a log file whenever the kernel says that it changed.
//! Used by `minke logs --follow`.
//! Hands out whole lines only, and starts again where the file does.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use inotify::{Inotify, WatchDescriptor, WatchMask};

const EVENTS_BYTES: usize = 4096;

pub struct Follower {
    path: PathBuf,
    name: OsString,
    file: File,
    offset: u64,
    changes: Inotify,
    watched: WatchDescriptor,
}

impl Follower {
    /// Watches before anything is read, so that no line is missed in between.
    pub fn open(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_os_string();
        let changes = Inotify::init()?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        changes.watches().add(directory, WatchMask::CREATE | WatchMask::MOVED_TO)?;
        let file = File::open(path)?;
        let watched = changes.watches().add(path, WatchMask::MODIFY)?;
        Ok(Self { path: path.to_path_buf(), name, file, offset: 0, changes, watched })
    }

    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// What is before `offset` has been shown.
    pub fn skip_to(&mut self, offset: u64) {
        self.offset = offset;
    }

    /// Gives `show` every whole line that came since the last call.
    pub fn read(&mut self, mut show: impl FnMut(&str) -> io::Result<()>) -> io::Result<()> {
        if self.file.metadata()?.len() < self.offset {
            self.offset = 0;
        }
        self.file.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::new(&self.file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            self.offset += line.len() as u64;
            show(String::from_utf8_lossy(&line).trim_end_matches('\n'))?;
            line.clear();
        }
        Ok(())
    }

    /// Returns when there may be something to read.
    pub fn wait(&mut self) -> io::Result<()> {
        let mut buffer = [0; EVENTS_BYTES];
        loop {
            let (mut is_other, mut has_grown) = (false, false);
            for event in self.changes.read_events_blocking(&mut buffer)? {
                is_other |= event.name == Some(&self.name);
                has_grown |= event.wd == self.watched;
            }
            if is_other {
                self.file = File::open(&self.path)?;
                self.offset = 0;
                self.watched = self.changes.watches().add(&self.path, WatchMask::MODIFY)?;
            }
            if is_other || has_grown {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    #[test]
    fn lines_are_told_as_they_come() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("minke.log");
        fs::write(&path, "shown before\n").unwrap();
        let mut follower = Follower::open(&path).unwrap();
        follower.skip_to(fs::metadata(&path).unwrap().len());
        let mut next = |wanted: &[&str]| {
            let mut lines: Vec<String> = Vec::new();
            while lines.len() < wanted.len() {
                follower.wait().unwrap();
                let keep = |line: &str| {
                    lines.push(line.to_string());
                    Ok(())
                };
                follower.read(keep).unwrap();
            }
            assert_eq!(lines, wanted);
        };
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        // The start of a line waits for its end.
        file.write_all(b"one\ntw").unwrap();
        next(&["one"]);
        file.write_all(b"o\n\xff\n").unwrap();
        next(&["two", "\u{fffd}"]);
        // Truncated, then another file.
        fs::write(&path, "new\n").unwrap();
        next(&["new"]);
        let other = directory.path().join("other");
        fs::write(&other, "of the other file\n").unwrap();
        fs::rename(&other, &path).unwrap();
        next(&["of the other file"]);
    }
}
