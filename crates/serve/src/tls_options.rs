//! Which TLS a listener speaks: `--tls-min-version` and `--tls-cipher-suites` of upstream's components.
//! Used by the API server, the component ports and the kubelet when they make their TLS.
//! Knows nothing of certificates.

use std::sync::Arc;

use rustls::{
    ConfigBuilder, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, WantsVerifier, crypto::CryptoProvider,
};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Of TLS 1.2; empty: all.
    pub cipher_suites: Vec<String>,
    pub tls_13_only: bool,
}

impl TlsOptions {
    /// The values of both flags, in upstream's words.
    pub fn parse(cipher_suites: Vec<String>, min_version: &str) -> Result<Self, String> {
        let cipher_suites: Vec<String> = cipher_suites.into_iter().filter(|name| !name.is_empty()).collect();
        if let Some(unknown) = cipher_suites.iter().find(|name| !is_cipher_suite(name)) {
            return Err(format!("Cipher suite {unknown} not supported or doesn't exist"));
        }
        let tls_13_only = match min_version {
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => false,
            "VersionTLS13" => true,
            unknown => return Err(format!("unknown tls version {unknown:?}")),
        };
        Ok(Self { cipher_suites, tls_13_only })
    }

    pub fn builder(&self) -> Result<(ConfigBuilder<ServerConfig, WantsVerifier>, Arc<CryptoProvider>), rustls::Error> {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        if !self.cipher_suites.is_empty() {
            // Those of TLS 1.3 are not to be chosen, as in Go.
            let offered = |suite: &SupportedCipherSuite| self.cipher_suites.contains(&cipher_suite_name(suite));
            provider.cipher_suites.retain(|suite| suite.tls13().is_some() || offered(suite));
        }
        let provider = Arc::new(provider);
        let versions: &[&SupportedProtocolVersion] = match self.tls_13_only {
            true => &[&rustls::version::TLS13],
            false => rustls::ALL_VERSIONS,
        };
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions)?;
        Ok((builder, provider))
    }
}

pub fn is_cipher_suite(name: &str) -> bool {
    let known = rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
    known.iter().any(|suite| cipher_suite_name(suite) == name)
}

/// As IANA and Go have it: theirs of TLS 1.3 do not name the version.
fn cipher_suite_name(suite: &SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite()).replace("TLS13_", "TLS_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_offered_can_be_agreed_on() {
        let suite = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        let options = TlsOptions::parse(vec![suite.into()], "VersionTLS12").unwrap();
        let (_, provider) = options.builder().unwrap();
        let names: Vec<String> = provider.cipher_suites.iter().map(cipher_suite_name).collect();
        assert!(names.contains(&suite.to_string()) && names.contains(&"TLS_AES_128_GCM_SHA256".to_string()));
        assert!(!names.contains(&"TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384".to_string()), "{names:?}");
        let refused = TlsOptions::parse(vec!["NULL".into()], "").unwrap_err();
        assert_eq!(refused, "Cipher suite NULL not supported or doesn't exist");
        assert_eq!(TlsOptions::parse(vec![], "TLS13").unwrap_err(), "unknown tls version \"TLS13\"");
        assert!(TlsOptions::parse(vec![], "VersionTLS13").unwrap().tls_13_only);
    }
}
