//! How the values of every resource are written and read, by one configuration.
//! Made by `encryption` from the file; asked by its store layer about every value.
//! The first provider writes, all of them read; what none of them reads is an error.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use parking_lot::RwLock;

use env::Env;

use super::{
    ciphers::{AesCbc, AesGcm, SecretBox},
    configuration::{GroupResource, NamedKey, Provider, ResourceConfiguration},
    kms::KmsProvider,
};
use crate::storage;

/// How every value begins that is not in the clear.
const ENCRYPTED: &[u8] = b"k8s:enc:";

enum Cipher {
    Identity,
    AesGcm(AesGcm),
    AesCbc(Box<AesCbc>),
    SecretBox(SecretBox),
    Kms(Arc<KmsProvider>),
}

/// One key of one provider, and how values begin that it wrote.
struct PrefixTransformer {
    prefix: String,
    cipher: Cipher,
}

type ResourceTransformers = Arc<Vec<Arc<PrefixTransformer>>>;

#[derive(Default)]
pub struct Transformers {
    by_resource: HashMap<GroupResource, ResourceTransformers>,
    /// By the prefix of keys, as they are first seen; `None` is in the clear.
    by_prefix: RwLock<HashMap<String, Option<ResourceTransformers>>>,
    pub kms: Vec<Arc<KmsProvider>>,
}

/// A value as it was, and whether it should be written again.
pub struct Opened {
    pub value: Bytes,
    pub stale: bool,
}

impl Transformers {
    pub fn new(entries: Vec<ResourceConfiguration>, env: &Env) -> Result<Self, String> {
        let mut new = Self::default();
        let mut by_resource: HashMap<GroupResource, Vec<Arc<PrefixTransformer>>> = HashMap::new();
        for entry in entries {
            let mut made = Vec::new();
            for provider in entry.providers {
                new.add(provider, &mut made, env)?;
            }
            // A resource that is named twice is read by all, and written by the first.
            for resource in entry.resources {
                by_resource.entry(resource).or_default().extend(made.iter().cloned());
            }
        }
        new.by_resource = by_resource.into_iter().map(|(resource, all)| (resource, Arc::new(all))).collect();
        Ok(new)
    }

    fn add(&mut self, provider: Provider, made: &mut Vec<Arc<PrefixTransformer>>, env: &Env) -> Result<(), String> {
        let mut keyed = |name: &str, keys: Vec<NamedKey>, cipher: fn(&[u8]) -> Result<Cipher, String>| {
            for key in keys {
                let attempt = |e: String| format!("error while creating cipher for named key {}: {e}", key.name);
                let cipher = cipher(&key.secret).map_err(attempt)?;
                let prefix = format!("k8s:enc:{name}:v1:{}:", key.name);
                made.push(Arc::new(PrefixTransformer { prefix, cipher }));
            }
            Ok(())
        };
        match provider {
            Provider::AesGcm(keys) => keyed("aesgcm", keys, |key| AesGcm::new(key).map(Cipher::AesGcm)),
            Provider::AesCbc(keys) => {
                keyed("aescbc", keys, |key| AesCbc::new(key).map(|cipher| Cipher::AesCbc(Box::new(cipher))))
            }
            Provider::SecretBox(keys) => keyed("secretbox", keys, |key| SecretBox::new(key).map(Cipher::SecretBox)),
            Provider::Identity => {
                made.push(Arc::new(PrefixTransformer { prefix: String::new(), cipher: Cipher::Identity }));
                Ok(())
            }
            Provider::Kms(config) => {
                let prefix = format!("k8s:enc:kms:v2:{}:", config.name);
                let provider = KmsProvider::new(config, env);
                self.kms.push(provider.clone());
                made.push(Arc::new(PrefixTransformer { prefix, cipher: Cipher::Kms(provider) }));
                Ok(())
            }
        }
    }

    /// Whether nothing is configured.
    pub fn is_empty(&self) -> bool {
        self.by_resource.is_empty()
    }

    /// Asks every key management service once, so that what is encrypted can be written.
    pub async fn start(&self) {
        futures::future::join_all(self.kms.iter().map(|kms| kms.start())).await;
    }

    fn of_key(&self, key: &str) -> Option<ResourceTransformers> {
        let prefix = storage::prefix_of_key(key)?;
        if self.by_resource.is_empty() {
            return None;
        }
        if let Some(known) = self.by_prefix.read().get(prefix) {
            return known.clone();
        }
        let (group, resource) = storage::group_resource(prefix);
        let exact = GroupResource { group: group.into(), resource: resource.into() };
        let masks = [exact, GroupResource::any_of(group), GroupResource::any_of("*")];
        let found = masks.iter().find_map(|mask| self.by_resource.get(mask)).cloned();
        self.by_prefix.write().insert(prefix.to_string(), found.clone());
        found
    }

    /// Whether values under `key` are written in the clear.
    pub fn writes_plain(&self, key: &str) -> bool {
        let found = self.of_key(key);
        found.is_none_or(|all| all.first().is_none_or(|first| matches!(first.cipher, Cipher::Identity)))
    }

    /// `stored_key` is where the value really lies, which ciphers bind it to.
    pub async fn seal(&self, key: &str, stored_key: &str, value: Bytes, env: &Env) -> Result<Bytes, String> {
        let all = self.of_key(key);
        let Some(first) = all.as_ref().and_then(|all| all.first()) else { return Ok(value) };
        let context = stored_key.as_bytes();
        let sealed = match &first.cipher {
            Cipher::Identity => return Ok(value),
            Cipher::AesGcm(cipher) => cipher.seal(&value, context, env)?,
            Cipher::AesCbc(cipher) => cipher.seal(&value, env)?,
            Cipher::SecretBox(cipher) => cipher.seal(&value, env),
            Cipher::Kms(kms) => kms.seal(&value, context).await?,
        };
        Ok([first.prefix.as_bytes(), &sealed].concat().into())
    }

    pub async fn open(&self, key: &str, stored_key: &str, value: Bytes) -> Result<Opened, String> {
        let all = self.of_key(key);
        let all = all.as_ref().map(|all| all.as_slice()).unwrap_or_default();
        if !value.starts_with(ENCRYPTED) {
            // In the clear: fine where nothing is configured, or where the configuration says that it may be so.
            let place = all.iter().position(|t| matches!(t.cipher, Cipher::Identity));
            return match (all.is_empty(), place) {
                (true, _) => Ok(Opened { value, stale: false }),
                (false, Some(place)) => Ok(Opened { value, stale: place != 0 }),
                (false, None) => Err("no matching prefix found".into()),
            };
        }
        let context = stored_key.as_bytes();
        let mut wrong = match all.iter().any(|t| matches!(t.cipher, Cipher::Identity)) || all.is_empty() {
            true => "identity transformer tried to read encrypted data".to_string(),
            false => "no matching prefix found".to_string(),
        };
        for (place, transformer) in all.iter().enumerate() {
            let Some(sealed) = value.strip_prefix(transformer.prefix.as_bytes()) else { continue };
            let opened = match &transformer.cipher {
                Cipher::Identity => continue,
                Cipher::AesGcm(cipher) => cipher.open(sealed, context),
                Cipher::AesCbc(cipher) => cipher.open(sealed),
                Cipher::SecretBox(cipher) => cipher.open(sealed),
                Cipher::Kms(kms) => match kms.open(sealed, context).await {
                    Ok((plain, stale)) => {
                        return Ok(Opened { value: plain.into(), stale: stale || place != 0 });
                    }
                    Err(e) => Err(e),
                },
            };
            match opened {
                Ok(plain) => return Ok(Opened { value: plain.into(), stale: place != 0 }),
                Err(e) => wrong = e,
            }
        }
        Err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, prelude::BASE64_STANDARD};

    use super::*;
    use crate::storage::encryption::configuration::parse;

    fn transformers(entries: &[(&str, &str)]) -> Transformers {
        let key = BASE64_STANDARD.encode([7; 32]);
        let entries: String = entries
            .iter()
            .map(|(names, provider)| {
                let provider = match *provider {
                    "identity" => "{identity: {}}".to_string(),
                    name => format!("{{secretbox: {{keys: [{{name: {name}, secret: {key}}}]}}}}"),
                };
                format!("- resources: [{names}]\n  providers: [{provider}]\n")
            })
            .collect();
        let text =
            format!("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n{entries}");
        Transformers::new(parse(&text).unwrap(), &Env::real()).unwrap()
    }

    #[tokio::test]
    async fn resources_and_masks_choose_the_key() {
        let check = async |entries: &[(&str, &str)], key: &str, expected: &str| {
            let transformers = transformers(entries);
            let sealed = transformers.seal(key, key, Bytes::from_static(b"{}"), &Env::real()).await.unwrap();
            let shown = String::from_utf8_lossy(&sealed);
            let name = shown.strip_prefix("k8s:enc:secretbox:v1:").and_then(|rest| rest.split(':').next());
            assert_eq!(name.unwrap_or("plain"), expected, "{key}");
            assert_eq!(transformers.writes_plain(key), expected == "plain");
            let opened = transformers.open(key, key, sealed).await.unwrap();
            assert_eq!((opened.value.as_ref(), opened.stale), (&b"{}"[..], false));
        };
        let secret = "/registry/secrets/default/a";
        let deployment = "/registry/deployments/default/a";
        let widget = "/registry/example.com/widgets/default/a";
        check(&[("secrets", "one")], secret, "one").await;
        check(&[("secrets", "one")], "/registry/configmaps/default/a", "plain").await;
        check(&[("'*.'", "core")], secret, "core").await;
        check(&[("'*.'", "core")], deployment, "plain").await;
        check(&[("deployments.apps", "one"), ("'*.apps'", "apps")], deployment, "one").await;
        check(&[("'*.apps'", "apps"), ("'*.*'", "all")], deployment, "apps").await;
        check(&[("secrets", "identity"), ("'*.*'", "all")], secret, "plain").await;
        check(&[("'*.*'", "all")], widget, "all").await;
        check(&[("widgets.example.com", "one")], widget, "one").await;
        check(&[("widgets.example.com", "one")], "/registry/widgets/default/a", "plain").await;
    }

    #[tokio::test]
    async fn what_no_provider_reads_is_an_error() {
        let key = "/registry/secrets/default/a";
        let check = async |entries: &[(&str, &str)], value: &'static [u8], expected: &str| {
            let opened = transformers(entries).open(key, key, Bytes::from_static(value)).await;
            let shown = opened.map_or_else(|e| e, |opened| if opened.stale { "stale" } else { "fresh" }.to_string());
            assert_eq!(shown, expected);
        };
        check(&[("configmaps", "one")], b"{}", "fresh").await;
        check(&[("configmaps", "one")], b"k8s:enc:x", "identity transformer tried to read encrypted data").await;
        check(&[("secrets", "one")], b"{}", "no matching prefix found").await;
        check(&[("secrets", "one"), ("secrets", "identity")], b"{}", "stale").await;
        check(&[("secrets", "one")], b"k8s:enc:secretbox:v1:two:x", "no matching prefix found").await;
        let cut = "the stored data was shorter than the required size";
        check(&[("secrets", "one")], b"k8s:enc:secretbox:v1:one:x", cut).await;
        let opened = Transformers::default().open(key, key, Bytes::from_static(b"k8s:enc:aesgcm:v1:k:x")).await;
        assert_eq!(opened.err().unwrap(), "identity transformer tried to read encrypted data");
    }
}
