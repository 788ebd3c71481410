//! Publishes the cluster's CA to every namespace as the ConfigMap `kube-root-ca.crt`.
//! Mounted into pods beside their tokens.
//! What people change in it is changed back.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use client::Informer;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::{
    common::{
        meta::{self, Object},
        pod_control::namespace_terminating,
        publish_metrics,
    },
    runner::{Context, Controller, Outcome, Setup},
    service_account::accounts::open,
};

const NAME: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const TEXT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints \
                    such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
                    distributions of Kubernetes clusters.";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (namespaces, maps) = (setup.informer::<Namespace>(), setup.informer::<ConfigMap>());
    setup.on_keys(&namespaces);
    setup.on_objects(maps.objects(), |change, queue| {
        if let Some(object) = change.new.as_ref().or(change.old.as_ref()).filter(|o| o.meta.name == NAME) {
            queue.add(object.meta.namespace.clone().unwrap_or_default());
        }
    });
    Arc::new(RootCa { context: setup.context.clone(), namespaces, maps })
}

struct RootCa {
    context: Context,
    namespaces: Informer<Namespace>,
    maps: Informer<ConfigMap>,
}

#[async_trait]
impl Controller for RootCa {
    async fn reconcile(&self, key: &str) -> Outcome {
        let began = self.context.env.monotonic();
        let outcome = self.publish_to(key).await;
        let took = self.context.env.monotonic().saturating_sub(began);
        publish_metrics::record(&self.context.config.metrics, &publish_metrics::ROOT_CA, &outcome, took);
        outcome
    }
}

impl RootCa {
    async fn publish_to(&self, key: &str) -> Outcome {
        let Some(pem) = &self.context.config.root_ca_pem else { return Ok(None) };
        let Some(namespace) = self.namespaces.get(key).filter(|n| open(n)) else { return Ok(None) };
        let data: BTreeMap<String, String> = [("ca.crt".to_string(), pem.clone())].into();
        let api = self.context.client.namespaced::<ConfigMap>(key);
        let result = match self.maps.get(&meta::key(namespace.name(), NAME)) {
            Some(map) if map.data.as_ref() == Some(&data) && map.annotation(DESCRIPTION).is_some() => return Ok(None),
            Some(map) => {
                let mut map = (*map).clone();
                map.data = Some(data);
                map.metadata.annotations.get_or_insert_default().insert(DESCRIPTION.into(), TEXT.into());
                api.replace(NAME, &map).await
            }
            None => {
                let metadata = ObjectMeta {
                    name: Some(NAME.into()),
                    namespace: Some(key.to_string()),
                    annotations: Some([(DESCRIPTION.to_string(), TEXT.to_string())].into()),
                    ..ObjectMeta::default()
                };
                api.create(&ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }).await
            }
        };
        match result {
            Err(error) if error.is_not_found() || namespace_terminating(&error) => Ok(None),
            Err(error) => Err(error),
            Ok(_) => Ok(None),
        }
    }
}
