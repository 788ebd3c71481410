//! Targets for what comes over sockets and from files of others: streams, names, networks, archives.

use cni::{NetConf, Request};

/// More than any corpus file unpacks to, and less than a bomb.
const UNPACKED_BYTES_MAX: u64 = 1 << 20;

pub fn spdy(bytes: &[u8]) {
    kubelet::server::fuzzing::spdy(bytes);
}

pub fn websocket(bytes: &[u8]) {
    kubelet::server::fuzzing::websocket(bytes);
}

pub fn dns_message(bytes: &[u8]) {
    dns::fuzzing::message(bytes);
}

/// A network configuration as the runtime hands it over. What is accepted names no file outside its directory.
pub fn cni(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let asked = Request { command: "VERSION".into(), ..Request::default() };
    cni::run(&asked, &text).expect("the versions are told to everybody");
    if let Ok(conf) = NetConf::parse(&text)
        && conf.plugin != "loopback"
    {
        let directory = conf.network_dir();
        assert!(directory.starts_with(&conf.data_dir) && directory.parent() == Some(&conf.data_dir), "{directory:?}");
        let gateways: Vec<_> = conf.pod_cidrs.iter().map(cni::gateway).collect();
        assert!(gateways.iter().all(|gateway| conf.has(gateway)), "{gateways:?}");
    }
    let mut words = text.split('\n').map(str::to_string);
    let mut word = || words.next().unwrap_or_default();
    let (command, container_id, netns, ifname, args) = (word(), word(), word(), word(), word());
    let request = Request { command, container_id, netns, ifname, args, called_as: word() };
    if request.validate().is_ok() {
        assert!(!request.container_id.contains('/') && !request.ifname.contains('/'));
    }
}

pub fn image_archive(bytes: &[u8]) {
    let mut output = Vec::new();
    if image::unpack(bytes, &mut output, UNPACKED_BYTES_MAX).is_ok() {
        assert!(output.len() as u64 <= UNPACKED_BYTES_MAX);
    }
}
