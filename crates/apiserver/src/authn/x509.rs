//! Client certificates: CN is the user, O are the groups; or the proxy in front, which names the user in headers.
//! Rows of the chain in `authn`.
//! A certificate is believed only if an authority of its own row signed it and it is valid now.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use ::metrics::{Family, Metrics};
use http::HeaderMap;
use rustls::{
    DistinguishedName, RootCertStore,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime, pem::PemObject};
use sha2::{Digest, Sha256};
use x509_parser::{
    prelude::{FromDer, X509Certificate},
    x509::X509Name,
};

use api::ApiError;
use env::Env;

use super::{
    Credentials, PeerCertificates, User,
    identity_headers::{self, values},
    service_account::CREDENTIAL_ID,
};
use crate::{
    server::{
        config::RequestHeader,
        reload::{self, ReloadMetrics, Reloadable, WatchedFiles},
    },
    storage::expiring::Expiring,
};

/// Checking signatures costs more than the rest of a small request; within this time it is done once.
const VERIFICATION_TTL: Duration = Duration::from_secs(60);
const CACHED_CERTIFICATES_MAX: usize = 1024;
/// Of a subject: the uid of the user, from Kubernetes' own arc.
const UID_ATTRIBUTE: &str = "1.3.6.1.4.1.57683.2";

/// From half an hour to a year.
const REMAINING_BUCKETS_SECONDS: &[f64] = &[
    0.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0, 86400.0, 172800.0, 345600.0, 604800.0, 2592000.0, 7776000.0,
    15552000.0, 31104000.0,
];
static REMAINING: Family = Family::histogram(
    "apiserver_client_certificate_expiration_seconds",
    &[],
    REMAINING_BUCKETS_SECONDS,
    "How long the certificates that clients show are good for yet.",
);

/// A subject, and in Unix seconds when its certificate ends.
#[derive(Clone)]
struct Subject {
    user: User,
    not_after: i64,
}

/// Some authorities and the certificates they were found to have signed.
pub struct Authorities {
    verifier: Arc<dyn ClientCertVerifier>,
    believed: Expiring<Vec<u8>, Subject>,
    metrics: Metrics,
    env: Env,
}

impl Authorities {
    /// `None` if there are none.
    pub fn new(ca_pem: &[u8], env: &Env, metrics: &Metrics) -> Result<Option<Self>, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem) {
            let certificate = certificate.map_err(|e| format!("failed to read the client authorities: {e}"))?;
            roots.add(certificate).map_err(|e| format!("failed to read the client authorities: {e}"))?;
        }
        if roots.is_empty() {
            return Ok(None);
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|e| format!("failed to read the client authorities: {e}"))?;
        let (believed, env, metrics) = (Expiring::new(CACHED_CERTIFICATES_MAX), env.clone(), metrics.clone());
        Ok(Some(Self { verifier, believed, env, metrics }))
    }

    /// Authorities from what is given and from a file that is read again when it changes. `None` if there are none.
    pub fn reloaded(
        ca_pem: &[u8],
        file: Option<&Path>,
        env: &Env,
        metrics: &ReloadMetrics,
    ) -> Result<Option<Arc<Reloadable<Self>>>, String> {
        let Some(path) = file else { return Ok(Self::new(ca_pem, env, &metrics.metrics)?.map(Reloadable::new)) };
        let files = WatchedFiles::new(vec![path.to_path_buf()]);
        let load = {
            let (given, path, env, counted) =
                (ca_pem.to_vec(), path.to_path_buf(), env.clone(), metrics.metrics.clone());
            move || {
                let attempt = |e: String| format!("failed to read {}: {e}", path.display());
                let own = std::fs::read(&path).map_err(|e| attempt(e.to_string()))?;
                Self::new(&own, &env, &counted)?.ok_or_else(|| attempt("it holds no certificate in PEM".into()))?;
                let both = [given.as_slice(), b"\n", &own].concat();
                Self::new(&both, &env, &counted)?.ok_or_else(|| attempt("it holds no certificate in PEM".into()))
            }
        };
        let authorities = Reloadable::new(load()?);
        reload::follow(&authorities, files, &reload::IDENTITY_FILES, metrics, env, move || {
            Box::pin(std::future::ready(load()))
        });
        Ok(Some(authorities))
    }

    pub fn names(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    /// The subject of a certificate these authorities signed; `None` if they did not.
    fn verify(&self, PeerCertificates(chain): &PeerCertificates) -> Option<User> {
        let (leaf, intermediates) = chain.split_first()?;
        let now = self.env.monotonic();
        if let Some(known) = self.believed.get(&leaf.to_vec(), now) {
            self.note_age(&known);
            return Some(known.user);
        }
        let wall = UnixTime::since_unix_epoch(Duration::from_secs(self.env.now().as_second().max(0) as u64));
        self.verifier.verify_client_cert(leaf, intermediates, wall).ok()?;
        let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
        let text = |a: &x509_parser::x509::AttributeTypeAndValue| a.as_str().ok().map(str::to_string);
        let subject = certificate.subject();
        // Of several common names the last counts, as for upstream. A name that can't be read is nobody's.
        let names: Vec<String> = subject.iter_common_name().map(text).collect::<Option<_>>()?;
        let digest = Sha256::digest(leaf).iter().fold("X509SHA256=".to_string(), |id, byte| format!("{id}{byte:02x}"));
        let user = User {
            name: names.into_iter().next_back().unwrap_or_default(),
            uid: uid(subject)?,
            groups: subject.iter_organization().map(text).collect::<Option<_>>()?,
            extra: BTreeMap::from([(CREDENTIAL_ID.to_string(), vec![digest])]),
        };
        let subject = Subject { user, not_after: certificate.validity().not_after.timestamp() };
        let left = self.note_age(&subject);
        let lasts = VERIFICATION_TTL.min(Duration::from_secs(left.max(0) as u64));
        self.believed.insert(leaf.to_vec(), subject.clone(), now + lasts, now);
        Some(subject.user)
    }

    /// Counts how many seconds the certificate is good for yet.
    fn note_age(&self, subject: &Subject) -> i64 {
        let left = subject.not_after - self.env.now().as_second();
        self.metrics.observe(&REMAINING, &[], left as f64);
        left
    }
}

/// The user's uid, empty if the certificate says nothing of it. `None`: it says more than one, or an empty one.
fn uid(subject: &X509Name<'_>) -> Option<String> {
    let mut uids = subject.iter_attributes().filter(|a| a.attr_type().to_id_string() == UID_ATTRIBUTE);
    match (uids.next(), uids.next()) {
        (None, _) => Some(String::new()),
        (Some(one), None) => one.as_str().ok().filter(|uid| !uid.is_empty()).map(str::to_string),
        (Some(_), Some(_)) => None,
    }
}

/// `Err`: a certificate was shown and is not believed.
pub fn user(authorities: &Authorities, credentials: &Credentials<'_>) -> Result<Option<User>, ApiError> {
    let Some(peer) = credentials.extensions.get::<PeerCertificates>() else { return Ok(None) };
    match authorities.verify(peer) {
        Some(user) if user.name.is_empty() => Ok(None),
        Some(user) => Ok(Some(user)),
        None => Err(ApiError::unauthorized()),
    }
}

/// A proxy in front that is believed about whose requests it brings.
pub struct FrontProxy {
    authorities: Arc<Reloadable<Authorities>>,
    config: RequestHeader,
    /// Whether it says users' uids.
    says_uid: bool,
}

impl FrontProxy {
    pub fn new(config: &RequestHeader, env: &Env, metrics: &ReloadMetrics) -> Result<Self, String> {
        let authorities = Authorities::reloaded(&config.ca_pem, config.ca_file.as_deref(), env, metrics)?;
        let authorities = authorities.ok_or("the request header authorities are empty")?;
        Ok(Self { authorities, config: config.clone(), says_uid: true })
    }

    pub fn with_uid(self, says_uid: bool) -> Self {
        Self { says_uid, ..self }
    }

    pub(super) fn authorities(&self) -> &Arc<Reloadable<Authorities>> {
        &self.authorities
    }

    /// `Err`: the proxy is believed, and what it says of the user cannot be read.
    pub fn user(&self, credentials: &Credentials<'_>) -> Result<Option<User>, ApiError> {
        let Some(peer) = credentials.extensions.get::<PeerCertificates>() else { return Ok(None) };
        let allowed = &self.config.allowed_names;
        match self.authorities.current().verify(peer) {
            Some(proxy) if allowed.is_empty() || allowed.contains(&proxy.name) => self.named(credentials.headers),
            _ => Ok(None),
        }
    }

    fn named(&self, headers: &HeaderMap) -> Result<Option<User>, ApiError> {
        let texts = |names: &[String]| -> Result<Vec<String>, ApiError> {
            let mut texts = Vec::new();
            for name in names {
                texts.extend(values(headers, name)?.into_iter().filter(|text| !text.is_empty()));
            }
            Ok(texts)
        };
        let Some(name) = texts(&self.config.username_headers)?.into_iter().next() else { return Ok(None) };
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in &self.config.extra_header_prefixes {
            for (key, values) in identity_headers::extra(headers, prefix)? {
                extra.entry(key).or_default().extend(values);
            }
        }
        let uid = texts(&self.config.uid_headers)?.into_iter().next().unwrap_or_default();
        let uid = if self.says_uid { uid } else { String::new() };
        Ok(Some(User { name, uid, groups: texts(&self.config.group_headers)?, extra }))
    }

    /// Nobody further on is to take these headers for an identity.
    pub fn strip(&self, headers: &mut HeaderMap) {
        let config = &self.config;
        let named = [&config.username_headers, &config.uid_headers, &config.group_headers];
        named.into_iter().flatten().for_each(|name| drop(headers.remove(name.as_str())));
        let prefixes: Vec<String> = config.extra_header_prefixes.iter().map(|p| p.to_ascii_lowercase()).collect();
        let is_extra = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let extra: Vec<_> = headers.keys().filter(|name| is_extra(name.as_str())).cloned().collect();
        extra.into_iter().for_each(|name| drop(headers.remove(name)));
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    #[test]
    fn a_certificate_may_say_one_uid() {
        let key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let metrics = Metrics::default();
        let authorities = Authorities::new(ca.self_signed(&key).unwrap().pem().as_bytes(), &Env::real(), &metrics);
        let (authorities, issuer) = (authorities.unwrap().unwrap(), Issuer::new(ca, key));
        let check = |uid: Option<&str>, expected: Option<&str>| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name.push(DnType::CommonName, "ada");
            if let Some(uid) = uid {
                let arc: Vec<u64> = UID_ATTRIBUTE.split('.').map(|number| number.parse().unwrap()).collect();
                params.distinguished_name.push(DnType::CustomDnType(arc), uid);
            }
            let leaf = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().der().clone();
            let user = authorities.verify(&PeerCertificates(vec![leaf]));
            assert_eq!(user.map(|user| user.uid).as_deref(), expected, "{uid:?}");
        };
        check(None, Some(""));
        check(Some("7-a"), Some("7-a"));
        check(Some(""), None);
        // Those that were believed.
        assert!(
            metrics.page().contains("apiserver_client_certificate_expiration_seconds_count 2"),
            "{}",
            metrics.page()
        );
    }
}
