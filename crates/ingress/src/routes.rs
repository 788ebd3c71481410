//! The route table: which route a request takes, by host, path and conditions.
//! Made by `model`, asked by `proxy`; shared as an immutable value that is swapped as a whole.
//! Pure (tidy: `pure_files`): a lookup is one or a few hash lookups for the host and one step per path element.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use http::StatusCode;
use parking_lot::RwLock;
use rustls::sign::CertifiedKey;

use crate::{
    certificates::Certificates,
    destinations::Destinations,
    filters::Filters,
    host_map::HostMap,
    pattern::{Pattern, PatternBudget},
    request_match::{RequestHead, RequestMatch},
};

/// A path as a rule names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathMatch {
    Exact(String),
    /// Element by element; without the slash at its end.
    Prefix(String),
    Pattern(PathPattern),
}

impl PathMatch {
    pub fn prefix(path: &str) -> Self {
        Self::Prefix(path.trim_end_matches('/').to_string())
    }

    /// Whether a pattern takes the path. Where the others lie in the table says that of them.
    fn takes(&self, path: &str, budget: &PatternBudget) -> bool {
        match self {
            Self::Pattern(pattern) => pattern.0.takes(path, budget),
            _ => true,
        }
    }
}

/// A regular expression for whole paths; two are the same when their texts are.
#[derive(Debug, Clone)]
pub struct PathPattern(pub Pattern);

impl PartialEq for PathPattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for PathPattern {}

impl std::hash::Hash for PathPattern {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.as_str().hash(state);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSettings {
    /// Until the head of the answer has come, counted from the end of the request.
    pub response_timeout: Duration,
    /// The same, counted from the request's beginning.
    pub request_timeout: Option<Duration>,
    /// Of a request; none: as much as a client likes.
    pub body_bytes_max: Option<u64>,
    /// Plain HTTP is sent to HTTPS instead.
    pub redirect_to_https: bool,
    /// The answer where a route leads to nothing that exists.
    pub unresolved_status: StatusCode,
}

impl Default for RouteSettings {
    fn default() -> Self {
        Self {
            response_timeout: Duration::from_secs(60),
            request_timeout: None,
            body_bytes_max: None,
            redirect_to_https: false,
            unresolved_status: StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Where requests of one host and path go.
#[derive(Debug)]
pub struct Route {
    /// The object it comes from, as `namespace/name`; for the access log.
    pub owner: Arc<str>,
    pub path: PathMatch,
    /// Of a wildcard host: only one label stands for the star.
    pub one_label: bool,
    pub condition: RequestMatch,
    pub destinations: Arc<Destinations>,
    pub filters: Option<Arc<Filters>>,
    pub settings: Arc<RouteSettings>,
}

/// The routes of one host.
#[derive(Debug, Default)]
pub struct PathTable {
    exact: HashMap<Box<str>, Vec<Arc<Route>>>,
    patterns: Vec<Arc<Route>>,
    prefixes: PathNode,
    /// When no path matches.
    fallback: Option<Arc<Route>>,
}

/// One element of a path and what may follow it.
#[derive(Debug, Default)]
struct PathNode {
    routes: Vec<Arc<Route>>,
    children: HashMap<Box<str>, PathNode>,
}

impl PathTable {
    /// Behind those that are there for the same path.
    fn insert(&mut self, route: Arc<Route>) {
        match &route.path {
            PathMatch::Exact(path) => self.exact.entry(path.as_str().into()).or_default().push(route),
            PathMatch::Prefix(path) => {
                let mut node = &mut self.prefixes;
                for element in elements(path) {
                    node = node.children.entry(element.into()).or_default();
                }
                node.routes.push(route);
            }
            PathMatch::Pattern(_) => self.patterns.push(route),
        }
    }

    /// An exact path is as long as the whole; after it the first pattern, then the longest prefix that takes the request.
    fn find(&self, path: &str, takes: &dyn Fn(&Route) -> bool) -> Option<&Arc<Route>> {
        let exact = self.exact.get(path).and_then(|routes| routes.iter().find(|route| takes(route)));
        let pattern = || self.patterns.iter().find(|route| takes(route));
        exact.or_else(pattern).or_else(|| self.prefixes.find(elements(path), takes))
    }
}

impl PathNode {
    /// As deep as the table goes, however long the path is.
    fn find<'a>(&self, mut rest: impl Iterator<Item = &'a str>, takes: &dyn Fn(&Route) -> bool) -> Option<&Arc<Route>> {
        let mut node = self;
        let mut best = node.routes.iter().find(|route| takes(route));
        while let Some(next) = rest.next().and_then(|element| node.children.get(element)) {
            node = next;
            best = node.routes.iter().find(|route| takes(route)).or(best);
        }
        best
    }
}

/// `/a/b/` and `/a/b` are the elements `a` and `b`.
fn elements(path: &str) -> impl Iterator<Item = &str> {
    let inner = path.strip_prefix('/').unwrap_or(path);
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    let is_root = inner.is_empty();
    inner.split('/').filter(move |_| !is_root)
}

/// The routes of every host that one listener serves.
#[derive(Debug, Default)]
pub struct HostTable {
    exact: HashMap<Box<str>, PathTable>,
    /// By what follows the star and its dot.
    wildcards: HashMap<Box<str>, PathTable>,
    any: PathTable,
}

impl HostTable {
    /// The routes of `host`, which is a name, `*.` and a name, or empty for any host.
    fn host(&mut self, host: &str) -> &mut PathTable {
        match host.strip_prefix("*.") {
            Some(rest) => self.wildcards.entry(rest.into()).or_default(),
            None if host.is_empty() => &mut self.any,
            None => self.exact.entry(host.into()).or_default(),
        }
    }

    pub fn insert(&mut self, host: &str, route: Arc<Route>) {
        self.host(host).insert(route);
    }

    /// The first one stays.
    pub fn set_fallback(&mut self, host: &str, route: Arc<Route>) -> bool {
        let table = self.host(host);
        let is_first = table.fallback.is_none();
        table.fallback.get_or_insert(route);
        is_first
    }

    /// The most specific host first: where none of its paths takes the request, less specific ones are asked.
    pub fn find(&self, host: &str, path: &str, head: &RequestHead<'_>) -> Option<&Arc<Route>> {
        let takes = |route: &Route| route.path.takes(path, head.budget) && route.condition.takes(head);
        self.hosts(host, |table, only_label| {
            table.find(path, &|route: &Route| takes(route) && (only_label || !route.one_label))
        })
        .or_else(|| {
            let fits = |route: &&Arc<Route>, only_label: bool| takes(route) && (only_label || !route.one_label);
            self.hosts(host, |table, only_label| table.fallback.as_ref().filter(|route| fits(route, only_label)))
        })
    }

    /// What `look` finds in the tables of `host`, from its name over wildcards to any.
    fn hosts<'a, T>(&'a self, host: &str, look: impl Fn(&'a PathTable, bool) -> Option<T>) -> Option<T> {
        if let Some(found) = self.exact.get(host).and_then(|table| look(table, true)) {
            return Some(found);
        }
        if !self.wildcards.is_empty() {
            let mut rest = host;
            let mut only_label = true;
            while let Some((label, parent)) = rest.split_once('.') {
                if !label.is_empty()
                    && let Some(found) = self.wildcards.get(parent).and_then(|table| look(table, only_label))
                {
                    return Some(found);
                }
                (rest, only_label) = (parent, false);
            }
        }
        look(&self.any, true)
    }
}

/// What one port serves.
#[derive(Default)]
pub struct PortTable {
    /// Of Ingresses.
    pub hosts: Arc<HostTable>,
    pub certificates: Arc<Certificates>,
    pub gateway: Arc<GatewayPort>,
    /// No handshake takes place here: connections whose server name is nobody's are closed.
    pub only_passthrough: bool,
}

/// What Gateways have on one port.
#[derive(Default)]
pub struct GatewayPort {
    /// By the host of the listener: a request is for the closest one and for no other.
    pub listeners: HostMap<HostTable>,
    pub certificates: HostMap<Arc<CertifiedKey>>,
    /// TLS that goes on as it is, by server name.
    pub passthrough: HostMap<TlsPassthrough>,
}

impl PortTable {
    /// Gateways come first: Ingresses have what they leave.
    pub fn find(&self, host: &str, path: &str, head: &RequestHead<'_>) -> Option<&Arc<Route>> {
        let listener = self.gateway.listeners.find(host).and_then(|hosts| hosts.find(host, path, head));
        listener.or_else(|| self.hosts.find(host, path, head))
    }
}

/// Where connections of one server name go.
#[derive(Debug)]
pub struct TlsPassthrough {
    /// As `namespace/name`.
    pub owner: Arc<str>,
    pub destinations: Arc<Destinations>,
}

/// Everything, by port.
#[derive(Default)]
pub struct RouteTable {
    pub ports: BTreeMap<u16, PortTable>,
}

/// The one table of now. A reader holds it for as long as its request needs it.
#[derive(Clone, Default)]
pub struct SharedTable(Arc<RwLock<Arc<RouteTable>>>);

impl SharedTable {
    pub fn load(&self) -> Arc<RouteTable> {
        self.0.read().clone()
    }

    pub fn store(&self, table: RouteTable) {
        let former = std::mem::replace(&mut *self.0.write(), Arc::new(table));
        // Outside the lock: a large table takes a moment to take apart.
        drop(former);
    }
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
