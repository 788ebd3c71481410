//! Connections to extenders: plain, or TLS with the certificates that their `tlsConfig` names.
//! Checked when the configuration is read, made when the scheduler starts.
//! A server's certificate is checked unless the configuration says `insecure`.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use client::AnyCertificate;
use http_body_util::Full;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::ServerName,
    sign::{CertifiedKey, SingleCertAndKey},
};

use crate::config::{ExtenderConfig, ExtenderTlsConfig};

pub type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The client for one extender, or what is wrong with its `tlsConfig`.
pub fn client(extender: &ExtenderConfig) -> Result<HttpClient, String> {
    let tls = extender.tls_config.clone().unwrap_or_default();
    let config = client_config(extender, &tls)?;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    if !tls.server_name.is_empty() {
        let name = ServerName::try_from(tls.server_name.clone());
        let name = name.map_err(|error| format!("tlsConfig.serverName: {error}"))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(Client::builder(TokioExecutor::new()).build(builder.enable_http1().wrap_connector(tcp)))
}

fn client_config(extender: &ExtenderConfig, tls: &ExtenderTlsConfig) -> Result<ClientConfig, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS is not usable: {error}"))?;
    let authority = bytes("ca", &tls.ca_file, &tls.ca_data)?;
    if tls.insecure && authority.is_some() {
        return Err("tlsConfig: specifying a root certificates file with the insecure flag is not allowed".into());
    }
    let mut roots = RootCertStore::empty();
    match &authority {
        Some(pem) => {
            for certificate in client::certificates(pem).map_err(|error| format!("tlsConfig.caFile: {error}"))? {
                roots.add(certificate).map_err(|error| format!("tlsConfig.caFile: {error}"))?;
            }
        }
        None if extender.is_https() && !tls.insecure => {
            return Err("tlsConfig: give caFile or caData, or say insecure: true".into());
        }
        None => {}
    }
    let identity = match (bytes("cert", &tls.cert_file, &tls.cert_data)?, bytes("key", &tls.key_file, &tls.key_data)?) {
        (Some(chain), Some(key)) => {
            Some(client::certified_key(&chain, &key).map_err(|error| format!("tlsConfig.certFile: {error}"))?)
        }
        (None, None) => None,
        _ => return Err("tlsConfig: certFile and keyFile go together".into()),
    };
    let builder = match tls.insecure {
        true => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
        false => builder.with_root_certificates(roots),
    };
    Ok(match identity {
        Some(identity) => builder.with_client_cert_resolver(resolver(identity)),
        None => builder.with_no_client_auth(),
    })
}

fn resolver(identity: CertifiedKey) -> Arc<SingleCertAndKey> {
    Arc::new(SingleCertAndKey::from(identity))
}

/// What a file or the configuration itself holds; the latter wins.
fn bytes(what: &str, file: &str, data: &str) -> Result<Option<Vec<u8>>, String> {
    if !data.is_empty() {
        let decoded = STANDARD.decode(data).map_err(|error| format!("tlsConfig.{what}Data: {error}"))?;
        return Ok(Some(decoded));
    }
    if file.is_empty() {
        return Ok(None);
    }
    std::fs::read(file).map(Some).map_err(|error| format!("tlsConfig.{what}File: {file}: {error}"))
}
