//! The transport into the API server of this process: no sockets, no copies, but the whole pipeline.
//! Glues `client` to `apiserver` for `minke`, for `sim` and for tests.
//! Skips TLS and nothing else; every request carries its component's own identity.

use std::sync::Arc;

use api::{ApiError, Resource};
use apiserver::{ApiServer, InProcess, ObjectStream, authn::User, body};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, ListParams, ObjectList, Transport, WatchStream};
use http::{HeaderValue, Request, Response, header::USER_AGENT};

/// No answer to a component of ours is larger.
const ANSWER_BYTES_MAX: usize = 1 << 30;

pub struct InProcessTransport {
    server: Arc<ApiServer>,
    user: User,
    user_agent: Option<HeaderValue>,
}

/// The program that upstream runs under an identity of a component: field managers are called after it.
fn program(user: &str) -> Option<HeaderValue> {
    let name = match user {
        "system:kube-controller-manager" => "kube-controller-manager",
        "system:kube-scheduler" => "kube-scheduler",
        "system:kube-proxy" => "kube-proxy",
        user if user.starts_with("system:node:") => "kubelet",
        user if user.starts_with("system:serviceaccount:kube-system:") => "kube-controller-manager",
        _ => return None,
    };
    Some(HeaderValue::from_static(name))
}

/// A client under `user`, member of `groups` and of the group of all authenticated users.
pub fn client(server: &Arc<ApiServer>, user: &str, groups: &[&str]) -> Client {
    let groups = groups.iter().copied().chain(["system:authenticated"]).map(str::to_string).collect();
    client_as(server, User { name: user.to_string(), groups, ..User::default() })
}

/// A client under somebody who is known already.
pub fn client_as(server: &Arc<ApiServer>, user: User) -> Client {
    let user_agent = program(&user.name);
    Client::new(InProcessTransport { server: server.clone(), user, user_agent })
}

/// A client under the service account `name` of `kube-system`, as a controller's.
pub fn service_account_client(server: &Arc<ApiServer>, name: &str) -> Client {
    let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system"];
    client(server, &format!("system:serviceaccount:kube-system:{name}"), &groups)
}

impl InProcessTransport {
    async fn call(&self, mut request: Request<Bytes>) -> Response<apiserver::Body> {
        request.extensions_mut().insert(InProcess(self.user.clone()));
        if let Some(name) = &self.user_agent {
            request.headers_mut().entry(USER_AGENT).or_insert(name.clone());
        }
        self.server.handle(request.map(body::full)).await
    }

    async fn get(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        query: &str,
    ) -> Result<Response<apiserver::Body>, ApiError> {
        let uri = format!("{}?{query}", resource.path(namespace, None));
        let request = Request::get(uri)
            .body(Bytes::new())
            .map_err(|e| ApiError::bad_request(format!("couldn't make a request: {e}")))?;
        let response = self.call(request).await;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        Err(ApiError::from_status(status, &body::read_all(response.into_body(), ANSWER_BYTES_MAX).await?))
    }
}

#[async_trait]
impl Transport for InProcessTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let (parts, content) = self.call(request).await.into_parts();
        Ok(Response::from_parts(parts, body::read_all(content, ANSWER_BYTES_MAX).await?))
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        let response = self.get(resource, namespace, &params.query()).await?;
        let list = response.extensions().get::<apiserver::ObjectList>().ok_or_else(|| missing("list"))?;
        Ok(ObjectList { objects: list.objects.to_vec(), resource_version: list.resource_version.to_string() })
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        let response = self.get(resource, namespace, &params.watch_query(resource_version)).await?;
        response.extensions().get::<ObjectStream>().and_then(ObjectStream::take).ok_or_else(|| missing("watch"))
    }
}

fn missing(what: &str) -> ApiError {
    ApiError::internal(format!("the answer to an in-process {what} carries no objects"))
}
