//! What a route changes about requests and answers: headers, redirects, rewrites, mirrors, CORS.
//! Made from the filters of HTTPRoutes and GRPCRoutes, applied by `proxy`.
//! Pure (tidy: `pure_files`): a filter sees a head and nothing else.

use std::sync::Arc;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
        ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
        ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
    },
};

use crate::{backends::Backend, destinations::Share, routes::PathMatch};

#[derive(Debug, Default)]
pub struct Filters {
    pub request_headers: HeaderChanges,
    pub response_headers: HeaderChanges,
    pub redirect: Option<Redirect>,
    pub rewrite: Option<Rewrite>,
    pub mirrors: Vec<Mirror>,
    pub cors: Option<Cors>,
}

#[derive(Debug, Default, Clone)]
pub struct HeaderChanges {
    pub set: Vec<(HeaderName, HeaderValue)>,
    pub add: Vec<(HeaderName, HeaderValue)>,
    pub remove: Vec<HeaderName>,
}

impl HeaderChanges {
    pub fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
        for name in &self.remove {
            headers.remove(name);
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathChange {
    Full(String),
    /// In the place of what the route's prefix has matched.
    Prefix(String),
}

impl PathChange {
    pub fn apply(&self, path: &str, matched: &PathMatch) -> String {
        match (self, matched) {
            (Self::Full(path), _) => path.clone(),
            (Self::Prefix(new), PathMatch::Prefix(old)) => {
                let rest = path.strip_prefix(old.as_str()).unwrap_or(path);
                let changed = format!("{}{rest}", new.trim_end_matches('/'));
                if changed.is_empty() { "/".into() } else { changed }
            }
            // Nothing else has a prefix; refused when the route was made.
            (Self::Prefix(_), _) => path.to_string(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    pub scheme: Option<String>,
    pub hostname: Option<String>,
    pub path: Option<PathChange>,
    pub port: Option<u16>,
    pub status: StatusCode,
}

/// The request that a redirect answers.
pub struct Redirected<'a> {
    pub scheme: &'a str,
    pub host: &'a str,
    /// Where the request came in.
    pub port: u16,
    pub path: &'a str,
    pub query: Option<&'a str>,
}

impl Redirect {
    pub fn location(&self, from: &Redirected<'_>, matched: &PathMatch) -> String {
        let scheme = self.scheme.as_deref().unwrap_or(from.scheme);
        let host = self.hostname.as_deref().unwrap_or(from.host);
        let usual = if scheme == "https" { 443 } else { 80 };
        // Another scheme without a port means its usual one.
        let port = self.port.unwrap_or(if self.scheme.is_some() { usual } else { from.port });
        let path = match &self.path {
            Some(change) => change.apply(from.path, matched),
            None => from.path.to_string(),
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
        let port = if port == usual { String::new() } else { format!(":{port}") };
        let query = from.query.map(|query| format!("?{query}")).unwrap_or_default();
        format!("{scheme}://{host}{port}{path}{query}")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    pub hostname: Option<HeaderValue>,
    pub path: Option<PathChange>,
}

/// A copy of requests goes to another backend, whose answers nobody reads.
#[derive(Debug)]
pub struct Mirror {
    pub backend: Arc<Backend>,
    /// So many of `denominator` requests.
    pub numerator: u32,
    pub denominator: u32,
    pub share: Share,
}

impl Mirror {
    pub fn takes(&self) -> bool {
        self.share.next(u64::from(self.denominator)) < u64::from(self.numerator)
    }
}

#[derive(Debug, Clone, Default)]
pub struct Cors {
    pub allow_origins: Vec<String>,
    pub allow_methods: Vec<String>,
    pub allow_headers: Vec<String>,
    pub expose_headers: Vec<String>,
    pub allow_credentials: bool,
    pub max_age_seconds: u32,
}

impl Cors {
    pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
        *method == Method::OPTIONS
            && headers.contains_key(ORIGIN)
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// What a browser is told before it asks. Nothing for origins that may not.
    pub fn preflight(&self, request: &HeaderMap) -> HeaderMap {
        let mut answer = HeaderMap::new();
        if !self.allow(request, &mut answer) {
            return answer;
        }
        let asked = |name: HeaderName| request.get(name).cloned();
        let list = |allowed: &[String], asked: Option<HeaderValue>| match allowed {
            // With credentials a star is a name like any other to browsers.
            [any] if any == "*" && self.allow_credentials => asked,
            [] => None,
            some => HeaderValue::try_from(some.join(", ")).ok(),
        };
        if let Some(methods) = list(&self.allow_methods, asked(ACCESS_CONTROL_REQUEST_METHOD)) {
            answer.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        }
        if let Some(headers) = list(&self.allow_headers, asked(ACCESS_CONTROL_REQUEST_HEADERS)) {
            answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, headers);
        }
        answer.insert(ACCESS_CONTROL_MAX_AGE, self.max_age_seconds.into());
        answer
    }

    /// Adds to the answer of a backend what a browser wants to see.
    pub fn answer(&self, request: &HeaderMap, answer: &mut HeaderMap) {
        if !self.allow(request, answer) || self.expose_headers.is_empty() {
            return;
        }
        if let Ok(exposed) = HeaderValue::try_from(self.expose_headers.join(", ")) {
            answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }

    fn allow(&self, request: &HeaderMap, answer: &mut HeaderMap) -> bool {
        let Some(origin) = request.get(ORIGIN) else { return false };
        let Ok(text) = origin.to_str() else { return false };
        if !self.allow_origins.iter().any(|allowed| origin_takes(allowed, text)) {
            return false;
        }
        let any = self.allow_origins.iter().any(|allowed| allowed == "*") && !self.allow_credentials;
        let shown = if any { HeaderValue::from_static("*") } else { origin.clone() };
        answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, shown);
        if !any {
            answer.append(VARY, HeaderValue::from_static("Origin"));
        }
        if self.allow_credentials {
            answer.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        true
    }
}

/// A star stands for any origin, or for the labels in front of a domain.
fn origin_takes(allowed: &str, origin: &str) -> bool {
    match allowed.split_once('*') {
        None => allowed.eq_ignore_ascii_case(origin),
        Some(("", "")) => true,
        Some((before, after)) => {
            origin.len() > before.len() + after.len()
                && origin.get(..before.len()).is_some_and(|start| start.eq_ignore_ascii_case(before))
                && origin.get(origin.len() - after.len()..).is_some_and(|end| end.eq_ignore_ascii_case(after))
        }
    }
}

#[cfg(test)]
#[path = "filters_tests.rs"]
mod tests;
