//! The flags of `minke kubelet`, under upstream's names, and the KubeletConfiguration file they are laid over.
//! Turned into an `Agent` by `commands`; the fields themselves are checked by `kubelet::configuration`.
//! Invariant: a flag wins over the file, and both pass the same table.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use clap::{Args, FromArgMatches};
use ipnet::IpNet;
use kubelet::configuration::Configuration;
use parking_lot::RwLock;
use serde_json::{Value, json};

use crate::{
    ca_pin,
    flags::{self, DataDirectory, Join},
    pki::{Current, write_public},
};

#[derive(Debug, Clone, Args)]
pub struct Kubelet {
    #[command(flatten)]
    pub data: DataDirectory,
    /// KubeletConfiguration file (kubelet.config.k8s.io/v1beta1); flags win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Credentials for the API server
    #[arg(long, value_name = "FILE", required_unless_present_any = ["server", "bootstrap_kubeconfig"])]
    pub kubeconfig: Option<PathBuf>,
    /// Credentials to ask for a certificate with, used when the file of --kubeconfig is not there
    #[arg(long, value_name = "FILE")]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// API server to join, as https://HOST:PORT
    #[arg(long, value_name = "URL", conflicts_with_all = ["kubeconfig", "bootstrap_kubeconfig"])]
    pub server: Option<String>,
    #[command(flatten)]
    pub join: Join,
    /// Name of this node [default: the host name]
    #[arg(long, visible_alias = "node-name", value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// Addresses of this node: one, or one of each family
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// Labels to register the node with, as KEY=VALUE,…
    #[arg(long, value_name = "LABELS", default_value = "")]
    pub node_labels: String,
    /// Addresses of services, of which the cluster's DNS has the tenth unless --cluster-dns says otherwise
    #[arg(long, value_name = "CIDR", default_value = "10.96.0.0/12", value_delimiter = ',')]
    pub service_cidr: Vec<IpNet>,
    /// Where volumes and everything else of the pods is [default: below --data-dir]
    #[arg(long, value_name = "DIR")]
    pub root_dir: Option<PathBuf>,
    #[command(flatten)]
    pub fields: Fields,
}

/// How the text of a flag becomes the value of a field.
#[derive(Clone, Copy)]
enum Form {
    Text,
    Flag,
    Number,
    /// Separated by commas.
    List,
    /// KEY=VALUE,…
    Map,
    /// SIGNAL<LEAST,…
    Thresholds,
    /// KEY[=VALUE]:EFFECT,…
    Taints,
    /// NAME:VALUE,…
    Headers,
}

use Form::{Flag, Headers, List, Map, Number, Taints, Text, Thresholds};

/// Flags that are fields of the configuration: flag, field, form, help.
#[rustfmt::skip]
const FIELDS: &[(&str, &str, Form, &str)] = &[
    ("address", "address", Text, "Address the kubelet listens on"),
    ("allowed-unsafe-sysctls", "allowedUnsafeSysctls", List, "Kernel settings pods may have beyond the safe ones"),
    ("anonymous-auth", "authentication.anonymous.enabled", Flag, "Let requests in that show nothing"),
    ("authentication-token-webhook", "authentication.webhook.enabled", Flag, "Ask the API server about bearer tokens"),
    ("authorization-mode", "authorization.mode", Text, "AlwaysAllow or Webhook"),
    ("cgroup-driver", "cgroupDriver", Text, "cgroupfs or systemd"),
    ("cgroup-root", "cgroupRoot", Text, "Control group below which pods' groups are made"),
    ("client-ca-file", "authentication.x509.clientCAFile", Text, "Authorities of clients' certificates"),
    ("cluster-dns", "clusterDNS", List, "Addresses of the cluster's DNS"),
    ("cluster-domain", "clusterDomain", Text, "Domain of the cluster"),
    ("container-log-max-files", "containerLogMaxFiles", Number, "Files kept of a container's log"),
    ("container-log-max-size", "containerLogMaxSize", Text, "Size at which a log is rotated"),
    ("container-runtime-endpoint", "containerRuntimeEndpoint", Text, "CRI socket of a runtime that is already there"),
    ("cpu-cfs-quota", "cpuCFSQuota", Flag, "Enforce processor limits"),
    ("cpu-manager-policy", "cpuManagerPolicy", Text, "none"),
    ("enable-debugging-handlers", "enableDebuggingHandlers", Flag, "Serve logs, exec and the like"),
    ("enable-server", "enableServer", Flag, "Serve anything at all"),
    ("enforce-node-allocatable", "enforceNodeAllocatable", List, "What is held to its share: pods or none"),
    ("eviction-hard", "evictionHard", Thresholds, "When pods are evicted, as SIGNAL<LEAST,…"),
    ("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Number, "Seconds an evicted pod gets at most"),
    ("eviction-minimum-reclaim", "evictionMinimumReclaim", Map, "How much more than needed is freed, as SIGNAL=AMOUNT,…"),
    ("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Text, "How long a pressure is told of after it ended"),
    ("eviction-soft", "evictionSoft", Thresholds, "As --eviction-hard, after a grace period"),
    ("eviction-soft-grace-period", "evictionSoftGracePeriod", Map, "Those grace periods, as SIGNAL=DURATION,…"),
    ("file-check-frequency", "fileCheckFrequency", Text, "How often the manifest directory is looked at besides"),
    ("healthz-bind-address", "healthzBindAddress", Text, "Address of the health check"),
    ("healthz-port", "healthzPort", Number, "Port of the health check; 0 turns it off"),
    ("http-check-frequency", "httpCheckFrequency", Text, "How often the manifest URL is asked"),
    ("image-gc-high-threshold", "imageGCHighThresholdPercent", Number, "Percent of disk usage beyond which unused images go"),
    ("image-gc-low-threshold", "imageGCLowThresholdPercent", Number, "Percent of disk usage at which they stop going"),
    ("image-service-endpoint", "imageServiceEndpoint", Text, "CRI socket for images, if it is another"),
    ("kube-reserved", "kubeReserved", Map, "What pods do not get, as cpu=200m,memory=500Mi,…"),
    ("manifest-url", "staticPodURL", Text, "URL of static pod manifests"),
    ("manifest-url-header", "staticPodURLHeader", Headers, "Headers to ask it with, as NAME:VALUE,…"),
    ("max-pods", "maxPods", Number, "Most pods on this node"),
    ("minimum-image-ttl-duration", "imageMinimumGCAge", Text, "Age before which an unused image stays"),
    ("node-status-update-frequency", "nodeStatusUpdateFrequency", Text, "How often the node's status is looked at"),
    ("pod-manifest-path", "staticPodPath", Text, "Directory of static pod manifests"),
    ("pod-max-pids", "podPidsLimit", Number, "Most processes in a pod"),
    ("pods-per-core", "podsPerCore", Number, "Most pods per core"),
    ("port", "port", Number, "Port of the kubelet; 0 takes a free one"),
    ("provider-id", "providerID", Text, "What the machine's provider calls it"),
    ("read-only-port", "readOnlyPort", Number, "Plain port for pods and metrics; 0 turns it off"),
    ("register-node", "registerNode", Flag, "Make the Node object"),
    ("register-with-taints", "registerWithTaints", Taints, "Taints to register with, as KEY=VALUE:EFFECT,…"),
    ("resolv-conf", "resolvConf", Text, "Resolver configuration that pods' own is made from"),
    ("rotate-certificates", "rotateCertificates", Flag, "Renew the client certificate"),
    ("rotate-server-certificates", "serverTLSBootstrap", Flag, "Have the serving certificate signed by the cluster"),
    ("runtime-request-timeout", "runtimeRequestTimeout", Text, "Longest call to the runtime"),
    ("seccomp-default", "seccompDefault", Flag, "RuntimeDefault for containers that name no seccomp profile"),
    ("serialize-image-pulls", "serializeImagePulls", Flag, "Pull one image at a time"),
    ("sync-frequency", "syncFrequency", Text, "Has no effect: changes are followed"),
    ("system-reserved", "systemReserved", Map, "As --kube-reserved, for the system"),
    ("tls-cert-file", "tlsCertFile", Text, "Serving certificate"),
    ("tls-private-key-file", "tlsPrivateKeyFile", Text, "Its key"),
    ("topology-manager-policy", "topologyManagerPolicy", Text, "none"),
];

/// The flags of `FIELDS` that were given.
#[derive(Debug, Clone, Default)]
pub struct Fields(BTreeMap<&'static str, String>);

impl Args for Fields {
    fn augment_args(command: clap::Command) -> clap::Command {
        FIELDS.iter().fold(command, |command, (flag, _, form, help)| {
            let argument = clap::Arg::new(*flag).long(*flag).help(*help);
            // As other commands call it.
            let argument = if *flag == "port" { argument.alias("kubelet-port") } else { argument };
            command.arg(match form {
                // As Go reads them: `--flag` alone is true.
                Flag => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
                _ => argument,
            })
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Fields {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let given = |flag: &'static str| Some((flag, matches.get_one::<String>(flag)?.clone()));
        Ok(Self(FIELDS.iter().filter_map(|(flag, ..)| given(flag)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn value(form: Form, text: &str) -> Result<Value> {
    let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pairs = |by: char| -> Result<serde_json::Map<String, Value>> {
        let pair = |part: &str| match part.split_once(by) {
            Some((key, value)) => Ok((key.trim().to_string(), json!(value.trim()))),
            None => bail!("{part:?} has no {by:?}"),
        };
        parts().map(pair).collect()
    };
    Ok(match form {
        Text => json!(text),
        Flag => json!(text.parse::<bool>().with_context(|| format!("{text:?} is neither true nor false"))?),
        Number => json!(text.parse::<i64>().with_context(|| format!("{text:?} is not a number"))?),
        List => parts().collect(),
        Map => pairs('=')?.into(),
        Thresholds => pairs('<')?.into(),
        Headers => pairs(':')?.into_iter().map(|(name, value)| (name, json!([value]))).collect(),
        Taints => parts().map(taint).collect::<Result<_>>()?,
    })
}

fn taint(text: &str) -> Result<Value> {
    let Some((rest, effect)) = text.rsplit_once(':') else { bail!("{text:?} is not KEY=VALUE:EFFECT") };
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        bail!("{effect:?} is not an effect: use NoSchedule, PreferNoSchedule or NoExecute");
    }
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    Ok(json!({ "key": key, "value": value, "effect": effect }))
}

impl Kubelet {
    /// The file with the flags laid over it.
    pub fn configuration(&self) -> Result<Configuration> {
        let mut configuration = match &self.config {
            Some(path) => Configuration::load(path).map_err(anyhow::Error::msg)?,
            None => Configuration::default(),
        };
        for (flag, field, form, _) in FIELDS {
            if let Some(text) = self.fields.0.get(flag) {
                configuration.set(field, value(*form, text).with_context(|| format!("--{flag}"))?);
            }
        }
        Ok(configuration)
    }

    /// As the agent that this kubelet is.
    pub fn agent(&self) -> Result<flags::Agent> {
        let configuration = self.configuration()?;
        // Said before anything starts.
        configuration.apply(&mut kubelet::Config::default()).map_err(anyhow::Error::msg)?;
        let mut agent = flags::Agent::of_kubelet(self.data.clone())?;
        let text = |field: &str| configuration.get(field).and_then(Value::as_str).map(str::to_string);
        agent.node.node_name = self.hostname_override.clone();
        agent.node.node_ip = self.node_ip.first().copied();
        agent.node.container_runtime_endpoint = text("containerRuntimeEndpoint").filter(|t| !t.is_empty());
        agent.node.kubelet = flags::KubeletSettings {
            more_ips: self.node_ip.iter().skip(1).copied().collect(),
            labels: labels(&self.node_labels)?,
            root_dir: self.root_dir.clone(),
            configuration,
        };
        agent.kubeconfig = self.kubeconfig.clone().filter(|file| file.exists() || self.bootstrap_kubeconfig.is_none());
        agent.service_cidr = self.service_cidr.clone();
        agent.server = self.server.clone();
        agent.join = self.join.clone();
        if let (None, Some(file)) = (&agent.kubeconfig, &self.bootstrap_kubeconfig) {
            self.bootstrap(&mut agent, file)?;
        }
        Ok(agent)
    }

    /// Joins with what a bootstrap kubeconfig has: a server, its authority and a token.
    fn bootstrap(&self, agent: &mut flags::Agent, file: &Path) -> Result<()> {
        let connection = client::from_kubeconfig(file, "minke-kubelet")?;
        let token = connection.identity.bearer_token.as_ref().map(|token| token.read().clone());
        let token = token.with_context(|| format!("{} has no token to join with", file.display()))?;
        let pki = self.data.instance().pki();
        std::fs::create_dir_all(&pki).with_context(|| format!("failed to create {}", pki.display()))?;
        let authority = pki.join("bootstrap-ca.crt");
        let pem: String = connection.ca.iter().map(|der| ca_pin::pem(der)).collect();
        write_public(&authority, &pem)?;
        agent.server = Some(connection.server.clone());
        agent.join.token = Some(token);
        agent.join.ca_file = Some(authority);
        Ok(())
    }
}

/// Says what is wrong with a node's configuration before anything is started.
pub fn check(flags: &flags::Node) -> Result<()> {
    apply(flags, &mut kubelet::Config::default())
}

/// Gives a node's configuration its effect, files that it names included.
pub fn apply(flags: &flags::Node, config: &mut kubelet::Config) -> Result<()> {
    let configuration = flags.configuration()?;
    let idle = configuration.apply(config).map_err(anyhow::Error::msg)?;
    if !idle.is_empty() {
        tracing::info!(fields = idle.join(", "), "fields of the configuration that have no effect here");
    }
    let settings = &flags.kubelet;
    config.node_ips.extend(&settings.more_ips);
    config.labels.extend(settings.labels.clone());
    if let Some(root) = &settings.root_dir {
        config.root_dir = root.clone();
    }
    let file = |field: &str| -> Result<Option<Vec<u8>>> {
        let Some(path) = configuration.get(field).and_then(Value::as_str).filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        std::fs::read(path).map(Some).with_context(|| format!("{field}: failed to read {path}"))
    };
    if let Some(pem) = file("authentication.x509.clientCAFile")? {
        config.client_ca_pem = pem;
    }
    match (file("tlsCertFile")?, file("tlsPrivateKeyFile")?) {
        (Some(chain), Some(key)) => {
            let certificate = client::certified_key(&chain, &key).map_err(anyhow::Error::msg).context("tlsCertFile")?;
            config.serving_certificate = Some(Arc::new(Current(Arc::new(RwLock::new(Arc::new(certificate))))));
        }
        (None, None) => {}
        _ => bail!("tlsCertFile and tlsPrivateKeyFile must be given together"),
    }
    Ok(())
}

/// Of those that begin like Kubernetes' own, a node may give itself only these.
fn labels(text: &str) -> Result<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((key, value)) = part.split_once('=') else { bail!("--node-labels: {part:?} is not KEY=VALUE") };
        let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
        let within = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
        let known = [
            "kubernetes.io/hostname",
            "kubernetes.io/os",
            "kubernetes.io/arch",
            "node.kubernetes.io/instance-type",
            "topology.kubernetes.io/region",
            "topology.kubernetes.io/zone",
        ];
        let allowed = within("kubelet.kubernetes.io") || within("node.kubernetes.io") || known.contains(&key);
        if (within("kubernetes.io") || within("k8s.io")) && !allowed {
            bail!("--node-labels: unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{key}]");
        }
        labels.insert(key.to_string(), value.to_string());
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::{Command, Flags};

    fn parse(arguments: &[&str]) -> Kubelet {
        let flags = Flags::try_parse_from(["minke", "kubelet", "--kubeconfig", "/k"].iter().chain(arguments));
        let Command::Kubelet(kubelet) = flags.expect("valid flags").command else { panic!("kubelet") };
        *kubelet
    }

    #[test]
    fn flags_become_fields() {
        let check = |arguments: &[&str], field: &str, expected: Value| {
            let configuration = parse(arguments).configuration().expect("a configuration");
            assert_eq!(configuration.get(field), Some(&expected), "{arguments:?}");
        };
        check(&["--max-pods=7"], "maxPods", json!(7));
        check(&["--cluster-dns", "10.0.0.10,10.0.0.11"], "clusterDNS", json!(["10.0.0.10", "10.0.0.11"]));
        check(&["--rotate-certificates"], "rotateCertificates", json!(true));
        check(&["--register-node=false"], "registerNode", json!(false));
        check(&["--system-reserved", "cpu=100m,memory=1Gi"], "systemReserved", json!({"cpu": "100m", "memory": "1Gi"}));
        check(&["--eviction-hard", "memory.available<5%"], "evictionHard", json!({"memory.available": "5%"}));
        check(&["--manifest-url-header", "a:b"], "staticPodURLHeader", json!({"a": ["b"]}));
        let taint = json!([{"key": "a", "value": "b", "effect": "NoSchedule"}]);
        check(&["--register-with-taints", "a=b:NoSchedule"], "registerWithTaints", taint);
        check(&["--client-ca-file", "/ca"], "authentication.x509.clientCAFile", json!("/ca"));
    }

    #[test]
    fn wrong_flags_say_what_is_wrong() {
        let check = |arguments: &[&str], expected: &str| {
            let error = format!("{:#}", parse(arguments).agent().map(drop).expect_err("an error"));
            assert!(error.contains(expected), "{arguments:?}: {error}");
        };
        check(&["--max-pods=x"], "--max-pods: \"x\" is not a number");
        check(&["--register-with-taints=a"], "--register-with-taints: \"a\" is not KEY=VALUE:EFFECT");
        check(&["--cpu-manager-policy=magic"], "cpuManagerPolicy: magic is not supported");
        check(&["--node-labels=kubernetes.io/x=1"], "unknown 'kubernetes.io' or 'k8s.io' labels");
        check(&["--config=/nonexistent/file"], "failed to load kubelet config file");
    }

    #[test]
    fn flags_win_over_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        let text =
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 5\npodsPerCore: 2\n";
        std::fs::write(&file, text).unwrap();
        let agent =
            parse(&["--config", file.to_str().unwrap(), "--max-pods=9", "--hostname-override=n"]).agent().unwrap();
        let mut config = kubelet::Config::default();
        agent.node.kubelet.configuration.apply(&mut config).unwrap();
        assert_eq!((config.max_pods, config.pods_per_core, agent.node.node_name.as_deref()), (9, 2, Some("n")));
    }
}
