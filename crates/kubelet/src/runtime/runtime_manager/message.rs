//! What a container left to say when it ended: its termination message, or the end of its log.
//! Part of `runtime_manager`.
//! Reads a bounded amount of plain files, whatever the container wrote or put there.

use std::{
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use cri::v1;

use super::RuntimeManager;
use crate::{
    files::{file_work::FileWorkError, safe_open},
    logs::log_file,
    runtime::container_config::{MESSAGE_PATH, MESSAGE_POLICY},
};

const MESSAGE_BYTES_MAX: u64 = 4096;
const LOG_BYTES_MAX: u64 = 2048;
const LOG_LINES_MAX: usize = 80;

/// Whether the end of the log may have to stand in for a message.
fn falls_back(status: &v1::ContainerStatus) -> bool {
    let policy = status.annotations.get(MESSAGE_POLICY).map(String::as_str);
    policy == Some("FallbackToLogsOnError") && status.exit_code != 0
}

/// What the container says at last. Its files are read where they may hang; what can't be read says nothing.
pub async fn termination_message(manager: &RuntimeManager, status: &v1::ContainerStatus) -> String {
    if falls_back(status) {
        let path = PathBuf::from(&status.log_path);
        let open = move || safe_open::file(&path).map_err(|error| error.to_string());
        if let Ok(log) = manager.files.run(format!("log of {}", status.id), open).await {
            log_file::complete(&manager.env, &log).await;
        }
    }
    let own = status.clone();
    let said = manager.files.run(format!("message of {}", status.id), move || Ok::<_, FileWorkError>(read(&own))).await;
    said.unwrap_or_else(|error| {
        tracing::warn!(container = status.id, %error, "failed to read a termination message");
        status.message.clone()
    })
}

fn read(status: &v1::ContainerStatus) -> String {
    let place = status.annotations.get(MESSAGE_PATH);
    let file = place.and_then(|place| status.mounts.iter().find(|mount| mount.container_path == *place));
    let mut message = file.and_then(|mount| head(Path::new(&mount.host_path))).unwrap_or_default();
    if message.is_empty() && falls_back(status) {
        message = log_tail(Path::new(&status.log_path));
    }
    match (message.is_empty(), status.message.is_empty()) {
        (true, _) => status.message.clone(),
        (false, true) => message,
        (false, false) => format!("{}: {message}", status.message),
    }
}

fn head(path: &Path) -> Option<String> {
    let bytes = safe_open::read_head(path, MESSAGE_BYTES_MAX).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of a log in CRI's format, without time and stream.
fn log_tail(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = safe_open::file(path)?;
        let length = file.metadata()?.len();
        // Every line carries about 45 bytes of prefix beside what counts.
        let wanted = LOG_BYTES_MAX + LOG_LINES_MAX as u64 * 64;
        file.seek(SeekFrom::Start(length.saturating_sub(wanted)))?;
        let mut bytes = Vec::new();
        file.take(wanted).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<(&str, bool)> = text.lines().filter_map(content).collect();
    let mut result = String::new();
    for (line, whole) in lines.iter().skip(lines.len().saturating_sub(LOG_LINES_MAX)) {
        result.push_str(line);
        if *whole {
            result.push('\n');
        }
    }
    let mut from = result.len().saturating_sub(LOG_BYTES_MAX as usize);
    while !result.is_char_boundary(from) {
        from += 1;
    }
    result.split_off(from)
}

/// What a line of the log says, and whether it ended with a newline when it was written.
fn content(line: &str) -> Option<(&str, bool)> {
    let mut parts = line.splitn(4, ' ').skip(2);
    let whole = parts.next()?.split(':').next() != Some("P");
    Some((parts.next()?, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(file: &Path, log: &Path, policy: &str, exit_code: i32) -> v1::ContainerStatus {
        v1::ContainerStatus {
            exit_code,
            log_path: log.to_string_lossy().into_owned(),
            annotations: [(MESSAGE_PATH, "/dev/termination-log"), (MESSAGE_POLICY, policy)]
                .map(|(key, value)| (key.to_string(), value.to_string()))
                .into(),
            mounts: vec![v1::Mount {
                container_path: "/dev/termination-log".into(),
                host_path: file.to_string_lossy().into_owned(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    /// On a thread of its own, so that the test ends also where it would be waited for.
    #[test]
    fn pipes_and_links_in_place_of_a_message_or_a_log_say_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link) = (dir.path().join("pipe"), dir.path().join("link"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(dir.path().join("host"), "2026-01-01T00:00:00Z stdout F secret\n").unwrap();
        std::os::unix::fs::symlink("host", &link).unwrap();
        let (sender, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for place in [&pipe, &link] {
                let _ = sender.send(read(&status(place, place, "FallbackToLogsOnError", 1)));
            }
        });
        for _ in 0..2 {
            let read = said.recv_timeout(std::time::Duration::from_secs(30));
            assert_eq!(read.expect("the pipe is waited for"), "");
        }
    }

    #[test]
    fn messages_come_from_the_file_and_else_from_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("m"), dir.path().join("l"));
        std::fs::write(&log, "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr F two words\n").unwrap();
        let check = |content: &str, policy: &str, exit_code: i32, expected: &str| {
            std::fs::write(&file, content).unwrap();
            assert_eq!(read(&status(&file, &log, policy, exit_code)), expected);
        };
        check("done", "File", 0, "done");
        check("", "File", 1, "");
        check("", "FallbackToLogsOnError", 0, "");
        check("", "FallbackToLogsOnError", 1, "one\ntwo words\n");
        std::fs::write(&log, "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P tw").unwrap();
        check("", "FallbackToLogsOnError", 1, "one\ntw");
        check("said", "FallbackToLogsOnError", 1, "said");
        check(&"x".repeat(5000), "File", 0, &"x".repeat(4096));
    }
}
