//! Ingresses become a route table: rules, default backends, certificates, and what is wrong with them.
//! Called by `controller`; makes `routes`.
//! Pure (tidy: `pure_files`): where two Ingresses want one host and path, the older one has it, whatever the order they come in.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::networking::v1::{HTTPIngressPath, Ingress, IngressBackend};
use rustls::sign::CertifiedKey;

use crate::{
    backends::{Backend, BackendKey, ServicePort},
    certificates::Certificates,
    destinations::Destinations,
    request_match::RequestMatch,
    routes::{HostTable, PathMatch, PortTable, Route, RouteSettings, RouteTable},
};

const RESPONSE_TIMEOUT: &str = "ingress.minke.io/response-timeout-seconds";
const BODY_BYTES_MAX: &str = "ingress.minke.io/max-body-bytes";
const REDIRECT_TO_HTTPS: &str = "ingress.minke.io/redirect-to-https";

/// Something that an Ingress asks for and can't have. Its other rules stand.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Problem {
    /// As `namespace/name`.
    pub ingress: String,
    pub reason: &'static str,
    pub message: String,
}

/// What Ingresses point at.
pub trait Lookup {
    fn backend(&mut self, key: &BackendKey) -> Arc<Backend>;
    /// The certificate of a Secret, named as `namespace/name`.
    fn certificate(&mut self, secret: &str) -> Result<Arc<CertifiedKey>, CertificateProblem>;
}

#[derive(Debug, Clone)]
pub enum CertificateProblem {
    Missing,
    Bad(String),
}

/// The ports that Ingresses are served on; none where there is no such listener.
#[derive(Debug, Clone, Copy, Default)]
pub struct IngressPorts {
    pub http: Option<u16>,
    pub https: Option<u16>,
}

pub fn build(ingresses: &[Arc<Ingress>], ports: IngressPorts, lookup: &mut dyn Lookup) -> (RouteTable, Vec<Problem>) {
    let mut ordered: Vec<&Ingress> = ingresses.iter().map(Arc::as_ref).collect();
    ordered.sort_by_cached_key(|ingress| {
        let created = ingress.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, key(ingress))
    });
    let mut builder = Builder {
        lookup,
        hosts: HostTable::default(),
        certificates: Certificates::default(),
        paths: HashMap::new(),
        names: HashMap::new(),
        problems: Vec::new(),
    };
    for ingress in ordered {
        builder.add(ingress);
    }
    let (hosts, certificates) = (Arc::new(builder.hosts), Arc::new(builder.certificates));
    let port = |_: &u16| PortTable { hosts: hosts.clone(), certificates: certificates.clone(), ..PortTable::default() };
    let ports: BTreeMap<u16, PortTable> = ports.http.iter().chain(&ports.https).map(|n| (*n, port(n))).collect();
    (RouteTable { ports }, builder.problems)
}

pub fn key(ingress: &Ingress) -> String {
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    format!("{}/{}", name(&ingress.metadata.namespace), name(&ingress.metadata.name))
}

struct Builder<'a> {
    lookup: &'a mut dyn Lookup,
    hosts: HostTable,
    certificates: Certificates,
    /// Who has a host and path, and whose certificate a name has.
    paths: HashMap<(String, PathMatch), Arc<str>>,
    names: HashMap<String, Arc<str>>,
    problems: Vec<Problem>,
}

/// One Ingress while it is added.
struct Owner {
    name: Arc<str>,
    namespace: String,
    settings: Arc<RouteSettings>,
}

impl Builder<'_> {
    fn add(&mut self, ingress: &Ingress) {
        let Some(spec) = &ingress.spec else { return };
        let (settings, wrong) = settings(ingress);
        let owner = Owner {
            name: key(ingress).into(),
            namespace: ingress.metadata.namespace.clone().unwrap_or_default(),
            settings: Arc::new(settings),
        };
        for message in wrong {
            self.problem(&owner, "BadAnnotation", message);
        }
        for tls in spec.tls.iter().flatten() {
            let hosts = tls.hosts.as_deref().unwrap_or_default();
            if let Some(secret) = &tls.secret_name {
                self.add_certificate(&owner, hosts, secret);
            }
        }
        for rule in spec.rules.iter().flatten() {
            let host = rule.host.as_deref().unwrap_or_default().to_ascii_lowercase();
            for path in rule.http.iter().flat_map(|http| &http.paths) {
                self.add_path(&owner, &host, path);
            }
        }
        if let Some(backend) = &spec.default_backend {
            let mut hosts: Vec<String> = spec
                .rules
                .iter()
                .flatten()
                .map(|rule| rule.host.clone().unwrap_or_default().to_ascii_lowercase())
                .collect();
            if hosts.is_empty() {
                hosts.push(String::new());
            }
            hosts.dedup();
            self.add_default(&owner, &hosts, backend);
        }
    }

    fn add_path(&mut self, owner: &Owner, host: &str, path: &HTTPIngressPath) {
        let text = path.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
        let matched = match path.path_type.as_str() {
            "Exact" => PathMatch::Exact(text.to_string()),
            // What an implementation likes: the same as a prefix.
            _ => PathMatch::prefix(text),
        };
        match self.paths.entry((host.to_string(), matched.clone())) {
            Entry::Occupied(first) if *first.get() != owner.name => {
                let shown = if host.is_empty() { "any host" } else { host };
                let message = format!("path {text} of {shown} belongs to Ingress {}, which is older", first.get());
                return self.problem(owner, "HostPathConflict", message);
            }
            Entry::Occupied(_) => return,
            Entry::Vacant(free) => free.insert(owner.name.clone()),
        };
        let route = self.route(owner, matched, &path.backend);
        self.hosts.insert(host, route);
    }

    fn add_default(&mut self, owner: &Owner, hosts: &[String], backend: &IngressBackend) {
        let route = self.route(owner, PathMatch::prefix("/"), backend);
        for host in hosts {
            if !self.hosts.set_fallback(host, route.clone()) {
                let shown = if host.is_empty() { "any host" } else { host };
                let message = format!("the default backend of {shown} belongs to an older Ingress");
                self.problem(owner, "HostPathConflict", message);
            }
        }
    }

    fn route(&mut self, owner: &Owner, path: PathMatch, backend: &IngressBackend) -> Arc<Route> {
        Arc::new(Route {
            owner: owner.name.clone(),
            path,
            one_label: true,
            condition: RequestMatch::default(),
            destinations: Arc::new(Destinations::one(self.backend(owner, backend))),
            filters: None,
            settings: owner.settings.clone(),
        })
    }

    fn backend(&mut self, owner: &Owner, backend: &IngressBackend) -> Option<Arc<Backend>> {
        let port = backend.service.as_ref().and_then(|service| service.port.as_ref());
        let port = port.and_then(|port| match (&port.name, port.number) {
            (Some(name), _) => Some(ServicePort::Name(name.clone())),
            (None, number) => number.map(ServicePort::Number),
        });
        let (Some(service), Some(port)) = (&backend.service, port) else {
            let what = backend.resource.as_ref().map_or("without a Service", |_| "that is a resource");
            self.problem(owner, "UnsupportedBackend", format!("a backend {what} can't be served"));
            return None;
        };
        let key = BackendKey::new(&owner.namespace, &service.name, port);
        let found = self.lookup.backend(&key);
        if let Some(problem) = &found.state().problem {
            self.problem(owner, "BadBackend", problem.clone());
        }
        Some(found)
    }

    fn add_certificate(&mut self, owner: &Owner, hosts: &[String], secret: &str) {
        let secret = format!("{}/{secret}", owner.namespace);
        let certificate = match self.lookup.certificate(&secret) {
            Ok(certificate) => certificate,
            Err(CertificateProblem::Missing) => {
                let message = format!("there is no Secret {secret} of type kubernetes.io/tls");
                return self.problem(owner, "MissingSecret", message);
            }
            Err(CertificateProblem::Bad(why)) => {
                let message = format!("the certificate of Secret {secret} can't be used: {why}");
                return self.problem(owner, "BadCertificate", message);
            }
        };
        let any = [String::new()];
        for host in if hosts.is_empty() { &any } else { hosts } {
            if self.certificates.insert(host, certificate.clone()) {
                self.names.insert(host.clone(), owner.name.clone());
            } else if let Some(first) = self.names.get(host).filter(|first| **first != owner.name) {
                let message = format!("the certificate of {host:?} is that of Ingress {first}, which is older");
                self.problem(owner, "HostPathConflict", message);
            }
        }
    }

    fn problem(&mut self, owner: &Owner, reason: &'static str, message: String) {
        self.problems.push(Problem { ingress: owner.name.to_string(), reason, message });
    }
}

/// What the annotations say, and which of them say nothing that can be understood.
fn settings(ingress: &Ingress) -> (RouteSettings, Vec<String>) {
    let (mut settings, mut wrong) = (RouteSettings::default(), Vec::new());
    let annotations = ingress.metadata.annotations.clone().unwrap_or_default();
    if let Some(text) = annotations.get(RESPONSE_TIMEOUT) {
        match text.parse() {
            Ok(seconds) if seconds > 0 => settings.response_timeout = Duration::from_secs(seconds),
            _ => wrong.push(format!("{RESPONSE_TIMEOUT} {text:?} is not a number of seconds")),
        }
    }
    if let Some(text) = annotations.get(BODY_BYTES_MAX) {
        match text.parse() {
            Ok(bytes) => settings.body_bytes_max = Some(bytes),
            Err(_) => wrong.push(format!("{BODY_BYTES_MAX} {text:?} is not a number of bytes")),
        }
    }
    if let Some(text) = annotations.get(REDIRECT_TO_HTTPS) {
        match text.parse() {
            Ok(redirect) => settings.redirect_to_https = redirect,
            Err(_) => wrong.push(format!("{REDIRECT_TO_HTTPS} {text:?} is neither true nor false")),
        }
    }
    (settings, wrong)
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
