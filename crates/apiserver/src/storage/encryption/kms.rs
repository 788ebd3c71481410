//! A key management service over its socket (KMS v2): it keeps the key that our keys are encrypted with.
//! A provider of `transformers`; `kms_protocol` is what is said to it.
//! It is asked once for each seed, not for each value. While it can't be asked nothing is written once the seed we have is
//! too old; what it answered before can still be read.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, RwLock};
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::{net::UnixStream, sync::Semaphore};
use tonic::{
    Code,
    client::Grpc,
    transport::{Channel, Endpoint, Uri},
};
use tonic_prost::ProstCodec;

use env::Env;

use super::{
    ciphers::{AesGcm, DerivedAesGcm, SEED_BYTES},
    configuration::KmsConfiguration,
    kms_metrics::{KmsMetrics, Transformation},
    kms_protocol::{
        AES_GCM_KEY, DECRYPT, DecryptRequest, DecryptResponse, ENCRYPT, EncryptRequest, EncryptResponse,
        EncryptedObject, HKDF_SHA256_XNONCE_AES_GCM_SEED, STATUS, StatusRequest, StatusResponse, validate_key_id,
    },
};
use crate::storage::expiring::Expiring;

/// How often it is asked how it is, and how often while it is not well.
const STATUS_INTERVAL: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How long after it was last well a seed may be used to write.
const WRITE_TTL: Duration = Duration::from_secs(180);
/// How long the answer of a health check is good for.
const HEALTHY_TTL: Duration = Duration::from_secs(20);
const UNHEALTHY_TTL: Duration = Duration::from_secs(3);
const SEED_TTL: Duration = Duration::from_secs(24 * 3600);
const CACHED_SEEDS_MAX: usize = 4096;

/// What values are encrypted with, as it is now.
struct WriteState {
    cipher: Arc<DerivedAesGcm>,
    /// Everything but the value.
    envelope: EncryptedObject,
    expires: Duration,
}

#[derive(Clone)]
enum Opener {
    Key(Arc<AesGcm>),
    Seed(Arc<DerivedAesGcm>),
}

struct Health {
    verdict: Result<(), String>,
    until: Duration,
    /// Of the first status; it must not change.
    version: String,
}

pub struct KmsProvider {
    config: KmsConfiguration,
    channel: Channel,
    state: RwLock<Option<Arc<WriteState>>>,
    opened: Expiring<[u8; 32], Opener>,
    /// Keys that could not be decrypted a moment ago: a list must not wait for each of its values.
    failed: Expiring<[u8; 32], String>,
    /// One asks at a time; others wait for the answer.
    asking: Semaphore,
    health: Mutex<Health>,
    metrics: KmsMetrics,
    env: Env,
}

impl KmsProvider {
    pub fn new(config: KmsConfiguration, env: &Env, metrics: &KmsMetrics) -> Arc<Self> {
        let path = config.socket.clone();
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let path = path.clone();
                // A name that begins with @ is one of the abstract namespace.
                async move { Ok::<_, std::io::Error>(TokioIo::new(connect(&path).await?)) }
            }));
        let health = Health { verdict: Ok(()), until: Duration::ZERO, version: String::new() };
        Arc::new(Self {
            config,
            channel,
            state: RwLock::default(),
            opened: Expiring::new(CACHED_SEEDS_MAX),
            failed: Expiring::new(CACHED_SEEDS_MAX),
            asking: Semaphore::new(1),
            health: Mutex::new(health),
            metrics: metrics.clone(),
            env: env.clone(),
        })
    }

    /// Asks how it is, now and then again and again for as long as it is in use.
    pub async fn start(self: &Arc<Self>) {
        let first = self.check().await;
        if let Err(error) = &first {
            tracing::warn!(provider = self.config.name, error, "kms plugin failed health check probe");
        }
        let (weak, env, mut well) = (Arc::downgrade(self), self.env.clone(), first.is_ok());
        self.env.spawn(async move {
            loop {
                env.sleep(if well { STATUS_INTERVAL } else { RETRY_INTERVAL }).await;
                let Some(provider) = Weak::upgrade(&weak) else { return };
                let verdict = provider.check().await;
                well = verdict.is_ok();
                if let Err(error) = verdict {
                    tracing::warn!(provider = provider.config.name, error, "kms plugin failed health check probe");
                }
            }
        });
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, String>
    where
        Q: Message + Clone + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let asked = async {
            let mut grpc = Grpc::new(self.channel.clone());
            grpc.ready().await.map_err(|e| (Code::Unavailable, e.to_string()))?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await;
            answer.map(|a| a.into_inner()).map_err(|status| (status.code(), status.to_string()))
        };
        let began = self.env.monotonic();
        let late = || Err((Code::DeadlineExceeded, "context deadline exceeded".into()));
        let answered = self.env.timeout(self.config.timeout, asked).await.unwrap_or_else(late);
        let code = answered.as_ref().err().map_or(Code::Ok, |(code, _)| *code);
        // As Go writes them: `OK`, `DeadlineExceeded`.
        let shown = if code == Code::Ok { "OK".to_string() } else { format!("{code:?}") };
        self.metrics.operation(&self.config.name, path, &shown, self.env.monotonic() - began);
        answered.map_err(|(_, why)| why)
    }

    /// Whether it is well; a new seed is made if its key has changed.
    pub async fn check(&self) -> Result<(), String> {
        let _turn = self.asking.acquire().await;
        let now = self.env.monotonic();
        let mut version = {
            let health = self.health.lock();
            if health.until > now {
                return health.verdict.clone();
            }
            health.version.clone()
        };
        let verdict = self.probe(&mut version).await;
        let lasts = if verdict.is_ok() { HEALTHY_TTL } else { UNHEALTHY_TTL };
        let until = self.env.monotonic() + lasts;
        *self.health.lock() = Health { verdict: verdict.clone(), until, version };
        verdict
    }

    async fn probe(&self, version: &mut String) -> Result<(), String> {
        let name = &self.config.name;
        let status: StatusResponse = self.call(STATUS, StatusRequest {}).await.map_err(|e| {
            format!("failed to perform status section of the healthz check for KMS Provider {name}, error: {e}")
        })?;
        let attempt = |e: String| format!("kmsv2 Provider {name} is not healthy, error: {e}");
        if status.healthz != "ok" {
            return Err(attempt(format!("got unexpected healthz status: {}", status.healthz)));
        }
        if !["v2", "v2beta1"].contains(&status.version.as_str()) {
            return Err(attempt(format!("expected KMSv2 API version v2, got {}", status.version)));
        }
        if version.is_empty() {
            version.clone_from(&status.version);
        } else if *version != status.version {
            return Err(attempt(format!(
                "KMSv2 API version should not change after the initial status response version {version}, got {}",
                status.version
            )));
        }
        if let Err(why) = validate_key_id(&status.key_id) {
            let error = if status.key_id.is_empty() { "empty" } else { "too_long" };
            self.metrics.invalid_key_id(name, error);
            return Err(attempt(why));
        }
        self.metrics.key_in_status(name, &status.key_id);
        self.rotate(&status.key_id).await.map_err(attempt)
    }

    /// Makes a seed under the key that the status names, unless there is one.
    async fn rotate(&self, key_id: &str) -> Result<(), String> {
        let expires = self.env.monotonic() + WRITE_TTL;
        if let Some(state) = self.state.read().clone().filter(|state| state.envelope.key_id == key_id) {
            let (cipher, envelope) = (state.cipher.clone(), state.envelope.clone());
            *self.state.write() = Some(Arc::new(WriteState { cipher, envelope, expires }));
            return Ok(());
        }
        let mut seed = vec![0; SEED_BYTES];
        self.env.fill_random(&mut seed);
        let cipher = Arc::new(DerivedAesGcm::new(&seed)?);
        let request = EncryptRequest { plaintext: seed.clone(), uid: self.env.uuid() };
        let answer: EncryptResponse =
            self.call(ENCRYPT, request).await.map_err(|e| format!("failed to encrypt DEK, error: {e}"))?;
        let holds_seed = |part: &Vec<u8>| part.windows(SEED_BYTES).any(|bytes| bytes == seed);
        if holds_seed(&answer.ciphertext) || answer.annotations.values().any(holds_seed) {
            return Err("failed to encrypt DEK: the KMS plugin answered with the DEK in the clear".into());
        }
        let envelope = EncryptedObject {
            encrypted_data: Vec::new(),
            key_id: answer.key_id,
            encrypted_dek_source: answer.ciphertext,
            annotations: answer.annotations,
            encrypted_dek_source_type: HKDF_SHA256_XNONCE_AES_GCM_SEED,
        };
        envelope.validate_source()?;
        if envelope.key_id != key_id {
            return Err("failed to rotate DEK: the key it encrypted with is not the one of its status".into());
        }
        let now = self.env.monotonic();
        self.opened.insert(cache_key(&envelope), Opener::Seed(cipher.clone()), now + SEED_TTL, now);
        self.metrics.cached_sources(&self.config.name, self.opened.count());
        *self.state.write() = Some(Arc::new(WriteState { cipher, envelope, expires }));
        Ok(())
    }

    pub async fn seal(&self, plain: &[u8], context: &[u8]) -> Result<Vec<u8>, String> {
        if self.state.read().is_none() {
            // Nothing can be written before it has been well once.
            self.check().await?;
        }
        let state = self.state.read().clone().ok_or("got unexpected nil transformer")?;
        if self.env.monotonic() > state.expires {
            return Err("encryptedDEKSource expired: the KMS has not been healthy for too long".into());
        }
        let mut object = state.envelope.clone();
        object.encrypted_data = state.cipher.seal(plain, context, &self.env)?;
        self.metrics.key_used(&self.config.name, &object.key_id, Transformation::ToStorage);
        object.validate()?;
        Ok(object.encode_to_vec())
    }

    /// The value, and whether it should be written again.
    pub async fn open(&self, sealed: &[u8], context: &[u8]) -> Result<(Vec<u8>, bool), String> {
        let object = EncryptedObject::decode(sealed).map_err(|e| e.to_string())?;
        object.validate()?;
        let plain = match self.opener(&object).await? {
            Opener::Key(key) => key.open(&object.encrypted_data, context)?,
            Opener::Seed(seed) => seed.open(&object.encrypted_data, context)?,
        };
        self.metrics.key_used(&self.config.name, &object.key_id, Transformation::FromStorage);
        let stale = self.state.read().as_ref().is_none_or(|state| {
            state.envelope.key_id != object.key_id
                || state.envelope.encrypted_dek_source_type != object.encrypted_dek_source_type
        });
        Ok((plain, stale))
    }

    async fn opener(&self, object: &EncryptedObject) -> Result<Opener, String> {
        let (key, now) = (cache_key(object), self.env.monotonic());
        if let Some(known) = self.opened.get(&key, now) {
            return Ok(known);
        }
        if let Some(error) = self.failed.get(&key, now) {
            return Err(error);
        }
        let request = DecryptRequest {
            ciphertext: object.encrypted_dek_source.clone(),
            uid: self.env.uuid(),
            key_id: object.key_id.clone(),
            annotations: object.annotations.clone(),
        };
        let answer: DecryptResponse = self.call(DECRYPT, request).await.map_err(|e| {
            let (error, now) = (format!("failed to decrypt DEK, error: {e}"), self.env.monotonic());
            self.failed.insert(key, error.clone(), now + UNHEALTHY_TTL, now);
            error
        })?;
        let opener = match object.encrypted_dek_source_type {
            AES_GCM_KEY => Opener::Key(Arc::new(AesGcm::new(&answer.plaintext)?)),
            _ => Opener::Seed(Arc::new(DerivedAesGcm::new(&answer.plaintext)?)),
        };
        self.opened.insert(key, opener.clone(), now + SEED_TTL, now);
        self.metrics.cached_sources(&self.config.name, self.opened.count());
        Ok(opener)
    }
}

async fn connect(path: &str) -> std::io::Result<UnixStream> {
    match path.trim_start_matches('/').strip_prefix('@') {
        None => UnixStream::connect(path).await,
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            let stream = std::os::unix::net::UnixStream::connect_addr(&address)?;
            stream.set_nonblocking(true)?;
            UnixStream::from_std(stream)
        }
    }
}

/// What the key of a value is known by: everything the service is shown to decrypt it.
fn cache_key(object: &EncryptedObject) -> [u8; 32] {
    let mut digest = Sha256::new();
    let mut part = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    part(&object.encrypted_dek_source_type.to_be_bytes());
    part(&object.encrypted_dek_source);
    part(object.key_id.as_bytes());
    for (key, value) in &object.annotations {
        part(key.as_bytes());
        part(value);
    }
    digest.finalize().into()
}
