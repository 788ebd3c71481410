//! One request on its way through the pipeline, once it is known who sends it.
//! Made by `pipeline`; read by every handler.
//! Carries no Authorization header; that is gone after authentication.

use std::sync::{Arc, OnceLock};

use http::{HeaderMap, Method, Uri, header};
use parking_lot::Mutex;

use api::ApiError;

use crate::{
    authn::User,
    flow_control::Flow,
    handlers::negotiate::{self, Forms, Output},
    request::{body::Body, query::Query, request_info::RequestInfo},
};

/// Marks a request that comes from this process, with the identity it acts under. It skips TLS and nothing else.
#[derive(Debug, Clone)]
pub struct InProcess(pub User);

pub struct Call {
    pub info: RequestInfo,
    pub method: Method,
    pub uri: Uri,
    pub query: Query,
    pub headers: HeaderMap,
    pub user: User,
    pub in_process: bool,
    /// Whether objects that wait for initializers are not there for this request.
    pub hides_uninitialized: bool,
    pub warnings: Mutex<Vec<String>>,
    /// Present when the client asked to switch protocols on its connection.
    pub upgrade: Mutex<Option<hyper::upgrade::OnUpgrade>>,
    /// What the client sends to something behind us: passed on as it comes, never read here. Taken once.
    pub stream: Mutex<Option<Body>>,
    /// What it fell under when it asked for a seat.
    pub flow: OnceLock<Arc<Flow>>,
}

impl Call {
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock();
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// Whether lists and watches are answered with the objects themselves: callers in this process that name no
    /// media type want those; one that does wants bytes like everybody else.
    pub fn by_reference(&self) -> bool {
        self.in_process && !self.headers.contains_key(header::ACCEPT)
    }

    /// The same request about another object.
    pub fn with_info(&self, info: RequestInfo) -> Self {
        Self {
            info,
            method: self.method.clone(),
            uri: self.uri.clone(),
            query: self.query.clone(),
            headers: self.headers.clone(),
            user: self.user.clone(),
            in_process: self.in_process,
            hides_uninitialized: self.hides_uninitialized,
            warnings: Mutex::default(),
            upgrade: Mutex::default(),
            stream: Mutex::default(),
            flow: OnceLock::default(),
        }
    }

    pub fn header(&self, name: impl header::AsHeaderName) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    pub fn output(&self, forms: Forms) -> Result<Output, ApiError> {
        negotiate::output(&self.headers, self.pretty(), forms)
    }

    fn pretty(&self) -> bool {
        let agent = self.header(header::USER_AGENT);
        match self.query.text("pretty") {
            Some(text) => api::codec::parse_bool(text) == Some(true),
            None => ["curl", "Wget", "Mozilla/5.0"].iter().any(|by_hand| agent.starts_with(by_hand)),
        }
    }

    /// Whether the client asked for a protocol switch (exec, port-forward, …).
    pub fn wants_upgrade(&self) -> bool {
        self.header(header::CONNECTION).to_ascii_lowercase().contains("upgrade")
    }
}
