//! systemd's logind, by its own programs: delays a shutdown of the machine and hears of one.
//! Used by `node_shutdown`.
//! A lock is held by a program that reads from us: it is let go when we are gone, however that came.

use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use env::Env;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often, and how many times, it is looked whether a longer delay was taken over.
const RELOAD_INTERVAL: Duration = Duration::from_millis(500);
const RELOAD_LOOKS_MAX: u32 = 10;
const MANAGER: [&str; 3] = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"];
const MATCH: &str = "type='signal',interface='org.freedesktop.login1.Manager',member='PrepareForShutdown',\
    path='/org/freedesktop/login1'";

#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    #[error("failed to run {program}: {source}")]
    Run { program: &'static str, source: io::Error },
    #[error("{program} does not answer")]
    Silent { program: &'static str },
    #[error("{program} failed: {message}")]
    Failed { program: &'static str, message: String },
    #[error("failed to write {}: {source}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("logind delays a shutdown by {found:?} at most, not by {wanted:?}")]
    Delay { found: Duration, wanted: Duration },
}

pub struct Logind {
    pub env: Env,
    /// Where the programs are; as the shell finds them when empty.
    pub programs: PathBuf,
    /// Where logind's own configuration is added to.
    pub drop_ins: PathBuf,
}

/// Delays a shutdown until it is dropped.
pub struct InhibitLock {
    _holder: Child,
}

/// Tells of shutdowns that begin (true) and of those that were called off.
pub struct ShutdownSignals {
    lines: Lines<BufReader<ChildStdout>>,
    _monitor: Child,
}

impl Logind {
    pub fn new(env: Env) -> Self {
        Self { env, programs: PathBuf::new(), drop_ins: "/etc/systemd/logind.conf.d".into() }
    }

    fn command(&self, program: &'static str) -> Command {
        let path = if self.programs.as_os_str().is_empty() { program.into() } else { self.programs.join(program) };
        let mut command = Command::new(path);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    async fn busctl(&self, arguments: &[&str]) -> Result<String, LogindError> {
        let program = "busctl";
        let run = self.command(program).args(arguments).output();
        let output = self.env.timeout(ANSWER_TIMEOUT, run).await.ok_or(LogindError::Silent { program })?;
        let output = output.map_err(|source| LogindError::Run { program, source })?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
                Err(LogindError::Failed { program, message })
            }
        }
    }

    async fn delay_max(&self) -> Result<Duration, LogindError> {
        let [service, object, interface] = MANAGER;
        let answer = self.busctl(&["get-property", service, object, interface, "InhibitDelayMaxUSec"]).await?;
        let micros = answer.trim().strip_prefix("t ").and_then(|number| number.parse().ok());
        let failed = || LogindError::Failed { program: "busctl", message: format!("{answer:?} is no delay") };
        Ok(Duration::from_micros(micros.ok_or_else(failed)?))
    }

    /// Has logind delay shutdowns by this much, if it would less.
    pub async fn allow_delay(&self, wanted: Duration) -> Result<(), LogindError> {
        if self.delay_max().await? >= wanted {
            return Ok(());
        }
        let path = self.drop_ins.join("99-kubelet.conf");
        let text = format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={}\n", wanted.as_secs());
        write(&path, &text).map_err(|source| LogindError::Write { path, source })?;
        let manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"];
        let [service, object, interface] = manager;
        let reload = ["KillUnit", "ssi", "systemd-logind.service", "all", "1"];
        self.busctl(&[&["call", service, object, interface][..], &reload[..]].concat()).await?;
        let mut found = Duration::ZERO;
        for _ in 0..RELOAD_LOOKS_MAX {
            found = self.delay_max().await?;
            if found >= wanted {
                return Ok(());
            }
            self.env.sleep(RELOAD_INTERVAL).await;
        }
        Err(LogindError::Delay { found, wanted })
    }

    pub async fn inhibit(&self) -> Result<InhibitLock, LogindError> {
        let program = "systemd-inhibit";
        let mut command = self.command(program);
        command.args(["--what=shutdown", "--who=kubelet", "--mode=delay"]);
        command.arg("--why=Kubelet needs time to handle node shutdown");
        command.args(["sh", "-c", "echo held; exec cat"]).stdin(Stdio::piped());
        let mut holder = command.spawn().map_err(|source| LogindError::Run { program, source })?;
        let mut lines = lines(&mut holder, program)?;
        let first = self.env.timeout(ANSWER_TIMEOUT, lines.next_line()).await;
        match first.ok_or(LogindError::Silent { program })?.map_err(|source| LogindError::Run { program, source })? {
            Some(line) if line == "held" => Ok(InhibitLock { _holder: holder }),
            _ => {
                let failed = |message: String| LogindError::Failed { program, message };
                let ended = self.env.timeout(ANSWER_TIMEOUT, holder.wait_with_output()).await;
                let output = ended.ok_or(LogindError::Silent { program })?;
                let output = output.map_err(|source| LogindError::Run { program, source })?;
                Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string()))
            }
        }
    }

    pub fn signals(&self) -> Result<ShutdownSignals, LogindError> {
        let program = "busctl";
        let mut command = self.command(program);
        command.args(["--json=short", &format!("--match={MATCH}"), "monitor"]).stderr(Stdio::null());
        let mut monitor = command.spawn().map_err(|source| LogindError::Run { program, source })?;
        Ok(ShutdownSignals { lines: lines(&mut monitor, program)?, _monitor: monitor })
    }
}

fn lines(child: &mut Child, program: &'static str) -> Result<Lines<BufReader<ChildStdout>>, LogindError> {
    let stdout = child.stdout.take().ok_or(LogindError::Silent { program })?;
    Ok(BufReader::new(stdout).lines())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(path, text)
}

impl ShutdownSignals {
    /// `None` when there will be no more.
    pub async fn next(&mut self) -> Option<bool> {
        while let Ok(Some(line)) = self.lines.next_line().await {
            if let Some(active) = is_active(&line) {
                return Some(active);
            }
        }
        None
    }
}

fn is_active(line: &str) -> Option<bool> {
    let message: Value = serde_json::from_str(line).ok()?;
    (message["member"] == "PrepareForShutdown").then(|| message["payload"]["data"][0].as_bool()).flatten()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const BUSCTL: &str = r#"#!/bin/sh
here=$(dirname "$0")
case "$*" in
*get-property*) echo "t $(cat "$here/delay")" ;;
*KillUnit*) sed -n 's/InhibitDelayMaxSec=\(.*\)/\1000000/p' "$here/99-kubelet.conf" > "$here/delay" ;;
*monitor*)
    echo 'Monitoring bus message stream.'
    echo '{"type":"signal","member":"PrepareForShutdown","payload":{"type":"b","data":[true]}}'
    echo '{"type":"signal","member":"SessionNew","payload":{"type":"so","data":["1","/"]}}'
    echo '{"type":"signal","member":"PrepareForShutdown","payload":{"type":"b","data":[false]}}' ;;
esac
"#;

    fn program(directory: &Path, name: &str, text: &str) {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[tokio::test]
    async fn shutdowns_are_delayed_and_heard_of() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let env = Env::real();
        let logind = Logind { env: env.clone(), programs: here.into(), drop_ins: here.into() };
        assert!(logind.inhibit().await.is_err(), "there is no logind");
        program(here, "busctl", BUSCTL);
        let held = here.join("lock");
        let inhibit = format!("#!/bin/sh\nshift 4\ntouch {0}\n\"$@\"\nrm {0}\n", held.display());
        program(here, "systemd-inhibit", &inhibit);
        std::fs::write(here.join("delay"), "5000000\n").unwrap();
        logind.allow_delay(Duration::from_secs(4)).await.unwrap();
        assert!(!here.join("99-kubelet.conf").exists());
        logind.allow_delay(Duration::from_secs(30)).await.unwrap();
        let text = std::fs::read_to_string(here.join("99-kubelet.conf")).unwrap();
        assert!(text.contains("InhibitDelayMaxSec=30\n"), "{text}");
        let lock = logind.inhibit().await.unwrap();
        assert!(held.exists());
        drop(lock);
        program(here, "systemd-inhibit", "#!/bin/sh\necho 'Access denied' >&2\nexit 1\n");
        let refused = logind.inhibit().await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("Access denied"), "{refused}");
        let mut signals = logind.signals().unwrap();
        assert_eq!((signals.next().await, signals.next().await), (Some(true), Some(false)));
        assert_eq!(signals.next().await, None);
    }
}
