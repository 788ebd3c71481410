//! The order of a request, in one function.
//! Fed by `server` (sockets) and by in-process callers; hands on to `registry`, `discovery`, `health` and the rest.
//! Nothing reaches a handler that was not authenticated and authorized, but the files of the console.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::{HeaderValue, Request, Response, header, request::Parts};
use http_body::Body as _;
use parking_lot::Mutex;
use tracing::Instrument;

use api::{ApiError, Reason, Verb, feature_gates::INITIALIZERS};
use env::Env;

use crate::{
    aggregator,
    audit::{self, Audit, PeerAddress, Stage},
    authn::{self, Credentials, User},
    authz::{self, Decision},
    discovery,
    filters::{
        gzip,
        in_flight::{Counted, InFlight, Seat},
        request_log,
    },
    flow_control::{self, FlowControl},
    handlers::{
        console, debug, negotiate, not_found,
        respond::{self, ObjectStream, Reply, TotalBytes},
    },
    metrics::{self, Authentication, Labels, Metrics},
    metrics_api, openapi,
    registry::{Registry, not_allowed_path, not_found_path},
    request::{
        body::{self, Body},
        call::{Call, InProcess},
        query::Query,
        request_info::RequestInfo,
    },
    server::{config::Config, health},
    storage::cluster::Cluster,
};

const AUDIT_ID_HEADER: &str = "audit-id";
const AUDIT_ID_BYTES_MAX: usize = 64;

pub struct ApiServer {
    pub config: Arc<Config>,
    pub cluster: Arc<Cluster>,
    pub(crate) registry: Registry,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: health::Health,
    pub(crate) openapi: openapi::Documents,
    pub(crate) extensions: aggregator::Extensions,
    pub(crate) metrics_api: metrics_api::MetricsApi,
    /// What other parts of this process answer.
    pub debug: debug::DebugHandlers,
    /// The page at `/console/`, where there is one.
    pub console: console::Console,
    pub(super) authentication: Arc<authn::Chain>,
    pub(super) authorizer: Arc<authz::Chain>,
    pub(crate) in_flight: InFlight,
    pub(crate) flow_control: Arc<FlowControl>,
    pub(super) audit: Option<Arc<Audit>>,
    pub(super) env: Env,
}

/// A place among the requests that are handled at once; some need none.
enum Place<'a> {
    Unlimited,
    InFlight { _seat: Seat<'a> },
    Flow { _seat: flow_control::Seat, _counted: Counted<'a> },
}

/// When and where a request came in, and the name it has in the record.
struct Arrival {
    audit_id: Option<HeaderValue>,
    peer: Option<PeerAddress>,
    at: jiff::Timestamp,
}

impl ApiServer {
    /// Shows what another part of this process counts at `/metrics`, too. Its families must be its own.
    pub fn show_metrics(&self, of: ::metrics::Metrics) {
        self.metrics.also(of);
    }

    pub fn ready(&self) -> bool {
        self.health.is_ready()
    }

    /// One request, whatever it came in on.
    pub fn handle(self: &Arc<Self>, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        Box::pin(self.measured(request))
    }

    async fn measured(self: &Arc<Self>, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query);
        let (start, method) = (self.env.monotonic(), parts.method.clone());
        let peer = parts.extensions.get::<PeerAddress>().copied();
        let arrival = Arrival { audit_id: self.audit_id(&parts), peer, at: self.env.now() };
        let audit_id = arrival.audit_id.clone();
        let apply = negotiate::content_type(&parts.headers) == "application/apply-patch+yaml";
        let dry_run = match query.text("dryRun") {
            None => "",
            Some("All") => "All",
            Some(_) => "invalid",
        };
        let span = request_log::request_span(&method, &info, audit_id.as_ref());
        let guarded = AssertUnwindSafe(self.guarded(parts, body, info.clone(), query, arrival)).catch_unwind();
        let mut handled = std::pin::pin!(metrics::handled(guarded).instrument(span.clone()));
        let slot = self.audit.as_ref().map(|_| Arc::new(audit::Slot::default()));
        let (served, webhooks) = match &slot {
            None => handled.as_mut().await,
            Some(slot) => audit::recorded(slot.clone(), handled.as_mut()).await,
        };
        let panicked = served.is_err();
        let mut response = served.unwrap_or_else(|_| {
            span.in_scope(|| tracing::error!(path = info.path, verb = info.verb.as_str(), "a handler panicked"));
            let error = ApiError::internal("This request caused apiserver to panic. Look in the logs for details.");
            respond::error_response(&error, negotiate::Output::JSON)
        });
        if let Some(audit_id) = audit_id {
            response.headers_mut().insert(AUDIT_ID_HEADER, audit_id);
        }
        if method == http::Method::HEAD {
            respond::without_body(&mut response);
        }
        if let Some(record) = slot.and_then(|slot| slot.record()) {
            response = finish_record(record, response, panicked, info.is_long_running()).await;
        }
        let labels = Labels::new(&info, &method, apply, dry_run);
        let pieces = response.extensions_mut().remove::<TotalBytes>().map(|TotalBytes(bytes)| bytes);
        let bytes = pieces.or_else(|| response.body().size_hint().exact());
        let requests = &self.metrics.requests;
        let (status, latency) = (response.status().as_u16(), self.env.monotonic() - start);
        requests.answered(labels, status, latency, webhooks, bytes);
        request_log::answered(&span, &info, status, latency);
        // A watch counts itself, wherever its events go.
        if info.is_long_running() && info.verb != Verb::Watch {
            let open = requests.open(labels);
            return response.map(|body| body::with_companion(body, open));
        }
        if pieces.is_some() {
            response.extensions_mut().insert(serve::Finite);
        }
        response
    }

    /// What a client may name its request by, and finds it by in logs.
    fn audit_id(&self, parts: &Parts) -> Option<HeaderValue> {
        if parts.extensions.get::<InProcess>().is_some() {
            return None;
        }
        let asked =
            parts.headers.get(AUDIT_ID_HEADER).filter(|id| (1..=AUDIT_ID_BYTES_MAX).contains(&id.len())).cloned();
        asked.or_else(|| HeaderValue::from_str(&self.env.uuid()).ok())
    }

    /// Identity, then limits and time, then permission, then the handler.
    async fn guarded(
        self: &Arc<Self>,
        parts: Parts,
        body: Body,
        info: RequestInfo,
        query: Query,
        arrival: Arrival,
    ) -> Response<Body> {
        // Holds no data of the cluster, so it needs no identity.
        if let Some(file) = self.console.file(&parts) {
            return file;
        }
        let mut call = match self.identify(parts, info, query, &arrival).await {
            Ok(call) => call,
            Err(response) => return *response,
        };
        if let Some(record) = self.begin_record(&call, Some(&call.user), &arrival)
            && !record.stage(Stage::RequestReceived).await
        {
            return respond::error(&call, &ApiError::internal("failed to store audit event"));
        }
        if let Err(e) = self.impersonate(&mut call).await {
            return respond::error(&call, &e);
        }
        request_log::identified(&call.user);
        let long = call.info.is_long_running();
        let limit = match self.time_limit(&call, long) {
            Ok(limit) => limit,
            Err(e) => return respond::error(&call, &e),
        };
        let handled = match long {
            true => self.dispatch(&call, body).await,
            false => self.env.timeout(limit, self.dispatch(&call, body)).await.unwrap_or_else(|| {
                let text = "request did not complete within the allotted timeout";
                Err(ApiError::new(Reason::Timeout, format!("Timeout: {text}")))
            }),
        };
        let mut response = respond::reply(&call, &self.env, &self.metrics, handled);
        gzip::compress(&call, &self.config.feature_gates, &mut response);
        if let Some(flow) = call.flow.get() {
            flow.add_headers(response.headers_mut());
        }
        response
    }

    /// How long the request may take: what it asks for itself, if that is less than what everybody gets.
    fn time_limit(&self, call: &Call, long: bool) -> Result<Duration, ApiError> {
        let most = self.config.limits.request_timeout;
        let Some(asked) = call.query.get("timeout").filter(|asked| !long && !asked.is_empty()) else { return Ok(most) };
        let asked = api::codec::parse_duration(asked)
            .map_err(|e| ApiError::bad_request(format!("invalid timeout specified in the request URL - {e}")))?;
        match u64::try_from(asked) {
            Ok(nanos) if nanos > 0 => Ok(Duration::from_nanos(nanos).min(most)),
            _ => Ok(most),
        }
    }

    /// What is told about this request from here on goes into its record, if it has one.
    fn begin_record(&self, call: &Call, user: Option<&User>, arrival: &Arrival) -> Option<Arc<audit::Record>> {
        let audit = self.audit.as_ref()?;
        let own_id = || self.env.uuid();
        let audit_id = arrival.audit_id.as_ref();
        let audit_id = audit_id.map_or_else(own_id, |id| String::from_utf8_lossy(id.as_bytes()).into_owned());
        let record = audit.begin(&audit::Received {
            audit_id: &audit_id,
            uri: &call.uri,
            headers: &call.headers,
            peer: arrival.peer,
            info: &call.info,
            user,
            at: arrival.at,
        })?;
        audit::begin(&record);
        Some(record)
    }

    pub(crate) async fn close_audit(&self) {
        if let Some(audit) = &self.audit {
            audit.close().await;
        }
    }

    async fn identify(
        &self,
        mut parts: Parts,
        info: RequestInfo,
        query: Query,
        arrival: &Arrival,
    ) -> Result<Call, Box<Response<Body>>> {
        let in_process = parts.extensions.remove::<InProcess>();
        let sender = match &in_process {
            Some(InProcess(user)) => Ok(user.clone().authenticated().into()),
            None => {
                let (headers, extensions) = (&parts.headers, &parts.extensions);
                let credentials = Credentials { path: &info.path, headers, extensions };
                let began = self.env.monotonic();
                let sender = self.authentication.authenticate(&credentials).await;
                let took = self.env.monotonic().saturating_sub(began);
                let (result, name) = match &sender {
                    Ok(found) => (Authentication::Success, found.user.name.as_str()),
                    Err(_) if credentials.are_shown() => (Authentication::Error, ""),
                    Err(_) => (Authentication::Failure, ""),
                };
                self.metrics.access.authenticated(result, name, took);
                sender
            }
        };
        self.authentication.strip(&mut parts.headers);
        let failure = sender.as_ref().err().cloned();
        let (user, warning) = sender.map(|b| (b.user, b.warning)).unwrap_or_default();
        let gates = &self.config.feature_gates;
        let hides_uninitialized = gates.enabled(INITIALIZERS) && !query.flag("includeUninitialized");
        let call = Call {
            hides_uninitialized,
            info,
            query,
            method: parts.method,
            uri: parts.uri,
            user,
            in_process: in_process.is_some(),
            warnings: Mutex::new(warning.into_iter().map(str::to_string).collect()),
            upgrade: Mutex::new(parts.extensions.remove::<hyper::upgrade::OnUpgrade>()),
            stream: Mutex::default(),
            flow: OnceLock::default(),
            headers: parts.headers,
        };
        match failure {
            Some(error) => {
                let record = self.begin_record(&call, None, arrival);
                let response = respond::error(&call, &error);
                if let Some(record) = record {
                    record.refused(response.status().as_u16()).await;
                }
                Err(Box::new(response))
            }
            None => Ok(call),
        }
    }

    /// Acting as someone else, for those who may.
    async fn impersonate(&self, call: &mut Call) -> Result<(), ApiError> {
        let Some(wanted) = authn::impersonation(&call.headers)? else { return Ok(()) };
        for attributes in wanted.permissions(&call.user) {
            self.authorize(&attributes).await?;
        }
        call.user = wanted.user();
        if let Some(record) = audit::current() {
            record.impersonates(&call.user);
        }
        let names: Vec<_> = call.headers.keys().filter(|n| n.as_str().starts_with("impersonate-")).cloned().collect();
        names.into_iter().for_each(|n| drop(call.headers.remove(n)));
        Ok(())
    }

    async fn authorize(&self, attributes: &authz::Attributes) -> Result<(), ApiError> {
        match self.authorizer.authorize(attributes).await {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(reason) | Decision::NoOpinion(reason) => Err(authz::refusal(attributes, &reason)),
        }
    }

    /// As `authorize`; the record says how it was decided.
    async fn authorize_call(&self, call: &Call) -> Result<(), ApiError> {
        let attributes = authz::Attributes::new(&call.user, &call.info);
        let began = self.env.monotonic();
        let decision = self.authorizer.authorize(&attributes).await;
        self.metrics.access.authorized(&decision, self.env.monotonic().saturating_sub(began));
        let (word, Decision::Allow(reason) | Decision::Deny(reason) | Decision::NoOpinion(reason)) =
            (if matches!(decision, Decision::Allow(_)) { "allow" } else { "forbid" }, &decision);
        audit::annotate("authorization.k8s.io/decision", word);
        audit::annotate("authorization.k8s.io/reason", reason);
        match word {
            "allow" => Ok(()),
            _ => Err(authz::refusal(&attributes, reason)),
        }
    }

    /// A place among the requests that are handled at once.
    async fn admit_in_flight(&self, call: &Call) -> Result<Place<'_>, ApiError> {
        let place = match self.config.limits.priority_and_fairness {
            false => self.in_flight.admit(call).map(|seat| Place::InFlight { _seat: seat }),
            // What this process asks of itself would wait for itself.
            true if call.in_process => Ok(Place::Unlimited),
            // Of a watch only what comes before its answer counts, of others nothing.
            true if call.info.is_long_running() && call.info.verb != Verb::Watch => Ok(Place::Unlimited),
            true => {
                let seat = self.flow_control.admit(call).await;
                seat.map(|seat| Place::Flow { _seat: seat, _counted: self.in_flight.count(call) })
            }
        };
        place.inspect_err(|_| self.metrics.dropped(call.info.is_mutating()))
    }

    async fn dispatch(self: &Arc<Self>, call: &Call, body: Body) -> Result<Reply, ApiError> {
        let mut place = self.admit_in_flight(call).await?;
        // Each read behind the answer is authorized on its own.
        if let Some(answer) = self.console.answer(call) {
            return answer.await.map(|value| Reply::Value(http::StatusCode::OK, value));
        }
        self.authorize_call(call).await?;
        let mut budget = self.in_flight.body_budget(call);
        if call.info.is_resource {
            let bytes = match call.info.subresource == "proxy" {
                true => {
                    *call.stream.lock() = Some(body);
                    Default::default()
                }
                false if call.info.is_mutating() => {
                    let limit = self.config.limits.body_bytes;
                    let mut reading = std::pin::pin!(body::read_counted(body, limit, |size| budget.take(size)));
                    match futures::poll!(reading.as_mut()) {
                        Poll::Ready(read) => read?,
                        // Whoever sends slowly keeps no place that others need.
                        Poll::Pending => {
                            drop(place);
                            let bytes = reading.await?;
                            place = self.admit_in_flight(call).await?;
                            bytes
                        }
                    }
                }
                false => Default::default(),
            };
            let _held = (place, budget);
            if !self.cluster.served.current().serves_version(&call.info.group, &call.info.version)
                && let Some(reply) = Box::pin(aggregator::serve(self, call, bytes.clone())).await
            {
                return reply;
            }
            if metrics_api::concerns(call) {
                return Box::pin(metrics_api::serve(self, call)).await;
            }
            body::refuse_dense(&bytes)?;
            return Box::pin(self.registry.dispatch(call, bytes)).await;
        }
        match Box::pin(self.serve_path(call)).await {
            // A discovery document of an extension server.
            Err(e) if e.is_not_found() => {
                let extension = Box::pin(aggregator::serve(self, call, Default::default())).await;
                extension.unwrap_or_else(|| not_found::reply(&call.info.path))
            }
            answered => answered,
        }
    }

    async fn serve_path(self: &Arc<Self>, call: &Call) -> Result<Reply, ApiError> {
        let path = call.info.path.trim_end_matches('/');
        let first = path.split('/').nth(1).unwrap_or_default();
        if call.method != http::Method::GET && call.method != http::Method::HEAD && is_route(path) {
            return Err(not_allowed_path());
        }
        match first {
            "api" | "apis" => discovery::serve(self, call),
            "openapi" => openapi::serve(self, call).await,
            "healthz" | "livez" | "readyz" => health::serve(self, call).await,
            "metrics" if path == "/metrics" => {
                let stored = self.cluster.store.size_bytes().await.unwrap_or(0);
                let flow_control = self.config.limits.priority_and_fairness.then_some(&*self.flow_control);
                Ok(Reply::Raw(self.metrics.render(&self.cluster, self.in_flight.in_use(), flow_control, stored)))
            }
            "metrics" if path == "/metrics/slis" => Ok(health::serve_slis(self)),
            "version" if path == "/version" => Ok(Reply::Raw(discovery::version_response())),
            "debug" => match path.strip_prefix("/debug/api_priority_and_fairness/") {
                Some(page) => self.serve_flow_control(page),
                None => self.debug.serve(path),
            },
            ".well-known" | "openid" => authn::serve_keys(&self.registry.tokens.keys, path),
            "" if path.is_empty() => Ok(discovery::serve_paths(self)),
            _ => Err(not_found_path()),
        }
    }

    fn serve_flow_control(&self, page: &str) -> Result<Reply, ApiError> {
        let page = self.flow_control.dump(page).filter(|_| self.config.limits.priority_and_fairness);
        let text = page.ok_or_else(not_found_path)?;
        let content = "text/plain; charset=utf-8";
        Ok(Reply::Raw(respond::content_response(http::StatusCode::OK, text.into(), content)))
    }

    /// A request from inside this process, as `user`.
    pub fn in_process_request(user: User, mut request: Request<Body>) -> Request<Body> {
        request.extensions_mut().insert(InProcess(user));
        request.headers_mut().entry(header::USER_AGENT).or_insert(HeaderValue::from_static("minke"));
        request
    }
}

/// Whether upstream's router knows the path, with the methods that read; what is beside it takes any method.
fn is_route(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    matches!(
        parts[..],
        ["version" | "api"] | ["api", _] | ["apis", _, _] | [".well-known", _] | ["openid", "v1", "jwks"]
    )
}

/// The last stages of a record. What goes on after the answer has begun completes it when it ends.
async fn finish_record(
    record: Arc<audit::Record>,
    mut response: Response<Body>,
    panicked: bool,
    long: bool,
) -> Response<Body> {
    if panicked {
        record.panicked();
        record.stage(Stage::Panic).await;
        return response;
    }
    if record.is_complete() {
        return response;
    }
    record.answered(response.status().as_u16());
    if !long {
        record.stage(Stage::ResponseComplete).await;
        return response;
    }
    record.stage(Stage::ResponseStarted).await;
    if let Some(events) = response.extensions_mut().get_mut::<ObjectStream>() {
        events.keep(record.clone());
    }
    response.map(|body| body::with_companion(body, record))
}
