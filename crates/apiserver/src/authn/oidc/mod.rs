//! Tokens of OpenID Connect issuers: verified by the issuer's keys, their claims made into a user.
//! A row of the chain in `authn`; `configuration` says which issuers, `key_set` has their keys, `claims` reads the tokens.
//! A claim that is missing, of the wrong type or refused by a rule makes nobody of the bearer.

pub mod configuration;

mod claims;
mod distributed_claims;
mod issuer_metrics;
mod key_set;

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jsonwebtoken::Algorithm;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use api::{ApiError, feature_gates::JWKS_METRICS};
use env::Env;

use self::{
    configuration::{Anonymous, AuthenticationConfiguration, CompiledExpressions, JwtAuthenticator},
    distributed_claims::ClaimResolver,
    issuer_metrics::IssuerMetrics,
    key_set::KeySet,
};
use super::{AuthenticatorResponse, TokenAuthenticator, User, log_throttle::LogThrottle};
use crate::{
    server::{
        config::{Config, Oidc},
        config_document,
        reload::{self, ReloadMetrics, Reloadable, WatchedFiles},
    },
    storage::expiring::Expiring,
};

/// A token is verified again after this, as upstream does: long enough for a client that asks again and again.
const VERIFIED_TTL: Duration = Duration::from_secs(10);
const CACHED_TOKENS_MAX: usize = 8192;
/// A new configuration whose issuers can't be reached within this is not taken over.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// What `--oidc-signing-algs` and configuration files may ask for. ES512 is refused: no key of that kind can be read.
pub const ALGORITHMS: [(&str, Algorithm); 8] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
];

struct IssuerAuthenticator {
    config: JwtAuthenticator,
    expressions: CompiledExpressions,
    algorithms: Arc<[Algorithm]>,
    keys: Arc<KeySet>,
    metrics: IssuerMetrics,
    /// Of the groups, where a claim says them.
    resolver: Option<ClaimResolver>,
}

/// What issuers work with.
#[derive(Clone)]
struct Context {
    env: Env,
    reloads: ReloadMetrics,
    /// Whether fetches of keys are shown.
    shows_keys: bool,
}

/// Everything one configuration says.
pub struct Issuers {
    by_url: HashMap<String, Arc<IssuerAuthenticator>>,
    verified: Expiring<[u8; 32], Arc<User>>,
    pub anonymous: Option<Anonymous>,
}

impl Issuers {
    fn new(
        config: AuthenticationConfiguration,
        own_issuers: &[String],
        algorithms: Arc<[Algorithm]>,
        context: &Context,
    ) -> Result<Self, String> {
        let Context { env, reloads, shows_keys } = context;
        let compiled = config.compile(own_issuers);
        let compiled = compiled.map_err(|errors| config_document::mistakes(&config.source, &errors))?;
        let mut by_url = HashMap::new();
        for (config, expressions) in config.jwt.into_iter().zip(compiled) {
            let metrics = IssuerMetrics::new(&config.issuer.url, *shows_keys, reloads, env);
            let keys = KeySet::new(&config.issuer, Some(metrics.clone()), env)?;
            let algorithms = algorithms.clone();
            let url = config.issuer.url.clone();
            let claim = config.claim_mappings.groups.claim.as_str();
            let resolver = (!claim.is_empty()).then(|| ClaimResolver::new(claim, &config.issuer, env)).transpose()?;
            by_url.insert(
                url,
                Arc::new(IssuerAuthenticator { config, expressions, algorithms, keys, metrics, resolver }),
            );
        }
        Ok(Self { by_url, verified: Expiring::new(CACHED_TOKENS_MAX), anonymous: config.anonymous })
    }

    /// Fails if an issuer has no keys for us.
    async fn ready(&self) -> Result<(), String> {
        for issuer in self.by_url.values() {
            issuer.keys.ready().await?;
        }
        Ok(())
    }
}

pub struct JwtTokens {
    issuers: Arc<Reloadable<Issuers>>,
    log: LogThrottle,
    env: Env,
}

impl JwtTokens {
    /// `None` if nothing is configured.
    pub fn new(config: &Config, env: &Env, metrics: &ReloadMetrics) -> Result<Option<Self>, String> {
        let shows_keys = config.feature_gates.enabled(JWKS_METRICS);
        let context = Context { env: env.clone(), reloads: metrics.clone(), shows_keys };
        let all: Arc<[Algorithm]> = ALGORITHMS.iter().map(|(_, algorithm)| *algorithm).collect();
        let issuers = match &config.authentication.oidc {
            None => return Ok(None),
            Some(Oidc::Flags { authenticator, signing_algs }) => {
                let find = |name: &String| {
                    let found = ALGORITHMS.iter().find(|(known, _)| known == name);
                    found.map(|(_, a)| *a).ok_or_else(|| format!("unsupported signing alg: {name:?}"))
                };
                let algorithms = signing_algs.iter().map(find).collect::<Result<Arc<[_]>, _>>()?;
                let config_of = AuthenticationConfiguration::single(*authenticator.clone());
                Reloadable::new(Issuers::new(config_of, &config.service_accounts.issuers(), algorithms, &context)?)
            }
            Some(Oidc::File(path)) => from_file(path, config, all, &context)?,
        };
        issuers.current().by_url.values().for_each(|issuer| issuer.keys.prepare());
        Ok(Some(Self { issuers, log: LogThrottle::default(), env: env.clone() }))
    }

    /// What the file says of requests without credentials.
    pub fn anonymous(&self) -> Option<Anonymous> {
        self.issuers.current().anonymous.clone()
    }
}

fn from_file(
    path: &Path,
    config: &Config,
    algorithms: Arc<[Algorithm]>,
    context: &Context,
) -> Result<Arc<Reloadable<Issuers>>, String> {
    let (env, metrics) = (&context.env, &context.reloads);
    let own = config.service_accounts.issuers();
    let files = WatchedFiles::new(vec![path.to_owned()]);
    let load = {
        let (path, context) = (path.to_owned(), context.clone());
        move || {
            let config = AuthenticationConfiguration::load(&path)?;
            Issuers::new(config, &own, algorithms.clone(), &context)
                .map_err(|e| format!("authentication configuration {}: {e}", path.display()))
        }
    };
    let issuers = Reloadable::new(load()?);
    let anonymous = issuers.current().anonymous.clone();
    let (waiting, shown) = (env.clone(), metrics.metrics.clone());
    reload::follow(&issuers, files, &reload::AUTHENTICATION, metrics, env, move || {
        let (loaded, anonymous, env, shown) = (load(), anonymous.clone(), waiting.clone(), shown.clone());
        Box::pin(async move {
            let loaded = loaded?;
            if loaded.anonymous != anonymous {
                return Err("anonymous: Forbidden: changed from initial configuration file".into());
            }
            let ready = env.timeout(RELOAD_TIMEOUT, loaded.ready()).await;
            ready.unwrap_or_else(|| Err("the issuers did not answer in time".into()))?;
            let issuers: Vec<&str> = loaded.by_url.keys().map(String::as_str).collect();
            IssuerMetrics::retain(&shown, &issuers);
            Ok(loaded)
        })
    });
    Ok(issuers)
}

#[async_trait]
impl TokenAuthenticator for JwtTokens {
    async fn token(&self, token: &str, _: &[String]) -> Result<Option<AuthenticatorResponse>, ApiError> {
        let issuers = self.issuers.current();
        let digest: [u8; 32] = Sha256::digest(token).into();
        let now = self.env.monotonic();
        if let Some(user) = issuers.verified.get(&digest, now) {
            return Ok(Some(User::clone(&user).into()));
        }
        let Some(issuer) = untrusted_issuer(token).and_then(|url| issuers.by_url.get(&url)) else { return Ok(None) };
        let wall = self.env.now().as_second();
        let verified = issuer.verify(token, wall).await;
        issuer.metrics.verified(verified.is_ok(), self.env.monotonic().saturating_sub(now));
        match verified {
            Ok((user, expires)) => {
                let lasts = VERIFIED_TTL.min(Duration::from_secs((expires - wall).max(0) as u64));
                issuers.verified.insert(digest, Arc::new(user.clone()), now + lasts, now);
                Ok(Some(user.into()))
            }
            Err(error) => {
                if let Some(left_out) = self.log.passes(&self.env) {
                    let issuer = &issuer.config.issuer.url;
                    tracing::warn!(issuer, error, left_out, "unable to authenticate the request");
                }
                Err(ApiError::unauthorized())
            }
        }
    }
}

impl IssuerAuthenticator {
    /// Whose token it is and when it expires.
    async fn verify(&self, token: &str, now: i64) -> Result<(User, i64), String> {
        let mut claims = self.keys.claims(token, &self.algorithms).await?;
        let issuer = &self.config.issuer;
        // Nobody is asked for the sake of a token that is not good.
        claims::expiry(&issuer.url, &issuer.audiences, &claims, now)?;
        let sources = distributed_claims::sources(&claims)?;
        if let Some(resolver) = &self.resolver {
            let expanded = resolver.expand(&mut claims, &sources, &self.algorithms, now).await;
            expanded.map_err(|e| format!("oidc: could not expand distributed claims: {e}"))?;
        }
        claims::user(&self.config, &self.expressions, claims, now)
    }
}

/// Who the token says issued it. Nobody has verified that yet.
fn untrusted_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Issuer {
        iss: String,
    }
    let mut parts = token.split('.');
    let (_, payload, _, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else { return None };
    let body = BASE64_URL_SAFE_NO_PAD.decode(payload).ok()?;
    let issuer = serde_json::from_slice::<Issuer>(&body).ok()?.iss;
    Some(claims::full_issuer(&issuer).to_string())
}
