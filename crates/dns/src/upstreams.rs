//! Who is asked about names that are not ours: given once, or as the node's resolv.conf says at the moment of asking.
//! Used by `forward`; reads the files through `resolv_conf`.
//! A file is read again only when it has changed; looking whether it has costs no more than its metadata.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::Arc,
};

use parking_lot::Mutex;

use crate::resolv_conf::HostFiles;

/// Which version of a file it is: device, file, time of its last change and size.
type FileVersion = Option<(u64, u64, i64, i64, u64)>;

pub struct Upstreams {
    /// None where the servers never change.
    files: Option<HostFiles>,
    port: u16,
    /// Addresses that lead to ourselves: a question to one would come back for ever.
    here: Vec<SocketAddr>,
    also_here: Vec<IpAddr>,
    known: Mutex<(Vec<FileVersion>, Arc<[SocketAddr]>)>,
}

impl Upstreams {
    pub fn fixed(servers: &[SocketAddr]) -> Self {
        let known = Mutex::new((Vec::new(), servers.into()));
        Self { files: None, port: 0, here: Vec::new(), also_here: Vec::new(), known }
    }

    /// The servers that the node itself asks, at `port`.
    pub fn of_host(files: HostFiles, port: u16) -> Self {
        Self { files: Some(files), port, ..Self::fixed(&[]) }
    }

    /// Without those that lead to `here`, or by whatever port to `also_here`.
    pub fn except(mut self, here: &[SocketAddr], also_here: &[IpAddr]) -> Self {
        (self.here, self.also_here) = (here.to_vec(), also_here.to_vec());
        let given = self.known.get_mut().1.clone();
        let others = self.others(&given);
        self.known.get_mut().1 = others;
        self
    }

    /// As of now.
    pub fn current(&self) -> Arc<[SocketAddr]> {
        let mut known = self.known.lock();
        let Some(files) = &self.files else { return known.1.clone() };
        let stamps: Vec<FileVersion> = files.paths().iter().map(stamp).collect();
        if known.0 != stamps {
            let servers = files.name_servers().into_iter().map(|ip| SocketAddr::new(ip, self.port));
            let servers = self.others(&servers.collect::<Vec<_>>());
            if *known.1 != *servers && !known.0.is_empty() {
                tracing::info!(?servers, "the node asks other name servers now, so do we");
            }
            *known = (stamps, servers);
        }
        known.1.clone()
    }

    /// Those of `servers` that don't lead to ourselves.
    pub fn others(&self, servers: &[SocketAddr]) -> Arc<[SocketAddr]> {
        let here = |server: &SocketAddr| self.here.contains(server) || self.also_here.contains(&server.ip());
        servers.iter().filter(|server| !here(server)).copied().collect()
    }
}

fn stamp(path: &PathBuf) -> FileVersion {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn nobody_forwards_to_himself() {
        let given = ["10.96.0.10:53", "192.0.2.53:53", "10.244.0.1:53"].map(at);
        let upstreams = Upstreams::fixed(&given).except(&[at("10.244.0.1:53")], &["10.96.0.10".parse().unwrap()]);
        assert_eq!(*upstreams.current(), [at("192.0.2.53:53")]);
    }

    #[test]
    fn the_nodes_servers_are_those_of_now() {
        let dir = tempfile::tempdir().unwrap();
        let (own, resolved) = (dir.path().join("own"), dir.path().join("resolved"));
        let upstreams = Upstreams::of_host(HostFiles { own: own.clone(), behind_resolved: resolved.clone() }, 53)
            .except(&[at("192.0.2.9:53")], &[]);
        let check = |expected: &[&str]| {
            let expected: Vec<SocketAddr> = expected.iter().map(|text| at(text)).collect();
            assert_eq!(*upstreams.current(), *expected);
            assert_eq!(*upstreams.current(), *expected, "the second look");
        };
        check(&[]);
        fs::write(&own, "nameserver 192.0.2.1\n").unwrap();
        check(&["192.0.2.1:53"]);
        // In place and by another file of the same size.
        fs::write(&own, "nameserver 192.0.2.9\nnameserver 2001:db8::1\n").unwrap();
        check(&["[2001:db8::1]:53"]);
        fs::write(dir.path().join("new"), "nameserver 192.0.2.9\nnameserver 2001:db8::2\n").unwrap();
        fs::rename(dir.path().join("new"), &own).unwrap();
        check(&["[2001:db8::2]:53"]);
        // Only what systemd-resolved asks is of use.
        fs::write(&own, "nameserver 127.0.0.53\n").unwrap();
        fs::write(&resolved, "nameserver 192.0.2.2\n").unwrap();
        check(&["192.0.2.2:53"]);
        fs::write(&resolved, "nameserver 192.0.2.3\nnameserver 192.0.2.4\n").unwrap();
        check(&["192.0.2.3:53", "192.0.2.4:53"]);
        fs::remove_file(&own).unwrap();
        fs::remove_file(&resolved).unwrap();
        check(&[]);
    }
}
