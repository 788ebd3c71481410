//! API servers on this machine, with controllers and scheduler: what `minke server` is told in a namespace of its own.
//! Added by `up --servers`; started and disturbed as any member (`mod.rs`).
//! All have the cluster's authorities and the key that signs its ServiceAccount tokens.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use ipnet::IpNet;

use crate::{
    certificates::cluster_keys,
    cluster::{
        file_modes,
        instance::Instance,
        members::{Kind, Member, etcd, switch::Switch},
    },
    flags::{self, passed_on},
};

/// What is said by us, or is not each server's own.
const OWN_FLAGS: &[&str] =
    &["data-dir", "bind-address", "advertise-address", "port", "pod-cidr", "service-cidr", "registry", "registry-port"];
/// What is said by us where the etcd is ours.
const ETCD_FLAGS: &[&str] = &["store", "etcd-servers", "etcd-cafile", "etcd-certfile", "etcd-keyfile"];

/// Namespaces, cables, keys and records of the servers that are wanted. `etcd` is none where it was given.
pub fn add(
    switch: &Switch,
    instance: &Instance,
    flags: &flags::Up,
    port: u16,
    etcd: Option<&etcd::Access>,
) -> Result<Vec<(Member, SocketAddr)>> {
    let left_out: Vec<&str> = OWN_FLAGS.iter().chain(ETCD_FLAGS.iter().filter(|_| etcd.is_some())).copied().collect();
    let typed = passed_on::typed("server", &left_out)?;
    let mut members = Vec::new();
    for n in 1..=u32::from(flags.servers) {
        let (member, place) =
            (Member::new(instance, Kind::Server, &format!("server-{n}")), switch.place(Kind::Server, n));
        let address = switch.address_like(place, flags.server.service_cidr.first());
        switch.plug_in(&member.instance, place)?;
        let mut arguments = arguments(&member, flags, address, port);
        if let Some(etcd) = etcd {
            let files = [("cafile", &etcd.ca), ("certfile", &etcd.certificate), ("keyfile", &etcd.key)];
            arguments.push(format!("--etcd-servers={}", etcd.urls.join(",")));
            arguments.extend(files.map(|(flag, file)| format!("--etcd-{flag}={}", file.display())));
        }
        arguments.extend(typed.iter().cloned());
        member.keep(address, arguments)?;
        file_modes::private_directory(&member.instance.pki())?;
        cluster_keys::copy(&instance.pki(), &member.instance.pki())?;
        members.push((member, SocketAddr::new(address, port)));
    }
    Ok(members)
}

fn arguments(member: &Member, flags: &flags::Up, address: IpAddr, port: u16) -> Vec<String> {
    let list = |ranges: &[IpNet]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut arguments = vec!["server".to_string()];
    let mut flag = |name: &str, value: String| arguments.push(format!("--{name}={value}"));
    flag("data-dir", member.instance.data.display().to_string());
    flag("netns", member.instance.netns().display().to_string());
    flag("host-name", member.name.clone());
    flag("advertise-address", address.to_string());
    flag("port", port.to_string());
    flag("pod-cidr", list(&flags.server.pod_cidr));
    flag("service-cidr", list(&flags.server.service_cidr));
    arguments
}
