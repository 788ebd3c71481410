//! What an API server shows to clients, kubelets and extension servers, as flags with upstream's names.
//! Part of the flags of every command that serves the API; applied by `server`.
//! Where nothing is given the cluster's own authority signs what is needed.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use apiserver::config;
use clap::Args;
use env::Env;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio_util::sync::CancellationToken;

use super::{
    component_flags::{TlsFlags, follow_certificate},
    security_flags::duration,
};
use crate::certificates::pki::Current;

/// Client certificates from files are looked at this often.
const REREAD_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Certificates")]
pub struct ServingFlags {
    #[command(flatten)]
    pub tls: TlsFlags,
    /// A further serving certificate for some names, as CERT,KEY[:NAME,…]; may be given several times
    #[arg(long, value_name = "CERT,KEY[:NAMES]")]
    tls_sni_cert_key: Vec<String>,
    /// Certificate to show to kubelets [default: one of the cluster's authority]
    #[arg(long, value_name = "FILE", requires = "kubelet_client_key")]
    kubelet_client_certificate: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "kubelet_client_certificate")]
    kubelet_client_key: Option<PathBuf>,
    /// Authorities of kubelets' serving certificates, which are not checked where a certificate is given and no authority
    #[arg(long, value_name = "FILE")]
    kubelet_certificate_authority: Option<PathBuf>,
    /// Which address of a node its kubelet is reached at, the first of these that it has
    /// [default: InternalIP,Hostname,InternalDNS,ExternalDNS,ExternalIP]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    kubelet_preferred_address_types: Vec<String>,
    /// Certificate to show to extension API servers and webhooks [default: one of the front proxy's authority]
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    proxy_client_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    proxy_client_key_file: Option<PathBuf>,
    /// How long Events are kept
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    event_ttl: Duration,
    /// For how long after a signal to stop requests are still served, while the server says that it is not ready
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    shutdown_delay_duration: Duration,
}

/// Address types of nodes that there are.
const ADDRESS_TYPES: [&str; 5] = ["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"];

impl ServingFlags {
    /// Lays what is given over a configuration of the cluster's own authority.
    pub fn apply(&self, config: &mut config::Config, env: &Env, shutdown: &CancellationToken) -> Result<()> {
        config.tls = self.tls.options()?;
        if let Some(certificate) = self.tls.certificate(env, shutdown).context("--tls-cert-file")? {
            config.serving_certificate = Some(certificate);
        }
        if !self.tls_sni_cert_key.is_empty() {
            let default = config.serving_certificate.take().context("--tls-sni-cert-key needs --tls-cert-file")?;
            let mut named = Vec::new();
            for pair in &self.tls_sni_cert_key {
                named.push(NamedCertificate::read(pair, env, shutdown)?);
            }
            config.serving_certificate = Some(Arc::new(CertificatesByName { named, default }));
        }
        self.apply_clients(config, env, shutdown)?;
        if !self.kubelet_preferred_address_types.is_empty() {
            let unknown = self.kubelet_preferred_address_types.iter().find(|t| !ADDRESS_TYPES.contains(&t.as_str()));
            if let Some(unknown) = unknown {
                bail!("--kubelet-preferred-address-types: {unknown:?} is not one of {}", ADDRESS_TYPES.join(", "));
            }
            config.kubelet_preferred_address_types = self.kubelet_preferred_address_types.clone();
        }
        if self.event_ttl.is_zero() {
            bail!("--event-ttl must be greater than zero");
        }
        config.limits.event_ttl = self.event_ttl;
        config.limits.shutdown_delay = self.shutdown_delay_duration;
        Ok(())
    }

    fn apply_clients(&self, config: &mut config::Config, env: &Env, shutdown: &CancellationToken) -> Result<()> {
        let authority = self.kubelet_certificate_authority.as_deref().map(read).transpose()?;
        if let (Some(chain), Some(key)) = (&self.kubelet_client_certificate, &self.kubelet_client_key) {
            let certificate = client_certificate(chain, key, env, shutdown).context("--kubelet-client-certificate")?;
            let (ca_pem, former_ca_pem) = (authority.unwrap_or_default(), Vec::new());
            config.kubelet_client = Some(config::KubeletClient { certificate, ca_pem, former_ca_pem });
        } else if let (Some(pem), Some(client)) = (authority, &mut config.kubelet_client) {
            (client.ca_pem, client.former_ca_pem) = (pem, Vec::new());
        }
        if let (Some(chain), Some(key)) = (&self.proxy_client_cert_file, &self.proxy_client_key_file) {
            let certificate = client_certificate(chain, key, env, shutdown).context("--proxy-client-cert-file")?;
            let file = config.authentication.request_header.as_ref().and_then(|header| header.ca_file.clone());
            let ca_pem = file.context("--proxy-client-cert-file needs --requestheader-client-ca-file")?;
            config.proxy_client = Some(config::ProxyClient { certificate, ca_pem: read(&ca_pem)? });
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("failed to read {}", path.display()))
}

/// Of files, read again when they change.
fn client_certificate(
    chain: &Path,
    key: &Path,
    env: &Env,
    shutdown: &CancellationToken,
) -> Result<config::ClientCertificate> {
    let (first_chain, first_key) = (read(chain)?, read(key)?);
    client::certified_key(&first_chain, &first_key)
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("{} or its key can't be used", chain.display()))?;
    let certificate = config::ClientCertificate::new(first_chain, first_key);
    let (kept, chain, key) = (certificate.clone(), chain.to_path_buf(), key.to_path_buf());
    let (env, shutdown) = (env.clone(), shutdown.clone());
    env.clone().spawn(async move {
        while shutdown.run_until_cancelled(env.sleep(REREAD_INTERVAL)).await.is_some() {
            if let (Ok(chain), Ok(key)) = (read(&chain), read(&key))
                && chain != kept.current().certificate_pem
                && client::certified_key(&chain, &key).is_ok()
            {
                kept.renew(chain, key);
            }
        }
    });
    Ok(certificate)
}

/// A certificate for some names: exact ones, or `*.domain`.
#[derive(Debug)]
struct NamedCertificate {
    names: Vec<String>,
    certificate: Current,
}

impl NamedCertificate {
    fn read(text: &str, env: &Env, shutdown: &CancellationToken) -> Result<Self> {
        let (files, names) = text.split_once(':').unwrap_or((text, ""));
        let pair = files.split_once(',').with_context(|| "expected comma separated certificate and key file paths");
        let (chain, key) = pair.with_context(|| format!("--tls-sni-cert-key {text}"))?;
        let certificate = follow_certificate(Path::new(chain.trim()), Path::new(key.trim()), env, shutdown)
            .with_context(|| format!("--tls-sni-cert-key {text}"))?;
        let mut names: Vec<String> =
            names.split(',').map(str::trim).filter(|n| !n.is_empty()).map(str::to_lowercase).collect();
        if names.is_empty() {
            names = own_names(&certificate.0.read());
        }
        Ok(Self { names, certificate })
    }
}

/// The names that a certificate is for.
fn own_names(certificate: &CertifiedKey) -> Vec<String> {
    let Some(leaf) = certificate.cert.first() else { return Vec::new() };
    let Ok((_, leaf)) = x509_parser::parse_x509_certificate(leaf) else { return Vec::new() };
    let alternatives = leaf.subject_alternative_name().ok().flatten();
    let names = alternatives.iter().flat_map(|extension| &extension.value.general_names);
    let mut found: Vec<String> = names
        .filter_map(|name| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => Some(name.to_lowercase()),
            x509_parser::extensions::GeneralName::IPAddress(bytes) => {
                let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from).ok();
                four.or(<[u8; 16]>::try_from(*bytes).map(IpAddr::from).ok()).map(|address| address.to_string())
            }
            _ => None,
        })
        .collect();
    found.extend(leaf.subject().iter_common_name().filter_map(|name| name.as_str().ok()).map(str::to_lowercase));
    found
}

/// The certificate of the name that a client asks for; exact names count before wildcards.
#[derive(Debug)]
struct CertificatesByName {
    named: Vec<NamedCertificate>,
    default: Arc<dyn ResolvesServerCert>,
}

impl CertificatesByName {
    fn of(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let name = name.to_lowercase();
        let wildcard = name.split_once('.').map(|(_, domain)| format!("*.{domain}"));
        let by = |wanted: &str| self.named.iter().find(|one| one.names.iter().any(|own| own == wanted));
        let found = by(&name).or_else(|| wildcard.as_deref().and_then(by))?;
        Some(found.certificate.0.read().clone())
    }
}

impl ResolvesServerCert for CertificatesByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        hello.server_name().and_then(|name| self.of(name)).or_else(|| self.default.resolve(hello))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::pki::{Leaf, Pki};

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        serving: ServingFlags,
    }

    #[tokio::test]
    async fn flags_become_a_configuration() {
        use clap::Parser;
        let directory = tempfile::tempdir().unwrap();
        let (env, shutdown) = (Env::real(), CancellationToken::new());
        let pki = Pki::open(directory.path(), env.clone()).unwrap();
        pki.leaf(&Leaf { name: "client".into(), common_name: "client".into(), ..Leaf::default() }).unwrap();
        let file = |name: &str| directory.path().join(name).display().to_string();
        let apply = |line: &str| {
            let words = std::iter::once("minke").chain(line.split_whitespace());
            let mut config = config::Config::in_process(String::new());
            Line::try_parse_from(words)?.serving.apply(&mut config, &env, &shutdown)?;
            anyhow::Ok(config)
        };
        let check = |line: &str, show: fn(&config::Config) -> String, expected: &str| {
            let shown = apply(line).map_or_else(|error| format!("{error:#}"), |config| show(&config));
            assert!(shown.starts_with(expected), "{line}: {shown}");
        };
        let times = |c: &config::Config| format!("{:?} {:?}", c.limits.event_ttl, c.limits.shutdown_delay);
        check("", times, "3600s 0ns");
        check("--event-ttl=2h --shutdown-delay-duration=5s", times, "7200s 5s");
        check("--event-ttl=0s", times, "--event-ttl must be greater than zero");
        let addresses = |c: &config::Config| c.kubelet_preferred_address_types.join(" ");
        check("--kubelet-preferred-address-types=Hostname,InternalIP", addresses, "Hostname InternalIP");
        check(
            "--kubelet-preferred-address-types=Street",
            addresses,
            "--kubelet-preferred-address-types: \"Street\" is not",
        );
        let tls = |c: &config::Config| format!("{:?} {}", c.tls.cipher_suites, c.tls.tls_13_only);
        check("", tls, "[] false");
        let suites = "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        check(suites, tls, "[\"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\"] false");
        check("--tls-min-version=VersionTLS13", tls, "[] true");
        let shown = |c: &config::Config| {
            let client = c.kubelet_client.as_ref();
            format!("{:?}", client.map(|c| (c.ca_pem.len(), !c.certificate.current().certificate_pem.is_empty())))
        };
        let pair =
            format!("--kubelet-client-certificate={} --kubelet-client-key={}", file("client.crt"), file("client.key"));
        check(&pair, shown, "Some((0, true))");
        let length = fs::read(directory.path().join("ca.crt")).unwrap().len();
        let authority = format!("{pair} --kubelet-certificate-authority={}", file("ca.crt"));
        check(&authority, shown, &format!("Some(({length}, true))"));
        check("--kubelet-certificate-authority=/none", shown, "failed to read /none");
        check(&pair.replace("client.key", "ca.crt"), shown, "--kubelet-client-certificate: ");
    }

    #[tokio::test]
    async fn each_name_has_its_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let (env, shutdown) = (Env::real(), CancellationToken::new());
        let pki = Pki::open(directory.path(), env.clone()).unwrap();
        let leaf = |name: &str, dns: &[&str]| {
            let dns_names = dns.iter().map(|name| name.to_string()).collect();
            let leaf = Leaf { name: name.into(), common_name: name.into(), dns_names, server: true, ..Leaf::default() };
            pki.leaf(&leaf).unwrap();
            let file = |end: &str| directory.path().join(format!("{name}.{end}")).display().to_string();
            format!("{},{}", file("crt"), file("key"))
        };
        let read = |text: &str| NamedCertificate::read(text, &env, &shutdown);
        let (first, second) = (leaf("one", &["a.test"]), leaf("two", &["b.test"]));
        let named = vec![read(&first).unwrap(), read(&format!("{second}:*.wild.test,C.test")).unwrap()];
        let shown: Vec<_> = named.iter().map(|one| one.certificate.0.read().cert.clone()).collect();
        let default = Arc::new(named[0].certificate.clone());
        let all = CertificatesByName { named, default };
        let check = |name: &str, expected: Option<usize>| {
            let found = all.of(name).map(|certificate| certificate.cert.clone());
            assert_eq!(found, expected.map(|index| shown[index].clone()), "{name}");
        };
        check("a.test", Some(0));
        check("A.TEST", Some(0));
        check("c.test", Some(1));
        check("x.wild.test", Some(1));
        check("wild.test", None);
        check("b.test", None);
        assert!(read("only").unwrap_err().to_string().contains("--tls-sni-cert-key only"));
        let mixed = format!("{},{}", first.split_once(',').unwrap().0, second.split_once(',').unwrap().1);
        assert!(format!("{:#}", read(&mixed).unwrap_err()).contains("is not the key of"));
    }
}
