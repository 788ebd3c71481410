//! Learns the cluster's certificate authority from the server itself, believing only the one whose fingerprint is
//! known. Used by `join` for `--ca-hash`.
//! Invariant: nothing is sent but a handshake before the fingerprint was compared.

use std::{net::TcpStream, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use crate::join_token::fingerprint;

/// The authority's certificate as PEM. The server shows it behind its own.
pub fn fetch(server: &str, hash: &str) -> Result<String> {
    let authority = server.strip_prefix("https://").with_context(|| format!("--server {server} is not https"))?;
    let authority = authority.trim_end_matches('/');
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
    let seen = shown(authority, host).with_context(|| format!("couldn't ask {server} for its authority"))?;
    for certificate in &seen {
        if fingerprint(certificate).is_ok_and(|found| found == hash) {
            return Ok(pem(certificate));
        }
    }
    bail!("{server} is not signed for by {hash}: check --server and --ca-hash")
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
    let mut connection = ClientConnection::new(Arc::new(config), ServerName::try_from(host.to_string())?)?;
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok(std::mem::take(&mut *witness.seen.lock()))
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
