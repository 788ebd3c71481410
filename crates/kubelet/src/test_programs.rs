//! Programs that tests write and then run.
//! Used by tests next to the code.
//! Written by another process: a file that any child of ours still has open for writing can't be run.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A shell script at `directory/name`.
pub fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    let mut command = Command::new("sh");
    command.args(["-c", "cat > \"$0.new\" && chmod 755 \"$0.new\" && mv \"$0.new\" \"$0\""]).arg(&path);
    let mut writer = command.stdin(Stdio::piped()).spawn().unwrap();
    writer.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
    path
}
