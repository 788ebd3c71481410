//! How others verify our tokens: `/.well-known/openid-configuration` and `/openid/v1/jwks`.
//! Served by `pipeline`.
//! Publishes public keys only, every one that is believed.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::StatusCode;
use rustls_pki_types::{SubjectPublicKeyInfoDer, pem::PemObject};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::{prelude::FromDer, public_key::PublicKey, x509::SubjectPublicKeyInfo};

use api::ApiError;

use super::service_account::Keys;
use crate::{
    handlers::respond::{Reply, content_response},
    registry::not_found_path,
};

/// The name of a key in tokens: a digest of its DER.
pub fn key_id(spki: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(spki))
}

/// A public key (PEM) as a JSON Web Key.
pub fn jwk(pem: &str) -> Result<Value, String> {
    let der = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()).map_err(|e| format!("not a public key: {e}"))?;
    let (_, key) = SubjectPublicKeyInfo::from_der(&der).map_err(|e| format!("not a public key: {e}"))?;
    let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let number = |bytes: &[u8]| {
        let start = bytes.iter().position(|b| *b != 0).unwrap_or(bytes.len());
        encode(&bytes[start..])
    };
    let mut jwk = match key.parsed().map_err(|e| format!("not a public key: {e}"))? {
        PublicKey::RSA(rsa) => {
            json!({ "kty": "RSA", "alg": "RS256", "n": number(rsa.modulus), "e": number(rsa.exponent) })
        }
        PublicKey::EC(point) => match point.data() {
            [4, rest @ ..] if rest.len() == 64 => json!({
                "kty": "EC", "alg": "ES256", "crv": "P-256", "x": encode(&rest[..32]), "y": encode(&rest[32..]),
            }),
            _ => return Err("only P-256 keys are supported".into()),
        },
        _ => return Err("only RSA and P-256 keys are supported".into()),
    };
    jwk["use"] = "sig".into();
    jwk["kid"] = key_id(&der).into();
    Ok(jwk)
}

pub fn serve(keys: &Keys, path: &str) -> Result<Reply, ApiError> {
    let (value, content) = match path {
        "/.well-known/openid-configuration" => {
            let value = json!({
                "issuer": keys.issuer,
                "jwks_uri": keys.jwks_uri,
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": keys.algorithms(),
            });
            (value, "application/json")
        }
        "/openid/v1/jwks" => (json!({ "keys": keys.published }), "application/jwk-set+json"),
        _ => return Err(not_found_path()),
    };
    Ok(Reply::Raw(content_response(StatusCode::OK, value.to_string().into(), content)))
}
