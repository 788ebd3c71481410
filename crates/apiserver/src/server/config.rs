//! What an API server is told at construction.
//! Filled in by `minke` and by tests.
//! Nothing here changes later; certificates that are renewed sit behind a resolver.

use std::{collections::BTreeMap, net::IpAddr, ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};

use ipnet::IpNet;
use parking_lot::RwLock;
use rustls::server::ResolvesServerCert;

use api::feature_gates::FeatureGates;

use crate::{
    authn::oidc::configuration::JwtAuthenticator,
    server::component_health::ComponentHealth,
    storage::{StorageMediaType, watch_cache},
};

pub use crate::audit::options as audit;
pub use crate::discovery::api_enablement::RuntimeConfig;

/// In which order the addresses of a node are tried for its kubelet, unless a flag says otherwise.
const KUBELET_ADDRESS_TYPES: [&str; 5] = ["InternalIP", "Hostname", "InternalDNS", "ExternalDNS", "ExternalIP"];

#[derive(Clone)]
pub struct Config {
    /// Where clients reach this server: the endpoint of the `kubernetes` Service.
    pub advertise_address: IpAddr,
    pub port: u16,
    /// Of the machine it runs on; among the API servers of a cluster it is known by it.
    pub hostname: String,
    /// Service addresses; the first family is the default one.
    pub service_cidrs: Vec<IpNet>,
    pub node_ports: RangeInclusive<u16>,
    /// Asked at every handshake, so a renewed certificate needs no restart. `None`: no listener is served.
    pub serving_certificate: Option<Arc<dyn ResolvesServerCert>>,
    /// `--tls-min-version`, `--tls-cipher-suites`.
    pub tls: serve::TlsOptions,
    /// PEM of the authorities whose client certificates are believed.
    pub client_ca_pem: Vec<u8>,
    /// `--client-ca-file`: more of them, read again when the file changes.
    pub client_ca_file: Option<PathBuf>,
    pub service_accounts: ServiceAccounts,
    /// Where this server connects to in place of an address of a node, pod or service.
    pub address_translations: BTreeMap<IpAddr, IpAddr>,
    /// `--kubelet-preferred-address-types`: which address of a node its kubelet is reached at, the first that it has.
    pub kubelet_preferred_address_types: Vec<String>,
    /// How kubelets are spoken to for logs, exec and the like.
    pub kubelet_client: Option<KubeletClient>,
    /// How extension API servers are spoken to, which believe its holder about users.
    pub proxy_client: Option<ProxyClient>,
    pub authentication: Authentication,
    /// As in `--authorization-mode`, in the order they are asked.
    pub authorization_modes: Vec<String>,
    pub authorization: Authorization,
    pub enable_admission_plugins: Vec<String>,
    pub disable_admission_plugins: Vec<String>,
    /// `--admission-control-config-file`: settings of single plugins.
    pub admission_control_config_file: Option<PathBuf>,
    pub anonymous_auth: bool,
    /// Whether minke's own agents may join. Their nodes run service proxy and DNS under the node's identity, so every node
    /// may read more than upstream's: the rows `minke:node` of the bootstrap policy.
    pub admits_agents: bool,
    /// `--feature-gates`
    pub feature_gates: FeatureGates,
    /// `--runtime-config`: which built-in groups are served.
    pub runtime_config: RuntimeConfig,
    /// How objects are encrypted in the store; in the clear if nothing is said.
    pub encryption_providers: Option<EncryptionProviders>,
    /// `--storage-media-type`; protobuf in a store that other servers may share, JSON in our own, if nothing is said.
    pub storage_media_type: Option<StorageMediaType>,
    pub audit: audit::Audit,
    pub limits: Limits,
    /// What the components beside it in this process say of themselves.
    pub component_health: ComponentHealth,
}

#[derive(Debug, Clone)]
pub struct EncryptionProviders {
    /// `--encryption-provider-config`
    pub file: PathBuf,
    /// `--encryption-provider-config-automatic-reload`
    pub automatic_reload: bool,
}

#[derive(Clone)]
pub struct ServiceAccounts {
    /// `https://kubernetes.default.svc.cluster.local`
    pub issuer: String,
    /// Issuers of tokens from before, which are believed too.
    pub former_issuers: Vec<String>,
    pub audiences: Vec<String>,
    /// PEM (PKCS#8) of the RSA or P-256 key that signs tokens.
    pub signing_key_pem: String,
    /// PEM public keys that are believed besides the signing key's own.
    pub verification_keys_pem: Vec<String>,
    pub max_token_expiration: Duration,
    /// Whether the tokens of pods live for a year.
    pub extend_token_expiration: bool,
    /// Where others find the keys, if not below the issuer.
    pub jwks_uri: Option<String>,
}

impl ServiceAccounts {
    /// All whose tokens are believed.
    pub fn issuers(&self) -> Vec<String> {
        std::iter::once(&self.issuer).chain(&self.former_issuers).cloned().collect()
    }
}

#[derive(Clone)]
pub struct KubeletClient {
    pub certificate: ClientCertificate,
    /// Authorities of the kubelets' serving certificates.
    pub ca_pem: Vec<u8>,
    /// Authorities that signed such certificates before there was one for them alone. They sign for others too, so they
    /// are believed only about certificates of nodes.
    pub former_ca_pem: Vec<u8>,
}

/// `--proxy-client-cert-file` and `--proxy-client-key-file`.
#[derive(Clone)]
pub struct ProxyClient {
    pub certificate: ClientCertificate,
    /// Its own authority, which signs for nobody else: who has a certificate of it is believed about everybody.
    pub ca_pem: Vec<u8>,
}

/// A certificate that we show, which whoever made it may renew while the server runs.
#[derive(Clone)]
pub struct ClientCertificate(Arc<RwLock<Arc<CertificatePem>>>);

pub struct CertificatePem {
    pub certificate_pem: Vec<u8>,
    pub key_pem: Vec<u8>,
}

impl ClientCertificate {
    pub fn new(certificate_pem: Vec<u8>, key_pem: Vec<u8>) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(CertificatePem { certificate_pem, key_pem }))))
    }

    /// The one in use now; asked for with every connection, so that a renewal needs no restart.
    pub fn current(&self) -> Arc<CertificatePem> {
        self.0.read().clone()
    }

    pub fn renew(&self, certificate_pem: Vec<u8>, key_pem: Vec<u8>) {
        *self.0.write() = Arc::new(CertificatePem { certificate_pem, key_pem });
    }
}

/// Ways to prove who one is beyond client certificates and ServiceAccount tokens; off unless set.
#[derive(Clone, Default)]
pub struct Authentication {
    /// `--token-auth-file`: lines of `token,user,uid[,"group,group"]`.
    pub token_file: Option<PathBuf>,
    /// `--basic-auth-file`: lines of `password,user,uid[,"group,group"]`.
    pub password_file: Option<PathBuf>,
    /// `--enable-bootstrap-token-auth`: secrets of type bootstrap.kubernetes.io/token in kube-system.
    pub bootstrap_tokens: bool,
    /// `--authentication-token-webhook-config-file`.
    pub webhook: Option<Webhook>,
    pub request_header: Option<RequestHeader>,
    pub oidc: Option<Oidc>,
}

/// Issuers of OpenID Connect tokens.
#[derive(Clone)]
pub enum Oidc {
    /// `--oidc-*`: one issuer.
    Flags { authenticator: Box<JwtAuthenticator>, signing_algs: Vec<String> },
    /// `--authentication-config`, read again when it changes.
    File(PathBuf),
}

#[derive(Clone, Default)]
pub struct Authorization {
    /// `--authorization-config`, in place of the modes; read again when it changes.
    pub config_file: Option<PathBuf>,
    /// `--authorization-policy-file`, for the mode ABAC.
    pub policy_file: Option<PathBuf>,
    /// `--authorization-webhook-config-file`, for the mode Webhook.
    pub webhook: Option<Webhook>,
}

/// A remote service that is asked, and how long its answers are believed.
#[derive(Clone)]
pub struct Webhook {
    pub kubeconfig: PathBuf,
    pub allowed_for: Duration,
    pub refused_for: Duration,
}

/// A proxy in front that says whose requests it brings (`--requestheader-*`).
#[derive(Clone)]
pub struct RequestHeader {
    /// PEM of the authorities of the proxy's client certificate.
    pub ca_pem: Vec<u8>,
    /// `--requestheader-client-ca-file`: more of them, read again when the file changes.
    pub ca_file: Option<PathBuf>,
    /// Common names the proxy may have; empty: any.
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_header_prefixes: Vec<String>,
}

impl RequestHeader {
    /// With the headers that upstream's own proxies send.
    pub fn usual(ca_pem: impl Into<Vec<u8>>, allowed_name: &str) -> Self {
        let [username_headers, uid_headers, group_headers, extra_header_prefixes] =
            ["X-Remote-User", "X-Remote-Uid", "X-Remote-Group", "X-Remote-Extra-"].map(|name| vec![name.to_string()]);
        let allowed_names = vec![allowed_name.to_string()];
        Self {
            ca_pem: ca_pem.into(),
            ca_file: None,
            allowed_names,
            username_headers,
            uid_headers,
            group_headers,
            extra_header_prefixes,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Limits {
    /// What the listener bears with.
    pub connections: serve::Limits,
    /// `--enable-priority-and-fairness`: the two limits below are divided among priority levels.
    pub priority_and_fairness: bool,
    /// Beyond these, 429 with Retry-After.
    pub requests_in_flight: usize,
    pub mutating_requests_in_flight: usize,
    /// Beyond this, 504. Long-running requests are apart.
    pub request_timeout: Duration,
    /// Beyond this, 413.
    pub body_bytes: usize,
    /// Of all bodies that are being read or handled, together; beyond this, 429.
    pub body_bytes_in_flight: usize,
    /// A watch without timeoutSeconds ends after this and up to as much again.
    pub min_watch: Duration,
    pub event_ttl: Duration,
    /// `--shutdown-delay-duration`: for so long after it was told to stop a server still serves, and is not ready.
    pub shutdown_delay: Duration,
    pub watch_cache: watch_cache::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: serve::Limits::API_SERVER,
            priority_and_fairness: true,
            requests_in_flight: 400,
            mutating_requests_in_flight: 200,
            request_timeout: Duration::from_secs(60),
            body_bytes: 3 << 20,
            body_bytes_in_flight: 192 << 20,
            min_watch: Duration::from_secs(1800),
            event_ttl: Duration::from_secs(3600),
            shutdown_delay: Duration::ZERO,
            watch_cache: watch_cache::Limits::default(),
        }
    }
}

impl Config {
    /// How objects are written into a store that other servers may share, or may not.
    pub fn media_type_in(&self, shared: bool) -> StorageMediaType {
        let usual = if shared { StorageMediaType::Protobuf } else { StorageMediaType::Json };
        self.storage_media_type.unwrap_or(usual)
    }

    /// All authorities of client certificates, as they are now.
    pub fn client_authorities_pem(&self) -> Vec<u8> {
        let file = self.client_ca_file.as_ref().and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
        if file.is_empty() { self.client_ca_pem.clone() } else { [&self.client_ca_pem, &b"\n"[..], &file].concat() }
    }

    /// What to connect to for an address.
    pub fn dialed(&self, address: IpAddr) -> IpAddr {
        self.address_translations.get(&address).copied().unwrap_or(address)
    }

    /// A server that is reached in process only: `signing_key_pem` is all it cannot do without.
    pub fn in_process(signing_key_pem: String) -> Self {
        Self {
            // Endpoints may not be loopback addresses; nobody goes to this one.
            advertise_address: IpAddr::from([192, 0, 2, 1]),
            port: 6443,
            hostname: "in-process".into(),
            service_cidrs: vec!["10.96.0.0/12".parse().expect("a constant network")],
            node_ports: 30000..=32767,
            serving_certificate: None,
            tls: serve::TlsOptions::default(),
            client_ca_pem: Vec::new(),
            client_ca_file: None,
            service_accounts: ServiceAccounts {
                issuer: "https://kubernetes.default.svc.cluster.local".into(),
                audiences: vec!["https://kubernetes.default.svc.cluster.local".into()],
                signing_key_pem,
                verification_keys_pem: Vec::new(),
                max_token_expiration: Duration::from_secs(365 * 86400),
                extend_token_expiration: true,
                jwks_uri: None,
                former_issuers: Vec::new(),
            },
            address_translations: BTreeMap::new(),
            kubelet_preferred_address_types: KUBELET_ADDRESS_TYPES.map(str::to_string).to_vec(),
            kubelet_client: None,
            proxy_client: None,
            authentication: Authentication { bootstrap_tokens: true, ..Authentication::default() },
            authorization: Authorization::default(),
            authorization_modes: vec!["Node".into(), "RBAC".into()],
            // On in every cluster that has nodes of its own, though upstream leaves it to the flag.
            enable_admission_plugins: vec!["NodeRestriction".into()],
            disable_admission_plugins: Vec::new(),
            admission_control_config_file: None,
            anonymous_auth: true,
            admits_agents: false,
            feature_gates: FeatureGates::default(),
            runtime_config: RuntimeConfig::default(),
            encryption_providers: None,
            storage_media_type: None,
            audit: audit::Audit::default(),
            limits: Limits::default(),
            component_health: ComponentHealth::default(),
        }
    }
}
