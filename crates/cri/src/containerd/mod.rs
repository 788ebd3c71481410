//! Runs our own containerd: writes its configuration, starts it, adopts one that is still alive, restarts it when it
//! dies, stops it on request.
//! Used by `minke`; `config` next door renders the file.
//! Never touches a shim or a container. containerd runs in a process group of its own and outlives us, so a killed or
//! restarted Minke finds every container where it was.

mod config;

use std::{
    io,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

pub use config::ContainerdConfig;
use config::{Machine, render};
use env::Backoff;
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, watch},
    task::JoinHandle,
};

use crate::{RemoteRuntime, Runtime};

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("failed to {attempt} {path}: {source}")]
    File { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("failed to start {program}: {source}; install containerd or name another runtime")]
    Spawn { program: PathBuf, source: io::Error },
    #[error("containerd did not become ready within {0:?}; see {1}")]
    NotReady(Duration, PathBuf),
    #[error("containerd exited while it was starting; see {0}")]
    Exited(PathBuf),
}

/// How long a start may take; a cold start on a slow disk takes a few seconds.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Its log and configuration are the cluster's own business.
const PRIVATE_FILE_MODE: u32 = 0o600;
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const RESTART_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
/// One that lived this long died for a new reason.
const STABLE_INTERVAL: Duration = Duration::from_secs(30);

/// A running, supervised containerd. Dropping this ends the supervision but not containerd.
pub struct Containerd {
    config: Arc<ContainerdConfig>,
    stop: Arc<Notify>,
    pid: watch::Receiver<i32>,
    supervisor: JoinHandle<()>,
    adopted: bool,
}

impl Containerd {
    /// Returns when the CRI service answers.
    pub async fn start(config: ContainerdConfig, env: env::Env) -> Result<Self, StartError> {
        let config = Arc::new(config);
        for dir in [&config.data_dir, &config.state_dir, &config.registry_config_dir, &config.cni_conf_dir] {
            std::fs::create_dir_all(dir).map_err(|source| StartError::File {
                attempt: "create",
                path: dir.clone(),
                source,
            })?;
        }
        let probe_dir = config.data_dir.clone();
        let machine =
            env::spawn_blocking(move || Machine::probe(&probe_dir)).await.expect("probing the machine does not panic");
        let text = render(&config, machine);
        let unchanged = std::fs::read_to_string(config.file()).is_ok_and(|old| old == text);
        let alive = Process::from_pid_file(&config);
        let (process, adopted) = match alive {
            Some(process) if unchanged => (process, true),
            other => {
                // Containers do not notice a restart, so a changed configuration takes effect at once.
                if let Some(process) = other {
                    process.stop().await;
                }
                write(&config.file(), text.as_bytes())?;
                (Process::spawn(&config)?, false)
            }
        };
        process.wait_ready(&config).await?;
        let (pid_sender, pid) = watch::channel(process.pid());
        let stop = Arc::new(Notify::new());
        let supervisor = env.spawn(supervise(config.clone(), env.clone(), process, stop.clone(), pid_sender));
        Ok(Self { config, stop, pid, supervisor, adopted })
    }

    pub fn socket(&self) -> PathBuf {
        self.config.socket()
    }

    /// The present process; changes when it is restarted.
    pub fn pid(&self) -> i32 {
        *self.pid.borrow()
    }

    /// Whether `start` found one that was already running.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// Ends containerd, with its containers left as they are.
    pub async fn stop(mut self) {
        self.stop.notify_one();
        let _ = (&mut self.supervisor).await;
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

async fn supervise(
    config: Arc<ContainerdConfig>,
    env: env::Env,
    mut process: Process,
    stop: Arc<Notify>,
    pid: watch::Sender<i32>,
) {
    let mut backoff = RESTART_BACKOFF;
    loop {
        let started = env.monotonic();
        tokio::select! {
            _ = process.exited() => {}
            _ = stop.notified() => {
                process.stop().await;
                let _ = std::fs::remove_file(config.pid_file());
                return;
            }
        }
        if env.monotonic() - started > STABLE_INTERVAL {
            backoff.reset();
        }
        tracing::warn!(pid = process.pid(), delay = ?backoff.coming_delay(), "containerd died; restarting it");
        process = loop {
            tokio::select! {
                _ = env.sleep(backoff.next_delay()) => {}
                _ = stop.notified() => return,
            }
            match Process::spawn(&config) {
                Ok(process) => break process,
                Err(error) => tracing::error!(%error, "failed to restart containerd"),
            }
        };
        let _ = pid.send(process.pid());
    }
}

/// A containerd process, our child or not, held by a descriptor that cannot come to mean another process.
struct Process {
    pid: Pid,
    descriptor: AsyncFd<OwnedFd>,
    /// Reaps the process when it is our child.
    child: Option<tokio::process::Child>,
}

impl Process {
    fn spawn(config: &ContainerdConfig) -> Result<Self, StartError> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(PRIVATE_FILE_MODE)
            .open(config.log_file())
            .map_err(|source| StartError::File { attempt: "open", path: config.log_file(), source })?;
        let error_log =
            log.try_clone().map_err(|source| StartError::File { attempt: "open", path: config.log_file(), source })?;
        let spawn_error = |source| StartError::Spawn { program: config.program.clone(), source };
        // A stale socket would answer the wait for readiness with a refusal.
        let _ = std::fs::remove_file(config.socket());
        let child = tokio::process::Command::from(env::open_files::command(&config.program))
            .arg("--config")
            .arg(config.file())
            // Containers must not inherit what a node joins with.
            .env_remove("MINKE_TOKEN")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(error_log)
            .process_group(0)
            .spawn()
            .map_err(spawn_error)?;
        let pid = child
            .id()
            .and_then(|id| Pid::from_raw(id as i32))
            .ok_or_else(|| spawn_error(io::Error::other("it exited at once")))?;
        let process = Self::open(pid, Some(child)).map_err(spawn_error)?;
        write(&config.pid_file(), pid.as_raw_nonzero().to_string().as_bytes())?;
        Ok(process)
    }

    fn open(pid: Pid, child: Option<tokio::process::Child>) -> io::Result<Self> {
        let descriptor = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` always answers with the same descriptor and keeps it open for as long as it lives.
        #[allow(unsafe_code)]
        let descriptor = unsafe { AsyncFd::register(descriptor)? };
        Ok(Self { pid, descriptor, child })
    }

    /// The process of the pid file, if it is alive and really a containerd with our configuration.
    fn from_pid_file(config: &ContainerdConfig) -> Option<Self> {
        let pid: i32 = std::fs::read_to_string(config.pid_file()).ok()?.trim().parse().ok()?;
        let process = Self::open(Pid::from_raw(pid)?, None).ok()?;
        // Read after the descriptor was opened, so it speaks of the same process.
        let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let file = config.file();
        command_line
            .split(|byte| *byte == 0)
            .any(|word| Path::new(&*String::from_utf8_lossy(word)) == file)
            .then_some(process)
    }

    fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    async fn exited(&mut self) {
        let _ = self.descriptor.readable().await;
        if let Some(child) = &mut self.child {
            let _ = child.wait().await;
        }
    }

    async fn stop(mut self) {
        let _ = pidfd_send_signal(self.descriptor.get_ref(), Signal::TERM);
        if env::timeout(STOP_TIMEOUT, self.exited()).await.is_none() {
            let _ = pidfd_send_signal(self.descriptor.get_ref(), Signal::KILL);
            self.exited().await;
        }
    }

    async fn wait_ready(&self, config: &ContainerdConfig) -> Result<(), StartError> {
        tokio::select! {
            ready = env::timeout(START_TIMEOUT, answers(config)) => match ready {
                Some(Ok(())) => Ok(()),
                Some(Err(source)) => {
                    Err(StartError::File { attempt: "watch", path: config.state_dir.clone(), source })
                }
                None => Err(StartError::NotReady(START_TIMEOUT, config.log_file())),
            },
            _ = self.descriptor.readable() => Err(StartError::Exited(config.log_file())),
        }
    }
}

/// Waits for the socket to appear and for the CRI plugin behind it to have initialized.
async fn answers(config: &ContainerdConfig) -> io::Result<()> {
    let inotify = Inotify::init()?;
    inotify.watches().add(&config.state_dir, WatchMask::CREATE | WatchMask::ATTRIB | WatchMask::MOVED_TO)?;
    let mut changes = inotify.into_event_stream([0; 1024])?;
    let socket = config.socket();
    while tokio::net::UnixStream::connect(&socket).await.is_err() {
        changes.next().await.transpose()?;
    }
    let runtime = RemoteRuntime::new(&socket.to_string_lossy(), None);
    // The plugin finishes after the socket is there and announces it nowhere.
    let mut backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(100));
    while runtime.status(false).await.is_err() {
        env::sleep(backoff.next_delay()).await;
    }
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> Result<(), StartError> {
    let temporary = path.with_extension("new");
    let mut options = std::fs::OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(PRIVATE_FILE_MODE);
    options
        .open(&temporary)
        .and_then(|mut file| io::Write::write_all(&mut file, content))
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(|source| StartError::File { attempt: "write", path: path.into(), source })
}
