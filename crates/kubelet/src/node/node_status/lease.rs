//! The node's sign of life: a Lease that is renewed every few seconds.
//! Part of `node_status`.
//! One that somebody else has written is read again before it is written.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};

use super::NodeStatusManager;

const LEASE_NAMESPACE: &str = "kube-node-lease";

impl NodeStatusManager {
    /// Renews the Lease for ever.
    pub async fn run_lease(self: Arc<Self>) {
        let interval = self.config.lease_renew_interval;
        let mut known: Option<Lease> = None;
        loop {
            match self.renew(known.take()).await {
                Ok(lease) => {
                    known = Some(lease);
                    self.env.sleep(interval).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to renew the node's lease");
                    self.env.sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    async fn renew(&self, known: Option<Lease>) -> Result<Lease, api::ApiError> {
        let api = self.client.namespaced::<Lease>(LEASE_NAMESPACE);
        let name = &self.config.node_name;
        let existing = match known {
            Some(lease) => Some(lease),
            None => api.find(name).await?,
        };
        let now = MicroTime(self.env.now());
        let spec = |lease: &Lease| LeaseSpec {
            holder_identity: Some(name.clone()),
            lease_duration_seconds: Some(self.config.lease_seconds),
            renew_time: Some(now.clone()),
            ..lease.spec.clone().unwrap_or_default()
        };
        let owner = self.owner();
        match existing {
            Some(mut lease) => {
                lease.spec = Some(spec(&lease));
                if lease.metadata.owner_references.is_none() {
                    lease.metadata.owner_references = owner;
                }
                match api.replace(name, &lease).await {
                    // Someone else wrote it: the next attempt reads it first.
                    Err(error) if error.is_conflict() || error.is_not_found() => Err(error),
                    other => other,
                }
            }
            None => {
                let metadata = ObjectMeta {
                    name: Some(name.clone()),
                    namespace: Some(LEASE_NAMESPACE.into()),
                    owner_references: owner,
                    ..Default::default()
                };
                let lease = Lease { metadata, spec: Some(spec(&Lease::default())) };
                api.create(&lease).await
            }
        }
    }

    fn owner(&self) -> Option<Vec<OwnerReference>> {
        let uid = self.node.lock().metadata.uid.clone()?;
        Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: self.config.node_name.clone(),
            uid,
            ..Default::default()
        }])
    }
}
