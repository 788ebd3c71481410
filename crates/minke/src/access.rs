//! How a node apart from the control plane reaches the API server, and what it shows to those who reach it.
//! Opened by `commands` for `agent`; joining itself is in `join`.
//! Invariant: one identity for everything that the node does.

use std::sync::Arc;

use anyhow::Result;
use client::{Client, HttpsConfig, HttpsTransport, Identity, from_kubeconfig};
use env::Env;
use parking_lot::RwLock;
use rustls::server::ResolvesServerCert;

use crate::{
    agent::node_name,
    ca_pin, flags,
    instance::Instance,
    join::{self, Member, Serving},
    pki::Current,
};

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
    pub async fn open(flags: &flags::Agent, instance: &Instance, env: &Env) -> Result<Self> {
        if let Some(kubeconfig) = &flags.kubeconfig {
            return Self::of(from_kubeconfig(kubeconfig, "minke-agent")?);
        }
        let member = join::join(flags, instance, &node_name(&flags.node)?, env).await?;
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

    fn of(connection: HttpsConfig) -> Result<Self> {
        let serving = connection.identity.certificate.clone().map(|c| Arc::new(Current(c)) as _);
        let client_ca: String = connection.ca.iter().map(|der| ca_pin::pem(der)).collect();
        let kubelet_ca = Arc::new(RwLock::new(client_ca.clone()));
        let identity = connection.identity.clone();
        let client = Client::new(HttpsTransport::new(connection)?);
        Ok(Self { client, client_ca, kubelet_ca, serving, joined: None, identity })
    }
}
