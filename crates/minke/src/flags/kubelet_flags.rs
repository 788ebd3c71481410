//! The flags of `minke kubelet`, under upstream's names, and the KubeletConfiguration file they are laid over.
//! Turned into an `Agent` by `commands`; the fields themselves are checked by `kubelet::configuration`.
//! A flag wins over the file, and both pass the same table.

pub mod fields;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use clap::{Args, FromArgMatches};
use fields::{FIELDS, Form, OTHERS};
use ipnet::IpNet;
use kubelet::configuration::{Configuration, feature_gates::KubeletFeatureGates};
use parking_lot::RwLock;
use serde_json::{Value, json};

use crate::{
    certificates::{
        ca_pin,
        pki::{Current, write_public},
    },
    cluster::file_modes,
    flags::{self, DataDirectory, Join},
    logging::{self, Logging},
};

#[derive(Debug, Clone, Args)]
pub struct Kubelet {
    #[command(flatten)]
    pub data: DataDirectory,
    /// Upstream's kubelet has these too; `main` reads them with those of every command.
    #[command(flatten)]
    pub logging: Logging,
    /// KubeletConfiguration file (kubelet.config.k8s.io/v1beta1); flags win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory of further ones (*.conf), each laid over those before it by name
    #[arg(long, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,
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
    /// Asked whether a pod may begin here: a program (pod on stdin, answer on stdout) or unix:///SOCKET (HTTP POST)
    #[arg(long, value_name = "PATH|unix://PATH")]
    pub pod_admission_hook: Option<String>,
    /// How long it may take to answer
    #[arg(long, value_name = "DURATION", default_value = "10s", requires = "pod_admission_hook")]
    pub pod_admission_hook_timeout: String,
    /// What happens to pods when it gives no answer: Wait, Fail or Ignore
    #[arg(long, value_name = "POLICY", default_value = "Wait", requires = "pod_admission_hook")]
    pub pod_admission_hook_failure_policy: String,
    /// CredentialProviderConfig file, or a directory of them: programs that know credentials for images
    #[arg(long, value_name = "PATH", requires = "image_credential_provider_bin_dir")]
    pub image_credential_provider_config: Option<PathBuf>,
    /// Where those programs are
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// Most ended containers kept on this node beside newer ones; -1 is without a limit
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub maximum_dead_containers: i32,
    /// Most ended containers kept of each beside its newest; -1 is without a limit
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub maximum_dead_containers_per_container: i32,
    /// Age before which an ended container stays
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub minimum_container_ttl_duration: String,
    /// File to hold a lock on while the kubelet runs; it waits for whoever has it
    #[arg(long, value_name = "FILE")]
    pub lock_file: Option<PathBuf>,
    /// End when another process opens that file
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub exit_on_lock_contention: bool,
    /// Port of cAdvisor's page and JSON, open to whoever reaches it; 0 turns it off
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub cadvisor_port: u16,
    /// Address of that port
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub cadvisor_address: IpAddr,
    /// Port on 127.0.0.1 where static pods are submitted over HTTPS; 0 turns it off
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub manifest_server_port: u16,
    #[command(flatten)]
    pub fields: Fields,
}

/// Where static pods are looked for when nothing names another place and this one is there.
const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// The flags of the table that were given.
#[derive(Debug, Clone, Default)]
pub struct Fields(BTreeMap<&'static str, String>);

impl Args for Fields {
    fn augment_args(command: clap::Command) -> clap::Command {
        fields::all().fold(command, |command, (flag, form, help)| {
            let argument = clap::Arg::new(flag).long(flag).help(help);
            let argument = match flag {
                // As other commands call it.
                "port" => argument.alias("kubelet-port"),
                _ => argument,
            };
            command.arg(match form {
                // As Go reads them: `--flag` alone is true.
                Form::Flag => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
                Form::Number => argument.allow_negative_numbers(true),
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
        Ok(Self(fields::all().filter_map(|(flag, ..)| given(flag)).collect()))
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
        Form::Text => json!(text),
        Form::Flag => json!(text.parse::<bool>().with_context(|| format!("{text:?} is neither true nor false"))?),
        Form::Number => json!(text.parse::<i64>().with_context(|| format!("{text:?} is not a number"))?),
        Form::List => parts().collect(),
        Form::Map => pairs('=')?.into(),
        Form::Thresholds => pairs('<')?.into(),
        Form::Headers => pairs(':')?.into_iter().map(|(name, value)| (name, json!([value]))).collect(),
        Form::Gates => {
            let gate = |(name, value): (String, Value)| {
                let on = value.as_str().and_then(|text| text.parse::<bool>().ok());
                Ok((name.clone(), json!(on.with_context(|| format!("{name} is neither true nor false"))?)))
            };
            pairs('=')?.into_iter().map(gate).collect::<Result<serde_json::Map<_, _>>>()?.into()
        }
        Form::Taints => parts().map(taint).collect::<Result<_>>()?,
        Form::ReservedMemory => {
            let nodes = text.split(';').map(str::trim).filter(|node| !node.is_empty());
            nodes.map(reserved_memory).collect::<Result<_>>()?
        }
    })
}

fn reserved_memory(text: &str) -> Result<Value> {
    let format = || format!("the reserved memory has incorrect format {text:?}: use NODE:KIND=AMOUNT,…");
    let (node, limits) = text.split_once(':').with_context(format)?;
    let node: u32 = node.trim().parse().with_context(format)?;
    let limit = |part: &str| {
        let (kind, amount) = part.split_once('=').with_context(format)?;
        Ok((kind.trim().to_string(), json!(amount.trim())))
    };
    let limits = limits.split(',').map(limit).collect::<Result<serde_json::Map<_, _>>>()?;
    Ok(json!({ "numaNode": node, "limits": limits }))
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
        for file in self.drop_ins()? {
            configuration.lay_over(Configuration::load(&file).map_err(anyhow::Error::msg)?);
        }
        for (flag, field, form, _) in FIELDS {
            if let Some(text) = self.fields.0.get(flag) {
                configuration.set(field, value(*form, text).with_context(|| format!("--{flag}"))?);
            }
        }
        Ok(configuration)
    }

    /// The files of the directory of drop-ins, in their order.
    fn drop_ins(&self) -> Result<Vec<PathBuf>> {
        let Some(directory) = &self.config_dir else { return Ok(vec![]) };
        let failed = || format!("--config-dir: failed to read {}", directory.display());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory).with_context(failed)? {
            let path = entry.with_context(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "conf") {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// Says which of the flags that are no fields do nothing here, and refuses what can't be had.
    fn check_others(&self) -> Result<()> {
        for (flag, form, possible, help) in OTHERS {
            let Some(text) = self.fields.0.get(flag) else { continue };
            value(*form, text).with_context(|| format!("--{flag}"))?;
            if !possible.contains(&text.as_str()) {
                let reason = help.strip_prefix("Not to be had: ").unwrap_or(help);
                bail!("--{flag}: {text} is not supported: {reason}");
            }
        }
        Ok(())
    }

    fn credential_providers(&self) -> Result<Option<kubelet::CredentialProviderSettings>> {
        let paths = (&self.image_credential_provider_config, &self.image_credential_provider_bin_dir);
        let (Some(config), Some(programs)) = paths else { return Ok(None) };
        let loaded = kubelet::CredentialProviderSettings::load(config, programs);
        loaded.map(Some).context("--image-credential-provider-config")
    }

    fn dead_containers(&self) -> Result<kubelet::DeadContainerLimits> {
        let age_min = kubelet::configuration::parse_duration(&self.minimum_container_ttl_duration);
        Ok(kubelet::DeadContainerLimits {
            per_container: self.maximum_dead_containers_per_container,
            total: self.maximum_dead_containers,
            age_min: age_min.with_context(|| {
                format!("--minimum-container-ttl-duration: {:?} is not a duration", self.minimum_container_ttl_duration)
            })?,
        })
    }

    fn lock_file(&self) -> Result<Option<kubelet::LockFile>> {
        let path = self.lock_file.clone().filter(|path| !path.as_os_str().is_empty());
        if self.exit_on_lock_contention && path.is_none() {
            bail!("cannot exit on lock file contention: no lock file specified");
        }
        Ok(path.map(|path| kubelet::LockFile { path, exit_on_contention: self.exit_on_lock_contention }))
    }

    fn pod_admission_hook(&self) -> Result<Option<kubelet::HookConfig>> {
        let Some(target) = &self.pod_admission_hook else { return Ok(None) };
        let (timeout, policy) = (&self.pod_admission_hook_timeout, &self.pod_admission_hook_failure_policy);
        kubelet::HookConfig::parse(target, timeout, policy).map(Some).context("--pod-admission-hook")
    }

    /// As the agent that this kubelet is.
    pub fn agent(&self) -> Result<flags::Agent> {
        self.check_others()?;
        let mut configuration = self.configuration()?;
        use_default_manifests(&mut configuration, Path::new(MANIFESTS));
        // Said before anything starts.
        configuration.apply(&mut kubelet::Config::default()).map_err(anyhow::Error::msg)?;
        let mut agent = flags::Agent::of_kubelet(self.data.clone())?;
        let text = |field: &str| configuration.get(field).and_then(Value::as_str).map(str::to_string);
        agent.node.node_name = self.hostname_override.clone();
        agent.node.node_ip = self.node_ip.clone();
        agent.node.cadvisor_port = self.cadvisor_port;
        agent.node.cadvisor_address = self.cadvisor_address;
        agent.node.manifest_server_port = self.manifest_server_port;
        agent.node.container_runtime_endpoint = text("containerRuntimeEndpoint").filter(|t| !t.is_empty());
        agent.node.kubelet = flags::KubeletSettings {
            labels: labels(&self.node_labels)?,
            root_dir: self.root_dir.clone(),
            pod_admission_hook: self.pod_admission_hook()?,
            credential_providers: self.credential_providers()?,
            dead_containers: self.dead_containers()?,
            lock_file: self.lock_file()?,
            external_cloud_provider: self.fields.0.get("cloud-provider").is_some_and(|name| name == "external"),
            feature_gates: Default::default(),
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
        file_modes::private_directory(&pki)?;
        let authority = pki.join("bootstrap-ca.crt");
        let pem: String = connection.ca.iter().map(|der| ca_pin::pem(der)).collect();
        write_public(&authority, &pem)?;
        agent.server = Some(connection.server.clone());
        agent.join.token_of_kubeconfig = Some(token);
        agent.join.ca_file = Some(authority);
        Ok(())
    }
}

/// An empty `staticPodPath` turns it off.
fn use_default_manifests(configuration: &mut Configuration, directory: &Path) {
    if configuration.get("staticPodPath").is_none() && directory.is_dir() {
        configuration.set("staticPodPath", json!(directory));
    }
}

/// Says what is wrong with a node's configuration before anything is started.
pub fn check(flags: &flags::Node) -> Result<()> {
    apply(flags, &mut kubelet::Config::default())
}

/// Gives a node's configuration its effect, files that it names included.
pub fn apply(flags: &flags::Node, config: &mut kubelet::Config) -> Result<()> {
    let configuration = flags.configuration()?;
    config.feature_gates = KubeletFeatureGates::of(flags.kubelet.feature_gates.clone());
    let idle = configuration.apply(config).map_err(anyhow::Error::msg)?;
    if !idle.is_empty() {
        tracing::info!(fields = idle.join(", "), "fields of the configuration that have no effect here");
    }
    config.set_log_verbosity = Some(logging::set_verbosity);
    if logging::verbosity_was_given() {
        config.log_verbosity = None;
    }
    let settings = &flags.kubelet;
    config.labels.extend(settings.labels.clone());
    config.pod_admission_hook = settings.pod_admission_hook.clone();
    config.credential_providers = settings.credential_providers.clone();
    config.dead_containers = settings.dead_containers;
    config.external_cloud_provider = settings.external_cloud_provider;
    config.lock_file = settings.lock_file.clone();
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
        let gates = json!({"NodeLogQuery": true, "AllBeta": false});
        check(&["--feature-gates=NodeLogQuery=true,AllBeta=false"], "featureGates", gates);
        check(&["--node-status-max-images", "-1"], "nodeStatusMaxImages", json!(-1));
        check(&["--fail-swap-on", "-v", "2"], "failSwapOn", json!(true));
    }

    #[test]
    fn static_pods_are_looked_for_where_kubeadm_puts_them() {
        let directory = tempfile::tempdir().unwrap();
        let check = |arguments: &[&str], directory: &Path, expected: Option<Value>| {
            let mut configuration = parse(arguments).configuration().expect("a configuration");
            use_default_manifests(&mut configuration, directory);
            assert_eq!(configuration.get("staticPodPath"), expected.as_ref(), "{arguments:?}");
        };
        check(&[], directory.path(), Some(json!(directory.path())));
        check(&[], &directory.path().join("none"), None);
        check(&["--pod-manifest-path=/other"], directory.path(), Some(json!("/other")));
        check(&["--pod-manifest-path="], directory.path(), Some(json!("")));
    }

    #[test]
    fn ports_beyond_upstreams_are_off_and_on_loopback() {
        let plain = parse(&[]);
        assert_eq!((plain.cadvisor_port, plain.manifest_server_port), (0, 0));
        let agent = parse(&["--cadvisor-port=4194", "--manifest-server-port=7000"]).agent().expect("an agent");
        assert!(agent.node.cadvisor_address.is_loopback());
        assert_eq!((agent.node.cadvisor_port, agent.node.manifest_server_port), (4194, 7000));
    }

    #[test]
    fn only_external_cloud_providers_are_waited_for() {
        let waits = |arguments: &[&str]| parse(arguments).agent().unwrap().node.kubelet.external_cloud_provider;
        assert_eq!(
            (waits(&["--cloud-provider=external"]), waits(&["--cloud-provider="]), waits(&[])),
            (true, false, false)
        );
    }

    /// Those of upstream's kubelet 1.35, without what it says it has by mistake (cAdvisor's).
    const UPSTREAM: &str = "address allowed-unsafe-sysctls anonymous-auth authentication-token-webhook \
        authentication-token-webhook-cache-ttl authorization-mode authorization-webhook-cache-authorized-ttl \
        authorization-webhook-cache-unauthorized-ttl bootstrap-kubeconfig cert-dir cgroup-driver cgroup-root \
        cgroups-per-qos client-ca-file cloud-provider cluster-dns cluster-domain config config-dir \
        container-log-max-files container-log-max-size container-runtime-endpoint contention-profiling cpu-cfs-quota \
        cpu-cfs-quota-period cpu-manager-policy cpu-manager-policy-options cpu-manager-reconcile-period \
        enable-controller-attach-detach enable-debugging-handlers enable-server enforce-node-allocatable event-burst \
        event-qps eviction-hard eviction-max-pod-grace-period eviction-minimum-reclaim \
        eviction-pressure-transition-period eviction-soft eviction-soft-grace-period exit-on-lock-contention \
        experimental-allocatable-ignore-eviction experimental-mounter-path fail-cgroupv1 fail-swap-on feature-gates \
        file-check-frequency hairpin-mode healthz-bind-address healthz-port hostname-override http-check-frequency \
        image-credential-provider-bin-dir image-credential-provider-config image-gc-high-threshold \
        image-gc-low-threshold image-service-endpoint kernel-memcg-notification kube-api-burst kube-api-content-type \
        kube-api-qps kube-reserved kube-reserved-cgroup kubeconfig kubelet-cgroups local-storage-capacity-isolation \
        lock-file log-flush-frequency logging-format make-iptables-util-chains manifest-url manifest-url-header \
        max-open-files max-pods maximum-dead-containers maximum-dead-containers-per-container memory-manager-policy \
        minimum-container-ttl-duration minimum-image-ttl-duration node-ip node-labels node-status-max-images \
        node-status-update-frequency oom-score-adj pod-cidr pod-manifest-path pod-max-pids pods-per-core port \
        protect-kernel-defaults provider-id qos-reserved read-only-port register-node register-with-taints \
        registry-burst registry-qps reserved-cpus reserved-memory resolv-conf root-dir rotate-certificates \
        rotate-server-certificates runonce runtime-cgroups runtime-request-timeout seccomp-default \
        serialize-image-pulls streaming-connection-idle-timeout sync-frequency system-cgroups system-reserved \
        system-reserved-cgroup tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file \
        topology-manager-policy topology-manager-policy-options topology-manager-scope v vmodule volume-plugin-dir \
        volume-stats-agg-period";

    #[test]
    fn upstreams_flags_are_all_known() {
        let command = Kubelet::augment_args(clap::Command::new("kubelet"));
        let known: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        let missing: Vec<&str> = UPSTREAM.split_whitespace().filter(|flag| !known.contains(flag)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_flag_without_effect_says_so() {
        for (flag, field, form, help) in FIELDS {
            let text = match form {
                Form::Number => "1",
                Form::Flag => "true",
                Form::Gates => "NodeLogQuery=true",
                _ => "",
            };
            let mut configuration = Configuration::default();
            configuration.set(field, value(*form, text).unwrap());
            let idle = configuration.apply(&mut kubelet::Config::default()).is_ok_and(|idle| !idle.is_empty());
            assert_eq!(idle, help.contains("Has no effect"), "--{flag}: {help}");
        }
        for (flag, _, possible, help) in OTHERS {
            assert!(!possible.is_empty() && *help != "Not to be had", "--{flag} is refused without a reason");
        }
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
        check(&["--reserved-memory=0"], "the reserved memory has incorrect format \"0\"");
        check(&["--cloud-provider=gce"], "--cloud-provider: gce is not supported");
        check(&["--exit-on-lock-contention"], "cannot exit on lock file contention: no lock file specified");
        check(&["--feature-gates=A=true"], "featureGates: unrecognized feature gate: A");
        let providers = ["--image-credential-provider-config=/nowhere", "--image-credential-provider-bin-dir=/nowhere"];
        check(&providers, "plugin binary directory /nowhere did not exist");
        check(
            &["--minimum-container-ttl-duration=soon"],
            "--minimum-container-ttl-duration: \"soon\" is not a duration",
        );
        let hook = ["--pod-admission-hook=/hook", "--pod-admission-hook-failure-policy=Perhaps"];
        check(&hook, "--pod-admission-hook: \"Perhaps\" is not a failure policy");
        check(&["--feature-gates=A=maybe"], "--feature-gates: A is neither true nor false");
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
        let over = directory.path().join("over.d");
        std::fs::create_dir(&over).unwrap();
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        for (name, more) in [("2.conf", "podsPerCore: 4"), ("1.conf", "podsPerCore: 3\nport: 7"), ("x.txt", "port: 8")]
        {
            std::fs::write(over.join(name), format!("{head}{more}\n")).unwrap();
        }
        let check = |more: &[&str], expected: (u32, u32, u16)| {
            let arguments = ["--config", file.to_str().unwrap(), "--max-pods=9", "--hostname-override=n"];
            let agent = parse(&[&arguments, more].concat()).agent().unwrap();
            let mut config = kubelet::Config::default();
            agent.node.kubelet.configuration.apply(&mut config).unwrap();
            assert_eq!((config.max_pods, config.pods_per_core, config.port), expected);
            assert_eq!(agent.node.node_name.as_deref(), Some("n"));
        };
        check(&[], (9, 2, 10250));
        check(&["--config-dir", over.to_str().unwrap()], (9, 4, 7));
    }
}
