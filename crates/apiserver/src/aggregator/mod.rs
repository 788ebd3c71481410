//! Extension API servers behind APIServices: their requests passed on, their resources in our discovery.
//! Asked by `pipeline` for group versions that are not served here; the loop keeps conditions and discovery current.
//! The extension server learns who asks from headers that only our client certificate makes believable.

pub mod builtin_api_services;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use parking_lot::RwLock;
use serde_json::{Value, json};

use api::ApiError;

use crate::{
    authn::User,
    handlers::{not_found, respond::Reply},
    metrics_api,
    openapi::merge,
    post_start_hooks::ControlLoop,
    proxy::streaming::{Target, exchange, forward},
    registry::timestamp,
    request::{body, call::Call},
    server::{loopback, pipeline::ApiServer},
    storage::cluster::Cluster,
    transport::service_resolver,
};

const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// How often an extension server is asked again what it serves and whether it is there.
const LOOK_AGAIN_INTERVAL: Duration = Duration::from_secs(30);
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What extension servers serve, by group and version.
#[derive(Default)]
pub struct Extensions(RwLock<Known>);

#[derive(Default)]
struct Known {
    by_version: BTreeMap<(String, String), Extension>,
    /// Changes with every change.
    generation: u64,
}

#[derive(Clone, PartialEq)]
struct Extension {
    /// Its `APIResourceList`.
    list: Value,
    /// Where its OpenAPI v3 document is, if it has one.
    openapi: Option<String>,
    schemas: Schemas,
}

/// Its part of `/openapi/v2`.
#[derive(Clone, PartialEq)]
enum Schemas {
    /// Encoded: wanted rarely, and then merged.
    Known(Bytes),
    /// It has none that could be used; asked again when something else about it changes.
    Unusable,
    /// It did not answer; asked again.
    Unheard,
}

impl Extensions {
    /// Everything beyond the table: what extension servers have, and `metrics_api` where none took its place.
    pub fn lists(&self, cluster: &Cluster) -> Vec<((String, String), Value)> {
        let mut lists: Vec<_> = self.0.read().by_version.iter().map(|(k, v)| (k.clone(), v.list.clone())).collect();
        if extension(cluster, metrics_api::GROUP, metrics_api::VERSION).is_none() {
            lists.push(((metrics_api::GROUP.into(), metrics_api::VERSION.into()), metrics_api::resources()));
        }
        lists
    }

    /// The addresses of their OpenAPI v3 documents, by the paths that the index has.
    pub fn openapi(&self) -> Vec<(String, String)> {
        let address = |((group, version), extension): (&(String, String), &Extension)| {
            Some((format!("apis/{group}/{version}"), extension.openapi.clone()?))
        };
        self.0.read().by_version.iter().filter_map(address).collect()
    }

    /// Their parts of `/openapi/v2`, and a number that changes with them.
    pub fn schemas(&self) -> (u64, Vec<Bytes>) {
        let known = self.0.read();
        let part = |extension: &Extension| match &extension.schemas {
            Schemas::Known(part) => Some(part.clone()),
            _ => None,
        };
        (known.generation, known.by_version.values().filter_map(part).collect())
    }

    fn known(&self, group: &str, version: &str) -> Option<Extension> {
        self.0.read().by_version.get(&(group.to_string(), version.to_string())).cloned()
    }

    fn replace(&self, found: BTreeMap<(String, String), Extension>) {
        let mut known = self.0.write();
        if known.by_version != found {
            *known = Known { by_version: found, generation: known.generation + 1 };
        }
    }
}

/// The APIService with a Service for a group version, if there is one.
fn extension(cluster: &Cluster, group: &str, version: &str) -> Option<Value> {
    let service = cluster.get("apiservices", "", &format!("{version}.{group}"))?.value();
    service["spec"]["service"].is_object().then_some(service)
}

/// Every APIService by name, and whether it is available.
pub fn availability(cluster: &Cluster) -> Vec<(String, bool)> {
    let services = cluster.list("apiservices", "").into_iter().map(|service| {
        let value = service.value();
        let conditions = value["status"]["conditions"].as_array();
        let is_down = |c: &Value| c["type"] == "Available" && c["status"] != "True";
        (service.meta.name.clone(), !conditions.is_some_and(|all| all.iter().any(is_down)))
    });
    services.collect()
}

fn target(cluster: &Cluster, service: &Value, path: String) -> Result<Target, String> {
    let spec = &service["spec"];
    let text = |field: &str| spec["service"][field].as_str().unwrap_or_default();
    let port = spec["service"]["port"].as_u64().unwrap_or(443);
    let (host, port) = service_resolver::resolve(cluster, text("namespace"), text("name"), &port.to_string())?;
    let name = format!("{}.{}.svc", text("name"), text("namespace"));
    let verified = spec["insecureSkipTLSVerify"] != true;
    let authority = verified.then(|| spec["caBundle"].as_str().unwrap_or_default().to_string());
    Ok(Target::extension(host, port, path, name, authority))
}

/// Passes a request for `/apis/GROUP/VERSION/…`, or for its schemas, on, if an extension server serves that.
pub async fn serve(server: &ApiServer, call: &Call, body: Bytes) -> Option<Result<Reply, ApiError>> {
    let parts: Vec<&str> = call.info.path.split('/').filter(|p| !p.is_empty()).collect();
    let (["apis", group, version, ..] | ["openapi", "v3", "apis", group, version]) = parts[..] else { return None };
    let service = extension(&server.cluster, group, version)?;
    let path = call.uri.path_and_query().map_or("/".to_string(), ToString::to_string);
    let target = match target(&server.cluster, &service, path) {
        Ok(target) => match identity(&call.user) {
            Ok(headers) => target.with_headers(headers),
            Err(e) => return Some(Err(e)),
        },
        Err(e) => {
            tracing::debug!(error = e, group, version, "an extension server has no address");
            return Some(Ok(unavailable("service unavailable")));
        }
    };
    let body = call.stream.lock().take().unwrap_or_else(|| body::full(body));
    Some(match forward(call, &server.config, target, body).await {
        Err(e) if e.code == 503 => Ok(unavailable(&e.message)),
        answered => answered.map(Reply::Raw),
    })
}

/// Upstream's aggregator speaks plain text.
fn unavailable(why: &str) -> Reply {
    Reply::Raw(not_found::text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")))
}

/// The caller, as front proxies say it. Without one of these headers the extension server would take the caller for
/// somebody else, so a name that no header can carry is refused.
fn identity(user: &User) -> Result<HeaderMap, ApiError> {
    let mut headers = HeaderMap::new();
    let mut add = |name: String, value: &str| {
        let unfit = |what: &str| ApiError::bad_request(format!("{what} {value:?} cannot be sent to an API service"));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unfit("the extra key of"))?;
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| unfit(name.as_str()))?;
        headers.append(name, value);
        Ok::<_, ApiError>(())
    };
    add("x-remote-user".into(), &user.name)?;
    if !user.uid.is_empty() {
        add("x-remote-uid".into(), &user.uid)?;
    }
    user.groups.iter().try_for_each(|g| add("x-remote-group".into(), g))?;
    for (key, values) in &user.extra {
        let key = key.to_ascii_lowercase();
        let key = percent_encoding::utf8_percent_encode(&key, percent_encoding::NON_ALPHANUMERIC);
        values.iter().try_for_each(|v| add(format!("x-remote-extra-{key}"), v))?;
    }
    Ok(headers)
}

pub const WATCHES: &[&str] = &["apiservices", ENDPOINTS];
const ENDPOINTS: &str = "endpointslices";

/// Says of every APIService whether it is available, and takes what extension servers serve into discovery.
#[derive(Default)]
pub struct Availability {
    /// Without extension servers only a new APIService is news.
    has_extensions: bool,
}

#[async_trait]
impl ControlLoop for Availability {
    async fn sync(&mut self, server: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError> {
        let cluster = &server.cluster;
        let mut found = BTreeMap::new();
        let mut conditions = Vec::new();
        let (mut any, mut settled) = (false, true);
        for service in cluster.list("apiservices", "") {
            let service = service.value();
            if !service["spec"]["service"].is_object() {
                let local = ("True", "Local", "Local APIServices are always available".to_string());
                conditions.push((service, local));
                continue;
            }
            any = true;
            let text = |field: &str| service["spec"][field].as_str().unwrap_or_default().to_string();
            let (group, version) = (text("group"), text("version"));
            let condition = match ask(server, &service, &group, &version).await {
                Ok(list) => {
                    let extension = look_at(server, &service, &group, &version, list).await;
                    found.insert((group, version), extension);
                    ("True", "Passed", "all checks passed".to_string())
                }
                Err((reason, message)) => {
                    settled = false;
                    ("False", reason, message)
                }
            };
            conditions.push((service, condition));
        }
        // What is said to be available is in discovery.
        server.extensions.replace(found);
        for (service, condition) in conditions {
            if let Err(error) = write_condition(server, &service, condition).await {
                tracing::debug!(error = %error.message, "failed to write the condition of an APIService");
            }
        }
        self.has_extensions = any;
        Ok(any.then_some(if settled { LOOK_AGAIN_INTERVAL } else { RETRY_INTERVAL }))
    }

    fn is_woken_by(&self, plural: &str) -> bool {
        plural != ENDPOINTS || self.has_extensions
    }
}

/// What there is to know of an extension that serves `list`.
async fn look_at(server: &ApiServer, service: &Value, group: &str, version: &str, list: Value) -> Extension {
    let openapi = openapi_address(server, service, group, version).await;
    // The address changes with the schemas, so it tells whether there is news.
    let same = |k: &Extension| k.list == list && k.openapi == openapi && k.schemas != Schemas::Unheard;
    let known = server.extensions.known(group, version).filter(|k| openapi.is_some() && same(k));
    let schemas = match known {
        Some(known) => known.schemas,
        None => schemas(server, service, group, version).await,
    };
    Extension { list, openapi, schemas }
}

/// Where an extension server says its OpenAPI v3 document is. Having none is no fault.
async fn openapi_address(server: &ApiServer, service: &Value, group: &str, version: &str) -> Option<String> {
    let index = fetch(server, service, "/openapi/v3".into()).await.ok()?;
    let address = &index["paths"][format!("apis/{group}/{version}")]["serverRelativeURL"];
    address.as_str().filter(|a| a.starts_with("/openapi/v3/")).map(str::to_string)
}

/// What an extension server adds to `/openapi/v2`. A broken document is left out, and said so.
async fn schemas(server: &ApiServer, service: &Value, group: &str, version: &str) -> Schemas {
    let document = match fetch(server, service, "/openapi/v2".into()).await {
        Ok(document) => document,
        Err((_, why)) => {
            tracing::debug!(group, version, error = why, "an extension server has no OpenAPI v2 document");
            return Schemas::Unheard;
        }
    };
    match merge::part(&document, group, version) {
        Some(part) => Schemas::Known(part.to_string().into()),
        None => {
            tracing::warn!(group, version, "the OpenAPI v2 document of an extension server is broken: left out");
            Schemas::Unusable
        }
    }
}

/// A document of an extension server; why there is none, with the reason of a condition.
async fn fetch(server: &ApiServer, service: &Value, path: String) -> Result<Value, (&'static str, String)> {
    let target = target(&server.cluster, service, path.clone()).map_err(|e| match e.contains("not found") {
        true => {
            let of = |field: &str| service["spec"]["service"][field].as_str().unwrap_or_default();
            ("ServiceNotFound", format!("service/{} in {:?} is not present", of("name"), of("namespace")))
        }
        false => ("MissingEndpoints", e),
    })?;
    let user = User::new("system:kube-aggregator", &["system:masters"]);
    let mut headers = identity(&user).map_err(|e| ("FailedDiscoveryCheck", e.message.clone()))?;
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    let target = target.with_headers(headers);
    let asked = exchange(&server.config, target, Method::GET);
    let answer = server.cluster.env.timeout(ANSWER_TIMEOUT, asked).await;
    let failed = |why: String| ("FailedDiscoveryCheck", format!("failing or missing response from {path}: {why}"));
    let bytes = answer.unwrap_or_else(|| Err("context deadline exceeded".into())).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|e| failed(e.to_string()))
}

async fn ask(server: &ApiServer, service: &Value, group: &str, version: &str) -> Result<Value, (&'static str, String)> {
    let path = format!("/apis/{group}/{version}");
    let list = fetch(server, service, path.clone()).await?;
    let failed = |why: &str| ("FailedDiscoveryCheck", format!("failing or missing response from {path}: {why}"));
    match list["resources"].is_array() {
        true => Ok(list),
        false => Err(failed("bad discovery document")),
    }
}

async fn write_condition(
    server: &Arc<ApiServer>,
    service: &Value,
    (status, reason, message): (&str, &str, String),
) -> Result<(), ApiError> {
    let conditions = service["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let old = conditions.iter().find(|c| c["type"] == "Available");
    if old.is_some_and(|o| o["status"] == status && o["reason"] == reason && o["message"] == message.as_str()) {
        return Ok(());
    }
    let same = old.filter(|o| o["status"] == status).and_then(|o| o["lastTransitionTime"].as_str());
    let since = same.map_or_else(|| timestamp(server.cluster.env.now()), str::to_string);
    let mut new = service.clone();
    let mut conditions: Vec<Value> = conditions.into_iter().filter(|c| c["type"] != "Available").collect();
    conditions.push(json!({
        "type": "Available", "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    }));
    new["status"]["conditions"] = conditions.into();
    let name = service["metadata"]["name"].as_str().unwrap_or_default();
    loopback::send(server, Method::PUT, &format!("{PATH}/{name}/status"), &new).await.map(drop)
}
