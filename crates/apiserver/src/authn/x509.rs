//! Client certificates: CN is the user, O are the groups; or the proxy in front, which names the user in headers.
//! Rows of the chain in `authn`.
//! A certificate is believed only if an authority of its own row signed it and it is valid now.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::HeaderMap;
use rustls::{
    RootCertStore,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

use api::ApiError;
use env::Env;

use super::{
    Credentials, PeerCertificates, User,
    identity_headers::{self, values},
};
use crate::{server::config::RequestHeader, storage::expiring::Expiring};

/// Checking signatures costs more than the rest of a small request; within this time it is done once.
const VERIFICATION_TTL: Duration = Duration::from_secs(60);
const CACHED_CERTIFICATES_MAX: usize = 1024;

/// Some authorities and the certificates they were found to have signed.
pub struct Authorities {
    verifier: Arc<dyn ClientCertVerifier>,
    believed: Expiring<Vec<u8>, User>,
    env: Env,
}

impl Authorities {
    /// `None` if there are none.
    pub fn new(ca_pem: &[u8], env: &Env) -> Result<Option<Self>, String> {
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
        Ok(Some(Self { verifier, believed: Expiring::new(CACHED_CERTIFICATES_MAX), env: env.clone() }))
    }

    /// The subject of a certificate these authorities signed; `None` if they did not.
    fn verify(&self, PeerCertificates(chain): &PeerCertificates) -> Option<User> {
        let (leaf, intermediates) = chain.split_first()?;
        let now = self.env.monotonic();
        if let Some(user) = self.believed.get(&leaf.to_vec(), now) {
            return Some(user);
        }
        let wall = UnixTime::since_unix_epoch(Duration::from_secs(self.env.now().as_second().max(0) as u64));
        self.verifier.verify_client_cert(leaf, intermediates, wall).ok()?;
        let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
        let text = |a: &x509_parser::x509::AttributeTypeAndValue| a.as_str().ok().map(str::to_string);
        let subject = certificate.subject();
        // Of several common names the last counts, as for upstream. A name that can't be read is nobody's.
        let names: Vec<String> = subject.iter_common_name().map(text).collect::<Option<_>>()?;
        let user = User {
            name: names.into_iter().next_back().unwrap_or_default(),
            groups: subject.iter_organization().map(text).collect::<Option<_>>()?,
            ..User::default()
        };
        let left = certificate.validity().not_after.timestamp() - self.env.now().as_second();
        let lasts = VERIFICATION_TTL.min(Duration::from_secs(left.max(0) as u64));
        self.believed.insert(leaf.to_vec(), user.clone(), now + lasts, now);
        Some(user)
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
    authorities: Authorities,
    config: RequestHeader,
}

impl FrontProxy {
    pub fn new(config: &RequestHeader, env: &Env) -> Result<Self, String> {
        let authorities = Authorities::new(&config.ca_pem, env)?;
        let authorities = authorities.ok_or("the request header authorities are empty")?;
        Ok(Self { authorities, config: config.clone() })
    }

    /// `Err`: the proxy is believed, and what it says of the user cannot be read.
    pub fn user(&self, credentials: &Credentials<'_>) -> Result<Option<User>, ApiError> {
        let Some(peer) = credentials.extensions.get::<PeerCertificates>() else { return Ok(None) };
        let allowed = &self.config.allowed_names;
        match self.authorities.verify(peer) {
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
