//! A transport under a service account of `kube-system`: the token is made by TokenRequest and renewed before it expires.
//! Used by a controller manager in a process of its own, where each controller has an account (upstream's
//! `--use-service-account-credentials`).
//! A token that the server has refused is not shown again.

use std::{sync::Arc, time::Duration};

use ::api::{ApiError, Resource};
use async_trait::async_trait;
use bytes::Bytes;
use env::Env;
use http::{Request, Response, StatusCode};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use crate::{Client, ListParams, ObjectList, Transport, WatchStream};

const NAMESPACE: &str = "kube-system";
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

pub struct ServiceAccountTransport<T> {
    /// Shows `token` with every request.
    inner: T,
    token: Arc<RwLock<String>>,
    /// Makes the account, if it is not there, and its tokens.
    owner: Client,
    account: String,
    env: Env,
    validity: Mutex<Option<Validity>>,
    /// One request for a token at a time.
    renewing: Semaphore,
}

/// In monotonic time.
#[derive(Clone, Copy)]
struct Validity {
    renew_at: Duration,
    expires_at: Duration,
}

impl<T: Transport> ServiceAccountTransport<T> {
    pub fn new(inner: T, token: Arc<RwLock<String>>, owner: Client, account: &str, env: Env) -> Self {
        let (account, validity) = (account.to_string(), Mutex::default());
        Self { inner, token, owner, account, env, validity, renewing: Semaphore::new(1) }
    }

    fn is_fresh(&self) -> bool {
        self.validity.lock().is_some_and(|validity| self.env.monotonic() < validity.renew_at)
    }

    async fn ensure_token(&self) -> Result<(), ApiError> {
        if self.is_fresh() {
            return Ok(());
        }
        let _turn = self.renewing.acquire().await.map_err(|e| ApiError::internal(e.to_string()))?;
        if self.is_fresh() {
            return Ok(());
        }
        let now = self.env.monotonic();
        match self.request_token().await {
            Ok((token, lifetime)) => {
                *self.token.write() = token;
                *self.validity.lock() = Some(Validity { renew_at: now + lifetime * 4 / 5, expires_at: now + lifetime });
                Ok(())
            }
            Err(error) => match *self.validity.lock() {
                Some(validity) if now < validity.expires_at => {
                    tracing::warn!(account = self.account, %error, "failed to renew a service account's token");
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    async fn request_token(&self) -> Result<(String, Duration), ApiError> {
        let accounts = self.owner.namespaced::<ServiceAccount>(NAMESPACE);
        if accounts.find(&self.account).await?.is_none() {
            let mut account = ServiceAccount::default();
            account.metadata.name = Some(self.account.clone());
            account.metadata.namespace = Some(NAMESPACE.into());
            match accounts.create(&account).await {
                Err(error) if !error.is_already_exists() => return Err(error),
                _ => {}
            }
        }
        let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_LIFETIME.as_secs() as i64), ..Default::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let made: TokenRequest = accounts.create_subresource(&self.account, "token", &request).await?;
        let status = made.status.ok_or_else(|| ApiError::internal("the answer to a TokenRequest has no status"))?;
        let left = status.expiration_timestamp.0.duration_since(self.env.now());
        let lifetime = Duration::try_from(left).unwrap_or_default().min(TOKEN_LIFETIME);
        Ok((status.token, lifetime))
    }
}

#[async_trait]
impl<T: Transport> Transport for ServiceAccountTransport<T> {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        self.ensure_token().await?;
        let answer = self.inner.send(request).await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            *self.validity.lock() = None;
        }
        Ok(answer)
    }

    async fn list(&self, r: &Resource, n: Option<&str>, params: &ListParams) -> Result<ObjectList, ApiError> {
        self.ensure_token().await?;
        self.inner.list(r, n, params).await
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        self.ensure_token().await?;
        self.inner.watch(resource, namespace, params, resource_version).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::json;

    use super::*;

    /// An API server of which only service accounts are known: what it was asked, and what it answers.
    #[derive(Clone, Default)]
    struct Server(Arc<Asked>);

    #[derive(Default)]
    struct Asked {
        requests: Mutex<Vec<String>>,
        tokens: Mutex<u32>,
        is_down: AtomicBool,
        /// Shown by the transport under test.
        token: Arc<RwLock<String>>,
        refuses: Mutex<String>,
    }

    fn answer(status: u16, body: serde_json::Value) -> Result<Response<Bytes>, ApiError> {
        Ok(Response::builder().status(status).body(body.to_string().into()).expect("an answer"))
    }

    #[async_trait]
    impl Transport for Server {
        async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
            let path = request.uri().path().to_string();
            if !path.contains("serviceaccounts") {
                let token = self.0.token.read().clone();
                let refused = token == *self.0.refuses.lock();
                self.0.requests.lock().push(format!("{path} by {token}"));
                return answer(if refused { 401 } else { 200 }, json!({}));
            }
            if self.0.is_down.load(Ordering::Relaxed) {
                return Err(ApiError::internal("down"));
            }
            let last = path.rsplit('/').next().unwrap_or_default();
            self.0.requests.lock().push(format!("{} {last}", request.method()));
            match (request.method().as_str(), last) {
                ("GET", _) if *self.0.tokens.lock() == 0 => answer(404, json!({ "reason": "NotFound", "code": 404 })),
                ("POST", "token") => {
                    let mut tokens = self.0.tokens.lock();
                    *tokens += 1;
                    let status =
                        json!({ "token": format!("t{tokens}"), "expirationTimestamp": "2030-01-01T00:00:00Z" });
                    answer(201, json!({ "spec": { "audiences": [] }, "status": status }))
                }
                _ => answer(200, json!({ "metadata": { "name": "ttl-controller" } })),
            }
        }

        async fn list(&self, _: &Resource, _: Option<&str>, _: &ListParams) -> Result<ObjectList, ApiError> {
            Ok(ObjectList::default())
        }

        async fn watch(&self, _: &Resource, _: Option<&str>, _: &ListParams, _: &str) -> Result<WatchStream, ApiError> {
            Err(ApiError::internal("nothing is watched"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_made_once_renewed_in_time_and_replaced_when_refused() {
        let (server, env) = (Server::default(), Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1));
        let owner = Client::new(server.clone());
        let token = server.0.token.clone();
        let transport = ServiceAccountTransport::new(server.clone(), token, owner, "ttl-controller", env.clone());
        let ask = async || transport.send(Request::get("/api").body(Bytes::new()).unwrap()).await.map(|a| a.status());
        let asked = || std::mem::take(&mut *server.0.requests.lock());
        ask().await.unwrap();
        ask().await.unwrap();
        let made = ["GET ttl-controller", "POST serviceaccounts", "POST token", "/api by t1", "/api by t1"];
        assert_eq!(asked(), made);

        env.sleep(TOKEN_LIFETIME * 4 / 5).await;
        ask().await.unwrap();
        assert_eq!(asked(), ["GET ttl-controller", "POST token", "/api by t2"]);

        // The old one will do while it is good.
        env.sleep(TOKEN_LIFETIME * 9 / 10).await;
        server.0.is_down.store(true, Ordering::Relaxed);
        ask().await.unwrap();
        assert_eq!(asked(), ["/api by t2"]);
        env.sleep(TOKEN_LIFETIME / 5).await;
        assert!(ask().await.is_err() && asked().is_empty(), "nothing is shown that has expired");

        server.0.is_down.store(false, Ordering::Relaxed);
        *server.0.refuses.lock() = "t3".into();
        assert_eq!(ask().await.unwrap(), StatusCode::UNAUTHORIZED);
        ask().await.unwrap();
        assert_eq!(asked().last().map(String::as_str), Some("/api by t4"));
    }
}
