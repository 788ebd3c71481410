//! The registry of a cluster (`--registry`): plain on this machine's loopback, over TLS for the other nodes, and said where
//! nodes and tools look for it (the ConfigMap `kube-public/local-registry-hosting`, KEP 1755).
//! Started by `up` and `server`; `node::registry_hosts` has containerd find it. What it speaks is the crate `registry`'s.
//! Pushes come from this machine, or from an admin's certificate.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result};
use client::{Client, Patch};
use env::Env;
use k8s_openapi::{
    api::{
        core::v1::ConfigMap,
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use registry::{Access, Registry};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use serve::Peer;
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::pki::{Leaf, Pki},
    cluster::{instance::Instance, preflight},
    commands::report::Reporter,
    components::Components,
    control_plane::server::{ControlPlane, MASTERS},
    flags::RegistryFlags,
};

pub const NAMESPACE: &str = "kube-public";
pub const NAME: &str = "local-registry-hosting";
/// The key of the KEP, for tools.
const HOSTING_KEY: &str = "localRegistryHosting.v1";
/// Ours, for nodes: what pods call it, and where other machines reach it.
pub const HOST_KEY: &str = "host";
pub const SERVER_KEY: &str = "server";
const ROLE: &str = "minke:local-registry-hosting";
const NODES: &str = "system:nodes";

/// Returns once it answers, or once nobody is told any more that there is one.
pub async fn start(
    flags: &RegistryFlags,
    plane: &ControlPlane,
    instance: &Instance,
    (env, shutdown): (&Env, &CancellationToken),
    report: &Reporter,
    components: &Components,
) -> Result<()> {
    let client = in_process::client(&plane.api, "minke:registry", &[MASTERS]);
    if !flags.registry {
        return retract(&client).await.context("failed to say that there is no registry any more");
    }
    let port = flags.registry_port;
    let registry = Registry::open(&instance.data.join("registry"), env.clone())
        .with_context(|| format!("can't use {}", instance.data.join("registry").display()))?;
    let loopback = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let listener = tokio::net::TcpListener::from_std(preflight::listen(loopback, "--registry-port")?)?;
    let (served, until) = (registry.clone(), shutdown.clone());
    components.run("the registry", async move {
        served.serve_loopback(listener, until).await;
        Ok::<_, std::convert::Infallible>(())
    });
    let address = plane.address.ip();
    if !address.is_loopback() {
        let listener = preflight::listen(SocketAddr::new(address, port), "--registry-port")?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (tls, until) = (tls(plane.own_pki()?, address)?, shutdown.clone());
        components.run("the registry", async move {
            registry.serve_tls(listener, tls, Arc::new(access), until).await;
            Ok::<_, std::convert::Infallible>(())
        });
    }
    publish(&client, port, address).await.context("failed to publish where the registry is")?;
    report.step(&format!("registry ready at localhost:{port}"));
    Ok(())
}

/// Only clients whose certificate the cluster's authority signed.
fn tls(pki: &Arc<Pki>, address: IpAddr) -> Result<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    for authority in client::certificates(pki.ca_pem().as_bytes()).map_err(anyhow::Error::msg)? {
        roots.add(authority)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let serving = pki.rotating(Leaf {
        name: "registry".into(),
        common_name: "minke-registry".into(),
        addresses: vec![address],
        server: true,
        ..Leaf::default()
    })?;
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_client_cert_verifier(verifier).with_cert_resolver(Arc::new(serving)))
}

/// Nodes pull; admins do everything.
fn access(peer: &Peer) -> Access {
    let own = peer.certificates.as_ref().and_then(|chain| chain.first());
    let Some(Ok((_, certificate))) = own.map(|der| x509_parser::parse_x509_certificate(der)) else {
        return Access::Refused;
    };
    let is_of =
        |group: &str| certificate.subject().iter_organization().any(|o| o.as_str().is_ok_and(|name| name == group));
    match () {
        () if is_of(MASTERS) => Access::Push,
        () if is_of(NODES) => Access::Pull,
        () => Access::Refused,
    }
}

/// Whoever is known to the cluster may look where it is.
async fn let_nodes_look(client: &Client) -> Result<()> {
    let metadata = json!({ "name": ROLE, "namespace": NAMESPACE });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
        "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get"] }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated" }],
    });
    client.namespaced::<Role>(NAMESPACE).patch(ROLE, &apply(role)).await?;
    client.namespaced::<RoleBinding>(NAMESPACE).patch(ROLE, &apply(binding)).await?;
    Ok(())
}

fn apply(config: Value) -> Patch {
    Patch::Apply { manager: "minke-registry".into(), force: true, config }
}

async fn publish(client: &Client, port: u16, address: IpAddr) -> Result<()> {
    let_nodes_look(client).await?;
    let server = SocketAddr::new(address, port);
    let hosting = format!(
        "host: \"localhost:{port}\"\nhostFromContainerRuntime: \"localhost:{port}\"\nhelp: \"push to localhost:{port} on the \
         machine of the control plane, and name images so in pods\"\n"
    );
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": NAME, "namespace": NAMESPACE },
        "data": { HOSTING_KEY: hosting, HOST_KEY: format!("localhost:{port}"), SERVER_KEY: server.to_string() },
    });
    client.namespaced::<ConfigMap>(NAMESPACE).patch(NAME, &apply(config)).await?;
    Ok(())
}

/// What a former start has published. Another registry's is another's.
async fn retract(client: &Client) -> Result<()> {
    let maps = client.namespaced::<ConfigMap>(NAMESPACE);
    let is_ours = |map: &ConfigMap| map.data.as_ref().is_some_and(|data| data.contains_key(SERVER_KEY));
    match maps.find(NAME).await? {
        Some(map) if is_ours(&map) => Ok(maps.delete(NAME, &DeleteOptions::default()).await?),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nodes_pull_admins_push_and_nobody_else_comes_in() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), Env::real()).unwrap();
        let of = |name: &str, group: Option<&str>| {
            let pem = pki.leaf(&Leaf::client(name, name, group)).unwrap();
            let certificates = client::certificates(pem.certificate.as_bytes()).unwrap();
            access(&Peer { address: None, certificates: Some(certificates) })
        };
        assert_eq!(of("a", Some(MASTERS)), Access::Push);
        assert_eq!(of("b", Some(NODES)), Access::Pull);
        assert_eq!((of("c", Some("others")), of("d", None)), (Access::Refused, Access::Refused));
        assert_eq!(access(&Peer { address: None, certificates: None }), Access::Refused);
        tls(&pki, "192.0.2.1".parse().unwrap()).unwrap();
    }
}
