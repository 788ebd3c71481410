//! Who sends a request: a chain of authenticators, the first that recognizes the credentials wins.
//! Called by `pipeline`; the user it finds goes on to `authz` and `admission`.
//! Invariant: wrong credentials are an error; absent credentials are not.

pub mod service_account;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use http::{Extensions, HeaderMap, header};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use api::ApiError;

use self::service_account::ServiceAccountTokens;
use crate::{authz, config::Config};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
        if self.name != ANONYMOUS && !self.in_group("system:authenticated") {
            self.groups.push("system:authenticated".into());
        }
        self
    }
}

/// The certificate chain a client proved to own, verified against the client authorities by the TLS layer.
#[derive(Debug, Clone)]
pub struct PeerCertificates(pub Vec<CertificateDer<'static>>);

/// What a request shows of its sender.
pub struct Credentials<'a> {
    pub headers: &'a HeaderMap,
    pub extensions: &'a Extensions,
}

impl Credentials<'_> {
    pub fn bearer(&self) -> Option<&str> {
        let text = self.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|t| !t.is_empty())
    }
}

#[async_trait]
pub trait Authenticator: Send + Sync {
    /// `None`: not my kind of credentials. `Err`: mine, and wrong.
    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, ApiError>;
}

/// Client certificates: CN is the user, O are the groups.
pub struct X509;

#[async_trait]
impl Authenticator for X509 {
    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, ApiError> {
        let Some(leaf) = credentials.extensions.get::<PeerCertificates>().and_then(|p| p.0.first()) else {
            return Ok(None);
        };
        let (_, certificate) = X509Certificate::from_der(leaf).map_err(|_| ApiError::unauthorized())?;
        let text = |a: &x509_parser::x509::AttributeTypeAndValue| a.as_str().unwrap_or_default().to_string();
        let subject = certificate.subject();
        let name = subject.iter_common_name().next().map(text).unwrap_or_default();
        if name.is_empty() {
            return Ok(None);
        }
        let groups = subject.iter_organization().map(text).collect();
        Ok(Some(User { name, groups, ..User::default() }))
    }
}

/// The chain a configuration asks for.
pub fn chain(config: &Config, tokens: Arc<ServiceAccountTokens>) -> Chain {
    Chain { authenticators: vec![Arc::new(X509), tokens], anonymous: config.anonymous_auth }
}

/// Whom a request asks to act as.
pub struct Impersonation {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// Reads the `Impersonate-*` headers.
pub fn impersonation(headers: &HeaderMap) -> Result<Option<Impersonation>, ApiError> {
    let texts = |name: &str| -> Vec<String> {
        headers.get_all(name).iter().filter_map(|v| v.to_str().ok().map(str::to_string)).collect()
    };
    let mut extra = BTreeMap::new();
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix("impersonate-extra-") {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
            extra.insert(key, texts(name.as_str()));
        }
    }
    let wanted = Impersonation {
        name: texts("impersonate-user").pop().unwrap_or_default(),
        uid: texts("impersonate-uid").pop().unwrap_or_default(),
        groups: texts("impersonate-group"),
        extra,
    };
    let others = !wanted.uid.is_empty() || !wanted.groups.is_empty() || !wanted.extra.is_empty();
    match (wanted.name.is_empty(), others) {
        (true, false) => Ok(None),
        (true, true) => {
            Err(ApiError::internal("requested impersonation of groups, UID or extra without impersonating a user"))
        }
        _ => Ok(Some(wanted)),
    }
}

impl Impersonation {
    /// Everything `caller` must be allowed to do first.
    pub fn permissions(&self, caller: &User) -> Vec<authz::Attributes> {
        let ask = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| authz::Attributes {
            user: caller.clone(),
            verb: "impersonate".into(),
            is_resource: true,
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..authz::Attributes::default()
        };
        const GROUP: &str = "authentication.k8s.io";
        let account = self.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
        let mut asked = vec![match account {
            Some((namespace, name)) => ask("", "serviceaccounts", "", namespace, name),
            None => ask("", "users", "", "", &self.name),
        }];
        asked.extend(self.groups.iter().map(|g| ask("", "groups", "", "", g)));
        if !self.uid.is_empty() {
            asked.push(ask(GROUP, "uids", "", "", &self.uid));
        }
        for (key, values) in &self.extra {
            asked.extend(values.iter().map(|v| ask(GROUP, "userextras", key, "", v)));
        }
        asked
    }

    pub fn user(self) -> User {
        let mut user = User { name: self.name, uid: self.uid, groups: self.groups, extra: self.extra };
        let account = user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
        if let (Some((namespace, _)), true) = (account, user.groups.is_empty()) {
            user.groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
        }
        if user.name == ANONYMOUS && !user.in_group("system:unauthenticated") {
            user.groups.push("system:unauthenticated".into());
        }
        user.authenticated()
    }
}

pub struct Chain {
    pub authenticators: Vec<Arc<dyn Authenticator>>,
    pub anonymous: bool,
}

impl Chain {
    pub async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<User, ApiError> {
        let mut wrong = None;
        for authenticator in &self.authenticators {
            match authenticator.authenticate(credentials).await {
                Ok(Some(user)) => return Ok(user.authenticated()),
                Ok(None) => {}
                Err(e) => wrong = Some(e),
            }
        }
        match wrong {
            Some(e) => Err(e),
            // A credential nobody recognized is wrong, not absent.
            None if credentials.headers.contains_key(header::AUTHORIZATION) => Err(ApiError::unauthorized()),
            None if self.anonymous => Ok(User::anonymous()),
            None => Err(ApiError::unauthorized()),
        }
    }
}
