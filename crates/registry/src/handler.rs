//! Requests to the registry, one function per route.
//! Called by `serve` for each listener; files are `storage`'s.
//! Holds no request in memory but manifests, which have a limit.

use std::{io::SeekFrom, sync::Arc};

use bytes::Bytes;
use env::Env;
use futures::{StreamExt, future::BoxFuture};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::json;
use serve::{Handler, Peer};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use crate::{
    Access, Authorizer,
    answers::{Body, Problem, body_answer, bytes_answer, empty_answer, json_answer, set},
    digest::Digest,
    garbage::BLOB_AGE_MIN,
    routes::{Reference, Route, RouteError, repository},
    storage::{MANIFEST_BYTES_MAX, Storage},
    uploads::UploadTurn,
};

const PAGE_ENTRIES_MAX: usize = 1000;
const DIGEST_HEADER: &str = "docker-content-digest";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

pub struct RegistryHandler {
    storage: Arc<Storage>,
    env: Env,
    authorizer: Authorizer,
    /// Answers only to names of this machine itself.
    is_loopback: bool,
}

impl Handler for RegistryHandler {
    type Body = Body;

    fn handle(self: &Arc<Self>, request: Request<Incoming>, peer: &Arc<Peer>) -> BoxFuture<'static, Response<Body>> {
        let (handler, peer) = (self.clone(), peer.clone());
        Box::pin(async move {
            match handler.answer(request, &peer).await {
                Ok(answer) => answer,
                Err(problem) => problem.answer(),
            }
        })
    }
}

impl RegistryHandler {
    pub fn new(storage: Arc<Storage>, env: Env, authorizer: Authorizer, is_loopback: bool) -> Self {
        Self { storage, env, authorizer, is_loopback }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>, peer: &Peer) -> Result<Response<Body>, Problem> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match (self.authorizer)(peer) {
            Access::Push => {}
            Access::Pull if is_read => {}
            Access::Pull => return Err(Problem::Denied("push to localhost on the machine of the control plane")),
            Access::Refused => return Err(Problem::Denied("show a certificate of a node or an admin of the cluster")),
        }
        if self.is_loopback && !is_own_name(&request) {
            return Err(Problem::Denied("call this registry localhost or 127.0.0.1"));
        }
        if self.is_loopback && request.headers().contains_key(header::ORIGIN) {
            return Err(Problem::Denied("pages in a browser have nothing to ask of it"));
        }
        let route = Route::parse(request.uri().path()).map_err(|error| match error {
            RouteError::NotFound => Problem::NotFound,
            RouteError::Invalid => Problem::NameInvalid,
        })?;
        let method = request.method().clone();
        match (&route, &method) {
            (Route::Root, &Method::GET | &Method::HEAD) => Ok(json_answer(StatusCode::OK, &json!({}))),
            (Route::Catalog, &Method::GET) => {
                let storage = self.storage.clone();
                let names = blocking(move || Ok(storage.repositories())).await?;
                Ok(page(names, "repositories", None, &request))
            }
            (Route::Tags { name }, &Method::GET) => {
                let (storage, of) = (self.storage.clone(), name.clone());
                let tags = blocking(move || storage.tags(&of)).await?;
                Ok(page(tags, "tags", Some(name), &request))
            }
            (Route::Blob { digest, .. }, &Method::GET | &Method::HEAD) => self.blob(digest, &request).await,
            (Route::Uploads { name }, &Method::POST) => self.start(name.clone(), request).await,
            (Route::Upload { name, id }, _) => {
                let (name, id) = (name.clone(), id.clone());
                self.upload(&name, &id, request).await
            }
            (Route::Manifest { name, reference }, _) => {
                let (name, reference) = (name.clone(), reference.clone());
                self.manifest(name, reference, request).await
            }
            (Route::Referrers { name, digest }, &Method::GET) => {
                self.referrers(name.clone(), digest.clone(), &request).await
            }
            _ => Err(Problem::Unsupported),
        }
    }

    /// All of it, or one range of bytes.
    async fn blob(&self, digest: &Digest, request: &Request<Incoming>) -> Result<Response<Body>, Problem> {
        let size = self.storage.blob_size(digest)?;
        let range = request.headers().get(header::RANGE).and_then(|value| byte_range(value.to_str().ok()?, size));
        let (status, from, length) = match range {
            Some(Some((from, to))) => (StatusCode::PARTIAL_CONTENT, from, to - from + 1),
            Some(None) => {
                let mut answer = empty_answer(StatusCode::RANGE_NOT_SATISFIABLE);
                set(&mut answer, header::CONTENT_RANGE, &format!("bytes */{size}"));
                return Ok(answer);
            }
            None => (StatusCode::OK, 0, size),
        };
        let mut answer = match *request.method() == Method::HEAD {
            true => empty_answer(status),
            false => {
                let mut file = tokio::fs::File::open(self.storage.blob(digest)).await?;
                file.seek(SeekFrom::Start(from)).await?;
                let frames =
                    ReaderStream::with_capacity(file.take(length), 64 << 10).map(|chunk| chunk.map(Frame::data));
                body_answer(status, StreamBody::new(frames).boxed_unsync())
            }
        };
        set(&mut answer, header::CONTENT_LENGTH, &length.to_string());
        set(&mut answer, header::CONTENT_TYPE, "application/octet-stream");
        set(&mut answer, header::ACCEPT_RANGES, "bytes");
        set(&mut answer, DIGEST_HEADER, &digest.to_string());
        if status == StatusCode::PARTIAL_CONTENT {
            set(&mut answer, header::CONTENT_RANGE, &format!("bytes {from}-{}/{size}", from + length - 1));
        }
        Ok(answer)
    }

    /// Begins an upload; one with its digest is done at once, and a blob that another repository has is here already.
    async fn start(&self, name: String, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
        if let Some(digest) = query(&request, "mount").as_deref().and_then(Digest::parse)
            && self.storage.blob_size(&digest).is_ok()
        {
            return Ok(created(&name, &digest));
        }
        let digest = query(&request, "digest");
        let id = self.storage.start_upload(&self.env)?;
        match digest {
            None => Ok(accepted(&name, &id, 0)),
            Some(digest) => {
                let turn = self.storage.take_upload(&id)?;
                self.storage.append(&turn, None, request.into_body()).await?;
                self.finish(&name, turn, Some(digest)).await
            }
        }
    }

    async fn upload(&self, name: &str, id: &str, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
        match *request.method() {
            Method::GET => {
                let mut answer = accepted(name, id, self.storage.upload_size(id)?);
                *answer.status_mut() = StatusCode::NO_CONTENT;
                Ok(answer)
            }
            Method::PATCH => {
                let from = chunk_start(request.headers())?;
                let turn = self.storage.take_upload(id)?;
                let size = self.storage.append(&turn, from, request.into_body()).await?;
                Ok(accepted(name, id, size))
            }
            Method::PUT => {
                let (digest, from) = (query(&request, "digest"), chunk_start(request.headers())?);
                let turn = self.storage.take_upload(id)?;
                self.storage.append(&turn, from, request.into_body()).await?;
                self.finish(name, turn, digest).await
            }
            Method::DELETE => {
                self.storage.cancel_upload(&self.storage.take_upload(id)?)?;
                Ok(empty_answer(StatusCode::NO_CONTENT))
            }
            _ => Err(Problem::Unsupported),
        }
    }

    async fn finish(&self, name: &str, turn: UploadTurn, digest: Option<String>) -> Result<Response<Body>, Problem> {
        let digest = digest.as_deref().and_then(Digest::parse).ok_or(Problem::DigestInvalid)?;
        let (storage, wanted) = (self.storage.clone(), digest.clone());
        // With its turn: who asked may leave in the middle of it.
        blocking(move || storage.finish_upload(&turn, &wanted)).await?;
        Ok(created(name, &digest))
    }

    async fn manifest(
        &self,
        name: String,
        reference: Reference,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Problem> {
        let storage = self.storage.clone();
        match *request.method() {
            Method::GET | Method::HEAD => {
                let found = blocking(move || storage.manifest(&name, &reference)).await?;
                let size = found.bytes.len();
                let mut answer = match *request.method() == Method::HEAD {
                    true => empty_answer(StatusCode::OK),
                    false => bytes_answer(StatusCode::OK, Bytes::from(found.bytes)),
                };
                set(&mut answer, header::CONTENT_LENGTH, &size.to_string());
                set(&mut answer, header::CONTENT_TYPE, &found.media_type);
                set(&mut answer, DIGEST_HEADER, &found.digest.to_string());
                Ok(answer)
            }
            Method::PUT => {
                let media_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
                let media_type = media_type.map(str::to_string);
                let media_type = media_type.ok_or_else(|| Problem::ManifestInvalid("it has no Content-Type".into()))?;
                let body = Limited::new(request.into_body(), MANIFEST_BYTES_MAX).collect().await;
                let bytes = body.map_err(|error| Problem::ManifestInvalid(error.to_string()))?.to_bytes();
                let of = name.clone();
                let kept = blocking(move || storage.put_manifest(&of, &reference, &media_type, &bytes)).await;
                let (digest, subject) = kept?;
                let mut answer = empty_answer(StatusCode::CREATED);
                set(&mut answer, header::LOCATION, &format!("/v2/{name}/manifests/{digest}"));
                set(&mut answer, DIGEST_HEADER, &digest.to_string());
                if let Some(subject) = subject {
                    set(&mut answer, "oci-subject", &subject.to_string());
                }
                Ok(answer)
            }
            Method::DELETE => {
                let env = self.env.clone();
                blocking(move || {
                    storage.delete_manifest(&name, &reference)?;
                    let removed = storage.collect_garbage(BLOB_AGE_MIN, &env)?;
                    tracing::debug!(removed, repository = name, "removed blobs that nothing names");
                    Ok(())
                })
                .await?;
                Ok(empty_answer(StatusCode::ACCEPTED))
            }
            _ => Err(Problem::Unsupported),
        }
    }

    async fn referrers(
        &self,
        name: String,
        digest: Digest,
        request: &Request<Incoming>,
    ) -> Result<Response<Body>, Problem> {
        let (storage, wanted) = (self.storage.clone(), query(request, "artifactType"));
        let mut found = blocking(move || Ok(storage.referrers(&name, &digest))).await?;
        if let Some(wanted) = &wanted {
            found.retain(|descriptor| descriptor["artifactType"] == wanted.as_str());
        }
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": found });
        let mut answer = json_answer(StatusCode::OK, &index);
        set(&mut answer, header::CONTENT_TYPE, INDEX_TYPE);
        if wanted.is_some() {
            set(&mut answer, "oci-filters-applied", "artifactType");
        }
        Ok(answer)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Problem> + Send + 'static) -> Result<T, Problem> {
    env::spawn_blocking(work).await.map_err(|error| Problem::Io(std::io::Error::other(error)))?
}

fn is_own_name<B>(request: &Request<B>) -> bool {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or(request.uri().authority().map(|authority| authority.as_str())).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn query<B>(request: &Request<B>, name: &str) -> Option<String> {
    let pairs = request.uri().query()?.split('&').filter_map(|pair| pair.split_once('='));
    let found = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()?;
    Some(percent_encoding::percent_decode_str(found).decode_utf8_lossy().into_owned())
}

/// `Content-Range: 100-199`: where the chunk goes.
fn chunk_start(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(header::CONTENT_RANGE) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let start = text.trim_start_matches("bytes ").split('-').next().and_then(|start| start.parse().ok());
    start.map(Some).ok_or_else(|| Problem::UploadInvalid(format!("Content-Range {text:?} is not START-END")))
}

/// `bytes=0-99` within `size`: none if it is to be left aside, `Some(None)` if it can't be fulfilled.
fn byte_range(text: &str, size: u64) -> Option<Option<(u64, u64)>> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    if to.contains(',') || (from.is_empty() && to.is_empty()) {
        return None;
    }
    let range = match (from, to) {
        ("", last) => (size.saturating_sub(last.parse().ok()?), size.checked_sub(1)?),
        (from, "") => (from.parse().ok()?, size.checked_sub(1)?),
        (from, to) => (from.parse().ok()?, to.parse::<u64>().ok()?.min(size.checked_sub(1)?)),
    };
    Some((range.0 <= range.1).then_some(range))
}

fn accepted(name: &str, id: &str, size: u64) -> Response<Body> {
    let mut answer = empty_answer(StatusCode::ACCEPTED);
    set(&mut answer, header::LOCATION, &format!("/v2/{name}/blobs/uploads/{id}"));
    set(&mut answer, header::RANGE, &format!("0-{}", size.saturating_sub(1)));
    set(&mut answer, "docker-upload-uuid", id);
    set(&mut answer, header::CONTENT_LENGTH, "0");
    answer
}

fn created(name: &str, digest: &Digest) -> Response<Body> {
    let mut answer = empty_answer(StatusCode::CREATED);
    set(&mut answer, header::LOCATION, &format!("/v2/{name}/blobs/{digest}"));
    set(&mut answer, DIGEST_HEADER, &digest.to_string());
    set(&mut answer, header::CONTENT_LENGTH, "0");
    answer
}

/// Names behind `last`, at most `n` of them, with a link to the rest.
fn page(names: Vec<String>, field: &str, name: Option<&str>, request: &Request<Incoming>) -> Response<Body> {
    let last = query(request, "last").unwrap_or_default();
    let wanted = query(request, "n").and_then(|n| n.parse().ok()).unwrap_or(PAGE_ENTRIES_MAX).min(PAGE_ENTRIES_MAX);
    let rest: Vec<String> = names.into_iter().filter(|entry| *entry > last).collect();
    let shown = &rest[..wanted.min(rest.len())];
    let mut body = json!({ field: shown });
    if let Some(name) = name.and_then(repository) {
        body["name"] = name.into();
    }
    let mut answer = json_answer(StatusCode::OK, &body);
    if let Some(next) = shown.last().filter(|_| shown.len() < rest.len()) {
        let path = request.uri().path();
        let next = percent_encoding::utf8_percent_encode(next, percent_encoding::NON_ALPHANUMERIC);
        set(&mut answer, header::LINK, &format!("<{path}?n={wanted}&last={next}>; rel=\"next\""));
    }
    answer
}

#[cfg(test)]
#[path = "handler_tests.rs"]
mod tests;
