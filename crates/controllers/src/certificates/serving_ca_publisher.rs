//! Publishes who signs for kubelets' servers, as the ConfigMap `kube-public/kubelet-serving-ca`.
//! Nodes that join read it, and whoever scrapes kubelets may: the Role `minke:kubelet-serving-ca` of the bootstrap policy
//! lets every authenticated user get it.
//! What people change in it is changed back.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use client::Informer;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use crate::{
    common::meta,
    runner::{Context, Controller, Outcome, Setup},
};

const NAMESPACE: &str = "kube-public";
const NAME: &str = "kubelet-serving-ca";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let maps = setup.informer::<ConfigMap>();
    let key = meta::key(NAMESPACE, NAME);
    setup.on_objects(maps.objects(), {
        let key = key.clone();
        move |change, queue| {
            if change.key == key {
                queue.add(key.clone());
            }
        }
    });
    setup.queue.add(key);
    Arc::new(ServingCaPublisher { context: setup.context.clone(), maps })
}

struct ServingCaPublisher {
    context: Context,
    maps: Informer<ConfigMap>,
}

#[async_trait]
impl Controller for ServingCaPublisher {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(authority) = &self.context.config.kubelet_serving_authority else { return Ok(None) };
        let data: BTreeMap<String, String> = [("ca.crt".to_string(), authority.certificate_pem.clone())].into();
        let api = self.context.client.namespaced::<ConfigMap>(NAMESPACE);
        match self.maps.get(key) {
            Some(map) if map.data.as_ref() == Some(&data) => {}
            Some(map) => drop(api.replace(NAME, &ConfigMap { data: Some(data), ..(*map).clone() }).await?),
            None => {
                let metadata =
                    ObjectMeta { name: Some(NAME.into()), namespace: Some(NAMESPACE.into()), ..ObjectMeta::default() };
                api.create(&ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }).await?;
            }
        }
        Ok(None)
    }
}
