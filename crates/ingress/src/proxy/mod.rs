//! The data path: a request comes in at an `Entry`, finds its route, and goes to an endpoint.
//! `request` reads and changes heads, `body` passes bodies on, `upstream` has the connections, `upgrade` the rest.
//! Invariant: a request is sent twice only if nothing of it arrived or it may be repeated (test:
//! `what_did_not_arrive_is_sent_elsewhere_and_what_may_have_is_not_repeated`).

mod apply_filters;
mod body;
mod log_entry;
mod mirror;
mod passthrough;
mod request;
mod upgrade;
mod upstream;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use env::Env;
use futures::future::BoxFuture;
use http::{
    HeaderValue, Request, Response, StatusCode, Uri, Version,
    header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, LOCATION, REFERER, TRANSFER_ENCODING, UPGRADE, USER_AGENT},
};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use metrics::{Family, Metrics};
use serve::{Handler, Peer, ReplayedStream};
use tokio::{net::TcpStream, sync::Semaphore};

use self::{
    body::{RequestBody, ResponseBody, SilenceTimer, Upload},
    log_entry::LogEntry,
    request::{Refusal, Target},
    upstream::{Endpoint, Http1Connection, Pool, SendError, UpstreamBody},
};
use crate::{
    access_log::AccessLog,
    backends::{Backend, Protocol},
    filters::{Cors, Filters},
    pattern::PatternBudget,
    request_match::RequestHead,
    routes::{Route, RouteSettings, SharedTable},
    upstream_tls::UpstreamTls,
};

const ATTEMPTS_MAX: usize = 3;

static REQUESTS: Family =
    Family::counter("minke_ingress_requests_total", &["code"], "Requests that were answered, by status.");
static DURATION: Family = Family::histogram(
    "minke_ingress_request_duration_seconds",
    &[],
    metrics::DEFAULT_BUCKETS,
    "From the head of a request to the head of its answer.",
);

#[derive(Clone)]
pub struct ProxyConfig {
    /// How long a client's body may be silent.
    pub request_silence_max: Duration,
    /// How long an answer may be, once it has begun.
    pub response_silence_max: Duration,
    pub access_log: Option<AccessLog>,
    pub metrics: Metrics,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        let (request_silence_max, response_silence_max) = (Duration::from_secs(60), Duration::from_secs(600));
        Self { request_silence_max, response_silence_max, access_log: None, metrics: Metrics::default() }
    }
}

/// What all entries share.
pub struct Proxy {
    table: SharedTable,
    pool: Arc<Pool>,
    config: ProxyConfig,
    /// For copies of requests that are under way.
    mirror_permits: Arc<Semaphore>,
    env: Env,
}

impl Proxy {
    pub fn new(table: SharedTable, config: ProxyConfig, env: Env) -> Arc<Self> {
        let mirror_permits = Arc::new(Semaphore::new(mirror::MIRRORED_REQUESTS_MAX));
        Arc::new(Self { table, pool: Pool::new(env.clone()), config, mirror_permits, env })
    }

    fn count(&self, status: StatusCode, began: Duration) {
        let took = self.env.monotonic().saturating_sub(began);
        self.config.metrics.count(&REQUESTS, &[status.as_str()]);
        self.config.metrics.observe(&DURATION, &[], took.as_secs_f64());
    }
}

/// One port that requests come in at.
pub struct Entry {
    proxy: Arc<Proxy>,
    /// Of the table.
    port: u16,
    /// As clients know it.
    shown_port: u16,
    port_text: HeaderValue,
    tls: bool,
    /// Where plain HTTP is sent that shall be HTTPS.
    https_port: Option<u16>,
}

impl Entry {
    pub fn new(proxy: Arc<Proxy>, port: u16, tls: bool, https_port: Option<u16>) -> Arc<Self> {
        Self::behind(proxy, port, port, tls, https_port)
    }

    /// One that clients reach by another port.
    pub fn behind(proxy: Arc<Proxy>, port: u16, shown_port: u16, tls: bool, https_port: Option<u16>) -> Arc<Self> {
        Arc::new(Self { proxy, port, shown_port, port_text: shown_port.into(), tls, https_port })
    }
}

impl Handler for Entry {
    type Body = ResponseBody;

    fn handle(
        self: &Arc<Self>,
        request: Request<Incoming>,
        peer: &Arc<Peer>,
    ) -> BoxFuture<'static, Response<ResponseBody>> {
        let (entry, client) = (self.clone(), peer.address);
        Box::pin(async move {
            let began = entry.proxy.env.monotonic();
            let mut log = entry.log_entry(&request, client);
            let answer = entry.answer(request, client, &mut log).await.unwrap_or_else(|failure| failure.answer());
            entry.proxy.count(answer.status(), began);
            if let Some(log) = &mut log {
                log.status = answer.status().as_u16();
            }
            answer.map(|body| body.logged(log))
        })
    }

    fn before_tls(
        self: &Arc<Self>,
        stream: TcpStream,
    ) -> Result<BoxFuture<'static, Option<ReplayedStream>>, TcpStream> {
        passthrough::before_tls(self, stream)
    }
}

/// Why a request has no answer of a backend's.
#[derive(Debug)]
enum Failure {
    Refused(Refusal),
    NoRoute,
    TooLarge,
    ClientGone,
    Unresolved(StatusCode),
    BadRewrite,
    NoEndpoints,
    Unreachable,
    Timeout,
}

impl Failure {
    fn answer(&self) -> Response<ResponseBody> {
        let (status, text) = match self {
            Self::Refused(refusal) => (refusal.status, refusal.reason),
            Self::NoRoute => (StatusCode::NOT_FOUND, "no route for this host and path"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
            Self::ClientGone => (StatusCode::BAD_REQUEST, "the body of the request broke off"),
            Self::Unresolved(status) => (*status, "no backend"),
            Self::BadRewrite => (StatusCode::INTERNAL_SERVER_ERROR, "the target can't be rewritten"),
            Self::NoEndpoints => (StatusCode::SERVICE_UNAVAILABLE, "no endpoints"),
            Self::Unreachable => (StatusCode::BAD_GATEWAY, "the backend did not answer"),
            Self::Timeout => (StatusCode::GATEWAY_TIMEOUT, "the backend did not answer in time"),
        };
        let mut answer = Response::new(ResponseBody::text(format!("{text}\n")));
        *answer.status_mut() = status;
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        // Whatever else comes on a connection whose request was not read to its end is not to be trusted.
        if matches!(self, Self::Refused(_) | Self::TooLarge | Self::ClientGone) {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

impl Entry {
    fn log_entry(&self, request: &Request<Incoming>, client: Option<SocketAddr>) -> Option<Box<LogEntry>> {
        let log = self.proxy.config.access_log.clone()?;
        let header = |name| request.headers().get(name).cloned();
        Some(Box::new(LogEntry {
            log,
            env: self.proxy.env.clone(),
            began: self.proxy.env.monotonic(),
            client,
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            host: String::new(),
            referer: header(REFERER),
            user_agent: header(USER_AGENT),
            status: 0,
            bytes: 0,
            route: None,
            endpoint: None,
        }))
    }

    async fn answer(
        &self,
        mut request: Request<Incoming>,
        client: Option<SocketAddr>,
        log: &mut Option<Box<LogEntry>>,
    ) -> Result<Response<ResponseBody>, Failure> {
        let proxy = &self.proxy;
        let target = request::target(&request).map_err(Failure::Refused)?;
        let route = self.route(&target, &request)?;
        if let Some(log) = log {
            log.host = target.host.to_string();
            log.route = Some(route.owner.clone());
        }
        if let (true, false, Some(port)) = (route.settings.redirect_to_https, self.tls, self.https_port) {
            return redirect(&target, request.uri(), port);
        }
        let filters = route.filters.as_deref();
        if let Some(answer) = self.filtered(filters, &route, &target, &request)? {
            return Ok(answer);
        }
        check_length(&request, &route)?;
        let unresolved = || Failure::Unresolved(route.settings.unresolved_status);
        let destination = route.destinations.pick().ok_or_else(unresolved)?;
        let backend = destination.backend.as_ref().ok_or_else(unresolved)?;
        if let Some(answer) = self.filtered(destination.filters.as_deref(), &route, &target, &request)? {
            return Ok(answer);
        }
        let protocol = request::upgrade(request.headers(), request.version());
        let authority = target.authority.to_string();
        let from_client = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
        let (mut head, incoming) = request.into_parts();
        let told = request::Client {
            address: client.map(|client| client.ip()),
            authority: &authority,
            tls: self.tls,
            port: self.port_text.clone(),
        };
        request::prepare(&mut head.headers, &told, protocol);
        head.version = Version::HTTP_11;
        head.uri = request::origin_form(head.uri);
        let asked = filters.is_some_and(|filters| filters.cors.is_some()).then(|| head.headers.clone());
        for filters in filters.into_iter().chain(destination.filters.as_deref()) {
            apply_filters::to_request(filters, &route, &mut head)?;
        }
        let silence = || SilenceTimer::new(proxy.env.clone(), proxy.config.request_silence_max);
        let body = RequestBody::new(incoming, route.settings.body_bytes_max, silence);
        let upload = body.upload();
        let mut request = Request::from_parts(head, body);
        for filters in filters.into_iter().chain(destination.filters.as_deref()) {
            proxy.mirror(filters, &mut request);
        }
        let forwarded = proxy.forward(backend, request, from_client, log);
        let mut answer =
            proxy.wait(forwarded, &route.settings, upload.as_deref()).await.map_err(|failure| match &upload {
                Some(upload) if upload.too_large.load(Ordering::Relaxed) => Failure::TooLarge,
                Some(upload) if upload.failed.load(Ordering::Relaxed) => Failure::ClientGone,
                _ => failure,
            })?;
        apply_filters::to_answer(filters, destination, asked.as_ref(), answer.headers_mut());
        Ok(answer)
    }

    /// The answer of a filter that needs no backend.
    fn filtered(
        &self,
        filters: Option<&Filters>,
        route: &Route,
        target: &Target<'_>,
        request: &Request<Incoming>,
    ) -> Result<Option<Response<ResponseBody>>, Failure> {
        let Some(filters) = filters else { return Ok(None) };
        if let Some(cors) = filters.cors.as_ref().filter(|_| Cors::is_preflight(request.method(), request.headers())) {
            let mut answer = Response::new(ResponseBody::empty());
            *answer.status_mut() = StatusCode::NO_CONTENT;
            *answer.headers_mut() = cors.preflight(request.headers());
            return Ok(Some(answer));
        }
        let Some(redirect) = &filters.redirect else { return Ok(None) };
        let from = crate::filters::Redirected {
            scheme: if self.tls { "https" } else { "http" },
            host: &target.host,
            port: self.shown_port,
            path: target.path,
            query: request.uri().query(),
        };
        let mut answer = redirect_to(&redirect.location(&from, &route.path), redirect.status)?;
        filters.response_headers.apply(answer.headers_mut());
        Ok(Some(answer))
    }

    fn route(&self, target: &Target<'_>, request: &Request<Incoming>) -> Result<Arc<Route>, Failure> {
        let (table, budget) = (self.proxy.table.load(), &PatternBudget::default());
        let (method, headers, query) = (request.method(), request.headers(), request.uri().query());
        let head = RequestHead { method, headers, query, budget };
        let found = table.ports.get(&self.port).and_then(|port| port.find(&target.host, target.path, &head));
        if budget.is_spent() {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Err(Failure::Refused(Refusal { status, reason: "the request is too long for the patterns here" }));
        }
        found.cloned().ok_or(Failure::NoRoute)
    }
}

fn redirect(target: &Target<'_>, uri: &Uri, port: u16) -> Result<Response<ResponseBody>, Failure> {
    let host = match target.host.contains(':') {
        true => format!("[{}]", target.host),
        false => target.host.to_string(),
    };
    let port = if port == 443 { String::new() } else { format!(":{port}") };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    redirect_to(&format!("https://{host}{port}{path}"), StatusCode::PERMANENT_REDIRECT)
}

fn redirect_to(location: &str, status: StatusCode) -> Result<Response<ResponseBody>, Failure> {
    let refusal =
        |_| Failure::Refused(Refusal { status: StatusCode::BAD_REQUEST, reason: "the target is not readable" });
    let mut answer = Response::new(ResponseBody::empty());
    *answer.status_mut() = status;
    answer.headers_mut().insert(LOCATION, HeaderValue::try_from(location).map_err(refusal)?);
    Ok(answer)
}

fn check_length(request: &Request<Incoming>, route: &Route) -> Result<(), Failure> {
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    match (length, route.settings.body_bytes_max) {
        (Some(length), Some(bytes_max)) if length > bytes_max => Err(Failure::TooLarge),
        _ => Ok(()),
    }
}

impl Proxy {
    /// For so long after the request has been sent, as an upload may take its time; and for so long in all.
    async fn wait<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
        settings: &RouteSettings,
        upload: Option<&Upload>,
    ) -> Result<T, Failure> {
        let waited = self.wait_for_answer(work, settings.response_timeout, upload);
        match settings.request_timeout {
            Some(limit) => self.env.timeout(limit, waited).await.unwrap_or(Err(Failure::Timeout)),
            None => waited.await,
        }
    }

    async fn wait_for_answer<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
        limit: Duration,
        upload: Option<&Upload>,
    ) -> Result<T, Failure> {
        let mut work = std::pin::pin!(work);
        let mut left = limit;
        loop {
            if let Some(done) = self.env.timeout(left, work.as_mut()).await {
                return done;
            }
            let silent = upload.map_or(limit, |upload| self.env.monotonic().saturating_sub(upload.last()));
            if silent >= limit {
                return Err(Failure::Timeout);
            }
            left = limit - silent;
        }
    }

    async fn forward(
        &self,
        backend: &Backend,
        request: Request<RequestBody>,
        mut from_client: Option<OnUpgrade>,
        log: &mut Option<Box<LogEntry>>,
    ) -> Result<Response<ResponseBody>, Failure> {
        let is_repeatable = request.body().is_empty() && request::is_idempotent(request.method());
        let turn = backend.turn();
        let mut next = Some(request);
        for attempt in 0..ATTEMPTS_MAX {
            // Looked at again: what failed may be gone by now.
            let state = backend.state();
            let Some(request) = next.take() else { break };
            let Some(count) = Some(state.endpoints.len()).filter(|count| *count > 0) else {
                return Err(Failure::NoEndpoints);
            };
            let address = state.endpoints[(turn + attempt) % count];
            if let Some(log) = log {
                log.endpoint = Some(address);
            }
            let endpoint = Endpoint { address, tls: backend.key.tls.as_deref() };
            let again = is_repeatable.then(|| copy_head(&request));
            let sent = match state.protocol {
                Protocol::Http1 => self.send_http1(endpoint, request, is_repeatable, &mut from_client).await,
                Protocol::Http2 => self.send_http2(endpoint, request).await,
            };
            next = match sent {
                Ok(answer) => return Ok(answer),
                Err(SendError::Connect(request, error)) => {
                    tracing::debug!(endpoint = %address, %error, "failed to connect to an endpoint");
                    // The same one again would refuse again.
                    Some(request).filter(|_| count > 1 || attempt == 0)
                }
                Err(SendError::Unsent(request)) => Some(request),
                Err(SendError::Broken(error)) => {
                    tracing::debug!(endpoint = %address, %error, "an endpoint broke off");
                    again
                }
            };
        }
        Err(Failure::Unreachable)
    }

    async fn send_http1(
        &self,
        endpoint: Endpoint<'_>,
        request: Request<RequestBody>,
        is_repeatable: bool,
        from_client: &mut Option<OnUpgrade>,
    ) -> Result<Response<ResponseBody>, SendError> {
        let mut connection = match self.pool.http1(endpoint, is_repeatable).await {
            Ok(connection) => connection,
            Err(error) => return Err(SendError::Connect(request, error)),
        };
        let mut answer = connection.send(request).await?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(self.switch(&mut answer, connection, from_client.take()));
        }
        let (mut head, incoming) = answer.into_parts();
        prepare_answer(&mut head);
        let body = UpstreamBody::new(incoming, connection, self.pool.clone());
        let silence = SilenceTimer::new(self.env.clone(), self.config.response_silence_max);
        Ok(Response::from_parts(head, ResponseBody::http1(body, silence)))
    }

    async fn send_http2(
        &self,
        endpoint: Endpoint<'_>,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, SendError> {
        let mut sender = match self.pool.http2(endpoint).await {
            Ok(sender) => sender,
            Err(error) => return Err(SendError::Connect(request, error)),
        };
        absolute_form(&mut request, endpoint.tls);
        let (mut head, incoming) = sender.try_send_request(request).await?.into_parts();
        prepare_answer(&mut head);
        let silence = SilenceTimer::new(self.env.clone(), self.config.response_silence_max);
        Ok(Response::from_parts(head, ResponseBody::http2(incoming, silence)))
    }

    /// Goes on in the protocol that client and backend agree on.
    fn switch(
        &self,
        answer: &mut Response<Incoming>,
        connection: Http1Connection,
        from_client: Option<OnUpgrade>,
    ) -> Response<ResponseBody> {
        // Nobody asked for it.
        let Some(from_client) = from_client else { return Failure::Unreachable.answer() };
        let from_backend = hyper::upgrade::on(&mut *answer);
        self.env.spawn(upgrade::join(from_client, from_backend, connection, self.env.clone()));
        let protocol = answer.headers().get(UPGRADE).cloned();
        let mut switched = Response::new(ResponseBody::empty());
        *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *switched.headers_mut() = std::mem::take(answer.headers_mut());
        request::remove_hop_by_hop(switched.headers_mut());
        switched.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        if let Some(protocol) = protocol {
            switched.headers_mut().insert(UPGRADE, protocol);
        }
        switched
    }
}

fn copy_head(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// An answer as it goes on to the client.
fn prepare_answer(head: &mut http::response::Parts) {
    // Its length was that of the chunks.
    if head.headers.contains_key(TRANSFER_ENCODING) {
        head.headers.remove(CONTENT_LENGTH);
    }
    request::remove_hop_by_hop(&mut head.headers);
    head.version = Version::HTTP_11;
}

/// HTTP/2 has the host in the target.
fn absolute_form(request: &mut Request<RequestBody>, tls: Option<&UpstreamTls>) {
    if request.uri().authority().is_some() {
        return;
    }
    let host = request.headers_mut().remove(http::header::HOST);
    let authority = host.and_then(|host| http::uri::Authority::try_from(host.as_bytes()).ok());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(if tls.is_some() { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP });
    parts.authority = Some(authority.unwrap_or_else(|| http::uri::Authority::from_static("localhost")));
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
}
