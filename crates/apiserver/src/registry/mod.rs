//! One registry for all kinds: what each verb does to the objects of a resource.
//! Called by `pipeline` after authorization; reads `watch_cache`, writes `store`.
//! Every write is compare-and-set on the revision it was decided on.

pub mod custom;
pub mod initializers;

mod collection;
mod connect;
mod convert;
mod create;
mod delete;
mod disruption_budget;
mod eviction;
mod json_path;
mod managed;
mod namespace;
mod node_port_range;
mod object_meta;
mod options;
mod patch;
mod read;
mod reviews;
mod scale;
mod selection;
mod service;
pub(crate) mod service_repair;
mod subresource;
mod update;
mod watch;

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use api::{ApiError, Object, Reason, Verb};
use store::{Compare, Operation, Outcome, Revision, Transaction};

use crate::{
    admission, audit, authn, authz,
    discovery::served::Served,
    flow_control::WatchTracker,
    handlers::{
        codec,
        negotiate::{self, Forms},
        not_found,
        respond::Reply,
    },
    metrics::Metrics,
    request::{call::Call, request_info::RequestInfo},
    server::{config::Config, loopback},
    storage,
    storage::{cluster::Cluster, watch_cache::store_error},
};

use node_port_range::{NodePortRange, PortChanges};

pub use object_meta::timestamp;
pub use selection::Selection;
pub use service::{Allocations, nth as service_address};

pub struct Registry {
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
    pub cluster: Arc<Cluster>,
    pub admission: admission::Chain,
    pub authorizer: Arc<authz::Chain>,
    pub authentication: Arc<authn::Chain>,
    pub tokens: Arc<authn::service_account::ServiceAccountTokens>,
    pub allocations: Allocations,
    /// Which watches are open, for what a write takes.
    pub watches: Arc<WatchTracker>,
}

/// How often a write is tried again because another Service changed the range of node ports.
const PORT_RANGE_ATTEMPTS_MAX: usize = 100;

/// Why a write did not happen: what is there instead.
pub struct Superseded(pub Option<Arc<Object>>);

/// What was to go with a write was taken by another: its place among what was to be taken.
struct AllocationConflict(usize);

/// What came of a write: the bytes and their revision, or why there are none.
type Written = Result<(Bytes, Revision), Result<Superseded, AllocationConflict>>;

impl Registry {
    pub async fn dispatch(&self, call: &Call, body: Bytes) -> Result<Reply, ApiError> {
        let info = &call.info;
        let set = self.cluster.served.current();
        let found = match call.in_process && call.user.name == loopback::USER {
            true => self.cluster.served.find(&info.group, &info.version, &info.resource),
            false => set.find(&info.group, &info.version, &info.resource).cloned(),
        };
        let Some(served) = found else { return not_found::reply(&info.path) };
        if served.custom.is_some() && out_of_scope(&served, &call.info) {
            return Ok(not_found::page());
        }
        self.check_scope(&served, call)?;
        if info.subresource.is_empty() && !served.supports(&info.verb) {
            return Err(unsupported_verb(&served, info));
        }
        if call.method == http::Method::HEAD && info.subresource != "proxy" {
            return Err(not_allowed_path());
        }
        if !info.is_long_running() {
            // Before anything is written: an answer nobody accepts must not have effects.
            // A Scale has a protobuf form, whatever it is of.
            let mut forms = served.forms(false);
            if info.verb == Verb::List && forms.routed.is_some() {
                forms.routed = Some(negotiate::ROUTED_LISTS);
            }
            call.output(Forms { protobuf: forms.protobuf || info.subresource == "scale", ..forms })?;
        }
        let there = info.subresource.is_empty() || served.subresource(&info.subresource).is_some();
        if let Some(text) = served.behavior.deprecation().filter(|_| there) {
            call.warn(text);
            audit::annotate("k8s.io/deprecated", "true");
            self.metrics.deprecated_api(&served.group, &served.version, &served.plural, &info.subresource);
        }
        if served.stored() {
            let encrypted = &self.cluster.encrypted;
            match (info.name.is_empty(), info.namespace.is_empty()) {
                (false, _) => encrypted.check_key(&served.key(&info.namespace, &info.name))?,
                (true, false) => encrypted.check_prefix(&format!("{}{}/", served.prefix, info.namespace))?,
                (true, true) => encrypted.check_prefix(&served.prefix)?,
            }
        }
        if !info.subresource.is_empty() {
            return Box::pin(self.subresource(call, &served, body)).await;
        }
        if !served.stored() {
            return Box::pin(self.review(call, &served, body)).await;
        }
        // Boxed one by one: otherwise every request would carry the state of the largest of them.
        match info.verb {
            Verb::Get => self.get(call, &served).await,
            Verb::List => Box::pin(self.list(call, &served)).await,
            Verb::Watch => Box::pin(self.watch(call, &served)).await,
            Verb::Create => Box::pin(self.create(call, &served, &body)).await,
            Verb::Update => Box::pin(self.put(call, &served, &body)).await,
            Verb::Patch => Box::pin(self.patch(call, &served, &body)).await,
            Verb::Delete => Box::pin(self.delete(call, &served, &body)).await,
            Verb::DeleteCollection => Box::pin(self.delete_collection(call, &served, &body)).await,
            _ => Err(not_allowed_path()),
        }
    }

    /// Namespaced kinds are written in a namespace; cluster-scoped kinds are not found in one.
    fn check_scope(&self, served: &Served, call: &Call) -> Result<(), ApiError> {
        let info = &call.info;
        if out_of_scope(served, info) {
            return Err(match info.verb {
                // Where nothing can be listed, there is no path over all namespaces.
                Verb::Create | Verb::DeleteCollection if served.namespaced() && served.supports(&Verb::List) => {
                    not_allowed_path()
                }
                Verb::Update | Verb::Patch if served.namespaced() && info.name.is_empty() => not_allowed_path(),
                _ => not_found_path(),
            });
        }
        // Objects are made in their collection, and changed by their name.
        let misplaced = match info.verb {
            Verb::Create => info.subresource.is_empty() && !info.name.is_empty(),
            Verb::Update | Verb::Patch => info.name.is_empty(),
            _ => false,
        };
        if misplaced {
            return Err(unsupported_verb(served, info));
        }
        Ok(())
    }

    /// Decodes a body that must be of `served`'s kind, and says what was wrong with it as far as the client cares.
    fn decode(
        &self,
        call: &Call,
        served: &Served,
        bytes: &[u8],
        options: &options::WriteOptions,
    ) -> Result<Value, ApiError> {
        let schema = served.schema.as_ref().map(|(s, id)| (&**s, *id));
        let media = negotiate::input(&call.headers)?;
        let (bytes, initializers) = self.without_initializers(bytes, media);
        let mut decoded = codec::decode(&bytes, media, schema)?;
        let custom = served.custom.is_some();
        if custom {
            sort_problems(&mut decoded.problems);
        }
        self.check_type(&bytes, &decoded.value, &served.api_version(), &served.kind, custom)?;
        audit::request_object(&decoded.value, &served.api_version(), &served.kind);
        report_problems(call, &served.kind, &served.version, &decoded.problems, options)?;
        initializers::put_back(&mut decoded.value, initializers);
        Ok(convert::normalized(served, decoded.value))
    }

    /// The list of initializers apart from a body, where there are initializers: no schema knows it.
    fn without_initializers<'a>(&self, bytes: &'a [u8], media: negotiate::Media) -> (Cow<'a, [u8]>, Option<Value>) {
        if !self.has_initializers() || media == negotiate::Media::Protobuf {
            return (Cow::Borrowed(bytes), None);
        }
        let Ok(decoded) = codec::decode(bytes, media, None) else { return (Cow::Borrowed(bytes), None) };
        let mut value = decoded.value;
        match initializers::take(&mut value) {
            // JSON is YAML.
            Some(list) => (Cow::Owned(value.to_string().into_bytes()), Some(list)),
            None => (Cow::Borrowed(bytes), None),
        }
    }

    /// What is no kind of upstream's is told where that was looked for; `custom` kinds are looked for nowhere, and have
    /// no type that could be left out.
    fn check_type(
        &self,
        bytes: &[u8],
        value: &Value,
        api_version: &str,
        kind: &str,
        custom: bool,
    ) -> Result<(), ApiError> {
        let Some(fields) = value.as_object() else {
            return Err(ApiError::bad_request(format!("couldn't get version/kind; the body is not a {kind} object")));
        };
        let unrecognized = |why: &str| Err(api::codec::unrecognized(bytes, kind, why));
        if let Some(why) = api::codec::mistyped_type(fields) {
            return unrecognized(&why);
        }
        let text = |field: &str| value[field].as_str().unwrap_or_default();
        let (found_version, found_kind) = (text("apiVersion").trim_matches('/'), text("kind"));
        if found_version.matches('/').count() > 1 {
            return unrecognized(&format!("unexpected GroupVersion string: {}", text("apiVersion")));
        }
        if custom {
            return check_custom_type(bytes, value, api_version, kind);
        }
        let found_version = if found_version.is_empty() { api_version } else { found_version };
        let found_kind = if found_kind.is_empty() { kind } else { found_kind };
        if (found_version, found_kind) == (api_version, kind) {
            return Ok(());
        }
        let (group, version) = found_version.split_once('/').unwrap_or(("", found_version));
        let refuse = |why: String| {
            let head = format!("{found_kind} in version {version:?} cannot be handled as a {kind}");
            Err(ApiError::bad_request(format!("{head}: {why}")))
        };
        if api::schema::with_unserved().find_kind(group, version, found_kind).is_none() {
            let scheme = scheme_name(api_version);
            let of = format!("no kind {found_kind:?} is registered for version {found_version:?}");
            return refuse(format!("{of} in scheme {scheme:?}"));
        }
        if found_version != api_version {
            return Err(ApiError::bad_request(format!(
                "the API version in the data ({found_version}) does not match the expected API version ({api_version})"
            )));
        }
        let package = group.split('.').next().filter(|package| !package.is_empty()).unwrap_or("core");
        refuse(format!("converting ({version}.{found_kind}) to ({package}.{kind}): unknown conversion"))
    }

    /// Writes `object` if the key still has `expected` (0: does not exist).
    async fn commit(
        &self,
        served: &Served,
        key: &str,
        object: Option<&Value>,
        expected: Revision,
    ) -> Result<Result<(Bytes, Revision), Superseded>, ApiError> {
        let written = self.commit_with(served, key, object, expected, (Vec::new(), Vec::new())).await?;
        Ok(written.map_err(|why| why.unwrap_or(Superseded(None))))
    }

    /// As `commit`, together with what an allocation takes and frees. `Err(Err(..))`: that was not to be had.
    async fn commit_with(
        &self,
        served: &Served,
        key: &str,
        object: Option<&Value>,
        expected: Revision,
        (more, others): (Vec<Compare>, Vec<Operation>),
    ) -> Result<Written, ApiError> {
        let value = object.map(storage::encode).unwrap_or_default();
        let ttl_seconds = served.behavior.has_event_ttl().then(|| self.config.limits.event_ttl.as_secs());
        let operation = match object {
            Some(_) => Operation::Put { key: key.to_string(), value: value.clone(), ttl_seconds },
            None => Operation::Delete { key: key.to_string() },
        };
        let mut ports = PortChanges::default();
        let (mut places, mut more, mut others) = ((0..more.len()).collect::<Vec<_>>(), more, others);
        if self.cluster.store.is_shared() {
            // Upstream's servers know of the range only, and would leave a port's own key behind.
            ports = PortChanges::of(&more, &others);
            places.retain(|place| !more[*place].key.starts_with(service::NODE_PORTS));
            more.retain(|compare| !compare.key.starts_with(service::NODE_PORTS));
            others.retain(|operation| !operation.key().starts_with(service::NODE_PORTS));
        }
        let mut compare = vec![Compare { key: key.to_string(), mod_revision: expected }];
        compare.extend(more);
        let mut operations = vec![operation];
        operations.extend(others);
        let mut whole = Transaction { compare, operations };
        for _ in 0..PORT_RANGE_ATTEMPTS_MAX {
            let mut transaction = if ports.is_empty() { std::mem::take(&mut whole) } else { whole.clone() };
            if !ports.is_empty()
                && let Err(place) = self.write_port_range(&ports, &mut transaction).await?
            {
                return Ok(Err(Err(AllocationConflict(place))));
            }
            match self.cluster.store.transact(transaction).await.map_err(store_error)? {
                // The object is the first operation.
                Outcome::Done { first, .. } => return Ok(Ok((value, first))),
                Outcome::Conflict { current, .. } => {
                    let mut current = current.into_iter();
                    let own = current.next().flatten();
                    let unchanged = own.as_ref().map_or(0, |r| r.mod_revision) == expected;
                    let taken = places.iter().zip(current).find(|(_, other)| other.is_some());
                    if unchanged && let Some((place, _)) = taken {
                        return Ok(Err(Err(AllocationConflict(*place))));
                    }
                    if unchanged && !ports.is_empty() {
                        // Another server took or freed a port.
                        continue;
                    }
                    let object = own.map(|r| storage::decode(&r.value, r.mod_revision)).transpose()?;
                    return Ok(Err(Ok(Superseded(object.map(Arc::new)))));
                }
            }
        }
        Err(ApiError::internal("cannot allocate resources of type servicenodeportallocations at this time"))
    }

    /// Adds the bitmap of node ports to a transaction. `Err` has the place of a port that somebody has.
    async fn write_port_range(
        &self,
        ports: &PortChanges,
        transaction: &mut Transaction,
    ) -> Result<Result<(), usize>, ApiError> {
        let record = self.cluster.store.get(node_port_range::KEY).await.map_err(store_error)?;
        let mut range = NodePortRange::read(record.as_ref(), &self.config.node_ports)?;
        if let Err(place) = range.apply(ports) {
            return Ok(Err(place));
        }
        let (compare, put) = range.write(None);
        transaction.compare.push(compare);
        transaction.operations.push(put);
        Ok(Ok(()))
    }

    /// What to do about an allocation that another was quicker with: refuse, or choose again knowing of it.
    async fn contested(
        &self,
        allocation: &service::Allocation,
        AllocationConflict(place): AllocationConflict,
    ) -> Result<(), ApiError> {
        match allocation.refusal(place) {
            Some(error) => Err(error),
            None => Box::pin(self.cluster.cache.wait_until_fresh()).await,
        }
    }
}

/// The answer to a verb that a kind does not have: its path is one of another verb's, or nothing at all.
fn unsupported_verb(served: &Served, info: &RequestInfo) -> ApiError {
    let on_objects = [Verb::Get, Verb::Update, Verb::Patch, Verb::Delete];
    match info.name.is_empty() || on_objects.iter().any(|verb| served.supports(verb)) {
        true => not_allowed_path(),
        false => not_found_path(),
    }
}

/// Where upstream made the set of types that it looks for a kind in: errors say so.
fn scheme_name(api_version: &str) -> &'static str {
    match api_version.split('/').next() {
        Some("apiextensions.k8s.io") => "pkg/apiserver/apiserver.go:55",
        Some("apiregistration.k8s.io") => "pkg/apiserver/scheme/scheme.go:28",
        _ => "pkg/api/legacyscheme/scheme.go:30",
    }
}

/// Whether the path lacks the namespace that a kind needs, or has one that it does not have.
fn out_of_scope(served: &Served, info: &RequestInfo) -> bool {
    let whole = matches!(info.verb, Verb::List | Verb::Watch);
    match served.namespaced() {
        true => info.namespace.is_empty() && !whole,
        false => !info.namespace.is_empty() && info.resource != "namespaces",
    }
}

fn check_custom_type(bytes: &[u8], value: &Value, api_version: &str, kind: &str) -> Result<(), ApiError> {
    let text = |field: &str| value[field].as_str().unwrap_or_default();
    let (found_version, found_kind) = (text("apiVersion"), text("kind"));
    if found_kind.is_empty() {
        let why = format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(bytes));
        return Err(api::codec::unrecognized(bytes, kind, &why));
    }
    if found_version != api_version {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({found_version}) does not match the expected API version ({api_version})"
        )));
    }
    if found_kind != kind {
        let mut errors = api::field::ErrorList::new();
        errors.invalid(&api::field::Path::new("kind"), found_kind, format!("must be {kind}"));
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        return Err(ApiError::invalid(group, found_kind, object_meta::text(value, "name"), errors));
    }
    Ok(())
}

/// Upstream finds duplicates of custom resources while it reads them, and unknown fields in a walk of its own.
fn sort_problems(problems: &mut [String]) {
    problems.sort_by_key(|problem| match problem.starts_with("unknown field") {
        true => (true, problem.clone()),
        false => (false, String::new()),
    });
}

/// Unknown and duplicate fields: refused, reported or ignored, as asked for.
pub fn report_problems(
    call: &Call,
    kind: &str,
    version: &str,
    problems: &[String],
    options: &options::WriteOptions,
) -> Result<(), ApiError> {
    match options.field_validation {
        options::FieldValidation::Strict if !problems.is_empty() => Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
            problems.join(", ")
        ))),
        options::FieldValidation::Warn => {
            problems.iter().for_each(|p| call.warn(p));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The answer to a path that is nothing here.
/// As a router of built-in kinds says it; see `not_found` for the others.
pub fn not_found_path() -> ApiError {
    ApiError::new(Reason::NotFound, "the server could not find the requested resource").with_details(json!({}))
}

pub fn not_allowed_path() -> ApiError {
    ApiError::new(Reason::MethodNotAllowed, "the server does not allow this method on the requested resource")
        .with_details(json!({}))
}

pub fn object_reply(status: StatusCode, served: &Arc<Served>, object: Arc<Object>) -> Reply {
    Reply::Object(status, served.clone(), object)
}
