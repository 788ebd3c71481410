//! Who sends a request: a chain of authenticators, the first that recognizes the credentials wins.
//! Called by `pipeline`; the user it finds goes on to `authz` and `admission`.
//! Wrong credentials are an error; absent credentials are not.

pub mod legacy_tokens;
pub mod oidc;
pub mod service_account;
pub mod token_request;

mod bootstrap_token;
mod files;
mod identity_headers;
mod impersonation;
mod jwks;
mod log_throttle;
#[cfg(test)]
mod tests;
mod webhook;
mod x509;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{Extensions, HeaderMap, header};
use rustls::DistinguishedName;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use api::{
    ApiError,
    feature_gates::{ALLOW_PARSING_USER_UID_FROM_CERT_AUTH, REMOTE_REQUEST_HEADER_UID},
};
use env::Env;

use self::{
    bootstrap_token::BootstrapTokens,
    oidc::JwtTokens,
    service_account::ServiceAccountTokens,
    webhook::WebhookTokens,
    x509::{Authorities, FrontProxy},
};
use crate::{
    server::{
        config::{Config, RequestHeader},
        reload::{ReloadMetrics, Reloadable},
    },
    storage::cluster::Cluster,
};

pub use files::{PasswordFile, TokenFile};
pub use impersonation::{Impersonation, impersonation};
pub use jwks::serve as serve_keys;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

pub const ANONYMOUS: &str = "system:anonymous";

impl User {
    pub fn new(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|g| g.to_string()).collect();
        Self { name: name.to_string(), groups, ..Self::default() }.authenticated()
    }

    pub fn anonymous() -> Self {
        Self { name: ANONYMOUS.into(), groups: vec!["system:unauthenticated".into()], ..Self::default() }
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Every authenticated user is in `system:authenticated`.
    pub fn authenticated(mut self) -> Self {
        let either = self.in_group("system:authenticated") || self.in_group("system:unauthenticated");
        if self.name != ANONYMOUS && !either {
            self.groups.push("system:authenticated".into());
        }
        self
    }

    /// As `authentication.k8s.io/v1` UserInfo.
    pub fn info(&self) -> Value {
        let mut info = json!({ "username": self.name, "groups": self.groups });
        if !self.uid.is_empty() {
            info["uid"] = self.uid.as_str().into();
        }
        if !self.extra.is_empty() {
            info["extra"] = json!(self.extra);
        }
        info
    }
}

/// `None` if any part of it is not what the API says it is.
fn user_from_info(info: &Value) -> Option<User> {
    let text = |value: &Value| match value {
        Value::Null => Some(String::new()),
        value => value.as_str().map(str::to_string),
    };
    let texts = |value: &Value| match value {
        Value::Null => Some(Vec::new()),
        value => value.as_array()?.iter().map(|item| item.as_str().map(str::to_string)).collect(),
    };
    let extra = match &info["extra"] {
        Value::Null => BTreeMap::new(),
        value => value.as_object()?.iter().map(|(k, v)| Some((k.clone(), texts(v)?))).collect::<Option<_>>()?,
    };
    Some(User { name: text(&info["username"])?, uid: text(&info["uid"])?, groups: texts(&info["groups"])?, extra })
}

/// The certificate chain a client proved to own the key of. Nobody has checked yet who signed it.
#[derive(Debug, Clone)]
pub struct PeerCertificates(pub Vec<CertificateDer<'static>>);

/// What a request shows of its sender, and where it goes.
pub struct Credentials<'a> {
    pub path: &'a str,
    pub headers: &'a HeaderMap,
    pub extensions: &'a Extensions,
}

/// Browsers cannot set Authorization on a WebSocket; they name the token as a protocol.
const PROTOCOL_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

impl Credentials<'_> {
    /// Whether there is anything that says who sends the request.
    pub fn are_shown(&self) -> bool {
        self.headers.contains_key(header::AUTHORIZATION)
            || self.extensions.get::<PeerCertificates>().is_some()
            || !matches!(self.protocol_token(), Ok(None))
    }

    /// The token shown; `Err` if there is one that cannot be read.
    pub fn bearer(&self) -> Result<Option<String>, ApiError> {
        if let Some(value) = self.headers.get(header::AUTHORIZATION) {
            let value = value.to_str().map_err(|_| ApiError::unauthorized())?;
            let Some((scheme, token)) = value.split_once(' ') else { return Ok(None) };
            let token = token.trim();
            return Ok((scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_string()));
        }
        self.protocol_token()
    }

    fn protocol_token(&self) -> Result<Option<String>, ApiError> {
        let (mut token, mut others) = (None, 0);
        for value in self.headers.get_all(header::SEC_WEBSOCKET_PROTOCOL) {
            let value = value.to_str().map_err(|_| ApiError::unauthorized())?;
            for protocol in value.split(',').map(str::trim) {
                match protocol.strip_prefix(PROTOCOL_PREFIX) {
                    Some(encoded) if token.is_none() => token = Some(encoded),
                    // Which of two tokens counts is not for us to guess.
                    Some(_) => return Err(ApiError::unauthorized()),
                    None => others += 1,
                }
            }
        }
        let Some(encoded) = token else { return Ok(None) };
        let token = BASE64_URL_SAFE_NO_PAD.decode(encoded).map_err(|_| ApiError::unauthorized())?;
        let token = String::from_utf8(token).map_err(|_| ApiError::unauthorized())?;
        // The answer must name a protocol, and may not name the token.
        match (token.is_empty(), others) {
            (true, _) => Ok(None),
            (false, 0) => Err(ApiError::unauthorized()),
            (false, _) => Ok(Some(token)),
        }
    }
}

/// A user and, unless the token is good for all, the audiences it is good for.
#[derive(Debug, Clone)]
pub struct AuthenticatorResponse {
    pub user: User,
    pub audiences: Vec<String>,
    /// What the client is to be told about how it shows who it is.
    pub warning: Option<&'static str>,
}

impl From<User> for AuthenticatorResponse {
    fn from(user: User) -> Self {
        Self { user, audiences: Vec::new(), warning: None }
    }
}

#[async_trait]
pub trait TokenAuthenticator: Send + Sync {
    /// `None`: not my kind of token. `Err`: mine, and wrong.
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<AuthenticatorResponse>, ApiError>;
}

/// Which requests without credentials are let through.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Anonymous {
    Nowhere,
    Everywhere,
    At(Vec<String>),
}

impl Anonymous {
    fn allows(&self, path: &str) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Everywhere => true,
            Self::At(paths) => paths.iter().any(|p| p == path),
        }
    }
}

/// The chain a configuration asks for.
pub fn chain(
    config: &Config,
    cluster: &Arc<Cluster>,
    accounts: Arc<ServiceAccountTokens>,
    metrics: &ReloadMetrics,
) -> Result<Chain, String> {
    let options = &config.authentication;
    let env = &cluster.env;
    let audiences = accounts.keys.audiences.clone();
    let mut tokens: Vec<Arc<dyn TokenAuthenticator>> = Vec::new();
    if let Some(path) = &options.token_file {
        tokens.push(files::reloaded(path, TokenFile::load, env, metrics)?);
    }
    tokens.push(accounts);
    if options.bootstrap_tokens {
        tokens.push(Arc::new(BootstrapTokens(cluster.clone())));
    }
    let mut anonymous = if config.anonymous_auth { Anonymous::Everywhere } else { Anonymous::Nowhere };
    if let Some(issuers) = JwtTokens::new(config, env, metrics)? {
        anonymous = match issuers.anonymous() {
            None => anonymous,
            Some(file) if !file.enabled => Anonymous::Nowhere,
            Some(file) if file.conditions.is_empty() => Anonymous::Everywhere,
            Some(file) => Anonymous::At(file.conditions.into_iter().map(|c| c.path).collect()),
        };
        tokens.push(Arc::new(issuers));
    }
    if let Some(webhook) = &options.webhook {
        tokens.push(Arc::new(WebhookTokens::new(webhook, env)?));
    }
    let client_ca_file = config.client_ca_file.as_deref();
    let passwords = options.password_file.as_deref();
    let front_proxy = options.request_header.as_ref().map(|r| FrontProxy::new(r, env, metrics)).transpose()?;
    Ok(Chain {
        front_proxy: front_proxy.map(|proxy| proxy.with_uid(config.feature_gates.enabled(REMOTE_REQUEST_HEADER_UID))),
        client_authorities: Authorities::reloaded(&config.client_ca_pem, client_ca_file, env, metrics)?,
        passwords: passwords.map(|path| files::reloaded(path, PasswordFile::load, env, metrics)).transpose()?,
        tokens,
        audiences,
        anonymous,
        uid_from_certificate: config.feature_gates.enabled(ALLOW_PARSING_USER_UID_FROM_CERT_AUTH),
    })
}

pub struct Chain {
    front_proxy: Option<FrontProxy>,
    client_authorities: Option<Arc<Reloadable<Authorities>>>,
    passwords: Option<Arc<Reloadable<PasswordFile>>>,
    tokens: Vec<Arc<dyn TokenAuthenticator>>,
    /// What a token must be good for to be shown to this server.
    audiences: Vec<String>,
    anonymous: Anonymous,
    /// Whether a certificate may say its user's uid.
    uid_from_certificate: bool,
}

impl Chain {
    /// For a port that keeps no users of its own: certificates by the given authorities, tokens as `tokens` says.
    pub fn delegated(
        client_ca_pem: &[u8],
        request_header: Option<&RequestHeader>,
        tokens: Arc<dyn TokenAuthenticator>,
        env: &Env,
    ) -> Result<Self, String> {
        let metrics = ReloadMetrics::new("");
        Ok(Self {
            front_proxy: request_header.map(|r| FrontProxy::new(r, env, &metrics)).transpose()?,
            client_authorities: Authorities::reloaded(client_ca_pem, None, env, &metrics)?,
            passwords: None,
            tokens: vec![tokens],
            audiences: Vec::new(),
            anonymous: Anonymous::Everywhere,
            uid_from_certificate: true,
        })
    }

    /// The names of the authorities whose certificates are believed now, of users and of proxies.
    pub fn certificate_authorities(&self) -> Vec<DistinguishedName> {
        let mut names: Vec<DistinguishedName> = Vec::new();
        let proxies = self.front_proxy.as_ref().map(|proxy| proxy.authorities());
        for authorities in self.client_authorities.iter().chain(proxies) {
            names.extend(authorities.current().names().iter().cloned());
        }
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.as_ref().to_vec()));
        names
    }

    pub async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<AuthenticatorResponse, ApiError> {
        if let Some(proxy) = &self.front_proxy
            && let Some(user) = proxy.user(credentials)?
        {
            return Ok(user.authenticated().into());
        }
        let mut wrong = None;
        let certificate = self.client_authorities.as_ref().map_or(Ok(None), |a| x509::user(&a.current(), credentials));
        let certificate = certificate.map(|user| {
            user.map(|user| if self.uid_from_certificate { user } else { User { uid: String::new(), ..user } })
        });
        let password = || self.passwords.as_ref().map_or(Ok(None), |p| p.current().user(credentials));
        for shown in [certificate, password()] {
            match shown {
                Ok(Some(user)) => return Ok(user.authenticated().into()),
                Ok(None) => {}
                Err(e) => wrong = Some(e),
            }
        }
        if let Some(token) = credentials.bearer()? {
            return self.review(&token, &self.audiences).await;
        }
        match wrong {
            Some(e) => Err(e),
            // A credential nobody recognized is wrong, not absent.
            None if credentials.headers.contains_key(header::AUTHORIZATION) => Err(ApiError::unauthorized()),
            None if self.anonymous.allows(credentials.path) => Ok(User::anonymous().into()),
            None => Err(ApiError::unauthorized()),
        }
    }

    /// Whose token this is, if it is good for one of `audiences`; for this server's own if there are none.
    pub async fn review(&self, token: &str, audiences: &[String]) -> Result<AuthenticatorResponse, ApiError> {
        let wanted = if audiences.is_empty() { &self.audiences } else { audiences };
        for authenticator in &self.tokens {
            // What one calls wrong another may still know.
            if let Ok(Some(mut believed)) = authenticator.token(token, wanted).await {
                believed.user = believed.user.authenticated();
                if believed.audiences.is_empty() {
                    // Tokens that name no audience are good for this server.
                    believed.audiences = wanted.iter().filter(|a| self.audiences.contains(a)).cloned().collect();
                    if believed.audiences.is_empty() && !wanted.is_empty() {
                        continue;
                    }
                }
                return Ok(believed);
            }
        }
        Err(ApiError::unauthorized())
    }

    /// Takes everything that proved an identity off a request.
    pub fn strip(&self, headers: &mut HeaderMap) {
        headers.remove(header::AUTHORIZATION);
        if let Some(proxy) = &self.front_proxy {
            proxy.strip(headers);
        }
        let protocols: Vec<_> = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().cloned().collect();
        // What cannot be read may hold a token as well.
        if protocols.iter().any(|p| p.to_str().is_ok_and(|p| p.contains(PROTOCOL_PREFIX)) || p.to_str().is_err()) {
            headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
            for value in protocols.iter().filter_map(|v| v.to_str().ok()) {
                let kept: Vec<_> =
                    value.split(',').map(str::trim).filter(|p| !p.starts_with(PROTOCOL_PREFIX)).collect();
                if let (false, Ok(value)) = (kept.is_empty(), kept.join(", ").parse()) {
                    headers.append(header::SEC_WEBSOCKET_PROTOCOL, value);
                }
            }
        }
    }
}
