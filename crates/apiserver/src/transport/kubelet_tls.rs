//! Whom we believe to be a kubelet when we open TLS to one.
//! Used by `proxy::streaming`; other connections are for `tls_config`.
//! An authority that signs for others as well is believed only about certificates of nodes, so that no other server of
//! the cluster, and not this one either, passes for a kubelet.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, Error, RootCertStore,
    client::{
        WebPkiServerVerifier,
        danger::{ServerCertVerified, ServerCertVerifier as _},
    },
    crypto::CryptoProvider,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{
    server_verifier::{CertificatePolicy, Shown},
    tls_config,
};
use crate::server::config::KubeletClient;

pub fn client_config(config: &KubeletClient) -> Result<ClientConfig, String> {
    let shown = config.certificate.current();
    let identity = (shown.certificate_pem.as_slice(), shown.key_pem.as_slice());
    let authority = config.ca_pem.as_slice();
    if authority.is_empty() || config.former_ca_pem.is_empty() {
        // Upstream does not check kubelets either where nobody says who vouches for them.
        return tls_config::client_config(Some(authority).filter(|pem| !pem.is_empty()), Some(identity));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let [own, former] =
        [authority, &config.former_ca_pem].map(|pem| verifier(tls_config::parse_roots(pem)?, &provider));
    tls_config::with_policy(KubeletPolicy { own: own?, former: former? }, provider, Some(identity))
}

fn verifier(roots: RootCertStore, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, String> {
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    verifier.map_err(|e| format!("unable to load root certificates: {e}"))
}

#[derive(Debug)]
struct KubeletPolicy {
    own: Arc<WebPkiServerVerifier>,
    former: Arc<WebPkiServerVerifier>,
}

/// Whether the subject is a node's, as the signers of kubelets' certificates ask for it.
fn is_nodes(leaf: &CertificateDer<'_>) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(leaf) else { return false };
    let subject = certificate.subject();
    let groups: Vec<_> = subject.iter_organization().map(|name| name.as_str()).collect();
    let names: Vec<_> = subject.iter_common_name().map(|name| name.as_str()).collect();
    matches!(groups.as_slice(), [Ok("system:nodes")])
        && matches!(names.as_slice(), [Ok(name)] if name.starts_with("system:node:"))
}

impl CertificatePolicy for KubeletPolicy {
    fn accept(&self, shown: &Shown<'_>, now: UnixTime) -> Result<ServerCertVerified, Error> {
        let verify = |authority: &WebPkiServerVerifier| {
            authority.verify_server_cert(shown.leaf, shown.intermediates, shown.name, shown.ocsp, now)
        };
        match verify(&self.own) {
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)) if is_nodes(shown.leaf) => {
                verify(&self.former)
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use env::Env;
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    use rustls_pki_types::ServerName;

    use super::*;

    fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        (ca.self_signed(&key).unwrap().pem(), Issuer::new(ca, key))
    }

    #[test]
    fn the_api_server_itself_does_not_pass_for_a_kubelet() {
        let [(own_pem, own), (former_pem, former), (_, stranger)] = ["own", "former", "stranger"].map(authority);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let [own_roots, former_roots] =
            [own_pem, former_pem].map(|pem| tls_config::parse_roots(pem.as_bytes()).unwrap());
        let policy = KubeletPolicy {
            own: verifier(own_roots, &provider).unwrap(),
            former: verifier(former_roots, &provider).unwrap(),
        };
        let now = UnixTime::since_unix_epoch(Duration::from_secs(Env::real().now().as_second() as u64));
        let check = |by: &Issuer<'_, KeyPair>, group: &str, name: &str, address: &str, good: bool| {
            let mut params = CertificateParams::new(vec!["192.0.2.1".to_string()]).unwrap();
            params.distinguished_name.push(DnType::OrganizationName, group);
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            let leaf = params.signed_by(&KeyPair::generate().unwrap(), by).unwrap();
            let name_called = ServerName::try_from(address).unwrap();
            let shown = Shown { leaf: leaf.der(), intermediates: &[], name: &name_called, ocsp: &[] };
            let found = policy.accept(&shown, now);
            assert_eq!(found.is_ok(), good, "{group} {name} {address}: {found:?}");
        };
        check(&own, "system:nodes", "system:node:n", "192.0.2.1", true);
        check(&own, "system:nodes", "system:node:n", "192.0.2.2", false);
        check(&former, "system:nodes", "system:node:n", "192.0.2.1", true);
        check(&former, "system:nodes", "system:node:n", "192.0.2.2", false);
        check(&former, "", "kube-apiserver", "192.0.2.1", false);
        check(&former, "system:masters", "system:node:n", "192.0.2.1", false);
        check(&stranger, "system:nodes", "system:node:n", "192.0.2.1", false);
    }
}
