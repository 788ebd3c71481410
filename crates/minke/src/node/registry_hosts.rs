//! Has this node's containerd find the cluster's registry: a `hosts.toml` for what pods call `localhost:PORT`.
//! Run by `agent`; the control plane says where the registry is (`control_plane::registry`).
//! Leaves a file alone that somebody else wrote.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use client::Client;
use env::Env;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::pki::{write_private, write_public},
    control_plane::registry::{HOST_KEY, NAME, NAMESPACE, SERVER_KEY},
};

/// A control plane gets or loses its registry when it is started anew.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
const MARK: &str = "# Written by minke for the cluster's registry: edits are lost.";

/// How this node reaches the registry.
#[derive(Debug, Clone)]
pub enum Way {
    /// It is in this process.
    Loopback,
    /// With the node's own certificate, to a server that the cluster's authority has signed for.
    Tls { ca_pem: String, certificate: PathBuf, key: PathBuf },
}

/// What the control plane says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hosting {
    host: String,
    server: String,
}

pub async fn follow(directory: PathBuf, way: Way, client: Client, env: Env, shutdown: CancellationToken) {
    let looking = async {
        loop {
            if let Err(error) = look(&directory, &way, &client).await {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "can't tell containerd of the cluster's registry; will try again"
                );
            }
            env.sleep(LOOK_INTERVAL).await;
        }
    };
    shutdown.run_until_cancelled(looking).await;
}

async fn look(directory: &Path, way: &Way, client: &Client) -> Result<()> {
    let found = match client.namespaced::<ConfigMap>(NAMESPACE).find(NAME).await {
        // A server of before, or upstream's: it has none.
        Err(error) if error.reason == api::Reason::Forbidden => None,
        other => other?,
    };
    let hosting = found.and_then(|map| {
        let data = map.data?;
        Some(Hosting { host: data.get(HOST_KEY)?.clone(), server: data.get(SERVER_KEY)?.clone() })
    });
    settle(directory, way, hosting.filter(is_good).as_ref())
}

/// Both are addresses with ports: nothing else becomes the name of a file or part of one.
fn is_good(hosting: &Hosting) -> bool {
    let port = hosting.host.strip_prefix("localhost:").and_then(|port| port.parse::<u16>().ok());
    port.is_some() && hosting.server.parse::<std::net::SocketAddr>().is_ok()
}

/// The file says what the control plane does, and none is left of before.
fn settle(directory: &Path, way: &Way, hosting: Option<&Hosting>) -> Result<()> {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_current = hosting.is_some_and(|hosting| path.ends_with(&hosting.host));
        if !is_current && is_ours(&path.join("hosts.toml")) {
            fs::remove_dir_all(&path).with_context(|| format!("failed to remove {}", path.display()))?;
        }
    }
    let Some(hosting) = hosting else { return Ok(()) };
    let place = directory.join(&hosting.host);
    let file = place.join("hosts.toml");
    if file.exists() && !is_ours(&file) {
        return Ok(());
    }
    fs::create_dir_all(&place).with_context(|| format!("failed to create {}", place.display()))?;
    if let Way::Tls { ca_pem, .. } = way {
        put(&place.join("ca.crt"), ca_pem, write_public)?;
    }
    put(&file, &text(&place, way, hosting), write_private)
}

fn put(path: &Path, text: &str, write: fn(&Path, &str) -> Result<()>) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|found| found == text) { Ok(()) } else { write(path, text) }
}

fn is_ours(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.starts_with(MARK))
}

fn text(place: &Path, way: &Way, hosting: &Hosting) -> String {
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    match way {
        Way::Loopback => {
            let url = format!("http://{}", hosting.host.replace("localhost", "127.0.0.1"));
            format!("{MARK}\nserver = {url:?}\n\n[host.{url:?}]\n  capabilities = [\"pull\", \"resolve\", \"push\"]\n")
        }
        Way::Tls { certificate, key, .. } => {
            let url = format!("https://{}", hosting.server);
            format!(
                "{MARK}\nserver = {url:?}\n\n[host.{url:?}]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = {}\n  \
                 client = [[{}, {}]]\n",
                quoted(&place.join("ca.crt")),
                quoted(certificate),
                quoted(key)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_follows_what_is_said_and_leaves_others_alone() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("registries");
        let hosting = |port: u16| Hosting { host: format!("localhost:{port}"), server: format!("192.0.2.1:{port}") };
        let tls = Way::Tls { ca_pem: "CA\n".into(), certificate: "/pki/k.crt".into(), key: "/pki/k.key".into() };
        let read = |port: u16| fs::read_to_string(root.join(format!("localhost:{port}/hosts.toml"))).ok();
        settle(&root, &tls, None).unwrap();
        settle(&root, &tls, Some(&hosting(5000))).unwrap();
        let text = read(5000).unwrap();
        assert!(
            text.contains("[host.\"https://192.0.2.1:5000\"]") && text.contains("[[\"/pki/k.crt\", \"/pki/k.key\"]]"),
            "{text}"
        );
        assert_eq!(fs::read_to_string(root.join("localhost:5000/ca.crt")).unwrap(), "CA\n");
        settle(&root, &Way::Loopback, Some(&hosting(5001))).unwrap();
        assert_eq!(read(5000), None, "the port of before");
        assert!(read(5001).unwrap().contains("http://127.0.0.1:5001"));
        fs::create_dir_all(root.join("docker.io")).unwrap();
        fs::write(root.join("docker.io/hosts.toml"), "server = \"x\"").unwrap();
        fs::write(root.join("localhost:5001/hosts.toml"), "# mine").unwrap();
        settle(&root, &Way::Loopback, Some(&hosting(5001))).unwrap();
        settle(&root, &Way::Loopback, None).unwrap();
        assert_eq!(read(5001).as_deref(), Some("# mine"));
        assert!(root.join("docker.io/hosts.toml").exists());
    }

    #[test]
    fn only_addresses_become_names_of_files() {
        let check = |host: &str, server: &str| is_good(&Hosting { host: host.into(), server: server.into() });
        assert!(check("localhost:5000", "192.0.2.1:5000") && check("localhost:5000", "[2001:db8::1]:5000"));
        assert!(!check("../etc:5000", "192.0.2.1:5000") && !check("localhost:5000", "x\"]\nserver=\"y:1"));
        assert!(!check("localhost:99999", "192.0.2.1:1"));
    }
}
