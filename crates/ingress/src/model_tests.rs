//! What Ingresses become, and who wins where they clash.

use http::{HeaderMap, Method};
use serde_json::{Value, json};

use super::*;
use crate::{backends::BackendState, pattern::PatternBudget, request_match::RequestHead};

#[derive(Default)]
struct Cluster {
    certificates: HashMap<String, Result<Arc<CertifiedKey>, CertificateProblem>>,
}

impl Lookup for Cluster {
    fn backend(&mut self, key: &BackendKey) -> Arc<Backend> {
        let problem = (key.service == "gone").then(|| "Service n/gone does not exist".to_string());
        Arc::new(Backend::new(key.clone(), BackendState { problem, ..BackendState::default() }))
    }

    fn certificate(&mut self, secret: &str) -> Result<Arc<CertifiedKey>, CertificateProblem> {
        self.certificates.get(secret).cloned().unwrap_or(Err(CertificateProblem::Missing))
    }

    fn upstream_tls(&mut self, settings: &UpstreamTlsSettings) -> Result<Arc<UpstreamTls>, String> {
        UpstreamTls::new(settings).map(Arc::new)
    }
}

fn ingress(name: &str, created: &str, spec: Value) -> Arc<Ingress> {
    let metadata =
        json!({ "name": name, "namespace": "n", "creationTimestamp": format!("2026-01-01T00:00:{created}Z") });
    Arc::new(serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).expect("an Ingress"))
}

fn backend(service: &str) -> Value {
    json!({ "service": { "name": service, "port": { "number": 80 } } })
}

fn rule(host: &str, kind: &str, path: &str, service: &str) -> Value {
    json!({ "host": host, "http": { "paths": [{ "path": path, "pathType": kind, "backend": backend(service) }] } })
}

const PORTS: IngressPorts = IngressPorts { http: Some(80), https: Some(443) };

fn find<'a>(table: &'a RouteTable, port: u16, host: &str, path: &str) -> Option<&'a Arc<Route>> {
    let budget = &PatternBudget::default();
    let head = RequestHead { method: &Method::GET, headers: &HeaderMap::new(), query: None, budget };
    table.ports[&port].find(host, path, &head)
}

fn to(table: &RouteTable, host: &str, path: &str) -> Option<String> {
    let route = find(table, 443, host, path)?;
    Some(route.destinations.pick()?.backend.as_ref()?.key.service.clone())
}

fn messages(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(|p| format!("{} {}: {}", p.ingress, p.reason, p.message)).collect()
}

#[test]
fn of_two_ingresses_with_one_host_and_path_the_older_one_has_it() {
    let young = ingress(
        "a",
        "02",
        json!({ "rules": [rule("foo.com", "Prefix", "/x", "young"), rule("foo.com", "Prefix", "/y", "young")] }),
    );
    let old = ingress(
        "b",
        "01",
        json!({ "rules": [rule("FOO.com", "ImplementationSpecific", "/x/", "old"), rule("foo.com", "Exact", "/x", "exact")] }),
    );
    for order in [[&young, &old], [&old, &young]] {
        let (table, problems) = build(&order.map(Arc::clone), PORTS, &mut Cluster::default());
        for (path, expected) in [("/x", "exact"), ("/x/z", "old"), ("/y", "young")] {
            assert_eq!(to(&table, "foo.com", path).as_deref(), Some(expected), "{path}");
        }
        assert_eq!(
            messages(&problems),
            ["n/a HostPathConflict: path /x of foo.com belongs to Ingress n/b, which is older"]
        );
    }
}

#[test]
fn default_backends_are_of_their_hosts_or_of_all() {
    let all = ingress("all", "01", json!({ "defaultBackend": backend("all") }));
    let late = ingress("late", "02", json!({ "defaultBackend": backend("late") }));
    let own = json!({ "defaultBackend": backend("own"), "rules": [rule("foo.com", "Exact", "/x", "x"), { "host": "bar.com" }] });
    let (table, problems) = build(&[late, all, ingress("own", "03", own)], PORTS, &mut Cluster::default());
    for (host, path, expected) in
        [("foo.com", "/x", "x"), ("foo.com", "/y", "own"), ("bar.com", "/", "own"), ("baz.com", "/x", "all")]
    {
        assert_eq!(to(&table, host, path).as_deref(), Some(expected), "{host}{path}");
    }
    let expected = "n/late HostPathConflict: the default backend of any host belongs to an older Ingress";
    assert_eq!(messages(&problems), [expected]);
}

#[test]
fn what_is_wrong_is_said_and_the_rest_goes_on() {
    let good = crate::default_certificate().unwrap();
    let mut cluster = Cluster::default();
    cluster.certificates.insert("n/good".into(), Ok(good.clone()));
    cluster.certificates.insert("n/bad".into(), Err(CertificateProblem::Bad("no PEM".into())));
    let mut resource = rule("foo.com", "Prefix", "/r", "x");
    resource["http"]["paths"][0]["backend"] = json!({ "resource": { "kind": "Bucket", "name": "b" } });
    let tls = json!([{ "hosts": ["foo.com"], "secretName": "good" }, { "hosts": ["bar.com"], "secretName": "bad" },
        { "hosts": ["baz.com"], "secretName": "none" }]);
    let mut broken = (*ingress(
        "i",
        "01",
        json!({ "tls": tls, "rules": [rule("foo.com", "Prefix", "/gone", "gone"), resource, rule("foo.com", "Prefix", "/", "web")] }),
    ))
    .clone();
    broken.metadata.annotations = Some(BTreeMap::from([
        (RESPONSE_TIMEOUT.to_string(), "soon".to_string()),
        (BODY_BYTES_MAX.to_string(), "1000".to_string()),
        (REDIRECT_TO_HTTPS.to_string(), "true".to_string()),
    ]));
    let (table, problems) = build(&[Arc::new(broken)], PORTS, &mut cluster);
    assert_eq!(
        messages(&problems),
        [
            "n/i BadAnnotation: ingress.minke.io/response-timeout-seconds \"soon\" is not a number of seconds",
            "n/i BadCertificate: the certificate of Secret n/bad can't be used: no PEM",
            "n/i MissingSecret: there is no Secret n/none of type kubernetes.io/tls",
            "n/i BadBackend: Service n/gone does not exist",
            "n/i UnsupportedBackend: a backend that is a resource can't be served",
        ]
    );
    assert_eq!(to(&table, "foo.com", "/else").as_deref(), Some("web"));
    assert_eq!(to(&table, "foo.com", "/r"), None, "a route that leads nowhere is no reason to take another");
    let route = find(&table, 80, "foo.com", "/").unwrap();
    let expected = RouteSettings { body_bytes_max: Some(1000), redirect_to_https: true, ..RouteSettings::default() };
    assert_eq!(*route.settings, expected);
    let certificates = &table.ports[&443].certificates;
    assert!(Arc::ptr_eq(certificates.find("foo.com").unwrap(), &good));
    assert!(certificates.find("bar.com").is_none());
}

#[test]
fn backends_speak_what_the_annotation_says() {
    for (annotation, expected, problems) in [
        (None, (Protocol::Http1, None), 0),
        (Some("https"), (Protocol::Http1, Some("TLS to web.n.svc")), 0),
        (Some("GRPCS"), (Protocol::Http2, Some("TLS to web.n.svc")), 0),
        (Some("GRPC"), (Protocol::Http2, None), 0),
        (Some("FCGI"), (Protocol::Http1, None), 1),
    ] {
        let spec = json!({ "rules": [rule("foo.com", "Prefix", "/", "web")] });
        let mut annotated = (*ingress("i", "01", spec)).clone();
        let annotations = annotation.map(|text| BTreeMap::from([(BACKEND_PROTOCOL.to_string(), text.to_string())]));
        annotated.metadata.annotations = annotations;
        let (table, found) = build(&[Arc::new(annotated)], PORTS, &mut Cluster::default());
        assert_eq!(found.len(), problems, "{found:?}");
        let route = find(&table, 80, "foo.com", "/").unwrap();
        let key = route.destinations.pick().unwrap().backend.as_ref().unwrap().key.clone();
        let tls = key.tls.map(|tls| format!("{tls:?}"));
        assert_eq!((key.protocol, tls.as_deref()), expected, "{annotation:?}");
    }
}
