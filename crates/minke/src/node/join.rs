//! The node's side of joining: a token once, then certificates that the cluster signs and that renew themselves.
//! Used by `agent` with `--server`; the other side is `join_token`.
//! A key is made on the node and never leaves it; no certificate authority is believed unchecked.

use std::{
    collections::BTreeSet,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use api::Reason;
use client::{Client, HttpsConfig, HttpsTransport, Identity, InformerFactory, ListParams, ServerList};
use env::Env;
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
};
use parking_lot::RwLock;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio_util::sync::CancellationToken;
use x509_parser::extensions::GeneralName;

use crate::{
    certificates::{
        ca_pin, kubelet_serving_ca,
        pki::{address, signed_by, until_renewal, write_private, write_public},
    },
    cluster::{file_modes, instance::Instance},
    control_plane::join_token::fingerprint,
    flags,
    node::{api_servers, own_node::Names},
};

/// Longer than a node that has lost its certificate is taken for Ready.
const SIGNING_TIMEOUT: Duration = Duration::from_secs(120);
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Of the environment.
const TOKEN_VARIABLE: &str = "MINKE_TOKEN";
/// Below the node's `pki`.
const KUBELET_CA: &str = "kubelet-serving-ca.crt";

/// What a node asks the cluster to sign.
struct Wanted {
    /// `<file>.crt` and `<file>.key` below the node's `pki`.
    file: &'static str,
    signer: &'static str,
    purpose: &'static str,
    user: String,
    dns_names: Vec<String>,
    addresses: Vec<IpAddr>,
}

/// A node that belongs to the cluster.
pub struct Member {
    pub client: Client,
    pub identity: Identity,
    pub ca_pem: String,
    /// Who signs for kubelets' servers, as far as it is known: as kept, then as the cluster says.
    pub kubelet_ca: Arc<RwLock<String>>,
    server: String,
    user: String,
    pki: PathBuf,
    env: Env,
}

/// The serving certificate: none until the cluster has signed one.
#[derive(Debug, Default)]
pub struct Serving(RwLock<Option<Arc<CertifiedKey>>>);

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

/// Joins, or comes back with the certificate from last time.
pub async fn join(flags: &flags::Agent, instance: &Instance, name: &str, env: &Env) -> Result<Arc<Member>> {
    let told = flags.server.as_deref().context("neither --kubeconfig nor --server says where the cluster is")?;
    let (told, kept) = (api_servers::told(told)?, instance.api_servers());
    let known = api_servers::known(&told, &kept);
    let server = known[0].clone();
    let pki = instance.pki();
    file_modes::private_directory(&pki)?;
    let ca_pem = authority(flags, &known, &pki.join("ca.crt"))?;
    let connect = |identity: Identity| -> Result<(Client, Arc<ServerList>)> {
        let ca = client::certificates(ca_pem.as_bytes()).map_err(anyhow::Error::msg)?;
        let config = HttpsConfig {
            server: server.clone(),
            ca,
            identity,
            user_agent: "kubelet".into(),
            ..HttpsConfig::default()
        };
        let transport = HttpsTransport::new(config)?;
        let servers = transport.servers();
        servers.replace(&known);
        Ok((Client::new(transport), servers))
    };
    let user = format!("system:node:{name}");
    let wanted = client_certificate(user.clone());
    let first = match load(&pki, &ca_pem, &wanted, env) {
        Some(kept) => kept,
        None => {
            let flags = flags.clone();
            let token = env::spawn_blocking(move || token(&flags.join, "node")).await??;
            let token = Some(Arc::new(RwLock::new(token)));
            let (bootstrap, _) = connect(Identity { bearer_token: token, ..Identity::default() })?;
            let asked = Asked { client: &bootstrap, server: &server, ca_pem: &ca_pem };
            obtain(&asked, &pki, &wanted, env).await.context("failed to join the cluster")?
        }
    };
    let current = Arc::new(RwLock::new(Arc::new(first)));
    let identity = Identity { certificate: Some(current.clone()), ..Identity::default() };
    let (client, servers) = connect(identity.clone())?;
    api_servers::follow(client.clone(), servers, told, kept, env);
    let kubelet_ca = fs::read_to_string(pki.join(KUBELET_CA)).unwrap_or_else(|_| ca_pem.clone());
    let member = Arc::new(Member {
        client,
        identity,
        ca_pem: ca_pem.clone(),
        kubelet_ca: Arc::new(RwLock::new(kubelet_ca)),
        server: server.clone(),
        user,
        pki,
        env: env.clone(),
    });
    let renewed = move |certificate: CertifiedKey| *current.write() = Arc::new(certificate);
    let initial = member.until_renewal(&wanted);
    member.clone().keep_renewed(wanted, initial, renewed);
    Ok(member)
}

impl Member {
    /// One whose credentials are a kubeconfig's, for the sake of its certificates.
    pub fn of_kubeconfig(
        client: Client,
        identity: Identity,
        ca_pem: &str,
        server: &str,
        name: &str,
        instance: &Instance,
        env: &Env,
    ) -> Result<Arc<Self>> {
        let pki = instance.pki();
        file_modes::private_directory(&pki)?;
        let user = format!("system:node:{name}");
        let kubelet_ca = fs::read_to_string(pki.join(KUBELET_CA)).unwrap_or_else(|_| ca_pem.to_string());
        Ok(Arc::new(Self {
            client,
            identity,
            ca_pem: ca_pem.to_string(),
            kubelet_ca: Arc::new(RwLock::new(kubelet_ca)),
            server: server.to_string(),
            user,
            pki,
            env: env.clone(),
        }))
    }

    /// Renews a kubeconfig's client certificate in time; the new one is kept beside the node's others and used from then
    /// on. A kubeconfig without one has nothing to renew.
    pub fn rotate_client_certificate(self: &Arc<Self>) {
        let Some(current) = self.identity.certificate.clone() else { return };
        let wanted = client_certificate(self.user.clone());
        let mut wait = match current.read().cert.first() {
            Some(der) => until_renewal(&self.env, der),
            None => Duration::ZERO,
        };
        if let Some(kept) = load(&self.pki, &self.ca_pem, &wanted, &self.env) {
            *current.write() = Arc::new(kept);
            wait = self.until_renewal(&wanted);
        }
        self.clone().keep_renewed(wanted, wait, move |certificate| *current.write() = Arc::new(certificate));
    }

    /// The serving certificate for all names that the node has registered (others are not approved), asked for now and
    /// again before it expires.
    pub async fn serve(self: &Arc<Self>, serving: Arc<Serving>, names: Names) {
        self.learn_kubelet_ca().await;
        let wanted = Wanted {
            file: "kubelet-serving",
            signer: "kubernetes.io/kubelet-serving",
            purpose: "server auth",
            user: self.user.clone(),
            dns_names: names.dns,
            addresses: names.addresses,
        };
        let mut wait = Duration::ZERO;
        let kubelet_ca = self.kubelet_ca.read().clone();
        if let Some(kept) = load(&self.pki, &kubelet_ca, &wanted, &self.env) {
            *serving.0.write() = Some(Arc::new(kept));
            wait = self.until_renewal(&wanted);
        }
        self.clone().keep_renewed(wanted, wait, move |certificate| *serving.0.write() = Some(Arc::new(certificate)));
    }

    /// A certificate of before the kubelets had an authority of their own is not kept.
    async fn learn_kubelet_ca(&self) {
        let learned = match kubelet_serving_ca::fetch(&self.client).await {
            Ok(Some(pem)) => write_public(&self.pki.join(KUBELET_CA), &pem).map(|()| pem),
            Ok(None) => Ok(self.ca_pem.clone()),
            Err(error) => Err(error),
        };
        match learned {
            Ok(pem) => *self.kubelet_ca.write() = pem,
            Err(error) => tracing::warn!(error = format!("{error:#}"), "failed to learn who signs for kubelets"),
        }
    }

    /// Renews at two thirds of a certificate's life, for as long as the process runs.
    fn keep_renewed(
        self: Arc<Self>,
        wanted: Wanted,
        mut wait: Duration,
        renewed: impl Fn(CertifiedKey) + Send + 'static,
    ) {
        self.env.clone().spawn(async move {
            loop {
                self.env.sleep(wait).await;
                let asked = Asked { client: &self.client, server: &self.server, ca_pem: &self.ca_pem };
                wait = match obtain(&asked, &self.pki, &wanted, &self.env).await {
                    Ok(certificate) => {
                        renewed(certificate);
                        self.until_renewal(&wanted)
                    }
                    Err(error) => {
                        tracing::error!(error = format!("{error:#}"), certificate = wanted.file, "failed to renew");
                        SIGNING_TIMEOUT
                    }
                };
            }
        });
    }

    fn until_renewal(&self, wanted: &Wanted) -> Duration {
        let pem = fs::read(self.pki.join(format!("{}.crt", wanted.file))).unwrap_or_default();
        match client::certificates(&pem).ok().and_then(|chain| chain.first().cloned()) {
            Some(der) => until_renewal(&self.env, &der),
            None => Duration::ZERO,
        }
    }
}

/// What proves to the API server that one is this node.
fn client_certificate(user: String) -> Wanted {
    Wanted {
        file: "kubelet-client",
        signer: "kubernetes.io/kube-apiserver-client-kubelet",
        purpose: "client auth",
        user,
        dns_names: vec![],
        addresses: vec![],
    }
}

/// From a kubeconfig, a file, standard input or the environment; never from the command line, which everybody can see.
pub fn token(flags: &flags::Join, role: &str) -> Result<String> {
    let from_environment = std::env::var(TOKEN_VARIABLE).ok();
    let token = match (&flags.token_of_kubeconfig, &flags.token_file, from_environment) {
        (Some(token), ..) => token.clone(),
        (None, Some(file), _) if file.as_os_str() == "-" => {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).context("failed to read the token from standard input")?;
            line
        }
        (None, Some(file), _) => {
            fs::read_to_string(file).with_context(|| format!("failed to read the token in {}", file.display()))?
        }
        (None, None, Some(token)) => token,
        _ => {
            bail!(
                "this {role} has not joined yet: give --token-file (`minke {role} join-command` on a server shows how)"
            )
        }
    };
    match token.trim() {
        "" => bail!("the token to join with is empty: `minke {role} join-command` on a server shows how to give it"),
        token => Ok(token.to_string()),
    }
}

/// The cluster's authority: from last time, from a file, or from the server itself if its fingerprint is right.
fn authority(flags: &flags::Agent, servers: &[String], kept: &Path) -> Result<String> {
    let pem = match (&flags.join.ca_file, &flags.join.ca_hash) {
        (Some(file), _) => fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?,
        (None, Some(hash)) => match fs::read_to_string(kept) {
            Ok(pem) if is_known_by(&pem, hash) => pem,
            _ => fetch_from_any(servers, hash)?,
        },
        _ => fs::read_to_string(kept).context("who signs for the cluster is not known: give --ca-file or --ca-hash")?,
    };
    write_public(kept, &pem)?;
    Ok(pem)
}

/// The first server that answers with it; else what was wrong with the last.
pub fn fetch_from_any(servers: &[String], hash: &str) -> Result<String> {
    let mut failed = None;
    for server in servers {
        match ca_pin::fetch(server, hash) {
            Ok(pem) => return Ok(pem),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.context("no server is known")?)
}

fn is_known_by(pem: &str, hash: &str) -> bool {
    let chain = client::certificates(pem.as_bytes()).unwrap_or_default();
    chain.first().is_some_and(|der| fingerprint(der).is_ok_and(|found| found == hash))
}

/// The certificate from disk, if it is of this cluster, still good for a while and has these names.
fn load(pki: &Path, ca_pem: &str, wanted: &Wanted, env: &Env) -> Option<CertifiedKey> {
    let certificate = fs::read(pki.join(format!("{}.crt", wanted.file))).ok()?;
    let key = fs::read(pki.join(format!("{}.key", wanted.file))).ok()?;
    let certified = client::certified_key(&certificate, &key).ok()?;
    certified.keys_match().ok()?;
    let der = certified.cert.first()?;
    let (_, parsed) = x509_parser::parse_x509_certificate(der).ok()?;
    let common_name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    let names = parsed.subject_alternative_name().ok().flatten();
    let (mut dns_names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    for name in names.iter().flat_map(|n| &n.value.general_names) {
        match name {
            GeneralName::IPAddress(bytes) => addresses.extend(address(bytes)),
            GeneralName::DNSName(name) => drop(dns_names.insert((*name).to_string())),
            _ => {}
        }
    }
    let named = addresses == wanted.addresses.iter().copied().collect()
        && dns_names == wanted.dns_names.iter().cloned().collect();
    let ours = signed_by(der, ca_pem) && common_name == wanted.user && named;
    (ours && until_renewal(env, der) > Duration::ZERO).then_some(certified)
}

/// Who is asked, and whom we believe to sign for it.
struct Asked<'a> {
    client: &'a Client,
    server: &'a str,
    ca_pem: &'a str,
}

/// A new key, a request for its certificate, and the answer. A server that can't be reached is asked again.
async fn obtain(asked: &Asked<'_>, pki: &Path, wanted: &Wanted, env: &Env) -> Result<CertifiedKey> {
    let client = asked.client;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(wanted.dns_names.clone())?;
    params.subject_alt_names.extend(wanted.addresses.iter().map(|a| SanType::IpAddress(*a)));
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, wanted.user.clone());
    let request = params.serialize_request(&key)?.pem()?;
    let name = format!("{}-{}", wanted.file, env.name_suffix(10));
    let mut object = CertificateSigningRequest {
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: wanted.signer.into(),
            usages: Some(["digital signature", "key encipherment", wanted.purpose].map(str::to_string).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    object.metadata.name = Some(name.clone());
    let api = client.api::<CertificateSigningRequest>();
    loop {
        match api.create(&object).await {
            Ok(_) => break,
            Err(error) if error.reason == Reason::ServiceUnavailable => {
                let (server, ca_pem) = (asked.server.to_string(), asked.ca_pem.to_string());
                if let Some(doubt) = env::spawn_blocking(move || ca_pin::doubt(&server, &ca_pem)).await? {
                    bail!(doubt);
                }
                tracing::warn!(%error, "the API server can't be reached; will try again");
                env.sleep(RETRY_INTERVAL).await;
            }
            Err(error) if error.reason == Reason::Unauthorized => {
                bail!(
                    "the server does not accept our token, which may be wrong, expired or revoked ({error}): \
                     `minke node join-command` on the server shows one that is good"
                )
            }
            Err(error) => return Err(error.into()),
        }
    }
    let signed = env.timeout(SIGNING_TIMEOUT, signed(client, &name, env)).await;
    let certificate = signed.with_context(|| {
        format!(
            "nobody approved the request {name} in time: where a node of this name is Ready on another machine, choose \
             another --node-name"
        )
    })??;
    let key = key.serialize_pem();
    write_private(&pki.join(format!("{}.key", wanted.file)), &key)?;
    write_public(&pki.join(format!("{}.crt", wanted.file)), &certificate)?;
    client::certified_key(certificate.as_bytes(), key.as_bytes()).map_err(anyhow::Error::msg)
}

/// Waits until the request has its certificate.
async fn signed(client: &Client, name: &str, env: &Env) -> Result<String> {
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let informers = InformerFactory::new(client.clone(), env.clone(), stop);
    let selector = ListParams::fields(format!("metadata.name={name}"));
    let mut changes = informers.informer_with::<CertificateSigningRequest>(selector).subscribe();
    while let Some(change) = changes.next().await {
        let Some(status) = change.new.and_then(|r| r.status.clone()) else { continue };
        if let Some(refused) = status.conditions.iter().flatten().find(|c| c.type_ == "Denied" || c.type_ == "Failed") {
            bail!("the request {name} was refused: {}", refused.message.as_deref().unwrap_or("no reason given"));
        }
        if let Some(certificate) = status.certificate.filter(|c| !c.0.is_empty()) {
            return Ok(String::from_utf8(certificate.0)?);
        }
    }
    bail!("stopped while waiting for the request {name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{
        authorities::Authority,
        pki::{Leaf, Pki},
    };

    #[tokio::test]
    async fn a_certificate_of_another_cluster_or_node_is_not_used() {
        let env = Env::real();
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let pki = Pki::open(one.path(), env.clone()).unwrap();
        let foreign = Pki::open(other.path(), env.clone()).unwrap();
        pki.leaf(&Leaf::client("kubelet-client", "system:node:a", Some("system:nodes"))).unwrap();
        let check = |file: &'static str, user: &str, ca: &str, (dns, addresses): (&[&str], &[&str]), good: bool| {
            let wanted = Wanted {
                file,
                signer: "",
                purpose: "",
                user: user.into(),
                dns_names: dns.iter().map(ToString::to_string).collect(),
                addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            };
            assert_eq!(load(one.path(), ca, &wanted, &env).is_some(), good, "{file} {user} {dns:?} {addresses:?}");
        };
        let (kubelet, none) = ("kubelet-client", (&[][..], &[][..]));
        check(kubelet, "system:node:a", pki.ca_pem(), none, true);
        check(kubelet, "system:node:b", pki.ca_pem(), none, false);
        check(kubelet, "system:node:a", foreign.ca_pem(), none, false);
        check(kubelet, "system:node:a", pki.ca_pem(), (&[], &["192.0.2.1"]), false);
        pki.leaf(&Leaf {
            name: "kubelet-serving".into(),
            authority: Authority::KubeletServing,
            common_name: "system:node:a".into(),
            organization: Some("system:nodes".into()),
            dns_names: vec!["a".into()],
            addresses: ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().unwrap()).to_vec(),
            server: true,
            client: false,
        })
        .unwrap();
        for (dns, addresses, good) in [
            (&["a"][..], &["2001:db8::1", "192.0.2.1"][..], true),
            (&["a"], &["192.0.2.1"], false),
            (&["a", "a.example.org"], &["192.0.2.1", "2001:db8::1"], false),
        ] {
            let kubelets = pki.authority_pem(Authority::KubeletServing).unwrap();
            check("kubelet-serving", "system:node:a", &kubelets, (dns, addresses), good);
            check("kubelet-serving", "system:node:a", pki.ca_pem(), (dns, addresses), false);
        }
        let der = client::certificates(pki.ca_pem().as_bytes()).unwrap();
        let hash = fingerprint(&der[0]).unwrap();
        assert!(is_known_by(pki.ca_pem(), &hash) && !is_known_by(foreign.ca_pem(), &hash));
    }
}
