//! What projected volumes show of certificates: `trust_bundles` has the ClusterTrustBundles of the cluster,
//! `pod_certificates` asks for certificates of pods and renews them, `pod_key` makes their keys.
//! Used by `volume_manager`; a change wakes the pods concerned.

pub mod pod_certificates;
mod pod_key;
pub mod trust_bundles;

use std::{collections::BTreeMap, sync::Arc};

use client::{Client, EventRecorder};
use env::Env;
use k8s_openapi::api::core::v1::{Pod, Volume, VolumeProjection};
use metrics::Metrics;

use super::error::VolumeError;
use crate::{config::Config, pod::pod_wakes::PodWakes};
use pod_certificates::{Credential, PodCertificateManager};
use trust_bundles::TrustBundleManager;

/// Feature gates by upstream's names.
const CLUSTER_TRUST_BUNDLE_PROJECTION: &str = api::feature_gates::CLUSTER_TRUST_BUNDLE_PROJECTION;
const POD_CERTIFICATE_REQUEST: &str = api::feature_gates::POD_CERTIFICATE_REQUEST;

/// What a source of a projected volume shows, by its place in the volume.
pub type CertificateSources = BTreeMap<usize, CertificateSource>;

#[derive(Debug, Clone, PartialEq)]
pub enum CertificateSource {
    TrustAnchors(String),
    Credential(Credential),
}

/// Without its gates it refuses both kinds of sources.
#[derive(Default)]
pub struct CertificateManager {
    trust_bundles: Option<TrustBundleManager>,
    pod_certificates: Option<Arc<PodCertificateManager>>,
}

impl CertificateManager {
    pub fn new(
        client: &Client,
        env: &Env,
        config: &Config,
        recorder: &EventRecorder,
        metrics: &Metrics,
        wakes: &PodWakes,
    ) -> Self {
        let gates = &config.feature_gates;
        let bundles = || TrustBundleManager::new(client.clone(), env.clone(), wakes.clone());
        let certificates = || {
            let (client, env, node) = (client.clone(), env.clone(), config.node_name.clone());
            Arc::new(PodCertificateManager::new(client, env, node, recorder.clone(), metrics.clone(), wakes.clone()))
        };
        Self {
            trust_bundles: gates.enabled(CLUSTER_TRUST_BUNDLE_PROJECTION).then(bundles),
            pod_certificates: gates.enabled(POD_CERTIFICATE_REQUEST).then(certificates),
        }
    }

    /// What the volume's sources of these kinds show now. Asks for what is not there yet.
    pub async fn sources(&self, pod: &Pod, volume: &Volume) -> Result<CertificateSources, VolumeError> {
        let sources = volume.projected.as_ref().and_then(|projected| projected.sources.as_deref()).unwrap_or_default();
        let mut found = CertificateSources::new();
        for (index, source) in sources.iter().enumerate() {
            if let Some(shown) = self.source(pod, volume, index, source).await? {
                found.insert(index, shown);
            }
        }
        Ok(found)
    }

    async fn source(
        &self,
        pod: &Pod,
        volume: &Volume,
        index: usize,
        source: &VolumeProjection,
    ) -> Result<Option<CertificateSource>, VolumeError> {
        if let Some(bundle) = &source.cluster_trust_bundle {
            let manager = self.trust_bundles.as_ref().ok_or(VolumeError::TrustBundlesUnsupported)?;
            let anchors = manager.anchors(pod, bundle).await?;
            return Ok(Some(CertificateSource::TrustAnchors(anchors)));
        }
        if let Some(wanted) = &source.pod_certificate {
            let manager = self.pod_certificates.as_ref().ok_or(VolumeError::PodCertificatesUnsupported)?;
            let credential = manager.get(pod, &volume.name, index, wanted).await?;
            return Ok(Some(CertificateSource::Credential(credential)));
        }
        Ok(None)
    }

    /// The pod is gone.
    pub fn forget(&self, uid: &str) {
        if let Some(bundles) = &self.trust_bundles {
            bundles.forget(uid);
        }
        if let Some(certificates) = &self.pod_certificates {
            certificates.forget(uid);
        }
    }
}
