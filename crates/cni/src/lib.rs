//! Our own CNI plugin: bridge with veth pairs, host-local addresses, masquerade, hairpin and host ports in one
//! short-lived process. Called by the container runtime under the names in [`PLUGIN_NAMES`]; the kubelet writes
//! its configuration with [`conflist`]. Under the names in [`STANDARD_NAMES`] it is upstream's standard plugins.
//! Invariant: what a dead ADD left behind is found again from the container ID alone, so DEL or GC removes it (test:
//! `death_in_the_middle_leaks_nothing`).

mod attach;
mod bandwidth;
mod check;
mod cleanup;
mod conflist;
mod conntrack;
mod ipam;
mod kernel_rules;
mod link;
mod netns;
mod nft;
mod policy_claim;
mod portmap;
mod standard;
mod types;

use std::{
    io::{Read, Write},
    path::Path,
};

use serde_json::{Value, json};

pub use cleanup::{CleanupParams, cleanup};
pub use conflist::{ConfListParams, conflist};
pub use ipam::gateway;
pub use standard::NAMES as STANDARD_NAMES;
pub use types::{Attachment, Error, NetConf, PortMapping, SUPPORTED_VERSIONS};

/// The names under which the binary acts as a CNI plugin. `loopback` is there because containerd insists on it.
pub const PLUGIN_NAMES: [&str; 2] = ["minke-cni", "loopback"];

/// Whether a program started as `argv0` should call [`main`].
pub fn called_as_plugin(argv0: &str) -> bool {
    let name = base_name(argv0);
    PLUGIN_NAMES.contains(&name) || STANDARD_NAMES.contains(&name)
}

fn base_name(argv0: &str) -> &str {
    Path::new(argv0).file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The plugin's whole life: environment and stdin in, one JSON document on stdout and an exit status out.
pub fn main() -> i32 {
    let mut input = String::new();
    let read = std::io::stdin().read_to_string(&mut input);
    let outcome = match read {
        Ok(_) => run(&Request::from_env(), &input),
        Err(error) => Err(Error::io(format!("failed to read the network configuration from stdin: {error}"))),
    };
    let (document, status) = match outcome {
        Ok(None) => return 0,
        Ok(Some(document)) => (document, 0),
        Err(error) => (error.to_json(&requested_version(&input)), 1),
    };
    match writeln!(std::io::stdout(), "{document}") {
        Ok(()) => status,
        Err(_) => 1,
    }
}

/// The `CNI_*` environment of one call.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub command: String,
    pub container_id: String,
    pub netns: String,
    pub ifname: String,
    /// What the runtime says of the pod: `NAME=VALUE;…`.
    pub args: String,
    /// The name under which the plugin was called.
    pub called_as: String,
}

impl Request {
    fn from_env() -> Self {
        let var = |name: &str| std::env::var(name).unwrap_or_default();
        Self {
            command: var("CNI_COMMAND"),
            container_id: var("CNI_CONTAINERID"),
            netns: var("CNI_NETNS"),
            ifname: var("CNI_IFNAME"),
            args: var("CNI_ARGS"),
            called_as: std::env::args().next().map(|name| base_name(&name).to_owned()).unwrap_or_default(),
        }
    }

    /// One of the things that the runtime says of the pod.
    pub(crate) fn argument(&self, wanted: &str) -> Option<&str> {
        let mut all = self.args.split(';').filter_map(|pair| pair.split_once('='));
        all.find(|(name, _)| *name == wanted).map(|(_, value)| value)
    }
}

/// One call: `Ok(None)` prints nothing.
pub fn run(request: &Request, input: &str) -> Result<Option<Value>, Error> {
    if request.command == "VERSION" {
        return Ok(Some(json!({
            "cniVersion": requested_version(input),
            "supportedVersions": SUPPORTED_VERSIONS,
        })));
    }
    if let Some(plugin) = standard::plugin_of(&request.called_as, input) {
        return std::thread::scope(|scope| {
            let call = scope.spawn(|| standard::dispatch(plugin, request, input));
            call.join().map_err(|_| Error::internal("the plugin panicked"))?
        });
    }
    let conf = NetConf::parse(input)?;
    request.validate()?;
    // Everything happens on one thread of its own: it changes network namespaces and nobody else may notice.
    std::thread::scope(|scope| {
        scope.spawn(|| attach::dispatch(request, &conf)).join().map_err(|_| Error::internal("the plugin panicked"))?
    })
}

/// Makes the network that a conflist of ours describes, so that the node can use its bridge before the first pod.
/// Blocks; call it from a blocking context.
pub fn prepare(conflist: &Value) -> Result<(), Error> {
    let conf = network(conflist)?;
    std::thread::scope(|scope| {
        scope.spawn(|| attach::prepare(&conf)).join().map_err(|_| Error::internal("the plugin panicked"))?
    })
}

/// Writes the rules that somebody else has deleted; whether there were any. Blocks.
pub fn restore(conflist: &Value) -> Result<bool, Error> {
    attach::restore(&network(conflist)?)
}

/// Everything in the network `name` that ADD made and nobody has removed. Blocks.
pub fn attachments(data_dir: &Path, name: &str) -> Result<Vec<Attachment>, Error> {
    attach::attachments(&data_dir.join(name))
}

/// What DEL does, for an attachment that the runtime has lost. Blocks.
pub fn detach(conflist: &Value, attachment: &Attachment) -> Result<(), Error> {
    let conf = network(conflist)?;
    let request = Request {
        command: "DEL".into(),
        container_id: attachment.container_id.clone(),
        ifname: attachment.ifname.clone(),
        ..Request::default()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| attach::dispatch(&request, &conf)).join().map_err(|_| Error::internal("the plugin panicked"))?
    })
    .map(drop)
}

/// The nftables tables of a network that was given this one.
pub fn tables(table: &str) -> Vec<String> {
    vec![table.to_owned(), nft::ports_table(table)]
}

/// The configuration as the runtime would hand it to the plugin.
fn network(conflist: &Value) -> Result<NetConf, Error> {
    let mut plugin = conflist["plugins"][0].clone();
    plugin["cniVersion"] = conflist["cniVersion"].clone();
    plugin["name"] = conflist["name"].clone();
    NetConf::parse(&plugin.to_string())
}

fn requested_version(input: &str) -> String {
    serde_json::from_str::<Value>(input)
        .ok()
        .and_then(|conf| conf["cniVersion"].as_str().map(str::to_owned))
        .unwrap_or_else(|| SUPPORTED_VERSIONS[SUPPORTED_VERSIONS.len() - 1].to_owned())
}
