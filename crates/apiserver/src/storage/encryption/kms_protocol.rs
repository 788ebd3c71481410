//! What goes over the socket of a key management service (KMS v2), and how its values lie in the store.
//! Spoken by `kms`; tests speak the other side of it.
//! Numbers and names are upstream's `k8s.io/kms/apis/v2` and `EncryptedObject`.

use std::collections::BTreeMap;

pub const STATUS: &str = "/v2.KeyManagementService/Status";
pub const ENCRYPT: &str = "/v2.KeyManagementService/Encrypt";
pub const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(string, tag = "2")]
    pub healthz: String,
    #[prost(string, tag = "3")]
    pub key_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DecryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub uid: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    pub annotations: BTreeMap<String, Vec<u8>>,
}

/// The key of a value is itself, or a seed that its key is derived from.
pub const AES_GCM_KEY: i32 = 0;
pub const HKDF_SHA256_XNONCE_AES_GCM_SEED: i32 = 1;

/// A value in the store.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptedObject {
    #[prost(bytes = "vec", tag = "1")]
    pub encrypted_data: Vec<u8>,
    #[prost(string, tag = "2")]
    pub key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    pub encrypted_dek_source: Vec<u8>,
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: BTreeMap<String, Vec<u8>>,
    #[prost(int32, tag = "5")]
    pub encrypted_dek_source_type: i32,
}

const KEY_ID_BYTES_MAX: usize = 1024;
const DEK_SOURCE_BYTES_MAX: usize = 1024;
const ANNOTATIONS_BYTES_MAX: usize = 32 * 1024;

pub fn validate_key_id(key_id: &str) -> Result<(), String> {
    match key_id.len() {
        0 => Err("keyID is empty".into()),
        1..=KEY_ID_BYTES_MAX => Ok(()),
        length => Err(format!("keyID is {length} bytes, which exceeds the max size of {KEY_ID_BYTES_MAX}")),
    }
}

impl EncryptedObject {
    pub fn validate(&self) -> Result<(), String> {
        if ![AES_GCM_KEY, HKDF_SHA256_XNONCE_AES_GCM_SEED].contains(&self.encrypted_dek_source_type) {
            return Err(format!("unknown encryptedDEKSourceType: {}", self.encrypted_dek_source_type));
        }
        if self.encrypted_data.is_empty() {
            return Err("encrypted data is empty".into());
        }
        self.validate_source()
    }

    pub fn validate_source(&self) -> Result<(), String> {
        match self.encrypted_dek_source.len() {
            0 => return Err("failed to validate encrypted DEK source: encrypted DEK source is empty".into()),
            1..=DEK_SOURCE_BYTES_MAX => {}
            length => {
                return Err(format!(
                    "failed to validate encrypted DEK source: encrypted DEK source is {length} bytes, which exceeds the \
                     max size of {DEK_SOURCE_BYTES_MAX}"
                ));
            }
        }
        validate_key_id(&self.key_id).map_err(|e| format!("failed to validate key id: {e}"))?;
        let mut total = 0;
        for (key, value) in &self.annotations {
            let wrong = api::names::dns_subdomain(key, false);
            if !wrong.is_empty() || !key.contains('.') {
                return Err(format!("failed to validate annotations: {key:?} should be a fully qualified domain name"));
            }
            total += key.len() + value.len();
        }
        match total {
            0..=ANNOTATIONS_BYTES_MAX => Ok(()),
            _ => Err(format!(
                "failed to validate annotations: total size of annotations is {total}, which exceeds the max size of \
                 {ANNOTATIONS_BYTES_MAX}"
            )),
        }
    }
}
