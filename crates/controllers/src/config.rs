//! What an operator can set for the controllers, with upstream's defaults.
//! Read by `descriptors` (which controllers run) and by single controllers.
//! Plain data; nothing here is looked up from the system.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::feature_gates::FeatureGates;
use client::{Client, ObjectInformer};
use ipnet::IpNet;
use metrics::Metrics;
use parking_lot::Mutex;

use crate::{certificates::ReservedNames, cluster_dns::ClusterDns, load_balancer::LoadBalancer, volume::LocalStorage};

/// The key pair that signs certificate requests.
#[derive(Clone)]
pub struct CertificateAuthority {
    pub certificate_pem: String,
    pub key_pem: String,
}

/// Gives a client under the service account of this name in `kube-system`.
pub type ServiceAccountClients = Arc<dyn Fn(&str) -> Client + Send + Sync>;

#[derive(Clone)]
pub struct Config {
    /// Upstream's `--controllers`: `*` is every controller that is on by default, `name` turns on, `-name` turns off.
    pub controllers: Vec<String>,
    /// Upstream's `--use-service-account-credentials`: each controller writes under an account of its own. Without it all
    /// of them write as the controller manager.
    pub service_account_clients: Option<ServiceAccountClients>,
    /// Upstream's `--concurrent-*-syncs`: how many keys a controller reconciles at once, where that is not its usual number.
    pub workers: BTreeMap<String, usize>,
    /// Addresses of pods, at most one range per family. Empty: nodes get no podCIDR.
    pub cluster_cidrs: Vec<IpNet>,
    pub node_cidr_mask_size_ipv4: u8,
    pub node_cidr_mask_size_ipv6: u8,
    /// Never handed to nodes even where it lies inside `cluster_cidrs`.
    pub service_cidrs: Vec<IpNet>,
    /// Without it certificate requests stay unsigned.
    pub certificate_authority: Option<CertificateAuthority>,
    /// In its place for requests of one signer (`kubernetes.io/kube-apiserver-client-kubelet`, …).
    pub signer_authorities: BTreeMap<String, CertificateAuthority>,
    /// Signs `kubernetes.io/kubelet-serving` and nothing else. Without it such requests stay unsigned.
    pub kubelet_serving_authority: Option<CertificateAuthority>,
    /// Names and addresses that no kubelet's serving certificate is approved for. Without it such requests wait for a
    /// person, as upstream's.
    pub kubelet_serving_names_reserved: Option<ReservedNames>,
    pub cluster_dns: ClusterDns,
    pub local_storage: LocalStorage,
    /// What `kube-root-ca.crt` says in every namespace. Without it the ConfigMaps are not made.
    pub root_ca_pem: Option<String>,
    /// PEM (PKCS#8) of the key that signs tokens. Without it Secrets for tokens stay empty.
    pub service_account_key_pem: Option<String>,
    /// How long a signed certificate is valid at most.
    pub certificate_duration: Duration,
    /// A node that was silent for this long is Unknown.
    pub node_monitor_grace_period: Duration,
    /// The same for a node that has never reported.
    pub node_startup_grace_period: Duration,
    /// Finished pods beyond this number are deleted, oldest first. Zero: never.
    pub terminated_pod_gc_threshold: usize,
    /// Tokens in Secrets that nobody has used for so long are withdrawn, and deleted after as long again.
    pub legacy_token_clean_up_period: Duration,
    /// Where Services of type LoadBalancer get their addresses from.
    pub load_balancer: LoadBalancer,
    /// TCP ports that the nodes need for themselves, and who has them: beside the kubelets' and the API servers', which their
    /// objects say.
    pub node_ports_reserved: Vec<(u16, &'static str)>,
    pub horizontal_pod_autoscaler: HorizontalPodAutoscalerSettings,
    /// Which kinds and controllers of feature gates there are.
    pub feature_gates: FeatureGates,
    /// Where the queues are counted; clone it to show them.
    pub metrics: Metrics,
    /// What the controllers wait for before they begin; clone it to ask.
    pub caches: Caches,
}

/// Upstream's `--horizontal-pod-autoscaler-*`.
#[derive(Debug, Clone)]
pub struct HorizontalPodAutoscalerSettings {
    /// How often each autoscaler is looked at.
    pub sync_period: Duration,
    /// No size below one that was recommended within this time, unless the autoscaler says otherwise.
    pub downscale_stabilization: Duration,
    /// How far the ratio of use to target may be from one.
    pub tolerance: f64,
    /// For how long after its start a pod's processor time may be skipped.
    pub cpu_initialization_period: Duration,
    /// For how long after its start a pod that turns unready counts as one that never was ready.
    pub initial_readiness_delay: Duration,
}

impl Default for HorizontalPodAutoscalerSettings {
    fn default() -> Self {
        Self {
            sync_period: Duration::from_secs(15),
            downscale_stabilization: Duration::from_secs(300),
            tolerance: 0.1,
            cpu_initialization_period: Duration::from_secs(300),
            initial_readiness_delay: Duration::from_secs(30),
        }
    }
}

/// The caches that the controllers of this term (as the leader) need.
#[derive(Clone, Default)]
pub struct Caches(Arc<Mutex<Option<Vec<ObjectInformer>>>>);

impl Caches {
    pub(crate) fn set(&self, needed: Vec<ObjectInformer>) {
        *self.0.lock() = Some(needed);
    }

    /// Whether all have their first lists; `None` before the first term.
    pub fn are_filled(&self) -> Option<bool> {
        self.0.lock().as_ref().map(|caches| caches.iter().all(ObjectInformer::is_synced))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            controllers: vec!["*".into()],
            service_account_clients: None,
            workers: BTreeMap::new(),
            cluster_cidrs: Vec::new(),
            node_cidr_mask_size_ipv4: 24,
            node_cidr_mask_size_ipv6: 64,
            service_cidrs: Vec::new(),
            certificate_authority: None,
            signer_authorities: BTreeMap::new(),
            kubelet_serving_authority: None,
            kubelet_serving_names_reserved: None,
            cluster_dns: ClusterDns::default(),
            local_storage: LocalStorage::default(),
            root_ca_pem: None,
            service_account_key_pem: None,
            certificate_duration: Duration::from_secs(365 * 24 * 3600),
            node_monitor_grace_period: Duration::from_secs(50),
            node_startup_grace_period: Duration::from_secs(60),
            terminated_pod_gc_threshold: 12_500,
            legacy_token_clean_up_period: Duration::from_secs(365 * 24 * 3600),
            load_balancer: LoadBalancer::default(),
            node_ports_reserved: Vec::new(),
            horizontal_pod_autoscaler: HorizontalPodAutoscalerSettings::default(),
            feature_gates: FeatureGates::default(),
            metrics: Metrics::default(),
            caches: Caches::default(),
        }
    }
}

impl Config {
    /// The client that a controller writes with; `own` is the controller manager's.
    pub fn client_for(&self, service_account: Option<&str>, own: &Client) -> Client {
        match (&self.service_account_clients, service_account) {
            (Some(clients), Some(account)) => clients(account),
            _ => own.clone(),
        }
    }

    /// Whether the controller `name` runs: an explicit word wins over `*`.
    pub fn enabled(&self, name: &str, on_by_default: bool) -> bool {
        let mut star = false;
        for word in &self.controllers {
            match word.as_str() {
                word if word == name => return true,
                "*" => star = true,
                word if word.strip_prefix('-') == Some(name) => return false,
                _ => {}
            }
        }
        star && on_by_default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_flag() {
        let check = |words: &[&str], name: &str, default: bool, expected: bool| {
            let config = Config { controllers: words.iter().map(|w| w.to_string()).collect(), ..Config::default() };
            assert_eq!(config.enabled(name, default), expected, "{words:?} {name}");
        };
        check(&["*"], "job-controller", true, true);
        check(&["*"], "token-cleaner", false, false);
        check(&["*", "token-cleaner"], "token-cleaner", false, true);
        check(&["*", "-job-controller"], "job-controller", true, false);
        check(&["job-controller"], "cronjob-controller", true, false);
    }
}
