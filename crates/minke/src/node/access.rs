//! How a node apart from the control plane reaches the API server, and what it shows to those who reach it.
//! Opened by `commands` for `agent`; joining itself is in `join`.
//! One identity for everything that the node does.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use client::{Client, HttpsConfig, HttpsTransport, Identity};
use env::Env;
use parking_lot::RwLock;
use rustls::server::ResolvesServerCert;
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::{
        ca_pin,
        kubeconfigs::{self, Source},
        kubelet_serving_ca,
        pki::{Current, Leaf, Pki},
    },
    cluster::instance::Instance,
    flags,
    node::{
        agent::node_name,
        join::{self, Member, Serving},
    },
};

/// For a server that does not answer now: the node starts without it.
const KUBELET_CA_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Access {
    pub client: Client,
    pub client_ca: String,
    /// Who signs for kubelets' servers.
    pub kubelet_ca: Arc<RwLock<String>>,
    pub serving: Option<Arc<dyn ResolvesServerCert>>,
    pub joined: Option<(Arc<Member>, Arc<Serving>)>,
    pub identity: Identity,
}

impl Access {
    /// With a kubeconfig, or by joining with a token.
    pub async fn open(
        flags: &flags::Agent,
        instance: &Instance,
        env: &Env,
        shutdown: &CancellationToken,
    ) -> Result<Self> {
        let name = node_name(&flags.node)?;
        if flags.kubeconfig.is_some() || flags.as_pod {
            let source = Source { kubeconfig: flags.kubeconfig.clone(), master: flags.master.clone() };
            let connection = source.read("kubelet")?;
            kubeconfigs::follow(&source, &connection.identity, env, shutdown);
            return Self::from_connection(connection, flags, instance, &name, env).await;
        }
        let member = join::join(flags, instance, &name, env).await?;
        let serving = Arc::new(Serving::default());
        Ok(Self {
            client: member.client.clone(),
            identity: member.identity.clone(),
            client_ca: member.ca_pem.clone(),
            kubelet_ca: member.kubelet_ca.clone(),
            serving: Some(serving.clone()),
            joined: Some((member, serving)),
        })
    }

    /// The certificate to show is not the one of the kubeconfig, which proves to others that one is a client. It is signed
    /// by the cluster if the configuration says so; where it says nothing, also if that is a control plane of ours, which
    /// believes no other and approves what a node asks for itself. Else it is by an authority of the node's own, as upstream's.
    async fn from_connection(
        connection: HttpsConfig,
        flags: &flags::Agent,
        instance: &Instance,
        name: &str,
        env: &Env,
    ) -> Result<Self> {
        let client_ca: String = connection.ca.iter().map(|der| ca_pin::pem(der)).collect();
        let (identity, server) = (connection.identity.clone(), connection.server.clone());
        let client = Client::new(HttpsTransport::new(connection)?);
        let configuration = flags.node.configuration()?;
        let wants = |field: &str| configuration.get(field).is_some_and(|value| value == true);
        let member =
            || Member::of_kubeconfig(client.clone(), identity.clone(), &client_ca, &server, name, instance, env);
        if wants("rotateCertificates") {
            member()?.rotate_client_certificate();
        }
        let published = env.timeout(KUBELET_CA_TIMEOUT, kubelet_serving_ca::fetch(&client)).await;
        let published = published.and_then(|fetched| {
            fetched
                .inspect_err(|error| {
                    tracing::warn!(error = format!("{error:#}"), "failed to learn who signs for kubelets")
                })
                .ok()?
        });
        let is_free = ["serverTLSBootstrap", "tlsCertFile"].iter().all(|field| configuration.get(field).is_none());
        if wants("serverTLSBootstrap") || (is_free && published.is_some() && is_of_node(&identity, name)) {
            let member = member()?;
            let serving = Arc::new(Serving::default());
            let (kubelet_ca, joined) = (member.kubelet_ca.clone(), Some((member, serving.clone())));
            return Ok(Self { client, client_ca, kubelet_ca, serving: Some(serving), joined, identity });
        }
        let kubelet_ca = Arc::new(RwLock::new(published.unwrap_or_else(|| client_ca.clone())));
        let serving = Arc::new(self_signed(flags, instance, name, env)?);
        Ok(Self { client, client_ca, kubelet_ca, serving: Some(serving), joined: None, identity })
    }
}

/// Whether the client certificate names this node.
fn is_of_node(identity: &Identity, name: &str) -> bool {
    let Some(current) = identity.certificate.as_ref().map(|current| current.read().clone()) else { return false };
    let parsed = current.cert.first().and_then(|der| x509_parser::parse_x509_certificate(der).ok());
    let Some((_, certificate)) = parsed else { return false };
    let user = certificate.subject().iter_common_name().last().and_then(|user| user.as_str().ok());
    user.is_some_and(|user| user.strip_prefix("system:node:") == Some(name))
}

/// By an authority that only this node has, so that whoever wants to can believe it (`pki/kubelet/ca.crt`).
fn self_signed(flags: &flags::Agent, instance: &Instance, name: &str, env: &Env) -> Result<Current> {
    let pki = Pki::open(&instance.pki().join("kubelet"), env.clone())?;
    pki.rotating(Leaf {
        name: "kubelet".into(),
        common_name: name.to_string(),
        dns_names: vec![name.to_string()],
        addresses: flags.node.node_ip.clone(),
        server: true,
        ..Leaf::default()
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{
        certificates::pki::write_private,
        flags::{Command, Flags},
    };

    #[tokio::test]
    async fn a_kubelet_with_a_kubeconfig_has_a_serving_certificate_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let (env, shutdown) = (Env::real(), CancellationToken::new());
        let cluster = Pki::open(&directory.path().join("cluster"), env.clone()).unwrap();
        let pem = cluster.leaf(&Leaf::client("n", "system:node:n", Some("system:nodes"))).unwrap();
        // Nobody answers there.
        let text = client::kubeconfig_yaml("https://127.0.0.1:1", cluster.ca_pem(), "u", &pem.certificate, &pem.key);
        let kubeconfig = directory.path().join("kubelet.kubeconfig");
        write_private(&kubeconfig, &text).unwrap();
        let open = async |data: &str, more: &[&str]| {
            let data = directory.path().join(data);
            let (data, kubeconfig) = (data.to_str().unwrap(), kubeconfig.to_str().unwrap());
            let typed = ["minke", "kubelet", "--data-dir", data, "--kubeconfig", kubeconfig];
            let typed = typed.iter().chain(&["--hostname-override", "n", "--node-ip", "192.0.2.1"]).chain(more);
            let Command::Kubelet(flags) = Flags::try_parse_from(typed).expect("valid flags").command else {
                panic!("kubelet")
            };
            let agent = flags.agent().unwrap();
            Access::open(&agent, &agent.data.instance(), &env, &shutdown).await.unwrap()
        };
        let access = open("one", &[]).await;
        assert!(access.joined.is_none());
        let ca = std::fs::read_to_string(directory.path().join("one/pki/kubelet/ca.crt")).unwrap();
        let shown = std::fs::read(directory.path().join("one/pki/kubelet/kubelet.crt")).unwrap();
        let shown = client::certificates(&shown).unwrap();
        let own = access.identity.certificate.as_ref().unwrap().read().cert[0].clone();
        assert_ne!(shown[0], own, "not the one that says who it is as a client");
        assert!(
            crate::certificates::pki::signed_by(&shown[0], &ca)
                && !crate::certificates::pki::signed_by(&shown[0], cluster.ca_pem())
        );
        let (_, parsed) = x509_parser::parse_x509_certificate(&shown[0]).unwrap();
        let usage = parsed.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && !usage.client_auth);

        let access = open("two", &["--rotate-server-certificates"]).await;
        assert!(access.joined.is_some(), "asked of the cluster once the node is registered");
        shutdown.cancel();
    }
}
