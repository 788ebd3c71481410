//! ServiceAccount tokens: signing (TokenRequest) and believing them.
//! Used by the authentication chain and by the `token` subresource.
//! Invariant: a token is believed only while the account (and the pod or node it is bound to) exists with that uid.

use std::sync::Arc;

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::StatusCode;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use api::ApiError;

use super::{Authenticator, Credentials, User};
use crate::{
    cluster::Cluster,
    config::ServiceAccounts,
    registry::not_found_path,
    respond::{Reply, content_response},
};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Claims {
    pub iss: String,
    pub sub: String,
    #[serde(default)]
    pub aud: Vec<String>,
    pub exp: i64,
    #[serde(default)]
    pub iat: i64,
    #[serde(default)]
    pub nbf: i64,
    #[serde(default)]
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Private,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Private {
    pub namespace: String,
    pub serviceaccount: Reference,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The keys of this cluster's tokens.
pub struct Keys {
    signing: EncodingKey,
    algorithm: Algorithm,
    key_id: String,
    believed: Vec<(DecodingKey, Algorithm)>,
    pub issuer: String,
    pub audiences: Vec<String>,
}

impl Keys {
    pub fn new(config: &ServiceAccounts) -> Result<Self, String> {
        let pair = rcgen::KeyPair::from_pem(&config.signing_key_pem)
            .map_err(|e| format!("failed to read the ServiceAccount signing key: {e}"))?;
        let rsa = pair.algorithm() == &rcgen::PKCS_RSA_SHA256;
        let pem = config.signing_key_pem.as_bytes();
        let signing = if rsa { EncodingKey::from_rsa_pem(pem) } else { EncodingKey::from_ec_pem(pem) };
        let signing = signing.map_err(|e| format!("failed to read the ServiceAccount signing key: {e}"))?;
        let mut believed = Vec::new();
        for public in std::iter::once(&pair.public_key_pem()).chain(&config.verification_keys_pem) {
            believed.push(public_key(public)?);
        }
        let key_id =
            BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(rcgen::PublicKeyData::subject_public_key_info(&pair)));
        Ok(Self {
            signing,
            algorithm: if rsa { Algorithm::RS256 } else { Algorithm::ES256 },
            key_id,
            believed,
            issuer: config.issuer.clone(),
            audiences: config.audiences.clone(),
        })
    }

    pub fn sign(&self, claims: &Claims) -> Result<String, ApiError> {
        let header = Header { kid: Some(self.key_id.clone()), typ: None, ..Header::new(self.algorithm) };
        jsonwebtoken::encode(&header, claims, &self.signing)
            .map_err(|e| ApiError::internal(format!("failed to sign token: {e}")))
    }

    /// The claims of a genuine, unexpired token of this cluster. `None` if its issuer is someone else.
    fn verify(&self, token: &str, now: i64) -> Option<Result<Claims, ApiError>> {
        let body = token.split('.').nth(1)?;
        let shown: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(body).ok()?).ok()?;
        if shown["iss"].as_str() != Some(&self.issuer) {
            return None;
        }
        for (key, algorithm) in &self.believed {
            let mut validation = Validation::new(*algorithm);
            // Time is an argument here, and audiences are the caller's business.
            validation.validate_exp = false;
            validation.validate_aud = false;
            if let Ok(token) = jsonwebtoken::decode::<Claims>(token, key, &validation) {
                let claims = token.claims;
                let valid = claims.exp > now && claims.nbf <= now + 10;
                return Some(if valid { Ok(claims) } else { Err(ApiError::unauthorized()) });
            }
        }
        Some(Err(ApiError::unauthorized()))
    }
}

fn public_key(pem: &str) -> Result<(DecodingKey, Algorithm), String> {
    DecodingKey::from_rsa_pem(pem.as_bytes())
        .map(|k| (k, Algorithm::RS256))
        .or_else(|_| DecodingKey::from_ec_pem(pem.as_bytes()).map(|k| (k, Algorithm::ES256)))
        .map_err(|e| format!("failed to read a ServiceAccount verification key: {e}"))
}

pub struct ServiceAccountTokens {
    pub keys: Arc<Keys>,
    pub cluster: Arc<Cluster>,
}

impl ServiceAccountTokens {
    /// The user and the audiences of a token; `None` if it is not one of ours.
    pub async fn review(&self, token: &str) -> Option<Result<(User, Vec<String>), ApiError>> {
        let claims = match self.keys.verify(token, self.cluster.env.now().as_second())? {
            Ok(claims) => claims,
            Err(e) => return Some(Err(e)),
        };
        Some(self.user(&claims).await.map(|user| (user, claims.aud)))
    }

    async fn user(&self, claims: &Claims) -> Result<User, ApiError> {
        let private = &claims.kubernetes;
        self.exists("serviceaccounts", &private.namespace, &private.serviceaccount).await?;
        let mut user = user(&private.namespace, &private.serviceaccount);
        let mut extra = |key: &str, value: &str| {
            user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_string()]);
        };
        if let Some(pod) = &private.pod {
            self.exists("pods", &private.namespace, pod).await?;
            extra("pod-name", &pod.name);
            extra("pod-uid", &pod.uid);
        }
        if let Some(node) = &private.node {
            extra("node-name", &node.name);
            extra("node-uid", &node.uid);
        }
        if !claims.jti.is_empty() {
            extra("credential-id", &format!("JTI={}", claims.jti));
        }
        Ok(user)
    }

    async fn exists(&self, plural: &str, namespace: &str, reference: &Reference) -> Result<(), ApiError> {
        match self.cluster.fresh_get(plural, namespace, &reference.name).await? {
            Some(object) if reference.uid.is_empty() || object.meta.uid == reference.uid => Ok(()),
            _ => Err(ApiError::unauthorized()),
        }
    }
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
impl Authenticator for ServiceAccountTokens {
    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, ApiError> {
        let Some(token) = credentials.bearer() else { return Ok(None) };
        match self.review(token).await {
            None => Ok(None),
            Some(Ok((user, audiences))) if audiences.iter().any(|a| self.keys.audiences.contains(a)) => Ok(Some(user)),
            Some(_) => Err(ApiError::unauthorized()),
        }
    }
}

/// Answers `POST serviceaccounts/NAME/token`: fills in the status of the TokenRequest.
pub async fn request_token(
    cluster: &Cluster,
    keys: &Keys,
    max_seconds: i64,
    account: &api::Object,
    mut request: Value,
) -> Result<Value, ApiError> {
    let namespace = account.meta.namespace.clone().unwrap_or_default();
    let now = cluster.env.now().as_second();
    let mut seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
    let too_short = seconds < 600;
    if too_short || seconds > 1 << 32 {
        let mut errors = api::field::ErrorList::new();
        let path = api::field::Path::new("spec").child("expirationSeconds");
        let detail = if too_short {
            "may not specify a duration less than 10 minutes"
        } else {
            "may not specify a duration larger than 2^32 seconds"
        };
        errors.invalid(&path, json!(seconds), detail);
        return Err(ApiError::invalid("authentication.k8s.io", "TokenRequest", "", errors));
    }
    seconds = seconds.min(max_seconds);
    let audiences: Vec<String> = match request["spec"]["audiences"].as_array() {
        Some(list) if !list.is_empty() => list.iter().filter_map(|a| a.as_str().map(str::to_string)).collect(),
        _ => keys.audiences.clone(),
    };
    let account_reference = Reference { name: account.meta.name.clone(), uid: account.meta.uid.clone() };
    let mut private = Private { namespace: namespace.clone(), serviceaccount: account_reference, ..Private::default() };
    let bound = request["spec"]["boundObjectRef"].clone();
    if let Some(kind) = bound["kind"].as_str() {
        let name = bound["name"].as_str().unwrap_or_default();
        bind(cluster, &mut private, &namespace, kind, name, bound["uid"].as_str().unwrap_or_default()).await?;
    }
    // The kubelet renews at 80 %; projected tokens live long past that so that old clients go on.
    let claims = Claims {
        iss: keys.issuer.clone(),
        sub: format!("system:serviceaccount:{namespace}:{}", account.meta.name),
        aud: audiences.clone(),
        exp: now + seconds,
        iat: now,
        nbf: now,
        jti: cluster.env.uuid(),
        kubernetes: private,
    };
    let expires = jiff::Timestamp::from_second(claims.exp).map_err(|e| ApiError::internal(e.to_string()))?;
    request["kind"] = "TokenRequest".into();
    request["apiVersion"] = "authentication.k8s.io/v1".into();
    request["spec"]["audiences"] = json!(audiences);
    request["spec"]["expirationSeconds"] = json!(seconds);
    if !request["metadata"].is_object() {
        request["metadata"] = json!({});
    }
    request["metadata"]["name"] = json!(account.meta.name);
    request["metadata"]["namespace"] = json!(namespace);
    request["status"] = json!({ "token": keys.sign(&claims)?, "expirationTimestamp": expires.to_string() });
    Ok(request)
}

async fn bind(
    cluster: &Cluster,
    private: &mut Private,
    namespace: &str,
    kind: &str,
    name: &str,
    uid: &str,
) -> Result<(), ApiError> {
    let plural = match kind {
        "Pod" => "pods",
        "Secret" => "secrets",
        "Node" => "nodes",
        other => return Err(ApiError::bad_request(format!("cannot bind token to object of type {other}"))),
    };
    let place = if kind == "Node" { "" } else { namespace };
    let found = cluster.fresh_get(plural, place, name).await?;
    let object = found.ok_or_else(|| ApiError::not_found("", plural, name))?;
    if !uid.is_empty() && object.meta.uid != uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        );
        return Err(ApiError::conflict("", plural, name, &why));
    }
    let reference = Reference { name: name.to_string(), uid: object.meta.uid.clone() };
    match kind {
        "Pod" => {
            let value = object.value();
            if let Some(node) = value["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
                let uid = cluster.get("nodes", "", node).map(|n| n.meta.uid.clone()).unwrap_or_default();
                private.node = Some(Reference { name: node.to_string(), uid });
            }
            private.pod = Some(reference);
        }
        "Secret" => private.secret = Some(reference),
        _ => private.node = Some(reference),
    }
    Ok(())
}

/// `/.well-known/openid-configuration` and `/openid/v1/jwks`: how others verify our tokens.
pub fn serve(keys: &Keys, path: &str) -> Result<Reply, ApiError> {
    let value = match path {
        "/.well-known/openid-configuration" => json!({
            "issuer": keys.issuer,
            "jwks_uri": format!("{}/openid/v1/jwks", keys.issuer.trim_end_matches('/')),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [keys.algorithm_name()],
        }),
        "/openid/v1/jwks" => json!({ "keys": [keys.jwk()?] }),
        _ => return Err(not_found_path()),
    };
    let content = if path.ends_with("jwks") { "application/jwk-set+json" } else { "application/json" };
    Ok(Reply::Raw(content_response(StatusCode::OK, value.to_string().into(), content)))
}

impl Keys {
    fn algorithm_name(&self) -> &'static str {
        if self.algorithm == Algorithm::RS256 { "RS256" } else { "ES256" }
    }

    fn jwk(&self) -> Result<Value, ApiError> {
        let jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&self.signing, self.algorithm)
            .map_err(|e| ApiError::internal(format!("failed to describe the signing key: {e}")))?;
        let mut jwk = serde_json::to_value(jwk).map_err(|e| ApiError::internal(e.to_string()))?;
        jwk["use"] = "sig".into();
        jwk["kid"] = self.key_id.as_str().into();
        jwk["alg"] = self.algorithm_name().into();
        Ok(jwk)
    }
}
