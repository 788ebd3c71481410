//! Port 4194: a page with live graphs of the node, its pods and its containers, and cAdvisor's JSON.
//! Over `monitor`; `api` is the JSON, `assets` the page, which loads nothing from elsewhere.
//! Only GET, and only from those who name this machine by an address or as localhost: another site's script can't read
//! it under a name of its own.

mod api;

use std::{net::IpAddr, sync::Arc};

use ::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use env::Env;
use futures::future::BoxFuture;
use http_body_util::Full;
use hyper::body::Incoming;
use metrics::Text;
use serve::{Handler, Peer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::monitor::Monitor;

type Body = Full<Bytes>;

const PAGE: &str = include_str!("assets/page.html");
const STYLE: &str = include_str!("assets/page.css");
const SCRIPT: &str = include_str!("assets/page.js");

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Serves until shutdown.
pub async fn serve(listener: TcpListener, monitor: Arc<Monitor>, env: Env, shutdown: CancellationToken) {
    serve::serve_http(listener, Arc::new(Site { monitor }), serve::Limits::COMPONENT, env, shutdown).await;
}

struct Site {
    monitor: Arc<Monitor>,
}

impl Handler for Site {
    type Body = Body;

    fn handle(self: &Arc<Self>, request: Request<Incoming>, _: &Arc<Peer>) -> BoxFuture<'static, Response<Body>> {
        let monitor = self.monitor.clone();
        let question = Question::of(&request);
        // Files are read, which may take a while on a machine under pressure.
        Box::pin(async move {
            match env::spawn_blocking(move || answer(&monitor, &question)).await {
                Ok(response) => response,
                Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "the answer was not finished"),
            }
        })
    }
}

/// As much of a request as answers depend on.
struct Question {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    host: String,
}

impl Question {
    fn of<B>(request: &Request<B>) -> Self {
        let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        let pairs = request.uri().query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
        Self {
            method: request.method().clone(),
            path: decode(request.uri().path()),
            query: pairs.map(|(name, value)| (decode(name), decode(value))).collect(),
            host: host.unwrap_or_default().into(),
        }
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Whether a Host header is an address or localhost, with or without a port.
fn names_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok()
}

fn answer(monitor: &Monitor, question: &Question) -> Response<Body> {
    if !names_this_machine(&question.host) {
        return refusal(StatusCode::FORBIDDEN, "ask for localhost or for an address of this machine");
    }
    if question.method != Method::GET && question.method != Method::HEAD {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered");
    }
    match question.path.as_str() {
        "/" => redirect("/containers/"),
        "/healthz" => respond("text/plain; charset=utf-8", "ok"),
        "/static/page.css" => respond("text/css; charset=utf-8", STYLE),
        "/static/page.js" => respond("text/javascript; charset=utf-8", SCRIPT),
        "/metrics" => {
            let mut text = Text::default();
            monitor.metrics(&mut text);
            respond(metrics::CONTENT_TYPE, text.finish())
        }
        path if path == "/containers" || path.starts_with("/containers/") => respond("text/html; charset=utf-8", PAGE),
        path => match api::answer(monitor, path, &|name| question.parameter(name)) {
            Ok(value) => respond("application/json", value.to_string()),
            Err(api::Refusal { code, message }) => refusal(code, &message),
        },
    }
}

fn respond(content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()));
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    let policy = HeaderValue::from_static("same-origin");
    response.headers_mut().insert("cross-origin-resource-policy", policy);
    response
}

fn refusal(code: StatusCode, message: &str) -> Response<Body> {
    let mut response = respond("text/plain; charset=utf-8", format!("{message}\n"));
    *response.status_mut() = code;
    response
}

fn redirect(to: &'static str) -> Response<Body> {
    let mut response = respond("text/plain; charset=utf-8", "");
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(to));
    response
}

#[cfg(test)]
mod tests;
