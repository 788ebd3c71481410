//! Tells of processes that the kernel killed for want of memory: SystemOOM on the node when the machine had no more,
//! OOMKilled on the pod when one of its containers had no more.
//! Run by `wiring`; `oom_parser` reads the kernel's messages. Where those can't be read, counters of kills are.
//! Only tells; what became of a container its own status shows.

mod oom_parser;

use std::{
    io::{self, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use oom_parser::{OomInstance, OomParser};
use tokio::net::unix::pipe::Receiver;

use crate::{
    pod::{pod_spec, pod_workers::Shared},
    runtime::{container_config::CONTAINER_NAME, runtime_manager::container_reference},
};

const KERNEL_MESSAGES: &str = "/dev/kmsg";
/// The kernel hands out one record at a time, and none is longer.
const RECORD_BYTES_MAX: usize = 8192;
/// How often kills are counted where messages can't be read.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

pub async fn run(shared: Arc<Shared>) {
    let messages = match open(Path::new(KERNEL_MESSAGES)) {
        Ok(messages) => messages,
        Err(error) => {
            tracing::info!(%error, "the kernel's messages can't be read; kills for want of memory are counted instead");
            return count_kills(&shared).await;
        }
    };
    let mut parser = OomParser::default();
    loop {
        match next_record(&messages).await {
            Ok(record) => {
                if let Some(oom) = oom_parser::message(&record).and_then(|message| parser.observe(message)) {
                    tell(&shared, oom).await;
                }
            }
            // Overwritten before it was read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => {
                tracing::warn!(%error, "lost the kernel's messages");
                return count_kills(&shared).await;
            }
        }
    }
}

/// From now on: what happened before we came was told by whoever was here.
fn open(path: &Path) -> io::Result<Receiver> {
    let mut file = std::fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    file.seek(SeekFrom::End(0))?;
    // What can be waited for as a pipe can.
    Receiver::from_file_unchecked(file)
}

async fn next_record(messages: &Receiver) -> io::Result<String> {
    let mut record = vec![0; RECORD_BYTES_MAX];
    loop {
        messages.readable().await?;
        match messages.try_read(&mut record) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => return Ok(String::from_utf8_lossy(&record[..length]).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn tell(shared: &Shared, oom: OomInstance) {
    tracing::warn!(?oom, "the kernel killed a process for want of memory");
    if oom.limited_group == "/" {
        let message = system_message(Some(&oom));
        shared.recorder.warning(&client::reference(&*shared.node.lock()), "SystemOOM", message);
    }
    let pods = shared.pods.list();
    let Some(pod) = pods.iter().find(|pod| is_in(&oom.victim_group, pod_spec::uid(pod))) else { return };
    let name = container_name(shared, pod, &oom.victim_group).await;
    let message = format!(
        "Container {} ran out of memory, victim process: {}, pid: {}",
        name.as_deref().unwrap_or("of the pod"),
        oom.process_name,
        oom.pid
    );
    let about = match name.as_deref().and_then(|name| pod_spec::find_container(pod, name)) {
        Some((kind, container)) => container_reference(pod, kind, &container.name),
        None => client::reference(&**pod),
    };
    shared.recorder.warning(&about, "OOMKilled", message);
}

fn system_message(oom: Option<&OomInstance>) -> String {
    let of = |oom: &OomInstance| format!(", victim process: {}, pid: {}", oom.process_name, oom.pid);
    format!("System OOM encountered{}", oom.map(of).unwrap_or_default())
}

/// Whether a group is a pod's or below it, under either driver's names.
fn is_in(group: &str, uid: &str) -> bool {
    if uid.is_empty() {
        return false;
    }
    let (plain, slice) = (format!("pod{uid}"), format!("-pod{}.slice", uid.replace('-', "_")));
    group.split('/').any(|part| part == plain || part.ends_with(&slice))
}

/// The runtime's id in the name of a container's group: `ID` or `cri-containerd-ID.scope`.
fn container_id<'a>(group: &'a str, uid: &str) -> Option<&'a str> {
    let mut parts = group.split('/').skip_while(|part| !is_in(part, uid)).skip(1);
    let name = parts.next()?;
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let id = name.rsplit(['-', ':']).next().unwrap_or(name);
    (!id.is_empty()).then_some(id)
}

async fn container_name(shared: &Shared, pod: &Pod, group: &str) -> Option<String> {
    let id = container_id(group, pod_spec::uid(pod))?;
    let answer = shared.runtime.runtime.container_status(id, false).await.ok()?;
    answer.status?.labels.get(CONTAINER_NAME).cloned()
}

/// Kills that no group of pods has counted were the machine's own.
async fn count_kills(shared: &Shared) {
    let read = || {
        let all = counter(&std::fs::read_to_string("/proc/vmstat").ok()?)?;
        let place = shared.cgroups.pods_directory("memory")?;
        let text =
            ["memory.events", "memory.oom_control"].iter().find_map(|f| std::fs::read_to_string(place.join(f)).ok());
        Some((all, text.as_deref().and_then(counter).unwrap_or(0)))
    };
    let Some(mut last) = read() else { return };
    loop {
        shared.env.sleep(COUNT_INTERVAL).await;
        let Some(now) = read() else { continue };
        if own_kills(last, now) > 0 {
            shared.recorder.warning(&client::reference(&*shared.node.lock()), "SystemOOM", system_message(None));
        }
        last = now;
    }
}

fn counter(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// All kills and those of pods, before and after.
fn own_kills(before: (u64, u64), after: (u64, u64)) -> u64 {
    after.0.saturating_sub(before.0).saturating_sub(after.1.saturating_sub(before.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_name_their_pod_and_container() {
        let uid = "0a1b-2c3d";
        let check = |group: &str, within: bool, id: Option<&str>| {
            assert_eq!((is_in(group, uid), container_id(group, uid)), (within, id), "{group}");
        };
        check("/kubepods/besteffort/pod0a1b-2c3d/f00", true, Some("f00"));
        check("/kubepods/pod0a1b-2c3d/f00/nested", true, Some("f00"));
        check("/a.slice/kubepods-pod0a1b_2c3d.slice/cri-containerd-f00.scope", true, Some("f00"));
        check("/kubepods/pod0a1b-2c3d", true, None);
        check("/kubepods/pod9/f00", false, None);
        check("/", false, None);
    }

    #[test]
    fn only_kills_of_nobodys_pods_are_the_machines() {
        assert_eq!(counter("pgfault 1\noom_kill 7\n"), Some(7));
        assert_eq!(counter("low 0\noom 3\noom_kill 2\n"), Some(2));
        for (before, after, expected) in
            [((5, 2), (5, 2), 0), ((5, 2), (7, 4), 0), ((5, 2), (7, 3), 1), ((5, 2), (6, 4), 0)]
        {
            assert_eq!(own_kills(before, after), expected, "{before:?} {after:?}");
        }
    }

    #[tokio::test]
    async fn what_can_not_be_followed_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(open(&directory.path().join("kmsg")).is_err());
    }
}
