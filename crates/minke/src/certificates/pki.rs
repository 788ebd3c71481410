//! Every certificate and key of the cluster: made at first start, renewed before they expire.
//! Used by `server` and `agent` when they start components.
//! Private files are mode 0600 and written whole or not at all; a key never leaves this machine.

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use env::Env;
use parking_lot::RwLock;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::{
    certificates::authorities::{Authority, Certifier},
    cluster::file_modes,
};

const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
pub const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 86_400);
/// A sleep does not count while the machine does: so the clock is looked at in between.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(12 * 3600);
/// After a renewal that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(3600);
/// Clocks of nodes differ: a certificate is valid a little before it was made.
const BACKDATE: Duration = Duration::from_secs(300);

/// A certificate to be issued: `<name>.crt` and `<name>.key`.
#[derive(Debug, Clone, Default)]
pub struct Leaf {
    pub name: String,
    pub authority: Authority,
    pub common_name: String,
    /// The user's group. One at most: certificates with several are not made here.
    pub organization: Option<String>,
    pub dns_names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub server: bool,
    pub client: bool,
}

impl Leaf {
    pub fn client(name: &str, user: &str, group: Option<&str>) -> Self {
        Self {
            name: name.into(),
            common_name: user.into(),
            organization: group.map(str::to_string),
            client: true,
            ..Self::default()
        }
    }
}

pub struct Pem {
    pub certificate: String,
    pub key: String,
}

/// The certificate in use now: rustls asks at every handshake, so a renewal needs no restart.
#[derive(Debug, Clone)]
pub struct Current(pub Arc<RwLock<Arc<CertifiedKey>>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }
}

pub struct Pki {
    directory: PathBuf,
    cluster: Certifier,
    env: Env,
}

impl Pki {
    /// Opens the directory, making the cluster CA if there is none yet.
    pub fn open(directory: &Path, env: Env) -> Result<Arc<Self>> {
        file_modes::private_directory(directory)?;
        let (certificate, key) = (directory.join("ca.crt"), directory.join("ca.key"));
        if !certificate.exists() {
            let pem = make_ca(&env)?;
            write_private(&key, &pem.key)?;
            write_public(&certificate, &pem.certificate)?;
        }
        let cluster = Certifier::load(directory, Authority::Cluster)?;
        Ok(Arc::new(Self { directory: directory.to_path_buf(), cluster, env }))
    }

    /// Of the cluster's own authority.
    pub fn ca_pem(&self) -> &str {
        &self.cluster.certificate_pem
    }

    pub fn ca_key_pem(&self) -> &str {
        &self.cluster.key_pem
    }

    /// Another authority than the cluster's.
    pub fn certifier(&self, authority: Authority) -> Result<Certifier> {
        Certifier::load_or_derive(&self.directory, authority, &self.cluster)
    }

    /// The certificate of any authority.
    pub fn authority_pem(&self, authority: Authority) -> Result<String> {
        match authority {
            Authority::Cluster => Ok(self.ca_pem().to_string()),
            other => Ok(self.certifier(other)?.certificate_pem),
        }
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// The key that signs ServiceAccount tokens, as PKCS#8 PEM.
    pub fn service_account_key(&self) -> Result<String> {
        let path = self.directory.join("sa.key");
        if !path.exists() {
            write_private(&path, &KeyPair::generate()?.serialize_pem())?;
        }
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    }

    /// The certificate from disk if it is still good for this leaf, else a new one.
    pub fn leaf(&self, leaf: &Leaf) -> Result<Pem> {
        let (certificate, key) = (self.path(&format!("{}.crt", leaf.name)), self.path(&format!("{}.key", leaf.name)));
        if let (Ok(certificate), Ok(key)) = (fs::read_to_string(&certificate), fs::read_to_string(&key))
            && self.still_good(leaf, &certificate)?
        {
            return Ok(Pem { certificate, key });
        }
        let pem = self.issue(leaf)?;
        write_private(&key, &pem.key)?;
        write_public(&certificate, &pem.certificate)?;
        Ok(pem)
    }

    /// A certificate that renews itself at two thirds of its life, for as long as the process runs.
    pub fn rotating(self: &Arc<Self>, leaf: Leaf) -> Result<Current> {
        let current = Current(Arc::new(RwLock::new(Arc::new(self.certified(&self.leaf(&leaf)?, leaf.authority)?))));
        let (pki, kept, authority) = (self.clone(), current.clone(), leaf.authority);
        self.on_renewal(leaf, move |pem| match pki.certified(&pem, authority) {
            Ok(renewed) => *kept.0.write() = Arc::new(renewed),
            Err(error) => tracing::error!(%error, "a renewed certificate can't be used"),
        });
        Ok(current)
    }

    /// Renews the certificate at two thirds of its life, for as long as the process runs, and hands over each new one.
    pub fn on_renewal(self: &Arc<Self>, leaf: Leaf, renewed: impl Fn(Pem) + Send + 'static) {
        let pki = self.clone();
        self.env.clone().spawn(async move {
            loop {
                let wait = pki.until_renewal(&leaf);
                pki.env.sleep(wait.min(RECHECK_INTERVAL)).await;
                if wait > RECHECK_INTERVAL {
                    continue;
                }
                match pki.leaf(&leaf) {
                    Ok(pem) => renewed(pem),
                    Err(error) => {
                        tracing::error!(%error, certificate = leaf.name, "failed to renew a certificate");
                        pki.env.sleep(RETRY_INTERVAL).await;
                    }
                }
            }
        });
    }

    /// Of the certificate on disk; none left means now.
    fn until_renewal(&self, leaf: &Leaf) -> Duration {
        let pem = fs::read(self.path(&format!("{}.crt", leaf.name))).unwrap_or_default();
        let chain = client::certificates(&pem).unwrap_or_default();
        chain.first().map_or(Duration::ZERO, |der| until_renewal(&self.env, der))
    }

    fn certified(&self, pem: &Pem, authority: Authority) -> Result<CertifiedKey> {
        // The authority comes along, for those who know it by its fingerprint only.
        let chain = format!("{}{}", pem.certificate, self.authority_pem(authority)?);
        client::certified_key(chain.as_bytes(), pem.key.as_bytes()).map_err(anyhow::Error::msg)
    }

    /// A new certificate, whatever the one on disk is good for.
    pub fn replace(&self, leaf: &Leaf) -> Result<()> {
        let pem = self.issue(leaf)?;
        write_private(&self.path(&format!("{}.key", leaf.name)), &pem.key)?;
        write_public(&self.path(&format!("{}.crt", leaf.name)), &pem.certificate)
    }

    fn issue(&self, leaf: &Leaf) -> Result<Pem> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(leaf.dns_names.clone())?;
        params.subject_alt_names.extend(leaf.addresses.iter().map(|a| SanType::IpAddress(*a)));
        params.distinguished_name.push(DnType::CommonName, leaf.common_name.clone());
        if let Some(organization) = &leaf.organization {
            params.distinguished_name.push(DnType::OrganizationName, organization.clone());
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = [
            leaf.server.then_some(ExtendedKeyUsagePurpose::ServerAuth),
            leaf.client.then_some(ExtendedKeyUsagePurpose::ClientAuth),
        ]
        .into_iter()
        .flatten()
        .collect();
        set_validity(&mut params, &self.env, LEAF_LIFETIME)?;
        params.use_authority_key_identifier_extension = true;
        let certificate = match leaf.authority {
            Authority::Cluster => params.signed_by(&key, &self.cluster.issuer)?,
            other => params.signed_by(&key, &self.certifier(other)?.issuer)?,
        };
        Ok(Pem { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Same names, same issuer, more than a third of its life left.
    fn still_good(&self, leaf: &Leaf, pem: &str) -> Result<bool> {
        let Ok((_, der)) = x509_parser::pem::parse_x509_pem(pem.as_bytes()) else { return Ok(false) };
        let Ok(certificate) = der.parse_x509() else { return Ok(false) };
        let mut dns = Vec::new();
        let mut addresses = Vec::new();
        for name in certificate.subject_alternative_name().ok().flatten().iter().flat_map(|e| &e.value.general_names) {
            match name {
                x509_parser::extensions::GeneralName::DNSName(name) => dns.push(name.to_string()),
                x509_parser::extensions::GeneralName::IPAddress(bytes) => addresses.extend(address(bytes)),
                _ => {}
            }
        }
        let organization = certificate.subject().iter_organization().next().and_then(|o| o.as_str().ok());
        let common_name = certificate.subject().iter_common_name().next().and_then(|c| c.as_str().ok());
        Ok(signed_by(&der.contents, &self.authority_pem(leaf.authority)?)
            && common_name == Some(leaf.common_name.as_str())
            && organization == leaf.organization.as_deref()
            && dns == leaf.dns_names
            && addresses == leaf.addresses
            && until_renewal(&self.env, &der.contents) > Duration::ZERO)
    }
}

/// Until two thirds of the certificate's life are over.
pub fn until_renewal(env: &Env, der: &[u8]) -> Duration {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(der) else { return Duration::ZERO };
    let (from, to) = (certificate.validity().not_before.timestamp(), certificate.validity().not_after.timestamp());
    let renewal = from + (to - from) * 2 / 3;
    Duration::from_secs(u64::try_from(renewal - env.now().as_second()).unwrap_or(0))
}

/// Whether the authority signed this certificate.
pub fn signed_by(der: &[u8], ca_pem: &str) -> bool {
    let Ok((_, ca)) = x509_parser::pem::parse_x509_pem(ca_pem.as_bytes()) else { return false };
    let (Ok(ca), Ok((_, certificate))) = (ca.parse_x509(), x509_parser::parse_x509_certificate(der)) else {
        return false;
    };
    certificate.issuer() == ca.subject() && certificate.verify_signature_by(&ca)
}

/// Whether `ca` signed it.
trait VerifiedBy {
    fn verify_signature_by(&self, ca: &x509_parser::certificate::X509Certificate<'_>) -> bool;
}

impl VerifiedBy for x509_parser::certificate::X509Certificate<'_> {
    fn verify_signature_by(&self, ca: &x509_parser::certificate::X509Certificate<'_>) -> bool {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let spki = ca.public_key().subject_public_key.data.as_ref();
        let signature = self.signature_value.data.as_ref();
        let verifies = |algorithm: &&dyn rustls::pki_types::SignatureVerificationAlgorithm| {
            algorithm.verify_signature(spki, self.tbs_certificate.as_ref(), signature).is_ok()
        };
        provider.signature_verification_algorithms.all.iter().any(verifies)
    }
}

/// An address as certificates hold it.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

fn make_ca(env: &Env) -> Result<Pem> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "minke-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    set_validity(&mut params, env, CA_LIFETIME)?;
    Ok(Pem { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

fn set_validity(params: &mut CertificateParams, env: &Env, lifetime: Duration) -> Result<()> {
    let now = time::OffsetDateTime::from_unix_timestamp(env.now().as_second())?;
    params.not_before = now - BACKDATE;
    params.not_after = now + lifetime;
    Ok(())
}

pub fn write_private(path: &Path, text: &str) -> Result<()> {
    write(path, text, 0o600)
}

pub fn write_public(path: &Path, text: &str) -> Result<()> {
    write(path, text, 0o644)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let write = || -> io::Result<()> {
        // A name of its own: several processes of one data directory may write the same file at once.
        let mut builder = tempfile::Builder::new();
        builder.permissions(fs::Permissions::from_mode(mode));
        let mut file = builder.tempfile_in(path.parent().unwrap_or(Path::new(".")))?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|error| error.error)
    };
    write().with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf() -> Leaf {
        Leaf {
            dns_names: vec!["kubernetes".into()],
            addresses: vec!["10.96.0.1".parse().unwrap()],
            server: true,
            ..Leaf::client("apiserver", "kube-apiserver", Some("a"))
        }
    }

    #[tokio::test]
    async fn certificates_are_kept_until_something_changes() {
        let directory = tempfile::tempdir().unwrap();
        let env = Env::real();
        let pki = Pki::open(directory.path(), env.clone()).unwrap();
        let first = pki.leaf(&leaf()).unwrap();
        assert_eq!(pki.leaf(&leaf()).unwrap().certificate, first.certificate, "kept");
        let reopened = Pki::open(directory.path(), env.clone()).unwrap();
        assert_eq!(reopened.leaf(&leaf()).unwrap().certificate, first.certificate, "kept over a restart");
        let moved = Leaf { addresses: vec!["10.96.0.2".parse().unwrap()], ..leaf() };
        assert_ne!(pki.leaf(&moved).unwrap().certificate, first.certificate, "another address");
        for file in ["ca.key", "apiserver.key"] {
            let mode = fs::metadata(directory.path().join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        // A foreign CA under the same name: nothing it signed is kept.
        let foreign = tempfile::tempdir().unwrap();
        let other = Pki::open(foreign.path(), env).unwrap().leaf(&leaf()).unwrap();
        assert!(!pki.still_good(&leaf(), &other.certificate).unwrap());
    }

    /// As a server and `minke node join-command` do with the token, or a kubelet and a proxy with one data directory.
    #[test]
    fn a_file_may_be_written_by_several_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("join-token");
        let write = |text: &'static str| {
            let path = path.clone();
            std::thread::spawn(move || (0..100).try_for_each(|_| write_private(&path, text)))
        };
        for writer in ["one", "two", "three"].map(write) {
            writer.join().unwrap().unwrap();
        }
        assert!(["one", "two", "three"].contains(&fs::read_to_string(&path).unwrap().as_str()));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_renews_itself_at_two_thirds_of_its_life() {
        let directory = tempfile::tempdir().unwrap();
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let pki = Pki::open(directory.path(), env.clone()).unwrap();
        let current = pki.rotating(leaf()).unwrap();
        let first = current.0.read().cert[0].clone();
        env.sleep(LEAF_LIFETIME / 2).await;
        assert_eq!(current.0.read().cert[0], first);
        env.sleep(LEAF_LIFETIME / 4).await;
        assert_ne!(current.0.read().cert[0], first);
    }

    /// An installation from before these authorities, and two servers that share a cluster's.
    #[tokio::test]
    async fn every_purpose_has_an_authority_of_its_own() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let env = Env::real();
        let pki = Pki::open(one.path(), env.clone()).unwrap();
        for file in ["ca.crt", "ca.key"] {
            fs::copy(one.path().join(file), other.path().join(file)).unwrap();
        }
        let second = Pki::open(other.path(), env).unwrap();
        let authorities = [Authority::Cluster, Authority::KubeletServing, Authority::FrontProxy];
        for authority in authorities {
            let leaf = Leaf { authority, name: authority.file().replace("ca", "leaf"), ..leaf() };
            let pem = pki.leaf(&leaf).unwrap();
            let der = client::certificates(pem.certificate.as_bytes()).unwrap().remove(0);
            for by in authorities {
                let shown = pki.authority_pem(by).unwrap();
                assert_eq!(signed_by(&der, &shown), by == authority, "{authority:?} by {by:?}");
                assert_eq!(shown, second.authority_pem(by).unwrap(), "of one cluster");
            }
            assert_eq!(pki.leaf(&leaf).unwrap().certificate, pem.certificate, "kept");
            let key = one.path().join(format!("{}.key", authority.file()));
            assert_eq!(fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let stranger = tempfile::tempdir().unwrap();
        let stranger = Pki::open(stranger.path(), Env::real()).unwrap();
        let pem = |pki: &Pki| pki.authority_pem(Authority::KubeletServing).unwrap();
        assert_ne!(pem(&pki), pem(&stranger), "every cluster's is another");
    }
}
