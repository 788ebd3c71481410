//! Runs a program of somebody else's: one request on stdin, one answer on stdout, within a deadline.
//! Used by the pod admission hook and by image credential providers.
//! What it prints is read up to a limit. One that fails or hangs is killed together with all that it started.

use std::{
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use env::{Env, open_files};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
};

/// What is shown of a program's complaints.
const STDERR_BYTES_MAX: u64 = 1024;

#[derive(Debug, thiserror::Error)]
pub enum ExecPluginError {
    #[error("failed to run {}: {source}", .program.display())]
    Start { program: PathBuf, source: io::Error },
    #[error("{} did not answer within {limit:?}", .program.display())]
    Deadline { program: PathBuf, limit: Duration },
    #[error("{} printed more than {bytes_max} bytes", .program.display())]
    TooLong { program: PathBuf, bytes_max: u64 },
    #[error("{} failed: {status}{}", .program.display(), shown(.stderr))]
    Failed { program: PathBuf, status: ExitStatus, stderr: String },
}

fn shown(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!(": {stderr}") }
}

#[derive(Debug, Clone, Copy)]
pub struct ExecPlugin<'a> {
    pub program: &'a Path,
    pub arguments: &'a [String],
    pub environment: &'a [(String, String)],
    pub limit: Duration,
    pub output_bytes_max: u64,
}

/// A program's process group, until it has ended by itself.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

impl ExecPlugin<'_> {
    /// What it printed, if it was content.
    pub async fn run(&self, env: &Env, input: Vec<u8>) -> Result<Vec<u8>, ExecPluginError> {
        let program = || self.program.to_path_buf();
        let mut command = Command::from(open_files::command(self.program));
        command.args(self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = command.process_group(0).kill_on_drop(true).spawn();
        let mut child = spawned.map_err(|source| ExecPluginError::Start { program: program(), source })?;
        let mut group = ProcessGroup(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw));
        let ended = env.timeout(self.limit, self.converse(&mut child, input)).await;
        let (status, output, stderr) =
            ended.ok_or_else(|| ExecPluginError::Deadline { program: program(), limit: self.limit })??;
        if !status.success() {
            return Err(ExecPluginError::Failed { program: program(), status, stderr });
        }
        group.0 = None;
        Ok(output)
    }

    async fn converse(
        &self,
        child: &mut Child,
        input: Vec<u8>,
    ) -> Result<(ExitStatus, Vec<u8>, String), ExecPluginError> {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async move {
            if let Some(mut stdin) = stdin {
                // One that needs no request does not read it.
                let _ = stdin.write_all(&input).await;
            }
        };
        let answer = async {
            let output = read(stdout, self.output_bytes_max + 1).await;
            match output.len() as u64 > self.output_bytes_max {
                true => Err(ExecPluginError::TooLong {
                    program: self.program.to_path_buf(),
                    bytes_max: self.output_bytes_max,
                }),
                false => Ok(output),
            }
        };
        let complaints = async { Ok(read(stderr, STDERR_BYTES_MAX).await) };
        let feed = async {
            feed.await;
            Ok(())
        };
        let (output, complaints, ()) = futures::try_join!(answer, complaints, feed)?;
        let status = child.wait().await;
        let status = status.map_err(|source| ExecPluginError::Start { program: self.program.to_path_buf(), source })?;
        Ok((status, output, String::from_utf8_lossy(&complaints).trim().to_string()))
    }
}

/// The first bytes; what follows is taken from the program, so that it does not wait for a reader.
async fn read(pipe: Option<impl AsyncRead + Unpin>, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Some(pipe) = pipe else { return bytes };
    let mut limited = pipe.take(bytes_max);
    if limited.read_to_end(&mut bytes).await.is_ok() && bytes.len() as u64 == bytes_max && bytes_max == STDERR_BYTES_MAX
    {
        let _ = tokio::io::copy(&mut limited.into_inner(), &mut tokio::io::sink()).await;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program in a file of its own.
    pub fn program(directory: &Path, name: &str, text: &str) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn programs_answer_or_are_ended() {
        let directory = tempfile::tempdir().unwrap();
        let env = Env::real();
        let check = async |text: &str, limit: u64, expected: Result<&str, &str>| {
            let program = program(directory.path(), "plugin", text);
            let plugin = ExecPlugin {
                program: &program,
                arguments: &["a b".into()],
                environment: &[("WORD".into(), "w".into())],
                limit: Duration::from_secs(limit),
                output_bytes_max: 100,
            };
            let found = plugin.run(&env, b"request".to_vec()).await;
            let found = found.map(|output| String::from_utf8(output).unwrap()).map_err(|error| error.to_string());
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{text}: {found}"),
                (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
            }
        };
        check("cat; echo \" $1 $WORD\"", 60, Ok("request a b w\n")).await;
        check("echo no; echo why >&2; exit 3", 60, Err("failed: exit status: 3: why")).await;
        check("head -c 5000 /dev/zero >&2; echo fine", 60, Ok("fine\n")).await;
        check("head -c 5000 /dev/zero; sleep 1000", 60, Err("printed more than 100 bytes")).await;
        let left = directory.path().join("left");
        check(&format!("(sleep 1000; touch {}) & sleep 1000", left.display()), 1, Err("did not answer within 1s"))
            .await;
        let nowhere = ExecPlugin {
            program: Path::new("/nowhere/plugin"),
            arguments: &[],
            environment: &[],
            limit: Duration::from_secs(60),
            output_bytes_max: 1,
        };
        assert!(nowhere.run(&env, vec![]).await.is_err());
    }
}
