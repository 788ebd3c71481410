//! Publishes who signs for the API server's address, as a ClusterTrustBundle of `kubernetes.io/kube-apiserver-serving`.
//! Beside `serving_ca_publisher`; there only with the gate ClusterTrustBundle.
//! The bundle's name has a hash of its content, so bundles of this signer with other names are removed.

use std::sync::Arc;

use api::{ApiError, Resource};
use async_trait::async_trait;
use client::{ListParams, ObjectInformer};
use http::Method;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    common::{meta::delete_options, objects, publish_metrics},
    runner::{Context, Controller, Outcome, Setup},
};

const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";
const KEY: &str = "bundle";
const HASH_BYTES: usize = 12;

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let resource = setup.context.gated_kind("clustertrustbundles");
    let params = ListParams::fields(format!("spec.signerName={SIGNER}"));
    let bundles = setup.context.informers.objects(resource.clone(), params);
    setup.wait_for(&bundles);
    setup.on_objects(&bundles, |_, queue| queue.add(KEY.to_string()));
    setup.queue.add(KEY.to_string());
    Arc::new(TrustBundlePublisher { context: setup.context.clone(), resource, bundles })
}

struct TrustBundlePublisher {
    context: Context,
    resource: Arc<Resource>,
    bundles: ObjectInformer,
}

fn bundle_name(pem: &str) -> String {
    let hash: String = Sha256::digest(pem)[..HASH_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}:{hash}", SIGNER.replace('/', ":"))
}

impl TrustBundlePublisher {
    async fn publish(&self, name: &str, pem: &str) -> Result<(), ApiError> {
        let (client, json) = (&self.context.client, "application/json");
        let (method, path, object) = match self.bundles.get(name).map(|object| object.value()) {
            Some(object) if object["spec"]["trustBundle"] == pem => return Ok(()),
            Some(mut object) => {
                object["spec"]["trustBundle"] = pem.into();
                (Method::PUT, self.resource.path(None, Some(name)), object)
            }
            None => {
                let spec = json!({ "signerName": SIGNER, "trustBundle": pem });
                (Method::POST, self.resource.path(None, None), json!({ "metadata": { "name": name }, "spec": spec }))
            }
        };
        objects::call(client, method, path, json, object.to_string().into_bytes()).await.map(drop)
    }
}

#[async_trait]
impl Controller for TrustBundlePublisher {
    async fn reconcile(&self, _: &str) -> Outcome {
        let began = self.context.env.monotonic();
        let outcome = self.keep_bundle().await;
        let took = self.context.env.monotonic().saturating_sub(began);
        publish_metrics::record(&self.context.config.metrics, &publish_metrics::TRUST_BUNDLE, &outcome, took);
        outcome
    }
}

impl TrustBundlePublisher {
    async fn keep_bundle(&self) -> Outcome {
        let Some(pem) = &self.context.config.root_ca_pem else { return Ok(None) };
        let name = bundle_name(pem);
        self.publish(&name, pem).await?;
        for other in self.bundles.list().into_iter().filter(|other| other.meta.name != name) {
            let options = delete_options(&other.meta.uid);
            match objects::delete(&self.context.client, &self.resource, "", &other.meta.name, &options).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_content() {
        // As upstream's: the first 12 bytes of the hash.
        assert_eq!(bundle_name(""), "kubernetes.io:kube-apiserver-serving:e3b0c44298fc1c149afbf4c8");
        assert_ne!(bundle_name("a"), bundle_name("b"));
    }
}
