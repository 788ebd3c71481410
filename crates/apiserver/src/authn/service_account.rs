//! ServiceAccount tokens: the keys, and believing what they signed.
//! A row of the chain in `authn`; `token_request` signs with the same keys.
//! A token is believed only while the account (and what it is bound to) exists with that uid.

use std::{sync::Arc, time::Duration};

use ::metrics::{Family, Metrics};
use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use rustls_pki_types::{
    PrivateKeyDer,
    pem::{PemObject, SectionKind},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use api::ApiError;

use super::{
    AuthenticatorResponse, TokenAuthenticator, User,
    files::same,
    jwks,
    legacy_tokens::{self, LegacyToken},
};
use crate::{
    audit,
    server::config::ServiceAccounts,
    storage::{cluster::Cluster, expiring::Expiring},
};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Claims {
    pub aud: Vec<String>,
    pub exp: i64,
    #[serde(default)]
    pub iat: i64,
    pub iss: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Private,
    #[serde(default)]
    pub nbf: i64,
    pub sub: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Private {
    pub namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    pub serviceaccount: Reference,
    /// From here on a client that still uses the token should have renewed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// Names the credential a user has shown, among what is known of the user beside name, uid and groups.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The issuer of tokens that lie in secrets and never expire.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

#[derive(Debug, Clone, Deserialize)]
struct LegacyClaims {
    sub: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
}

/// The keys of this cluster's tokens.
pub struct Keys {
    signing: EncodingKey,
    algorithm: Algorithm,
    key_id: String,
    believed: Vec<(DecodingKey, Algorithm)>,
    /// The believed keys as JSON Web Keys.
    pub published: Vec<Value>,
    /// Of the tokens we sign.
    pub issuer: String,
    /// Of the tokens we believe.
    issuers: Vec<String>,
    pub audiences: Vec<String>,
    /// Where others find the keys.
    pub jwks_uri: String,
    /// Whether the tokens of pods live on for clients that never read them again.
    pub extend_expiration: bool,
}

impl Keys {
    pub fn new(config: &ServiceAccounts) -> Result<Self, String> {
        let attempt = |e: &dyn std::fmt::Display| format!("failed to read the ServiceAccount signing key: {e}");
        let pair = rcgen::KeyPair::from_pem(&config.signing_key_pem).map_err(|e| attempt(&e))?;
        let rsa = pair.algorithm() == &rcgen::PKCS_RSA_SHA256;
        let pem = config.signing_key_pem.as_bytes();
        let signing = if rsa { EncodingKey::from_rsa_pem(pem) } else { EncodingKey::from_ec_pem(pem) };
        let (mut believed, mut published) = (Vec::new(), Vec::new());
        for public in std::iter::once(&pair.public_key_pem()).chain(&config.verification_keys_pem) {
            believed.push(public_key(public)?);
            let jwk =
                jwks::jwk(public).map_err(|e| format!("failed to read a ServiceAccount verification key: {e}"))?;
            if !published.contains(&jwk) {
                published.push(jwk);
            }
        }
        Ok(Self {
            signing: signing.map_err(|e| attempt(&e))?,
            algorithm: if rsa { Algorithm::RS256 } else { Algorithm::ES256 },
            key_id: jwks::key_id(&rcgen::PublicKeyData::subject_public_key_info(&pair)),
            believed,
            published,
            issuer: config.issuer.clone(),
            issuers: config.issuers(),
            audiences: config.audiences.clone(),
            jwks_uri: match &config.jwks_uri {
                Some(uri) => uri.clone(),
                None => format!("{}/openid/v1/jwks", config.issuer.trim_end_matches('/')),
            },
            extend_expiration: config.extend_token_expiration,
        })
    }

    pub fn algorithms(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.published.iter().filter_map(|k| k["alg"].as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    pub fn sign<C: Serialize>(&self, claims: &C) -> Result<String, ApiError> {
        let header = Header { kid: Some(self.key_id.clone()), typ: None, ..Header::new(self.algorithm) };
        jsonwebtoken::encode(&header, claims, &self.signing)
            .map_err(|e| ApiError::internal(format!("failed to sign token: {e}")))
    }

    /// The claims of a token, if one of the believed keys signed it. Times and audiences are for the caller to judge.
    fn claims<C: serde::de::DeserializeOwned + Clone>(&self, token: &str) -> Option<C> {
        self.believed.iter().find_map(|(key, algorithm)| {
            let mut validation = Validation::new(*algorithm);
            validation.validate_exp = false;
            validation.validate_aud = false;
            validation.required_spec_claims.clear();
            jsonwebtoken::decode::<C>(token, key, &validation).ok().map(|t| t.claims)
        })
    }
}

fn public_key(pem: &str) -> Result<(DecodingKey, Algorithm), String> {
    DecodingKey::from_rsa_pem(pem.as_bytes())
        .map(|k| (k, Algorithm::RS256))
        .or_else(|_| DecodingKey::from_ec_pem(pem.as_bytes()).map(|k| (k, Algorithm::ES256)))
        .map_err(|e| format!("failed to read a ServiceAccount verification key: {e}"))
}

/// The public keys in a file of `--service-account-key-file`, which may also hold private keys and certificates.
pub fn public_keys_pem(text: &[u8]) -> Result<Vec<String>, String> {
    let attempt = |e: &dyn std::fmt::Display| format!("failed to read a ServiceAccount key: {e}");
    let mut keys = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(text) {
        let (kind, der) = section.map_err(|e| attempt(&e))?;
        let private = match kind {
            SectionKind::PublicKey => {
                keys.push(pem(&der));
                continue;
            }
            SectionKind::Certificate => {
                let (_, certificate) = X509Certificate::from_der(&der).map_err(|e| attempt(&e))?;
                keys.push(pem(certificate.public_key().raw));
                continue;
            }
            SectionKind::PrivateKey => PrivateKeyDer::Pkcs8(der.into()),
            SectionKind::RsaPrivateKey => PrivateKeyDer::Pkcs1(der.into()),
            SectionKind::EcPrivateKey => PrivateKeyDer::Sec1(der.into()),
            _ => continue,
        };
        let pair = rcgen::KeyPair::try_from(&private).map_err(|e| attempt(&e))?;
        keys.push(pair.public_key_pem());
    }
    match keys.is_empty() {
        true => Err("data does not contain any valid RSA or ECDSA public keys".into()),
        false => Ok(keys),
    }
}

fn pem(spki: &[u8]) -> String {
    let text = base64::prelude::BASE64_STANDARD.encode(spki);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n"))
}

/// Clocks of others may be off by this much.
const LEEWAY_SECONDS: i64 = 60;
/// What a token was bound to may be gone this long, so that a pod that ends can still say goodbye.
const DELETED_BINDING_GRACE_SECONDS: i64 = 60;
const CACHED_TOKENS_MAX: usize = 8192;

/// A token whose signature was checked: whose it is, and what must still exist.
#[derive(Clone)]
struct Verified {
    user: User,
    /// The account's own name.
    account: String,
    audiences: Vec<String>,
    alive: Vec<Alive>,
    /// From when on, in Unix seconds, it should have been renewed.
    warn_after: Option<i64>,
}

#[derive(Clone)]
struct Alive {
    plural: &'static str,
    namespace: String,
    name: String,
    uid: String,
    /// A secret that must (still) hold this token, by digest.
    holds: Option<[u8; 32]>,
}

pub struct ServiceAccountTokens {
    pub keys: Arc<Keys>,
    cluster: Arc<Cluster>,
    verified: Expiring<[u8; 32], Arc<Verified>>,
    pub metrics: Metrics,
}

static LEGACY: Family =
    Family::counter("serviceaccount_legacy_tokens_total", &[], "Tokens without an end that were shown.");
static MANUAL: Family = Family::counter(
    "serviceaccount_legacy_manual_token_uses_total",
    &[],
    "Tokens in secrets that people made which were shown.",
);
static GENERATED: Family = Family::counter(
    "serviceaccount_legacy_auto_token_uses_total",
    &[],
    "Tokens in secrets that controllers made which were shown.",
);
static WITHDRAWN: Family = Family::counter(
    "serviceaccount_invalid_legacy_auto_token_uses_total",
    &[],
    "Tokens in secrets which were shown after they had been withdrawn.",
);
static STALE: Family =
    Family::counter("serviceaccount_stale_tokens_total", &[], "Tokens of pods that should have been renewed.");
static VALID: Family =
    Family::counter("serviceaccount_valid_tokens_total", &[], "Tokens of pods that need no renewal yet.");

impl ServiceAccountTokens {
    pub fn new(keys: Arc<Keys>, cluster: Arc<Cluster>) -> Self {
        Self { keys, cluster, verified: Expiring::new(CACHED_TOKENS_MAX), metrics: Metrics::default() }
    }

    /// `None`: someone else's token. `Err`: one of ours that is forged, expired or not yet valid.
    fn verify(&self, token: &str, digest: [u8; 32]) -> Result<Option<Arc<Verified>>, ApiError> {
        let monotonic = self.cluster.env.monotonic();
        if let Some(known) = self.verified.get(&digest, monotonic) {
            return Ok(Some(known));
        }
        let Some(issuer) = issuer(token) else { return Ok(None) };
        let (verified, lasts) = if self.keys.issuers.contains(&issuer) {
            let claims: Claims = self.keys.claims(token).ok_or_else(ApiError::unauthorized)?;
            let now = self.cluster.env.now().as_second();
            let early = claims.nbf > now + LEEWAY_SECONDS || claims.iat > now + LEEWAY_SECONDS;
            if claims.exp <= now || early {
                return Err(ApiError::unauthorized());
            }
            (bound(&claims).ok_or_else(ApiError::unauthorized)?, (claims.exp - now) as u64)
        } else if issuer == LEGACY_ISSUER {
            let claims: LegacyClaims = self.keys.claims(token).ok_or_else(ApiError::unauthorized)?;
            (legacy(claims, digest).ok_or_else(ApiError::unauthorized)?, 3600)
        } else {
            return Ok(None);
        };
        let verified = Arc::new(verified);
        self.verified.insert(digest, verified.clone(), monotonic + Duration::from_secs(lasts), monotonic);
        Ok(Some(verified))
    }

    /// Whether the client reads its token again, as it should.
    fn note_age(&self, verified: &Verified) {
        let Some(warn_after) = verified.warn_after else { return };
        let late_seconds = self.cluster.env.now().as_second() - warn_after;
        if late_seconds <= 0 {
            return self.metrics.count(&VALID, &[]);
        }
        let text = format!("subject: {}, seconds after warning threshold: {late_seconds}", verified.user.name);
        audit::annotate("authentication.k8s.io/stale-token", &text);
        self.metrics.count(&STALE, &[]);
    }

    async fn lives(&self, wanted: &Alive) -> Result<bool, ApiError> {
        if self.cluster.get(wanted.plural, &wanted.namespace, &wanted.name).is_some_and(|o| self.fits(wanted, &o)) {
            return Ok(true);
        }
        let found = self.cluster.fresh_get(wanted.plural, &wanted.namespace, &wanted.name).await?;
        Ok(found.is_some_and(|o| self.fits(wanted, &o)))
    }

    fn fits(&self, wanted: &Alive, object: &api::Object) -> bool {
        if !wanted.uid.is_empty() && object.meta.uid != wanted.uid {
            return false;
        }
        if let Some(deleted) = &object.meta.deletion_timestamp {
            let deleted = deleted.parse::<jiff::Timestamp>().map_or(0, |t| t.as_second());
            if deleted + DELETED_BINDING_GRACE_SECONDS < self.cluster.env.now().as_second() {
                return false;
            }
        }
        let Some(digest) = wanted.holds else { return true };
        let stored = object.value()["data"]["token"].as_str().map(str::to_string).unwrap_or_default();
        let stored = base64::prelude::BASE64_STANDARD.decode(stored).unwrap_or_default();
        same(&Sha256::digest(stored), &digest)
    }
}

fn issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Issuer {
        iss: String,
    }
    let body = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice::<Issuer>(&body).ok().map(|i| i.iss)
}

/// What the claims of a token of ours say. `None` if they contradict each other.
fn bound(claims: &Claims) -> Option<Verified> {
    let private = &claims.kubernetes;
    let mut user = user(&private.namespace, &private.serviceaccount);
    if claims.sub != user.name {
        return None;
    }
    let alive = |plural, namespace: &str, reference: &Reference| Alive {
        plural,
        namespace: namespace.to_string(),
        name: reference.name.clone(),
        uid: reference.uid.clone(),
        holds: None,
    };
    let mut needs = vec![alive("serviceaccounts", &private.namespace, &private.serviceaccount)];
    let mut extra = |key: &str, value: &str| {
        user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_string()]);
    };
    if let Some(pod) = &private.pod {
        needs.push(alive("pods", &private.namespace, pod));
        extra("pod-name", &pod.name);
        extra("pod-uid", &pod.uid);
    }
    if let Some(secret) = &private.secret {
        needs.push(alive("secrets", &private.namespace, secret));
    }
    if let Some(node) = &private.node {
        // The node of a pod goes with the pod; a node that is itself what the token is bound to must be there.
        if private.pod.is_none() {
            needs.push(alive("nodes", "", node));
        }
        extra("node-name", &node.name);
        if !node.uid.is_empty() {
            extra("node-uid", &node.uid);
        }
    }
    if !claims.jti.is_empty() {
        user.extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={}", claims.jti)]);
    }
    let account = private.serviceaccount.name.clone();
    let warn_after = private.warnafter.filter(|at| *at != 0);
    Some(Verified { user, account, audiences: claims.aud.clone(), alive: needs, warn_after })
}

fn legacy(claims: LegacyClaims, digest: [u8; 32]) -> Option<Verified> {
    let account = Reference { name: claims.account, uid: claims.uid };
    let user = user(&claims.namespace, &account);
    if claims.sub != user.name || account.uid.is_empty() || claims.secret.is_empty() {
        return None;
    }
    let name = account.name.clone();
    let alive = vec![
        Alive {
            plural: "serviceaccounts",
            namespace: claims.namespace.clone(),
            name: account.name,
            uid: account.uid,
            holds: None,
        },
        Alive {
            plural: "secrets",
            namespace: claims.namespace,
            name: claims.secret,
            uid: String::new(),
            holds: Some(digest),
        },
    ];
    Some(Verified { user, account: name, audiences: Vec::new(), alive, warn_after: None })
}

pub fn user(namespace: &str, account: &Reference) -> User {
    User {
        name: format!("system:serviceaccount:{namespace}:{}", account.name),
        uid: account.uid.clone(),
        groups: vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")],
        ..User::default()
    }
}

#[async_trait]
impl TokenAuthenticator for ServiceAccountTokens {
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<AuthenticatorResponse>, ApiError> {
        let Some(verified) = self.verify(token, Sha256::digest(token).into())? else { return Ok(None) };
        // Tokens from before audiences existed are good for this server.
        let own = if verified.audiences.is_empty() { &self.keys.audiences } else { &verified.audiences };
        let common: Vec<String> = own.iter().filter(|a| audiences.contains(a)).cloned().collect();
        if common.is_empty() {
            return Err(ApiError::unauthorized());
        }
        let mut warning = None;
        for wanted in &verified.alive {
            if !self.lives(wanted).await? {
                return Err(ApiError::unauthorized());
            }
            if wanted.holds.is_some() {
                match legacy_tokens::shown(&self.cluster, &wanted.namespace, &verified.account, &wanted.name) {
                    LegacyToken::Withdrawn => {
                        let which = format!("{}/{}", wanted.name, wanted.namespace);
                        audit::annotate("authentication.k8s.io/legacy-token-invalidated", &which);
                        self.metrics.count(&WITHDRAWN, &[]);
                        return Err(ApiError::unauthorized());
                    }
                    LegacyToken::Generated => {
                        audit::annotate("authentication.k8s.io/legacy-token-autogenerated-secret", &wanted.name);
                        self.metrics.count(&GENERATED, &[]);
                        warning = Some(legacy_tokens::GENERATED);
                    }
                    LegacyToken::Wanted => {
                        audit::annotate("authentication.k8s.io/legacy-token-manual-secret", &wanted.name);
                        self.metrics.count(&MANUAL, &[]);
                    }
                }
                self.metrics.count(&LEGACY, &[]);
            }
        }
        self.note_age(&verified);
        Ok(Some(AuthenticatorResponse { user: verified.user.clone(), audiences: common, warning }))
    }
}
