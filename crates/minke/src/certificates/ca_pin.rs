//! Whom the server is signed for by: learned from the server itself, believing only the authority whose fingerprint is
//! known (`--ca-hash`), or what is wrong with the one that was given (`--ca-file`). Used by `join`.
//! Nothing is sent but a handshake.

use std::{net::TcpStream, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use crate::control_plane::join_token::fingerprint;

/// The authority's certificate as PEM. The server shows it behind its own.
pub fn fetch(server: &str, hash: &str) -> Result<String> {
    let (authority, host) = parts(server)?;
    let seen = shown(authority, host).with_context(|| format!("couldn't ask {server} for its authority"))?;
    for certificate in &seen {
        if fingerprint(certificate).is_ok_and(|found| found == hash) {
            return Ok(pem(certificate));
        }
    }
    bail!("{server} is not signed for by {hash}: check --server and --ca-hash")
}

/// Where to connect to, and the host alone.
fn parts(server: &str) -> Result<(&str, &str)> {
    let authority = server.strip_prefix("https://").with_context(|| format!("--server {server} is not https"))?;
    let authority = authority.trim_end_matches('/');
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
    Ok((authority, host))
}

/// Why a server that can be reached is not believed with this authority, and what to do; none when that is not it.
pub fn doubt(server: &str, ca_pem: &str) -> Option<String> {
    let (authority, host) = parts(server).ok()?;
    let mut roots = RootCertStore::empty();
    for certificate in client::certificates(ca_pem.as_bytes()).ok()? {
        roots.add(certificate).ok()?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    let failure = handshake(config, authority, host).err()?;
    let failure = failure.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>()?;
    let rustls::Error::InvalidCertificate(problem) = failure else { return None };
    Some(match problem {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "{server} answers, but is not signed for by the authority that we were given: if that is the right server, \
             take --ca-file from its data directory (pki/ca.crt), or give the --ca-hash that `minke node join-command` \
             on the server shows instead"
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => format!(
            "{server} answers, but its certificate is not for {host} ({problem}): give --server a name or address that \
             it is for, or start the server with --advertise-address {host}"
        ),
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            format!(
                "{server} answers, but its certificate is of another time ({problem}): set the clocks of both machines"
            )
        }
        _ => format!("{server} answers, but is not to be believed: {problem}"),
    })
}

/// The chain that a server shows.
fn shown(authority: &str, host: &str) -> Result<Vec<CertificateDer<'static>>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let witness = Arc::new(Witness { provider: provider.clone(), seen: Mutex::default() });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(witness.clone())
        .with_no_client_auth();
    handshake(config, authority, host)?;
    Ok(std::mem::take(&mut *witness.seen.lock()))
}

fn handshake(config: ClientConfig, authority: &str, host: &str) -> Result<()> {
    let mut connection = ClientConnection::new(Arc::new(config), ServerName::try_from(host.to_string())?)?;
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok(())
}

/// Looks at the chain and believes nothing: the connection is thrown away after the handshake, so that no signature in
/// it matters, and the authority is believed by its fingerprint alone.
#[derive(Debug)]
struct Witness {
    provider: Arc<CryptoProvider>,
    seen: Mutex<Vec<CertificateDer<'static>>>,
}

impl ServerCertVerifier for Witness {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let all = std::iter::once(leaf).chain(chain);
        *self.seen.lock() = all.map(|c| c.clone().into_owned()).collect();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// 64 characters a line, as every tool writes it.
pub fn pem(der: &[u8]) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let text = BASE64_STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use env::Env;
    use rustls::{ServerConfig, ServerConnection};

    use super::*;
    use crate::certificates::{
        authorities::Authority,
        pki::{Leaf, Pki},
    };

    /// Shows its certificate to whoever comes.
    fn serve(pki: &Arc<Pki>, authority: Authority) -> u16 {
        let addresses = vec!["127.0.0.1".parse().unwrap()];
        let name = format!("by-{}", authority.file());
        let leaf = Leaf { common_name: name.clone(), name, authority, addresses, server: true, ..Leaf::default() };
        let shown = Arc::new(pki.rotating(leaf).unwrap());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(builder.with_no_client_auth().with_cert_resolver(shown));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut connection = ServerConnection::new(config.clone()).unwrap();
                while connection.is_handshaking() && connection.complete_io(&mut stream).is_ok() {}
            }
        });
        port
    }

    #[tokio::test]
    async fn a_server_that_is_not_believed_is_told_from_one_that_is_not_there() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let pki = Pki::open(one.path(), Env::real()).unwrap();
        let foreign = Pki::open(other.path(), Env::real()).unwrap();
        let port = serve(&pki, Authority::Cluster);
        let server = format!("https://127.0.0.1:{port}");
        assert_eq!(doubt(&server, pki.ca_pem()), None);
        let said = doubt(&server, foreign.ca_pem()).unwrap();
        assert!(said.contains("not signed for by the authority") && said.contains("--ca-file"), "{said}");
        let said = doubt(&format!("https://localhost:{port}"), pki.ca_pem()).unwrap();
        assert!(said.contains("its certificate is not for localhost"), "{said}");
        let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(doubt(&format!("https://{unused}"), foreign.ca_pem()), None, "nobody is there");
    }

    /// What a kubelet can have signed, and what extension servers believe, is no API server to anybody.
    #[tokio::test]
    async fn certificates_of_other_authorities_are_not_the_api_servers() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), Env::real()).unwrap();
        for authority in [Authority::KubeletServing, Authority::FrontProxy] {
            let server = format!("https://127.0.0.1:{}", serve(&pki, authority));
            let said = doubt(&server, pki.ca_pem()).expect("a refusal");
            assert!(said.contains("not signed for by the authority"), "{authority:?}: {said}");
            assert_eq!(doubt(&server, &pki.authority_pem(authority).unwrap()), None, "{authority:?}");
            let hash = fingerprint(&client::certificates(pki.ca_pem().as_bytes()).unwrap()[0]).unwrap();
            assert!(fetch(&server, &hash).is_err(), "{authority:?}: the chain does not name the cluster's");
        }
    }
}
