//! `/openapi/v2` and `/openapi/v3`: the schemas of everything served.
//! Read by kubectl (validation, explain, apply) and by client generators; the documents come from `api::openapi`.
//! An address with a hash in it never changes its answer.

pub mod merge;

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use api::{ApiError, Resource};
use env::Env;

use crate::{
    discovery::served::Set,
    handlers::{
        negotiate,
        respond::{Reply, content_response},
    },
    registry::not_found_path,
    request::{body::Body, call::Call},
    server::pipeline::ApiServer,
};

const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// How long a document stays after it was made: clients ask for several at once and then not for a long time.
const KEPT: Duration = Duration::from_secs(60);

/// Documents made lately for one generation of the served resources: they are large, so only on demand.
pub struct Documents {
    made: Arc<Mutex<Made>>,
    /// Making one takes many times its size, so one is made at a time; whoever waits finds it made.
    making: Semaphore,
}

#[derive(Default)]
struct Made {
    generation: u64,
    documents: HashMap<String, Bytes>,
}

impl Default for Documents {
    fn default() -> Self {
        Self { made: Arc::default(), making: Semaphore::new(1) }
    }
}

impl Documents {
    async fn get(
        &self,
        env: &Env,
        generation: u64,
        name: &str,
        make: impl FnOnce() -> Bytes + Send + 'static,
    ) -> Result<Bytes, ApiError> {
        if let Some(found) = self.find(generation, name) {
            return Ok(found);
        }
        let failed = || ApiError::internal(format!("failed to make the document {name}"));
        let _alone = self.making.acquire().await.map_err(|_| failed())?;
        if let Some(found) = self.find(generation, name) {
            return Ok(found);
        }
        let document = env::spawn_blocking(make).await.map_err(|_| failed())?;
        let mut made = self.made.lock();
        if made.generation == generation {
            made.documents.insert(name.to_string(), document.clone());
            self.forget_later(env, generation, name.to_string());
        }
        Ok(document)
    }

    fn find(&self, generation: u64, name: &str) -> Option<Bytes> {
        let mut made = self.made.lock();
        if made.generation < generation {
            *made = Made { generation, documents: HashMap::new() };
        }
        made.documents.get(name).filter(|_| made.generation == generation).cloned()
    }

    fn forget_later(&self, env: &Env, generation: u64, name: String) {
        let (weak, later) = (Arc::downgrade(&self.made), env.clone());
        env.spawn(async move {
            later.sleep(KEPT).await;
            let Some(made) = weak.upgrade() else { return };
            let mut made = made.lock();
            if made.generation == generation {
                made.documents.remove(&name);
            }
        });
    }
}

pub async fn serve(server: &Arc<ApiServer>, call: &Call) -> Result<Reply, ApiError> {
    let set = server.cluster.served.current();
    let parts: Vec<&str> = call.info.path.split('/').filter(|p| !p.is_empty()).collect();
    let response = match parts[..] {
        ["openapi", "v2"] => v2(server, call, &set).await?,
        ["openapi", "v3"] => {
            let of = set.clone();
            let make =
                move || api::openapi::v3_index(&resources(&of), &crate::crd::extra_schemas(&of)).to_string().into();
            let index = server.openapi.get(&server.cluster.env, set.generation, "v3", make).await?;
            document(call, with_extensions(index, server.extensions.openapi()), "application/json")
        }
        ["openapi", "v3", "api", version] => v3(server, call, &set, "", version).await?,
        ["openapi", "v3", "apis", group, version] => v3(server, call, &set, group, version).await?,
        _ => return Err(not_found_path()),
    };
    Ok(Reply::Raw(response))
}

/// The index with the documents of extension servers, which are fetched from there.
fn with_extensions(index: Bytes, extensions: Vec<(String, String)>) -> Bytes {
    if extensions.is_empty() {
        return index;
    }
    let mut value: Value = serde_json::from_slice(&index).unwrap_or_default();
    for (path, address) in extensions {
        value["paths"][path] = json!({ "serverRelativeURL": address });
    }
    value.to_string().into()
}

fn resources(set: &Set) -> Vec<Arc<Resource>> {
    set.resources.iter().map(|s| s.resource.clone()).collect()
}

async fn v2(server: &ApiServer, call: &Call, set: &Arc<Set>) -> Result<Response<Body>, ApiError> {
    let (generation, parts) = server.extensions.schemas();
    // client-go sends the parameter where others send a plain type.
    let protobuf = negotiate::accept(&call.headers)
        .iter()
        .any(|c| c.media.starts_with("application/com.github.proto-openapi.spec.v2"));
    let (name, content) = if protobuf { ("v2+protobuf", V2_PROTOBUF) } else { ("v2", "application/json") };
    let of = set.clone();
    let make = move || {
        let mut whole = api::openapi::v2(&resources(&of), &crate::crd::extra_schemas(&of));
        for part in parts.iter().filter_map(|part| serde_json::from_slice(part).ok()) {
            merge::merge(&mut whole, part);
        }
        if protobuf { api::openapi::v2_protobuf(&whole).into() } else { whole.to_string().into() }
    };
    let name = format!("{name} {generation}");
    let bytes = server.openapi.get(&server.cluster.env, set.generation, &name, make).await?;
    Ok(document(call, bytes, content))
}

async fn v3(
    server: &ApiServer,
    call: &Call,
    set: &Arc<Set>,
    group: &str,
    version: &str,
) -> Result<Response<Body>, ApiError> {
    if !set.serves_version(group, version) {
        return Err(not_found_path());
    }
    let name = api::openapi::v3_path(group, version);
    let (of, group, version) = (set.clone(), group.to_string(), version.to_string());
    let make =
        move || api::openapi::v3(&group, &version, &resources(&of), &crate::crd::extra_schemas(&of)).to_string().into();
    let bytes = server.openapi.get(&server.cluster.env, set.generation, &name, make).await?;
    let mut response = document(call, bytes, "application/json");
    if call.query.text("hash").is_some() {
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    Ok(response)
}

fn document(call: &Call, bytes: Bytes, content: &'static str) -> Response<Body> {
    let digest = Sha256::digest(&bytes);
    let hex: String = digest.iter().map(|b| format!("{b:02X}")).collect();
    let tag = format!("\"{hex}\"");
    if call.header(header::IF_NONE_MATCH) == tag {
        return content_response(StatusCode::NOT_MODIFIED, Bytes::new(), content);
    }
    let mut response = content_response(StatusCode::OK, bytes, content);
    if let Ok(value) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}
