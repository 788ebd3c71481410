//! What a container left to say when it ended: its termination message, or the end of its log.
//! Part of `runtime_manager`.
//! Invariant: reads a bounded amount, whatever the container wrote.

use std::{
    io::{Read, Seek, SeekFrom},
    path::Path,
};

use cri::v1;
use env::Env;

use crate::{
    container_config::{MESSAGE_PATH, MESSAGE_POLICY},
    log_file,
};

const MAX_MESSAGE: u64 = 4096;
const MAX_LOG_BYTES: u64 = 2048;
const MAX_LOG_LINES: usize = 80;

/// Whether the end of the log may have to stand in for a message.
fn falls_back(status: &v1::ContainerStatus) -> bool {
    let policy = status.annotations.get(MESSAGE_POLICY).map(String::as_str);
    policy == Some("FallbackToLogsOnError") && status.exit_code != 0
}

/// Waits for a log that will be read.
pub async fn settle(env: &Env, status: &v1::ContainerStatus) {
    if falls_back(status)
        && let Ok(log) = tokio::fs::File::open(&status.log_path).await
    {
        log_file::complete(env, &log).await;
    }
}

pub fn termination_message(status: &v1::ContainerStatus) -> String {
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
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(MAX_MESSAGE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of a log in CRI's format, without time and stream.
fn log_tail(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        // Every line carries about 45 bytes of prefix beside what counts.
        let wanted = MAX_LOG_BYTES + MAX_LOG_LINES as u64 * 64;
        file.seek(SeekFrom::Start(length.saturating_sub(wanted)))?;
        let mut bytes = Vec::new();
        file.take(wanted).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<(&str, bool)> = text.lines().filter_map(content).collect();
    let mut result = String::new();
    for (line, whole) in lines.iter().skip(lines.len().saturating_sub(MAX_LOG_LINES)) {
        result.push_str(line);
        if *whole {
            result.push('\n');
        }
    }
    let mut from = result.len().saturating_sub(MAX_LOG_BYTES as usize);
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

    #[test]
    fn messages_come_from_the_file_and_else_from_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("m"), dir.path().join("l"));
        std::fs::write(&log, "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr F two words\n").unwrap();
        let check = |content: &str, policy: &str, exit_code: i32, expected: &str| {
            std::fs::write(&file, content).unwrap();
            let status = v1::ContainerStatus {
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
            };
            assert_eq!(termination_message(&status), expected);
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
