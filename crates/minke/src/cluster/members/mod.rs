//! Further members of the cluster on this machine: nodes, API servers and etcd servers, each a process of its own in a
//! network namespace with a cable to a common switch (`switch`).
//! Made by `up --nodes --servers`, disturbed by `minke node|server|etcd` (`commands`), removed by `down`.
//! What differs between the kinds is in their rows here and in `nodes`, `servers` and `etcd`.

pub mod commands;
pub mod etcd;
pub mod nodes;
pub mod servers;
pub mod switch;

use std::{
    fs,
    net::IpAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use env::{Backoff, Env};
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{file_modes, instance::Instance, process},
    commands::{
        down,
        report::{Line, SUPERVISED},
    },
    flags,
};

/// Between a member's end and its next start; doubled each time.
const RESTART_DELAY_MAX: Duration = Duration::from_secs(30);
const RESTART_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), RESTART_DELAY_MAX);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Etcd,
    Server,
    Node,
}

/// In the order in which they start; they end the other way round.
pub const KINDS: [Kind; 3] = [Kind::Etcd, Kind::Server, Kind::Node];

impl Kind {
    /// As in `minke node`.
    pub fn command(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Server => "server",
            Self::Node => "node",
        }
    }

    /// Below the cluster's data directory.
    fn folder(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Server => "servers",
            Self::Node => "nodes",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Member {
    pub kind: Kind,
    pub name: String,
    pub instance: Instance,
}

/// How a member is started again, kept in its data directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub address: IpAddr,
    pub arguments: Vec<String>,
    /// Where relative paths among them count from.
    #[serde(default)]
    pub directory: Option<PathBuf>,
}

/// Those of one kind.
pub fn of_kind(cluster: &Instance, kind: Kind) -> Vec<Member> {
    let found = cluster.members(kind.folder());
    found.into_iter().map(|(name, instance)| Member { kind, name, instance }).collect()
}

/// All, in the order in which they start.
pub fn all(cluster: &Instance) -> Vec<Member> {
    KINDS.into_iter().flat_map(|kind| of_kind(cluster, kind)).collect()
}

impl Member {
    pub fn new(cluster: &Instance, kind: Kind, name: &str) -> Self {
        Self { kind, name: name.to_string(), instance: cluster.member(kind.folder(), name) }
    }

    /// Writes down how it is started.
    pub fn keep(&self, address: IpAddr, arguments: Vec<String>) -> Result<()> {
        let record = Record { address, arguments, directory: std::env::current_dir().ok() };
        let data = &self.instance.data;
        file_modes::close_data_directory(data).with_context(|| format!("failed to create {}", data.display()))?;
        fs::write(data.join("node.json"), serde_json::to_vec_pretty(&record)?)?;
        Ok(())
    }

    pub fn record(&self) -> Result<Record> {
        let text = fs::read(self.instance.data.join("node.json")).with_context(|| {
            let kind = self.kind.command();
            format!(
                "there is no {kind} {} with a network of its own: `minke {kind} ls` shows which there are",
                self.name
            )
        })?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Starts its process and returns once it is ready. One that runs already is left alone.
    pub async fn start(&self) -> Result<()> {
        if process::running(&self.instance)?.is_some() {
            return self.wanted_up();
        }
        let (kind, name, record) = (self.kind.command(), &self.name, self.record()?);
        let path = self.instance.log_file();
        let log = file_modes::open_log(&path)?;
        let log_start = log.metadata()?.len();
        let mut command = env::open_files::command(std::env::current_exe()?);
        // All that it is told is in the record: flags of a file would be those of another member.
        command.args(&record.arguments).env(SUPERVISED, "1").env(flags::config_file::ENVIRONMENT, "");
        if let Some(directory) = record.directory.filter(|directory| directory.is_dir()) {
            command.current_dir(directory);
        }
        // A group of its own: what ends the terminal's programs does not end a member.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).process_group(0);
        let mut child = tokio::process::Command::from(command)
            .spawn()
            .with_context(|| format!("failed to start the process of {kind} {name}"))?;
        match self.kind {
            Kind::Etcd => etcd::until_ready(name, &mut child, &path, log_start).await?,
            _ => self.until_ready(&mut child).await?,
        }
        self.wanted_up()
    }

    /// Until it says so.
    async fn until_ready(&self, child: &mut Child) -> Result<()> {
        let (kind, name) = (self.kind.command(), &self.name);
        let stdout = child.stdout.take().with_context(|| format!("{kind} {name} has no output"))?;
        let mut lines = BufReader::new(stdout).lines();
        while let Some(line) = lines.next_line().await? {
            match Line::parse(&line) {
                Some(Line::Ready) => return Ok(()),
                Some(Line::Failed(text)) => bail!("{kind} {name} did not start: {text}"),
                _ => {}
            }
        }
        let (status, log) = (child.wait().await?, self.instance.log_file());
        bail!("the process of {kind} {name} stopped while starting ({status}): see {}", log.display())
    }

    /// There while somebody wants the member to be down.
    fn stopped_file(&self) -> PathBuf {
        self.instance.data.join("stopped")
    }

    /// Takes back that it is to be down. Only once it runs: who keeps members running goes by it.
    fn wanted_up(&self) -> Result<()> {
        match fs::remove_file(self.stopped_file()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Ends it as a machine that loses power does, with all its containers; until it is started it stays down.
    fn power_off(&self) -> Result<()> {
        // Before it ends: who keeps the members running must not start it again.
        fs::write(self.stopped_file(), "")?;
        match self.kind {
            // Its pods are unmounted in order, so that it can be started again.
            Kind::Node => self.stop()?,
            _ => self.stop_within(Duration::ZERO)?,
        }
        down::end_containers(&self.instance);
        Ok(())
    }

    /// Asks its process to end; containers go on.
    pub fn stop(&self) -> Result<()> {
        self.stop_within(STOP_TIMEOUT)
    }

    fn stop_within(&self, patience: Duration) -> Result<()> {
        match process::running(&self.instance)? {
            Some(pid) => process::stop(pid, patience),
            None => Ok(()),
        }
    }

    /// Starts its process again whenever it ends and nobody asked for it. Runs until shutdown.
    async fn keep_running(&self, env: &Env, shutdown: &CancellationToken) -> Result<()> {
        let inotify = Inotify::init()?;
        inotify.watches().add(&self.instance.data, WatchMask::DELETE)?;
        let mut changes = inotify.into_event_stream(vec![0; 4096])?;
        let mut backoff = RESTART_BACKOFF;
        let (kind, name) = (self.kind.command(), &self.name);
        loop {
            if let Some(pid) = process::running(&self.instance)? {
                let began = env.monotonic();
                tokio::select! {
                    () = process::ended(pid) => {}
                    () = shutdown.cancelled() => return Ok(()),
                }
                if env.monotonic() - began > RESTART_DELAY_MAX {
                    backoff.reset();
                }
            } else if self.stopped_file().exists() {
                // `minke node start` removes the file once the process runs.
                tokio::select! {
                    _ = changes.next() => continue,
                    () = shutdown.cancelled() => return Ok(()),
                }
            }
            if self.stopped_file().exists() {
                continue;
            }
            let pause = backoff.next_delay();
            tracing::warn!(kind, name, ?pause, "the process of a member ended; starting it again");
            tokio::select! {
                () = env.sleep(pause) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
            if self.stopped_file().exists() {
                continue;
            }
            if let Err(error) = self.start().await {
                tracing::error!(error = format!("{error:#}"), kind, name, "failed to start a member again");
            }
        }
    }

    fn state(&self) -> Result<State> {
        let pid = process::running(&self.instance)?;
        let text = match (pid, switch::is_up(&self.instance.cable())) {
            (Some(_), false) => "cut",
            (Some(_), true) => "running",
            (None, _) => "stopped",
        };
        Ok(State { text, pid, address: self.record()?.address })
    }
}

/// How a member is at this moment.
pub struct State {
    pub text: &'static str,
    pub pid: Option<i32>,
    pub address: IpAddr,
}

/// Every member with how it is; a record that can't be read is told with its name.
pub fn states(cluster: &Instance) -> Vec<(Member, Result<State>)> {
    let state = |member: Member| {
        let state = member.state();
        (member, state)
    };
    all(cluster).into_iter().map(state).collect()
}

/// Starts each member again whenever it ends, until shutdown.
pub fn keep_running(cluster: &Instance, env: &Env, shutdown: &CancellationToken) {
    for member in all(cluster) {
        let (env, shutdown) = (env.clone(), shutdown.clone());
        env.clone().spawn(async move {
            if let Err(error) = member.keep_running(&env, &shutdown).await {
                let (error, name) = (format!("{error:#}"), &member.name);
                tracing::error!(error, name, "the process of a member is not watched any more");
            }
        });
    }
}

/// Ends all processes, one kind after the other; containers go on.
pub async fn stop_all(cluster: &Instance) -> Result<()> {
    for kind in KINDS.into_iter().rev() {
        let stopping = of_kind(cluster, kind).into_iter().map(|member| env::spawn_blocking(move || member.stop()));
        for stopped in futures::future::join_all(stopping).await {
            stopped??;
        }
    }
    Ok(())
}

/// Takes the members away: processes, namespaces, cables and the switch.
pub fn remove(cluster: &Instance) -> Result<()> {
    for member in all(cluster).into_iter().rev() {
        member.stop()?;
        down::remove_member(&member.instance)?;
        switch::unplug(&member.instance)?;
        println!("✓ {} {} removed", member.kind.command(), member.name);
    }
    switch::remove(cluster)
}

/// Moves this process into a namespace, and gives it a host name of its own, which pods on the host's network see.
/// Only before there are other threads.
pub fn enter(netns: &Path, host_name: Option<&str>) -> Result<()> {
    let file = fs::File::open(netns).with_context(|| format!("there is no network namespace {}", netns.display()))?;
    nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET)
        .with_context(|| format!("failed to enter the network namespace {}", netns.display()))?;
    let Some(host_name) = host_name else { return Ok(()) };
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUTS).context("failed to get a host name of its own")?;
    nix::unistd::sethostname(host_name).with_context(|| format!("failed to take the host name {host_name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_a_host_name_of_its_own() {
        let before = nix::unistd::gethostname().unwrap();
        // Namespaces are a thread's own.
        let inside = std::thread::spawn(|| {
            enter(Path::new("/proc/thread-self/ns/net"), Some("node-2")).expect("run this test as root");
            nix::unistd::gethostname().unwrap()
        });
        assert_eq!(inside.join().unwrap(), "node-2");
        assert_eq!(nix::unistd::gethostname().unwrap(), before);
    }

    #[test]
    fn members_of_all_kinds_are_found_again_in_the_order_of_their_start() {
        let directory = tempfile::tempdir().unwrap();
        let cluster = Instance::new(directory.path());
        for (kind, name) in
            [(Kind::Node, "a-2"), (Kind::Server, "server-2"), (Kind::Server, "server-1"), (Kind::Etcd, "e")]
        {
            let member = Member::new(&cluster, kind, name);
            member.keep("192.0.2.1".parse().unwrap(), vec![name.to_string()]).unwrap();
            assert_eq!(member.record().unwrap().arguments, [name]);
        }
        let names: Vec<String> = all(&cluster).into_iter().map(|member| member.name).collect();
        assert_eq!(names, ["e", "server-1", "server-2", "a-2"]);
        let missing = Member::new(&cluster, Kind::Server, "x").record().unwrap_err().to_string();
        assert!(missing.contains("there is no server x") && missing.contains("`minke server ls`"), "{missing}");
        assert!(states(&cluster).iter().all(|(_, state)| state.as_ref().is_ok_and(|state| state.text == "stopped")));
    }
}
