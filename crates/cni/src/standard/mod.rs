//! Upstream's standard plugins by their own names: `bridge`, `host-local`, `portmap`, `bandwidth`, so that network
//! configurations written for them work on a machine that has none of them.
//! Called by `lib`; what they do to the system is in `link`, `ipam`, `nft` and `bandwidth`, as for our own network.
//! A field that is not followed here is refused by name when it asks for something.

mod bridge;
mod configuration;
mod host_local;
mod link_bandwidth;
mod port_mapping;

use std::path::PathBuf;

use serde_json::Value;

use self::configuration::{Configuration, IpamConfiguration};
use crate::{
    Request,
    ipam::{Ipam, Owner},
    nft,
    types::Error,
};

/// Where upstream's host-local keeps addresses unless it is told otherwise.
const DATA_DIR: &str = "/var/lib/cni/networks";

/// The plugins of this folder.
pub const NAMES: [&str; 4] = ["bridge", "host-local", "portmap", "bandwidth"];

pub fn dispatch(plugin: &str, request: &Request, input: &str) -> Result<Option<Value>, Error> {
    let conf = Configuration::parse(input)?;
    request.validate()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|error| Error::io(format!("failed to start a runtime: {error}")))?;
    runtime.block_on(async {
        match plugin {
            "bridge" => bridge::run(request, &conf, input).await,
            "host-local" => host_local::run(request, &conf),
            "portmap" => port_mapping::run(request, &conf).await,
            _ => link_bandwidth::run(request, &conf).await,
        }
    })
}

/// The address book of a network, and what else is kept about it under the same lock.
fn records(conf: &Configuration) -> Result<Ipam, Error> {
    let directory = match &conf.ipam {
        Some(IpamConfiguration { data_dir: Some(directory), .. }) => directory.clone(),
        _ => PathBuf::from(DATA_DIR),
    };
    Ipam::open(&directory.join(&conf.name))
}

/// A table of rules for one network and purpose: names of networks may be longer than those of tables.
fn table(purpose: &str, conf: &Configuration) -> String {
    format!("minke-{purpose}-{:016x}", nft::fnv(&conf.name))
}

/// Who is valid, for GC.
fn valid_owners(conf: &Configuration) -> Result<Vec<Owner>, Error> {
    let Some(valid) = &conf.valid_attachments else {
        return Err(Error::invalid_config("GC needs cni.dev/valid-attachments"));
    };
    let owner = |a: &crate::Attachment| Owner { container_id: a.container_id.clone(), ifname: a.ifname.clone() };
    Ok(valid.iter().map(owner).collect())
}

/// The plugin of this folder that a call is for, if any: by the name it was called under, since one that delegates hands
/// its own configuration on, or else by what the configuration says.
pub fn plugin_of(called_as: &str, input: &str) -> Option<&'static str> {
    let named = |wanted: &str| NAMES.into_iter().find(|name| *name == wanted);
    named(called_as).or_else(|| {
        let conf: Value = serde_json::from_str(input).ok()?;
        named(conf["type"].as_str()?)
    })
}
