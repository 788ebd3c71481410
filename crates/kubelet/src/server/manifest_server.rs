//! Where somebody on this machine submits static pods: `/manifests` lists them, `/manifests/NAME` is one of them.
//! HTTPS on loopback, off unless a port is given; manifests go to `sources::submission`.
//! Every request is authenticated and authorized as `nodes/manifests`, which no built-in role but cluster-admin has.

use std::sync::Arc;

use api::{ApiError, Reason};
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::json;
use serve::{Handler, Peer};

use super::{Body, auth::Auth, json_answer, refusal, text};
use crate::sources::submission::{SUBMITTED_BYTES_MAX, SubmissionError, Submissions};

pub struct ManifestServer {
    pub auth: Arc<Auth>,
    pub submissions: Arc<Submissions>,
}

impl Handler for ManifestServer {
    type Body = Body;

    fn handle(self: &Arc<Self>, request: Request<Incoming>, peer: &Arc<Peer>) -> BoxFuture<'static, Response<Body>> {
        let (server, peer) = (self.clone(), peer.clone());
        Box::pin(async move {
            let certificate = peer.certificates.as_ref().and_then(|chain| chain.first());
            let certificate = certificate.map(|certificate| certificate.as_ref());
            let (method, path) = (request.method().clone(), request.uri().path().to_string());
            let allowed = server.auth.check(certificate, request.headers(), &method, &path).await;
            let answer = match allowed {
                Ok(()) => server.answer(request, method, &path).await,
                Err(error) => Err(error),
            };
            answer.unwrap_or_else(|error| refusal(&error))
        })
    }
}

impl ManifestServer {
    async fn answer<B>(&self, request: Request<B>, method: Method, path: &str) -> Result<Response<Body>, ApiError>
    where
        B: hyper::body::Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let body = match method {
            Method::PUT => read(request).await?,
            _ => String::new(),
        };
        let (submissions, name) = match segments.as_slice() {
            ["healthz"] => return Ok(text("ok".into())),
            ["manifests"] => (self.submissions.clone(), None),
            ["manifests", name] => (self.submissions.clone(), Some(name.to_string())),
            _ => return Err(ApiError::new(Reason::NotFound, "404 page not found")),
        };
        let work = move || act(&submissions, &method, name.as_deref(), &body);
        env::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))?
    }
}

fn act(submissions: &Submissions, method: &Method, name: Option<&str>, body: &str) -> Result<Response<Body>, ApiError> {
    let missing = |name: &str| ApiError::new(Reason::NotFound, format!("manifest {name:?} not found"));
    match (method, name) {
        (&Method::GET, None) => Ok(json_answer(&json!({ "manifests": submissions.names() }))),
        (&Method::GET, Some(name)) => submissions.get(name).map(text).ok_or_else(|| missing(name)),
        (&Method::PUT, Some(name)) => {
            let pods = submissions.put(name, body).map_err(refused)?;
            let named = |pod: &k8s_openapi::api::core::v1::Pod| {
                let meta = &pod.metadata;
                json!({"namespace": meta.namespace, "name": meta.name, "uid": meta.uid})
            };
            Ok(json_answer(&json!({ "pods": pods.iter().map(named).collect::<Vec<_>>() })))
        }
        (&Method::DELETE, Some(name)) => match submissions.remove(name).map_err(refused)? {
            true => Ok(json_answer(&json!({ "removed": name }))),
            false => Err(missing(name)),
        },
        _ => Err(ApiError::new(Reason::MethodNotAllowed, "GET, PUT and DELETE are known of /manifests/NAME")),
    }
}

fn refused(error: SubmissionError) -> ApiError {
    match error {
        SubmissionError::Keep(error) => ApiError::internal(format!("failed to keep the manifest: {error}")),
        other => ApiError::bad_request(other.to_string()),
    }
}

async fn read<B>(request: Request<B>) -> Result<String, ApiError>
where
    B: hyper::body::Body + Send,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let body = Limited::new(request.into_body(), SUBMITTED_BYTES_MAX).collect().await;
    let bytes = body.map_err(|error| ApiError::bad_request(format!("failed to read the manifest: {error}")))?;
    String::from_utf8(bytes.to_bytes().to_vec()).map_err(|_| ApiError::bad_request("the manifest is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use env::Env;
    use http_body_util::Full;
    use tokio::sync::mpsc;

    use super::*;
    use crate::config::Config;

    const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}";

    #[tokio::test]
    async fn manifests_are_put_listed_and_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { root_dir: dir.path().into(), node_name: "node".into(), ..Config::default() };
        let (sender, _lists) = mpsc::channel(16);
        let submissions = Submissions::new(Arc::new(config), Env::real(), sender);
        let starting = submissions.clone();
        env::spawn_blocking(move || starting.start()).await.unwrap().unwrap();
        let check = async |method: Method, path: &str, body: &str, code: u16, part: &str| {
            let name = path.strip_prefix("/manifests/").map(String::from);
            let (submissions, asked) = (submissions.clone(), method.clone());
            let body = match read(Request::new(Full::<bytes::Bytes>::from(body.to_string()))).await {
                Ok(body) => body,
                Err(error) => return assert_eq!(error.code, code, "{method} {path}"),
            };
            let acted = env::spawn_blocking(move || act(&submissions, &asked, name.as_deref(), &body)).await.unwrap();
            let (found, told) = match acted {
                Ok(response) => {
                    let body = response.into_body().collect().await.unwrap().to_bytes();
                    (200, String::from_utf8_lossy(&body).into_owned())
                }
                Err(error) => (error.code, error.message.clone()),
            };
            assert!(found == code && told.contains(part), "{method} {path}: {found} {told}");
        };
        check(Method::GET, "/manifests", "", 200, "{\"manifests\":[]}").await;
        check(Method::PUT, "/manifests/web", POD, 200, "\"name\":\"a-node\"").await;
        check(Method::GET, "/manifests/web", "", 200, POD).await;
        check(Method::GET, "/manifests", "", 200, "[\"web\"]").await;
        check(Method::PUT, "/manifests/web", "kind: Service", 400, "it is a Service").await;
        check(Method::PUT, "/manifests/..", POD, 400, "no name of a manifest").await;
        check(Method::PUT, "/manifests/large", &"x".repeat(SUBMITTED_BYTES_MAX + 1), 400, "").await;
        check(Method::POST, "/manifests", POD, 405, "").await;
        check(Method::DELETE, "/manifests/web", "", 200, "web").await;
        check(Method::DELETE, "/manifests/web", "", 404, "not found").await;
    }
}
