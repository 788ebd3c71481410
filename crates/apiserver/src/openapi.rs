//! `/openapi/v2` and `/openapi/v3`: the schemas of everything served.
//! Read by kubectl (validation, explain, apply) and by client generators; the documents come from `api::openapi`.
//! Invariant: an address with a hash in it never changes its answer.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use api::{ApiError, Resource};
use env::Env;

use crate::{
    body::Body,
    call::Call,
    negotiate, openapi_merge,
    pipeline::ApiServer,
    registry::not_found_path,
    respond::{Reply, content_response},
    served::Set,
};

const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// How long a document stays after it was made: clients ask for several at once and then not for a long time.
const KEPT: Duration = Duration::from_secs(120);

/// Documents made lately for one generation of the served resources: they are large, so only on demand.
#[derive(Default)]
pub struct Documents(Arc<Mutex<Made>>);

#[derive(Default)]
struct Made {
    generation: u64,
    documents: HashMap<String, Bytes>,
}

impl Documents {
    fn get(&self, env: &Env, generation: u64, name: &str, make: impl FnOnce() -> Bytes) -> Bytes {
        {
            let mut made = self.0.lock();
            if made.generation != generation {
                *made = Made { generation, documents: HashMap::new() };
            }
            if let Some(found) = made.documents.get(name) {
                return found.clone();
            }
        }
        // Made outside the lock; making one twice is harmless.
        let document = make();
        let mut made = self.0.lock();
        if made.generation == generation {
            made.documents.insert(name.to_string(), document.clone());
            self.forget_later(env, name.to_string());
        }
        document
    }

    fn forget_later(&self, env: &Env, name: String) {
        let (weak, later) = (Arc::downgrade(&self.0), env.clone());
        env.spawn(async move {
            later.sleep(KEPT).await;
            if let Some(made) = weak.upgrade() {
                made.lock().documents.remove(&name);
            }
        });
    }
}

pub fn serve(server: &Arc<ApiServer>, call: &Call) -> Result<Reply, ApiError> {
    let set = server.cluster.served.current();
    let parts: Vec<&str> = call.info.path.split('/').filter(|p| !p.is_empty()).collect();
    let response = match parts[..] {
        ["openapi", "v2"] => v2(server, call, &set)?,
        ["openapi", "v3"] => {
            let extra = crate::crd::extra_schemas(&set);
            let make = || api::openapi::v3_index(&resources(&set), &extra).to_string().into();
            let index = server.openapi.get(&server.cluster.env, set.generation, "v3", make);
            document(call, with_extensions(index, server.extensions.openapi()), "application/json")
        }
        ["openapi", "v3", "api", version] => v3(server, call, &set, "", version)?,
        ["openapi", "v3", "apis", group, version] => v3(server, call, &set, group, version)?,
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

fn v2(server: &ApiServer, call: &Call, set: &Set) -> Result<Response<Body>, ApiError> {
    let extra = crate::crd::extra_schemas(set);
    let (generation, parts) = server.extensions.schemas();
    let whole = || {
        let mut document = api::openapi::v2(&resources(set), &extra);
        for part in parts.iter().filter_map(|part| serde_json::from_slice(part).ok()) {
            openapi_merge::merge(&mut document, part);
        }
        document
    };
    // client-go sends the parameter where others send a plain type.
    let protobuf = negotiate::accept(&call.headers)
        .iter()
        .any(|c| c.media.starts_with("application/com.github.proto-openapi.spec.v2"));
    let get = |name: &str, make: &dyn Fn() -> Bytes| {
        server.openapi.get(&server.cluster.env, set.generation, &format!("{name} {generation}"), make)
    };
    Ok(match protobuf {
        true => document(call, get("v2+protobuf", &|| api::openapi::v2_protobuf(&whole()).into()), V2_PROTOBUF),
        false => document(call, get("v2", &|| whole().to_string().into()), "application/json"),
    })
}

fn v3(server: &ApiServer, call: &Call, set: &Set, group: &str, version: &str) -> Result<Response<Body>, ApiError> {
    if !set.serves_version(group, version) {
        return Err(not_found_path());
    }
    let name = api::openapi::v3_path(group, version);
    let extra = crate::crd::extra_schemas(set);
    let make = || api::openapi::v3(group, version, &resources(set), &extra).to_string().into();
    let bytes = server.openapi.get(&server.cluster.env, set.generation, &name, make);
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
