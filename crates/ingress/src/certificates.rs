//! Certificates by server name: what a TLS client is shown.
//! Made by `model` from Secrets; asked by rustls at every handshake through `TableResolver`.
//! Invariant: a handshake never waits, and a renewed Secret is shown to the next client (test:
//! `a_name_has_its_certificate_and_a_renewed_one_at_once`).

use std::{collections::HashMap, fmt, sync::Arc};

use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::{
    host_map::{Closeness, HostMap},
    routes::SharedTable,
};

/// Of one port.
#[derive(Default)]
pub struct Certificates {
    exact: HashMap<Box<str>, Arc<CertifiedKey>>,
    wildcards: HashMap<Box<str>, Arc<CertifiedKey>>,
    default: Option<Arc<CertifiedKey>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} names", self.exact.len() + self.wildcards.len())
    }
}

impl Certificates {
    /// False when the name has one already, which stays. An empty name is for clients that no other is for.
    pub fn insert(&mut self, name: &str, certificate: Arc<CertifiedKey>) -> bool {
        let name = name.to_ascii_lowercase();
        match name.strip_prefix("*.") {
            Some(rest) => insert_first(&mut self.wildcards, rest, certificate),
            None if name.is_empty() => {
                let is_new = self.default.is_none();
                self.default.get_or_insert(certificate);
                is_new
            }
            None => insert_first(&mut self.exact, &name, certificate),
        }
    }

    pub fn find(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        self.find_named(&name.to_ascii_lowercase()).or(self.default.as_ref())
    }

    fn find_named(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let wildcard = || self.wildcards.get(name.split_once('.')?.1);
        self.exact.get(name).or_else(wildcard)
    }

    /// Of listeners too: what has the name comes before what is for any.
    pub fn find_with_listeners<'a>(
        &'a self,
        listeners: &'a HostMap<Arc<CertifiedKey>>,
        name: &str,
    ) -> Option<&'a Arc<CertifiedKey>> {
        let name = name.to_ascii_lowercase();
        let of_listener = listeners.closest(&name);
        let named = of_listener.filter(|(closeness, _)| *closeness > Closeness::Any);
        let any = || of_listener.map(|(_, certificate)| certificate);
        named
            .map(|(_, certificate)| certificate)
            .or_else(|| self.find_named(&name))
            .or_else(any)
            .or(self.default.as_ref())
    }
}

fn insert_first(table: &mut HashMap<Box<str>, Arc<CertifiedKey>>, name: &str, certificate: Arc<CertifiedKey>) -> bool {
    let is_new = !table.contains_key(name);
    table.entry(name.into()).or_insert(certificate);
    is_new
}

/// A PEM chain and its key that fit each other.
pub fn parse(chain: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, String> {
    let certified = client::certified_key(chain, key)?;
    if certified.cert.is_empty() {
        return Err("tls.crt holds no certificate".into());
    }
    match certified.keys_match() {
        Ok(()) => Ok(Arc::new(certified)),
        Err(error) => Err(format!("tls.key is not the key of tls.crt: {error}")),
    }
}

/// Shown where no Secret is for the name: the connection is encrypted, and browsers warn.
pub fn default_certificate() -> Result<Arc<CertifiedKey>, String> {
    let key = rcgen::KeyPair::generate().map_err(|error| error.to_string())?;
    let mut params = rcgen::CertificateParams::new(vec!["ingress.local".to_string()]).map_err(|e| e.to_string())?;
    params.distinguished_name.push(rcgen::DnType::CommonName, "Minke Ingress Default Certificate");
    let certificate = params.self_signed(&key).map_err(|error| error.to_string())?;
    parse(certificate.pem().as_bytes(), key.serialize_pem().as_bytes())
}

/// The certificates of one port, as the table of now has them.
pub struct TableResolver {
    pub table: SharedTable,
    pub port: u16,
    pub default: Arc<CertifiedKey>,
}

impl fmt::Debug for TableResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "certificates of port {}", self.port)
    }
}

impl ResolvesServerCert for TableResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let table = self.table.load();
        let port = table.ports.get(&self.port);
        let name = hello.server_name().unwrap_or_default();
        let found =
            port.and_then(|port| port.certificates.find_with_listeners(&port.gateway.certificates, name).cloned());
        Some(found.unwrap_or_else(|| self.default.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_certificate_that_is_closest_to_it() {
        let [exact, wildcard, default] = [(); 3].map(|()| default_certificate().unwrap());
        let mut certificates = Certificates::default();
        assert!(certificates.find("a.foo.com").is_none());
        assert!(certificates.insert("a.Foo.com", exact.clone()));
        assert!(certificates.insert("*.foo.com", wildcard.clone()));
        assert!(certificates.insert("", default.clone()));
        assert!(!certificates.insert("a.foo.com", wildcard.clone()), "the first stays");
        assert!(!certificates.insert("", wildcard.clone()), "the first stays");
        for (name, expected) in [
            ("a.foo.com", &exact),
            ("A.FOO.COM", &exact),
            ("b.foo.com", &wildcard),
            ("c.b.foo.com", &default),
            ("", &default),
        ] {
            assert!(Arc::ptr_eq(certificates.find(name).unwrap(), expected), "{name}");
        }
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let pem = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = rcgen::CertificateParams::new(vec!["a".to_string()]).unwrap().self_signed(&key).unwrap();
            (certificate.pem(), key.serialize_pem())
        };
        let ((one, one_key), (_, other_key)) = (pem(), pem());
        assert!(parse(one.as_bytes(), one_key.as_bytes()).is_ok());
        let error = parse(one.as_bytes(), other_key.as_bytes()).unwrap_err();
        assert!(error.starts_with("tls.key is not the key of tls.crt"), "{error}");
        assert!(parse(b"", one_key.as_bytes()).unwrap_err().contains("no certificate"));
        assert!(parse(one.as_bytes(), b"nonsense").is_err());
    }
}
