//! Requests to the API server: made here, carried by a `Transport`.
//! Used by `discovery`, `resource` and the verbs; connections are made in `connect`.
//! Every answer that is no success becomes a `Failure`; warnings of the server are printed once each.

pub mod connect;
pub mod log;
pub mod path;
mod proxy_environment;
mod tls_error;

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    pin::Pin,
    rc::Rc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::{
    StreamExt,
    future::LocalBoxFuture,
    stream::{BoxStream, LocalBoxStream},
};
use http::{HeaderName, HeaderValue, Method, Request, Response, header};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    failure::{Failure, Result},
    output::Output,
};

pub type Body = BoxStream<'static, std::io::Result<Bytes>>;

pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection that speaks no HTTP yet, and the headers that say who asks.
pub struct Upgrade {
    pub stream: Pin<Box<dyn ByteStream>>,
    pub host: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// The way to one API server under one identity.
pub trait Transport {
    /// The server's address, such as `https://127.0.0.1:6443`.
    fn server(&self) -> &str;

    /// Sent with every request: who asks, and with which program.
    fn headers(&self) -> &[(HeaderName, HeaderValue)];

    /// The path of the request is behind the server's. A non-2xx answer is returned, not an error.
    fn send(&self, request: Request<Bytes>) -> LocalBoxFuture<'_, Result<Response<Body>>>;

    /// For WebSockets.
    fn connect(&self) -> LocalBoxFuture<'_, Result<Upgrade>>;
}

#[derive(Clone)]
pub struct Rest(Rc<Inner>);

struct Inner {
    transport: Rc<dyn Transport>,
    output: Output,
    verbosity: i64,
    timeout: Option<Duration>,
    warnings: Cell<usize>,
    warned: RefCell<HashSet<String>>,
    env: env::Env,
}

/// One request on its way.
pub struct Call<'a> {
    rest: &'a Rest,
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(HeaderName, String)>,
    body: Bytes,
    /// For messages: the resource and the name.
    about: (String, String),
    unlimited: bool,
}

impl Rest {
    pub fn new(
        transport: Rc<dyn Transport>,
        output: Output,
        verbosity: i64,
        timeout: Option<Duration>,
        env: env::Env,
    ) -> Self {
        Self(Rc::new(Inner {
            transport,
            output,
            verbosity,
            timeout,
            warnings: Cell::new(0),
            warned: RefCell::default(),
            env,
        }))
    }

    pub fn server(&self) -> &str {
        self.0.transport.server()
    }

    /// How many warnings the server sent.
    pub fn warnings(&self) -> usize {
        self.0.warnings.get()
    }

    pub fn transport(&self) -> &dyn Transport {
        &*self.0.transport
    }

    pub fn call(&self, method: Method, path: impl Into<String>) -> Call<'_> {
        Call {
            rest: self,
            method,
            path: path.into(),
            query: Vec::new(),
            headers: Vec::new(),
            body: Bytes::new(),
            about: Default::default(),
            unlimited: false,
        }
    }

    pub fn get(&self, path: impl Into<String>) -> Call<'_> {
        self.call(Method::GET, path)
    }

    fn heed_warnings(&self, response: &Response<Body>) {
        for value in response.headers().get_all(header::WARNING) {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            // `299 - "text"`
            let Some(quoted) = text.splitn(3, ' ').nth(2) else { continue };
            let text = unquoted(quoted);
            self.0.warnings.set(self.0.warnings.get() + 1);
            if self.0.warned.borrow_mut().insert(text.clone()) {
                self.0.output.warn(&format!("Warning: {text}"));
            }
        }
    }
}

fn unquoted(text: &str) -> String {
    let inner = text.trim().strip_prefix('"').unwrap_or(text);
    let mut found = String::new();
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => break,
            '\\' => found.extend(letters.next()),
            other => found.push(other),
        }
    }
    found
}

impl<'a> Call<'a> {
    pub fn query(mut self, name: &str, value: impl Into<String>) -> Self {
        self.query.push((name.to_string(), value.into()));
        self
    }

    /// Only if there is something to say.
    pub fn query_opt(self, name: &str, value: &str) -> Self {
        match value {
            "" => self,
            value => self.query(name, value),
        }
    }

    pub fn queries(mut self, pairs: &[(String, String)]) -> Self {
        self.query.extend_from_slice(pairs);
        self
    }

    pub fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn json(self, value: &Value) -> Self {
        self.body("application/json", serde_json::to_vec(value).unwrap_or_default())
    }

    pub fn body(mut self, content_type: &str, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self.header(header::CONTENT_TYPE, content_type)
    }

    pub fn about(mut self, resource: &str, name: &str) -> Self {
        self.about = (resource.to_string(), name.to_string());
        self
    }

    /// A stream that lasts: no request timeout.
    pub fn unlimited(mut self) -> Self {
        self.unlimited = true;
        self
    }

    fn uri(&self) -> String {
        let mut uri = self.path.clone();
        for (index, (name, value)) in self.query.iter().enumerate() {
            let joint = if index == 0 && !uri.contains('?') { '?' } else { '&' };
            uri.push(joint);
            uri.push_str(&path::query_escape(name));
            uri.push('=');
            uri.push_str(&path::query_escape(value));
        }
        uri
    }

    /// The answer with its body still to come.
    pub async fn open(self) -> Result<Response<Body>> {
        self.opened().await.map(|(response, _)| response)
    }

    async fn opened(self) -> Result<(Response<Body>, log::RequestLog<'a>)> {
        let uri = self.uri();
        let mut request = Request::builder().method(self.method.clone()).uri(&uri);
        if !self.headers.iter().any(|(name, _)| name == header::ACCEPT) {
            request = request.header(header::ACCEPT, "application/json, */*");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(self.body.clone()).map_err(|e| Failure::message(format!("{uri}: {e}")))?;
        let inner = &self.rest.0;
        let log = log::RequestLog::begin(inner.verbosity, &*inner.transport, &request, &inner.output, &inner.env);
        let sent = inner.transport.send(request);
        let response = match inner.timeout.filter(|_| !self.unlimited) {
            None => sent.await,
            Some(limit) => match env::timeout(limit, sent).await {
                Some(answer) => answer,
                None => Err(Failure::Connection {
                    server: inner.transport.server().to_string(),
                    refused: false,
                    cause: "net/http: request canceled (Client.Timeout exceeded while awaiting headers)".to_string(),
                }),
            },
        };
        log.end(response.as_ref().ok());
        let response = response?;
        self.rest.heed_warnings(&response);
        if response.status().is_success() || response.status() == 101 {
            return Ok((response, log));
        }
        let status = response.status().as_u16();
        let body = whole(response.into_body()).await.unwrap_or_default();
        log.body("Response Body", &body);
        let verb = match self.method {
            Method::POST => "post",
            Method::PUT => "put",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "get",
        };
        Err(Failure::from_answer(status, &body, verb, &self.about.0, &self.about.1))
    }

    pub async fn bytes(self) -> Result<Bytes> {
        let (response, log) = self.opened().await?;
        let body = whole(response.into_body()).await?;
        log.body("Response Body", &body);
        Ok(body)
    }

    pub async fn value(self) -> Result<Value> {
        Ok(serde_json::from_slice(&self.bytes().await?)?)
    }

    /// The lines of a body that does not end soon, such as a watch.
    pub async fn lines(self) -> Result<LocalBoxStream<'static, Result<Bytes>>> {
        let rest = self.rest.clone();
        let body = self.unlimited().open().await?.into_body();
        // A request timeout ends a stream too.
        let body: LocalBoxStream<'static, std::io::Result<Bytes>> = match rest.0.timeout {
            Some(limit) => body.take_until(async move {
                env::sleep(limit).await;
                if rest.0.verbosity >= 5 {
                    let text = "\"Unable to decode an event from the watch stream\" err=\"net/http: request canceled (Client.Timeout or context cancellation while reading body)\"";
                    log::line(&rest.0.env, &rest.0.output, "streamwatcher.go:123", text);
                }
            }).boxed_local(),
            None => body,
        };
        let state = (body, BytesMut::new(), false);
        let lines = futures::stream::unfold(state, |(mut body, mut held, mut ended)| async move {
            loop {
                if let Some(at) = held.iter().position(|b| *b == b'\n') {
                    let line = held.split_to(at + 1).freeze();
                    return Some((Ok(line.slice(..at)), (body, held, ended)));
                }
                if ended {
                    return match held.is_empty() {
                        true => None,
                        false => Some((Ok(held.split().freeze()), (body, held, ended))),
                    };
                }
                match body.next().await {
                    Some(Ok(chunk)) => held.extend_from_slice(&chunk),
                    Some(Err(error)) => return Some((Err(error.into()), (body, BytesMut::new(), true))),
                    None => ended = true,
                }
            }
        });
        Ok(lines.boxed_local())
    }
}

pub async fn whole(mut body: Body) -> Result<Bytes> {
    let mut held = BytesMut::new();
    while let Some(chunk) = body.next().await {
        held.extend_from_slice(&chunk?);
    }
    Ok(held.freeze())
}
