//! Flags of the controller manager that runs alone, with upstream's names.
//! Parsed by `main`; carried out in `commands`.
//! Without an authority it has none: it makes no certificate, and says nothing of anybody's.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::{Args, FromArgMatches, builder::BoolishValueParser};
use controllers::CertificateAuthority;
use ipnet::IpNet;

use super::{
    DataDirectory,
    component_flags::{ConnectionFlags, LeaderElectionFlags, PortFlags},
    controller_flags::Controllers,
    feature_flags::FeatureFlags,
    security_flags::duration,
    upstream::{self, CONCURRENCY, OtherFlags},
};
use crate::{
    certificates::{authorities::Authority, pki::Pki},
    control_plane::server,
};

#[derive(Debug, Clone, Args)]
pub struct ControllerManager {
    #[command(flatten)]
    pub data: DataDirectory,
    #[command(flatten)]
    pub features: FeatureFlags,
    #[command(flatten)]
    pub connection: ConnectionFlags,
    /// Addresses of pods; each node gets a part
    #[arg(
        long,
        visible_alias = "cluster-cidr",
        value_name = "CIDR",
        default_value = "10.244.0.0/16",
        value_delimiter = ','
    )]
    pub pod_cidr: Vec<IpNet>,
    /// Addresses of services
    #[arg(
        long,
        visible_alias = "service-cluster-ip-range",
        value_name = "CIDR",
        default_value = "10.96.0.0/12",
        value_delimiter = ','
    )]
    pub service_cidr: Vec<IpNet>,
    /// Whether nodes get addresses for their pods [default: true in a cluster of ours, else false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new())]
    allocate_node_cidrs: Option<bool>,
    /// Size of a node's part [default: 24 for IPv4, 64 for IPv6]
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size: Option<u8>,
    /// The same where nodes have both families
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size_ipv4: Option<u8>,
    /// The same where nodes have both families
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size_ipv6: Option<u8>,
    /// Which controllers run: `*` is all, `name` one more, `-name` one less
    #[arg(long, value_name = "NAMES", default_value = "*", value_delimiter = ',', allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// Whether dependents of what is deleted go with it
    #[arg(long, value_name = "BOOL", default_value = "true", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", action = clap::ArgAction::Set, value_parser = BoolishValueParser::new())]
    enable_garbage_collector: bool,
    #[command(flatten)]
    pub settings: Controllers,
    /// Whether each controller has a service account of its own (in kube-system), with no more rights than it needs
    /// [default: true in a cluster of ours, else false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new())]
    pub use_service_account_credentials: Option<bool>,
    /// Authority that pods are told to believe about the API server, as PEM [default: that of the data directory, if any]
    #[arg(long, value_name = "FILE")]
    root_ca_file: Option<PathBuf>,
    /// Key that signs tokens of ServiceAccounts in Secrets, as PEM [default: that of the data directory, if any]
    #[arg(long, value_name = "FILE")]
    service_account_private_key_file: Option<PathBuf>,
    #[command(flatten)]
    signing: SigningFlags,
    /// How long a node may be silent before it is Unknown
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = duration)]
    node_monitor_grace_period: Duration,
    /// The same for a node that has never reported
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    node_startup_grace_period: Duration,
    /// Finished pods beyond this number are deleted, oldest first; 0 or less: never
    #[arg(long, value_name = "N", default_value_t = 12_500, allow_negative_numbers = true)]
    terminated_pod_gc_threshold: i32,
    /// Tokens in Secrets that nobody has used for so long are withdrawn, and deleted after as long again
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = duration)]
    legacy_service_account_token_clean_up_period: Duration,
    #[command(flatten)]
    concurrency: Concurrency,
    #[command(flatten)]
    pub election: LeaderElectionFlags,
    #[command(flatten)]
    pub port: PortFlags,
    /// Port of health and metrics; 0 is none
    #[arg(long, default_value_t = 10257)]
    pub secure_port: u16,
    #[command(flatten)]
    pub others: OtherFlags<upstream::ControllerManager>,
}

#[derive(Debug, Clone, Default, Args)]
struct SigningFlags {
    /// Authority that signs certificate requests, as PEM [default: that of the data directory, if any]
    #[arg(long, value_name = "FILE")]
    cluster_signing_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE")]
    cluster_signing_key_file: Option<PathBuf>,
    /// How long a signed certificate is valid at most
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = duration)]
    cluster_signing_duration: Duration,
    /// Authority of kubernetes.io/kube-apiserver-client alone
    #[arg(long, value_name = "FILE")]
    cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE")]
    cluster_signing_kube_apiserver_client_key_file: Option<PathBuf>,
    /// Authority of kubernetes.io/kube-apiserver-client-kubelet alone
    #[arg(long, value_name = "FILE")]
    cluster_signing_kubelet_client_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE")]
    cluster_signing_kubelet_client_key_file: Option<PathBuf>,
    /// Authority of kubernetes.io/kubelet-serving alone
    #[arg(long, value_name = "FILE")]
    cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE")]
    cluster_signing_kubelet_serving_key_file: Option<PathBuf>,
    /// Authority of kubernetes.io/legacy-unknown alone
    #[arg(long, value_name = "FILE")]
    cluster_signing_legacy_unknown_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE")]
    cluster_signing_legacy_unknown_key_file: Option<PathBuf>,
}

impl SigningFlags {
    fn apply(&self, config: &mut controllers::Config) -> Result<()> {
        config.certificate_duration = self.cluster_signing_duration;
        let all = pair(&self.cluster_signing_cert_file, &self.cluster_signing_key_file)?;
        let signers = [
            (
                "kubernetes.io/kube-apiserver-client",
                &self.cluster_signing_kube_apiserver_client_cert_file,
                &self.cluster_signing_kube_apiserver_client_key_file,
            ),
            (
                "kubernetes.io/kube-apiserver-client-kubelet",
                &self.cluster_signing_kubelet_client_cert_file,
                &self.cluster_signing_kubelet_client_key_file,
            ),
            (
                "kubernetes.io/kubelet-serving",
                &self.cluster_signing_kubelet_serving_cert_file,
                &self.cluster_signing_kubelet_serving_key_file,
            ),
            (
                "kubernetes.io/legacy-unknown",
                &self.cluster_signing_legacy_unknown_cert_file,
                &self.cluster_signing_legacy_unknown_key_file,
            ),
        ];
        for (signer, certificate, key) in signers {
            let own = pair(certificate, key)?;
            if own.is_some() && all.is_some() {
                bail!("cannot specify default and per controller certs at the same time");
            }
            if let Some(authority) = own.or_else(|| all.clone()) {
                config.signer_authorities.insert(signer.into(), authority);
            }
        }
        Ok(())
    }
}

fn pair(certificate: &Option<PathBuf>, key: &Option<PathBuf>) -> Result<Option<CertificateAuthority>> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let authority = CertificateAuthority { certificate_pem: read(certificate)?, key_pem: read(key)? };
            client::certified_key(authority.certificate_pem.as_bytes(), authority.key_pem.as_bytes())
                .map_err(anyhow::Error::msg)
                .with_context(|| format!("{} or its key can't be used", certificate.display()))?;
            Ok(Some(authority))
        }
        (None, None) => Ok(None),
        _ => bail!("a --cluster-signing-*-cert-file and its --cluster-signing-*-key-file must be given together"),
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
}

/// `--concurrent-*-syncs`, by flag.
#[derive(Debug, Clone, Default)]
struct Concurrency(BTreeMap<String, usize>);

impl Args for Concurrency {
    fn augment_args(command: clap::Command) -> clap::Command {
        CONCURRENCY.iter().fold(command, |command, (flag, controller)| {
            let argument = clap::Arg::new(*flag).long(*flag).value_name("N");
            command
                .arg(argument.value_parser(workers).help(format!("How many keys the {controller} reconciles at once")))
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

fn workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=1000) => Ok(count),
        _ => Err("it must be between 1 and 1000".into()),
    }
}

impl FromArgMatches for Concurrency {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let given =
            |(flag, controller): &(&str, &str)| Some((controller.to_string(), *matches.get_one::<usize>(flag)?));
        Ok(Self(CONCURRENCY.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Names of upstream's that controllers go by too.
const ALIASES: &[(&str, &str)] = &[
    ("attachdetach", "persistentvolume-attach-detach-controller"),
    ("bootstrapsigner", "bootstrap-signer-controller"),
    ("clusterrole-aggregation", "clusterrole-aggregation-controller"),
    ("cronjob", "cronjob-controller"),
    ("csrapproving", "certificatesigningrequest-approving-controller"),
    ("csrcleaner", "certificatesigningrequest-cleaner-controller"),
    ("csrsigning", "certificatesigningrequest-signing-controller"),
    ("daemonset", "daemonset-controller"),
    ("deployment", "deployment-controller"),
    ("disruption", "disruption-controller"),
    ("endpoint", "endpoints-controller"),
    ("endpointslice", "endpointslice-controller"),
    ("endpointslicemirroring", "endpointslice-mirroring-controller"),
    ("ephemeral-volume", "ephemeral-volume-controller"),
    ("garbagecollector", "garbage-collector-controller"),
    ("horizontalpodautoscaling", "horizontal-pod-autoscaler-controller"),
    ("job", "job-controller"),
    ("legacy-service-account-token-cleaner", "legacy-serviceaccount-token-cleaner-controller"),
    ("namespace", "namespace-controller"),
    ("nodeipam", "node-ipam-controller"),
    ("nodelifecycle", "node-lifecycle-controller"),
    ("persistentvolume-binder", "persistentvolume-binder-controller"),
    ("persistentvolume-expander", "persistentvolume-expander-controller"),
    ("podgc", "pod-garbage-collector-controller"),
    ("pv-protection", "persistentvolume-protection-controller"),
    ("pvc-protection", "persistentvolumeclaim-protection-controller"),
    ("replicaset", "replicaset-controller"),
    ("replicationcontroller", "replicationcontroller-controller"),
    ("resource-claim-controller", "resourceclaim-controller"),
    ("resourcequota", "resourcequota-controller"),
    ("root-ca-cert-publisher", "root-ca-certificate-publisher-controller"),
    ("service", "service-lb-controller"),
    ("serviceaccount", "serviceaccount-controller"),
    ("serviceaccount-token", "serviceaccount-token-controller"),
    ("statefulset", "statefulset-controller"),
    ("tokencleaner", "token-cleaner-controller"),
    ("ttl", "ttl-controller"),
    ("ttl-after-finished", "ttl-after-finished-controller"),
];

/// Controllers of upstream's that are not here: turning one off changes nothing.
const ABSENT: &[&str] = &[
    "cloud-node-lifecycle",
    "cloud-node-lifecycle-controller",
    "device-taint-eviction-controller",
    "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    "node-route-controller",
    "podcertificaterequest-cleaner-controller",
    "route",
    "storage-version-gc",
    "storage-version-migrator-controller",
    "storageversion-garbage-collector-controller",
    "svm",
];

/// The words of `--controllers` by their controllers' own names, each of which must be one that there is.
fn known_controllers(words: &[String]) -> Result<Vec<String>> {
    let mut known = Vec::new();
    for word in words {
        let (sign, name) = match word.strip_prefix('-') {
            Some(name) => ("-", name),
            None => ("", word.as_str()),
        };
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
        match name {
            "*" => known.push(word.clone()),
            name if controllers::names().any(|one| one == name) => known.push(format!("{sign}{name}")),
            name if ABSENT.contains(&name) && sign == "-" => {}
            name if ABSENT.contains(&name) => bail!("--controllers: {name} is not built"),
            _ => bail!("{word:?} is not in the list of known controllers"),
        }
    }
    Ok(known)
}

impl ControllerManager {
    /// What the controllers are told. `pki` is that of a cluster of ours in the data directory, if there is one.
    pub fn config(&self, pki: Option<&Pki>) -> Result<controllers::Config> {
        self.others.check()?;
        let mut config = match pki {
            Some(pki) => server::controllers_config(pki, &self.pod_cidr, &self.service_cidr)?,
            None => controllers::Config { service_cidrs: self.service_cidr.clone(), ..controllers::Config::default() },
        };
        config.cluster_cidrs = match self.allocate_node_cidrs.unwrap_or(pki.is_some()) {
            true => self.pod_cidr.clone(),
            false => Vec::new(),
        };
        self.mask_sizes(&mut config)?;
        config.controllers = known_controllers(&self.controllers)?;
        if !self.enable_garbage_collector {
            config.controllers.insert(0, "-garbage-collector-controller".into());
        }
        if let Some(path) = &self.root_ca_file {
            let pem = read(path)?;
            match client::certificates(pem.as_bytes()) {
                Ok(found) if !found.is_empty() => config.root_ca_pem = Some(pem),
                _ => bail!("--root-ca-file {} holds no certificate in PEM", path.display()),
            }
        }
        if let Some(path) = &self.service_account_private_key_file {
            let pem = read(path)?;
            let usable = apiserver::authn::service_account::public_keys_pem(pem.as_bytes());
            usable.map_err(|e| anyhow::anyhow!("--service-account-private-key-file {}: {e}", path.display()))?;
            config.service_account_key_pem = Some(pem);
        }
        self.signing.apply(&mut config)?;
        config.workers = self.concurrency.0.clone();
        config.node_monitor_grace_period = self.node_monitor_grace_period;
        config.node_startup_grace_period = self.node_startup_grace_period;
        config.terminated_pod_gc_threshold = usize::try_from(self.terminated_pod_gc_threshold).unwrap_or(0);
        config.legacy_token_clean_up_period = self.legacy_service_account_token_clean_up_period;
        self.settings.apply(&mut config);
        Ok(config)
    }

    fn mask_sizes(&self, config: &mut controllers::Config) -> Result<()> {
        let (one, four, six) = (self.node_cidr_mask_size, self.node_cidr_mask_size_ipv4, self.node_cidr_mask_size_ipv6);
        let is_dual = self.pod_cidr.len() > 1;
        if one.is_some() && (four.is_some() || six.is_some() || is_dual) {
            bail!("usage of --node-cidr-mask-size is not allowed with dual-stack clusters: give those of the families");
        }
        if self.pod_cidr.iter().all(|cidr| cidr.addr().is_ipv6()) {
            config.node_cidr_mask_size_ipv6 = six.or(one).unwrap_or(config.node_cidr_mask_size_ipv6);
        } else {
            config.node_cidr_mask_size_ipv4 = four.or(one).unwrap_or(config.node_cidr_mask_size_ipv4);
            config.node_cidr_mask_size_ipv6 = six.unwrap_or(config.node_cidr_mask_size_ipv6);
        }
        if config.node_cidr_mask_size_ipv4 > 32 || config.node_cidr_mask_size_ipv6 > 128 {
            bail!("--node-cidr-mask-size: there are no more than 32 bits in IPv4 and 128 in IPv6");
        }
        Ok(())
    }

    /// The authorities of a cluster of ours that keeps them in this data directory. None are made.
    pub fn pki(&self, env: &env::Env) -> Result<Option<std::sync::Arc<Pki>>> {
        let directory = self.data.instance().pki();
        match directory.join(format!("{}.key", Authority::Cluster.file())).exists() {
            true => Pki::open(&directory, env.clone()).map(Some),
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
