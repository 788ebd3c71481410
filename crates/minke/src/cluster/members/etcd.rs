//! etcd servers on this machine: Debian's etcd in network namespaces of their own, over TLS with an authority of its own.
//! Added by `up --servers`; started and disturbed as any member (`mod.rs`), whose process becomes etcd's.
//! Their addresses are written in their data: they never change.

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    net::{IpAddr, SocketAddr},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use ipnet::IpNet;
use tokio::process::Child;

use crate::{
    certificates::{
        authorities::Authority,
        pki::{Leaf, Pki},
    },
    cluster::{
        instance::Instance,
        members::{self, Kind, Member, enter, switch::Switch},
        preflight,
        process::PidFile,
    },
};

pub const CLIENT_PORT: u16 = 2379;
pub const PEER_PORT: u16 = 2380;
/// Without a majority of the others it never is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// What it says once it answers, in versions of before 3.5 and since.
const READY_TEXTS: [&str; 2] = ["ready to serve client requests", "serving client"];
/// The certificate by which API servers are known to it.
const CLIENT_CERTIFICATE: &str = "apiserver-etcd-client";

/// A majority of them outlives what so many servers do. Members know each other from their first start: then it stays.
pub fn count(instance: &Instance, servers: u8) -> u8 {
    let made = members::of_kind(instance, Kind::Etcd);
    match u8::try_from(made.len()) {
        Ok(count) if made.iter().any(|member| data(&member.instance).exists()) => count,
        _ if servers >= 5 => 5,
        _ => 3,
    }
}

/// How API servers reach it.
pub struct Access {
    pub urls: Vec<String>,
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Namespaces, cables, certificates and records of `count` of them.
pub fn add(
    switch: &Switch,
    instance: &Instance,
    pki: &Arc<Pki>,
    range: Option<&IpNet>,
    count: u8,
) -> Result<(Vec<Member>, Access)> {
    if preflight::find_program("etcd").is_none() {
        bail!("not found: etcd. Install with: apt-get install etcd-server, or name another etcd with --etcd-servers");
    }
    let names: Vec<(u32, String)> = (1..=u32::from(count)).map(|n| (n, format!("etcd-{n}"))).collect();
    let address = |n: u32| switch.address_like(switch.place(Kind::Etcd, n), range);
    let peers: Vec<String> = names.iter().map(|(n, name)| format!("{name}={}", url(address(*n), PEER_PORT))).collect();
    let mut members = Vec::new();
    for (n, name) in &names {
        let (member, place) = (Member::new(instance, Kind::Etcd, name), switch.place(Kind::Etcd, *n));
        refuse_move(&member, address(*n))?;
        switch.plug_in(&member.instance, place)?;
        let leaf = Leaf {
            name: name.clone(),
            authority: Authority::Etcd,
            common_name: name.clone(),
            addresses: vec![address(*n), IpAddr::from([127, 0, 0, 1])],
            // Members are each other's clients.
            server: true,
            client: true,
            ..Leaf::default()
        };
        pki.leaf(&leaf)?;
        // It reads the files at every handshake.
        pki.on_renewal(leaf, |_| ());
        member.keep(address(*n), arguments(&member, pki, address(*n), &peers))?;
        members.push(member);
    }
    let leaf =
        Leaf { authority: Authority::Etcd, ..Leaf::client(CLIENT_CERTIFICATE, "kube-apiserver-etcd-client", None) };
    pki.leaf(&leaf)?;
    pki.on_renewal(leaf, |_| ());
    let access = Access::new(instance, names.iter().map(|(n, _)| address(*n)));
    Ok((members, access))
}

impl Access {
    fn new(instance: &Instance, addresses: impl Iterator<Item = IpAddr>) -> Self {
        let pki = instance.pki();
        Self {
            urls: addresses.map(|address| url(address, CLIENT_PORT)).collect(),
            ca: pki.join("etcd-ca.crt"),
            certificate: pki.join(format!("{CLIENT_CERTIFICATE}.crt")),
            key: pki.join(format!("{CLIENT_CERTIFICATE}.key")),
        }
    }
}

/// To those of a cluster that was started; none where it has none.
pub fn access(instance: &Instance) -> Result<Option<Access>> {
    let members = members::of_kind(instance, Kind::Etcd);
    let addresses = members.iter().map(|member| Ok(member.record()?.address)).collect::<Result<Vec<_>>>()?;
    Ok((!addresses.is_empty()).then(|| Access::new(instance, addresses.into_iter())))
}

fn url(address: IpAddr, port: u16) -> String {
    format!("https://{}", SocketAddr::new(address, port))
}

/// Members know each other by the addresses of their first start.
fn refuse_move(member: &Member, address: IpAddr) -> Result<()> {
    if !data(&member.instance).exists() {
        return Ok(());
    }
    match member.record() {
        Ok(record) if record.address != address => bail!(
            "{} of this cluster has the address {}: give the range that the cluster was made with as --node-cidr",
            member.name,
            record.address
        ),
        _ => Ok(()),
    }
}

fn data(instance: &Instance) -> PathBuf {
    instance.data.join("data")
}

fn arguments(member: &Member, pki: &Pki, address: IpAddr, peers: &[String]) -> Vec<String> {
    let path = |path: PathBuf| path.display().to_string();
    let (certificate, key) =
        (path(pki.path(&format!("{}.crt", member.name))), path(pki.path(&format!("{}.key", member.name))));
    let authority = path(pki.path("etcd-ca.crt"));
    let here = IpAddr::from([127, 0, 0, 1]);
    let mut arguments: Vec<String> = ["etcd", "run", "--data-dir"].map(str::to_string).to_vec();
    arguments.extend([path(member.instance.data.clone()), "--".into()]);
    let mut flag = |name: &str, value: String| arguments.push(format!("--{name}={value}"));
    flag("name", member.name.clone());
    flag("data-dir", path(data(&member.instance)));
    flag("listen-client-urls", format!("{},{}", url(address, CLIENT_PORT), url(here, CLIENT_PORT)));
    flag("advertise-client-urls", url(address, CLIENT_PORT));
    flag("listen-peer-urls", url(address, PEER_PORT));
    flag("initial-advertise-peer-urls", url(address, PEER_PORT));
    flag("initial-cluster", peers.join(","));
    flag("initial-cluster-state", "new".into());
    for prefix in ["", "peer-"] {
        flag(&format!("{prefix}cert-file"), certificate.clone());
        flag(&format!("{prefix}key-file"), key.clone());
        flag(&format!("{prefix}trusted-ca-file"), authority.clone());
        flag(&format!("{prefix}client-cert-auth"), "true".into());
    }
    arguments
}

/// Becomes etcd, in the member's namespace and with the lock of its data directory.
pub fn run(instance: &Instance, arguments: &[String]) -> Result<()> {
    enter(&instance.netns(), None)?;
    PidFile::take(instance)?.hand_over()?;
    let program =
        preflight::find_program("etcd").context("not found: etcd. Install with: apt-get install etcd-server")?;
    Err::<(), _>(Command::new(program).args(arguments).exec()).context("failed to run etcd")
}

/// Follows what it writes to its log from `offset` on, until it says that it answers.
pub async fn until_ready(name: &str, child: &mut Child, log: &Path, offset: u64) -> Result<()> {
    let inotify = Inotify::init()?;
    inotify.watches().add(log, WatchMask::MODIFY)?;
    let mut changes = inotify.into_event_stream(vec![0; 4096])?;
    let following = async {
        loop {
            let text = tail(log, offset)?;
            if READY_TEXTS.iter().any(|ready| text.contains(ready)) {
                return anyhow::Ok(());
            }
            tokio::select! {
                _ = changes.next() => {}
                ended = child.wait() => {
                    let text = tail(log, offset)?;
                    let last = text.lines().last().unwrap_or_default();
                    bail!("{name} stopped while starting ({}): {last}: see {}", ended?, log.display());
                }
            }
        }
    };
    match env::timeout(READY_TIMEOUT, following).await {
        Some(followed) => followed,
        None => bail!(
            "{name} runs, but does not answer after {READY_TIMEOUT:?}: start more of the etcd servers, so that there is a \
             majority (`minke etcd ls`), or see {}",
            log.display()
        ),
    }
}

fn tail(log: &Path, offset: u64) -> Result<String> {
    let mut file = fs::File::open(log)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use env::Env;

    use super::*;

    #[tokio::test]
    async fn members_are_told_of_each_other_and_never_move() {
        let directory = tempfile::tempdir().unwrap();
        let instance = Instance::new(directory.path());
        let pki = Pki::open(&instance.pki(), Env::real()).unwrap();
        let member = Member::new(&instance, Kind::Etcd, "etcd-1");
        let (address, other) = ("198.18.7.245".parse().unwrap(), "198.18.8.245".parse().unwrap());
        let arguments = arguments(&member, &pki, address, &["etcd-1=https://198.18.7.245:2380".into()]);
        for wanted in [
            "--initial-cluster=etcd-1=https://198.18.7.245:2380",
            "--listen-client-urls=https://198.18.7.245:2379,https://127.0.0.1:2379",
            "--client-cert-auth=true",
            "--peer-client-cert-auth=true",
        ] {
            assert!(arguments.iter().any(|argument| argument == wanted), "{wanted}: {arguments:?}");
        }
        member.keep(address, arguments).unwrap();
        refuse_move(&member, other).unwrap();
        fs::create_dir_all(data(&member.instance)).unwrap();
        refuse_move(&member, address).unwrap();
        assert!(refuse_move(&member, other).unwrap_err().to_string().contains("--node-cidr"));
        let elsewhere = Instance::new(&directory.path().join("elsewhere"));
        assert_eq!([1, 3, 4, 5, 9].map(|servers| count(&elsewhere, servers)), [3, 3, 3, 5, 5]);
        for name in ["etcd-2", "etcd-3"] {
            Member::new(&instance, Kind::Etcd, name).keep(address, Vec::new()).unwrap();
        }
        assert_eq!(count(&instance, 5), 3, "as many as there are");
    }
}
