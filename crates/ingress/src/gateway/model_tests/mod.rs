//! What Gateways and routes become: listeners, attachment, precedence, references and the conditions that say so. The
//! cases are those of the published conformance tests in sense.

mod fixture;
mod own_addresses;

use fixture::{
    FINE, backend, built, check, class, gateway, goes_to, http_listener, http_route, one_gateway, parents, read, rule,
    show,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};

use super::*;
use crate::{
    backends::{Backend, BackendKey, BackendState},
    default_certificate,
    model::{CertificateProblem, Lookup},
    pattern::PatternBudget,
    request_match::RequestHead,
    routes::PortTable,
    upstream_tls::{UpstreamTls, UpstreamTlsSettings},
};

/// Services `a` to `d` with port 8080 (named `web`) in every namespace; port 9999 is somebody else's.
#[derive(Default)]
struct World {
    certificates: BTreeMap<String, Result<Arc<CertifiedKey>, CertificateProblem>>,
    config_maps: BTreeMap<String, String>,
    own_addresses: BTreeMap<String, GatewayAddresses>,
}

impl Lookup for World {
    fn backend(&mut self, key: &BackendKey) -> Arc<Backend> {
        Arc::new(Backend::new(key.clone(), BackendState::default()))
    }

    fn certificate(&mut self, secret: &str) -> Result<Arc<CertifiedKey>, CertificateProblem> {
        self.certificates.get(secret).cloned().unwrap_or(Err(CertificateProblem::Missing))
    }

    fn upstream_tls(&mut self, settings: &UpstreamTlsSettings) -> Result<Arc<UpstreamTls>, String> {
        UpstreamTls::new(settings).map(Arc::new)
    }
}

impl Cluster for World {
    fn service(&self, key: &str) -> Option<Arc<Service>> {
        let exists = ["/a", "/b", "/c", "/d"].iter().any(|name| key.ends_with(name));
        let ports = json!({ "spec": { "ports": [{ "name": "web", "port": 8080 }] } });
        exists.then(|| Arc::new(serde_json::from_value(ports).unwrap()))
    }

    fn config_map(&self, key: &str) -> Option<Arc<ConfigMap>> {
        let pem = self.config_maps.get(key)?;
        Some(Arc::new(serde_json::from_value(json!({ "data": { "ca.crt": pem } })).unwrap()))
    }

    fn namespace_labels(&self, name: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("kubernetes.io/metadata.name".to_string(), name.to_string())])
    }

    fn listen(&mut self, gateway: &str, port: u16, _: bool) -> Result<u16, String> {
        match (port, self.own_addresses.keys().position(|own| own == gateway)) {
            (9999, _) => Err("port 9999 can't be listened on".into()),
            (port, Some(number)) => Ok(port + 10_000 * (number as u16 + 1)),
            (port, None) => Ok(port),
        }
    }

    fn addresses(&self, gateway: &str) -> GatewayAddresses {
        self.own_addresses.get(gateway).cloned().unwrap_or(GatewayAddresses::Shared)
    }
}

#[test]
fn matches_take_precedence_as_the_specification_says() {
    let path = |kind: &str, value: &str| json!({ "path": { "type": kind, "value": value } });
    let header = |name: &str, value: &str| json!({ "name": name, "value": value });
    let mut snapshot = one_gateway();
    snapshot.http_routes = vec![
        http_route(
            "n/paths",
            1,
            json!({ "hostnames": ["p.com"], "rules": [
                rule(path("PathPrefix", "/"), "a"),
                rule(path("PathPrefix", "/match"), "b"),
                rule(path("Exact", "/match"), "c"),
                rule(path("RegularExpression", "/x/[0-9]+"), "d"),
            ]}),
        ),
        http_route(
            "n/headers",
            1,
            json!({ "hostnames": ["h.com"], "rules": [
                rule(json!({ "headers": [header("version", "one")] }), "a"),
                rule(json!({ "headers": [header("version", "two")] }), "b"),
                rule(json!({ "headers": [header("version", "two"), header("color", "orange")] }), "c"),
                rule(json!({ "headers": [{ "name": "color", "value": "bl.*", "type": "RegularExpression" }] }), "d"),
            ]}),
        ),
        http_route(
            "n/query",
            1,
            json!({ "hostnames": ["q.com"], "rules": [
                rule(json!({ "queryParams": [header("animal", "whale")] }), "a"),
                rule(json!({ "queryParams": [header("animal", "dolphin"), header("color", "blue")] }), "b"),
                rule(json!({ "queryParams": [header("animal", "dolphin")] }), "c"),
            ]}),
        ),
        http_route(
            "n/methods",
            1,
            json!({ "hostnames": ["m.com"], "rules": [
                rule(json!({ "method": "POST" }), "a"),
                rule(json!({ "method": "GET" }), "b"),
                rule(json!({ "path": { "type": "PathPrefix", "value": "/path1" }, "method": "GET" }), "c"),
                rule(json!({ "headers": [header("version", "four")] }), "d"),
            ]}),
        ),
    ];
    check(
        &built(&snapshot),
        &[
            ("GET p.com/", Some("a")),
            ("GET p.com/other", Some("a")),
            ("GET p.com/match", Some("c")),
            ("GET p.com/match/", Some("b")),
            ("GET p.com/match/this/one", Some("b")),
            ("GET p.com/matching", Some("a")),
            ("GET p.com/x/12", Some("d")),
            ("GET p.com/x/12a", Some("a")),
            ("GET h.com/ version=one", Some("a")),
            ("GET h.com/ version=two", Some("b")),
            ("GET h.com/ Version=two color=orange", Some("c")),
            ("GET h.com/ color=blue", Some("d")),
            ("GET h.com/ color=green", None),
            ("GET h.com/", None),
            ("GET q.com/?animal=whale", Some("a")),
            ("GET q.com/?animal=dolphin", Some("c")),
            ("GET q.com/?color=blue&animal=dolphin", Some("b")),
            ("GET q.com/?animal=cat", None),
            ("POST m.com/", Some("a")),
            ("GET m.com/", Some("b")),
            ("GET m.com/path1", Some("c")),
            ("PUT m.com/", None),
            ("PUT m.com/ version=four", Some("d")),
            ("POST m.com/ version=four", Some("a")),
            ("GET other.com/", None),
        ],
    );
}

#[test]
fn of_equal_matches_the_older_route_has_it_then_the_first_by_name() {
    let same = |service: &str| json!({ "rules": [rule(json!({}), service), rule(json!({}), "d")] });
    for (expected, routes) in [
        ("b", [http_route("n/x", 2, same("a")), http_route("n/y", 1, same("b"))]),
        ("a", [http_route("n/x", 1, same("a")), http_route("n/y", 1, same("b"))]),
    ] {
        let [one, other] = routes;
        for order in [vec![one.clone(), other.clone()], vec![other, one]] {
            let mut snapshot = one_gateway();
            snapshot.http_routes = order;
            check(&built(&snapshot), &[("GET h.com/", Some(expected))]);
        }
    }
}

#[test]
fn a_route_is_on_the_listeners_whose_hosts_it_shares() {
    let listeners = json!([
        http_listener("one", Some("very.specific.com")),
        http_listener("two", Some("*.wildcard.io")),
        http_listener("three", Some("*.anotherwildcard.io")),
    ]);
    let route = |name: &str, hosts: Value, service: &str| {
        http_route(name, 1, json!({ "hostnames": hosts, "rules": [rule(json!({}), service)] }))
    };
    let snapshot = GatewaySnapshot {
        classes: vec![class()],
        gateways: vec![gateway("n/g", 1, listeners)],
        http_routes: vec![
            route("n/specific", json!(["non.matching.com", "*.nonmatching.io", "very.specific.com"]), "a"),
            route("n/wild", json!(["foo.wildcard.io", "bar.wildcard.io", "foo.bar.wildcard.io"]), "b"),
            route("n/wilder", json!(["*.anotherwildcard.io"]), "c"),
            route("n/none", json!(["specific.but.wrong.com", "wildcard.io"]), "d"),
        ],
        ..GatewaySnapshot::default()
    };
    let built = built(&snapshot);
    check(
        &built,
        &[
            ("GET very.specific.com/", Some("a")),
            ("GET non.matching.com/", None),
            ("GET foo.wildcard.io/", Some("b")),
            ("GET foo.bar.wildcard.io/", Some("b")),
            ("GET baz.wildcard.io/", None),
            ("GET wildcard.io/", None),
            ("GET one.two.anotherwildcard.io/", Some("c")),
            ("GET anotherwildcard.io/", None),
        ],
    );
    for name in ["n/specific", "n/wild", "n/wilder"] {
        assert_eq!(parents(&built, "HTTPRoute", name), [FINE], "{name}");
    }
    let none = "Accepted=F/NoMatchingListenerHostname ResolvedRefs=T/ResolvedRefs";
    assert_eq!(parents(&built, "HTTPRoute", "n/none"), [none]);
    let attached: Vec<i32> = built.statuses.gateways["n/g"].listeners.iter().map(|l| l.attached_routes).collect();
    assert_eq!(attached, [1, 1, 1]);
}

#[test]
fn a_request_stays_with_the_closest_listener() {
    let listeners = json!([
        http_listener("empty", None),
        http_listener("wild", Some("*.example.com")),
        http_listener("wilder", Some("*.foo.example.com")),
        http_listener("exact", Some("abc.foo.example.com")),
    ]);
    let route = |section: &str, path: &str| {
        http_route(
            &format!("n/{section}"),
            1,
            json!({
                "parentRefs": [{ "name": "g", "sectionName": section }],
                "rules": [rule(json!({ "path": { "type": "PathPrefix", "value": path } }), "a")],
            }),
        )
    };
    let snapshot = GatewaySnapshot {
        classes: vec![class()],
        gateways: vec![gateway("n/g", 1, listeners)],
        http_routes: vec![
            route("empty", "/empty"),
            route("wild", "/wild"),
            route("wilder", "/wilder"),
            route("exact", "/exact"),
        ],
        ..GatewaySnapshot::default()
    };
    let built = built(&snapshot);
    for (host, own) in [
        ("bar.com", "/empty"),
        ("bar.example.com", "/wild"),
        ("bar.foo.example.com", "/wilder"),
        ("abc.foo.example.com", "/exact"),
    ] {
        for path in ["/empty", "/wild", "/wilder", "/exact"] {
            let expected = (path == own).then_some("a");
            assert_eq!(goes_to(&built, 80, &format!("GET {host}{path}")).as_deref(), expected, "{host}{path}");
        }
    }
}

#[test]
fn a_parent_takes_what_it_allows() {
    let listener = |name: &str, port: u16, allowed: Value| json!({ "name": name, "port": port, "protocol": "HTTP", "allowedRoutes": allowed });
    let selector = json!({ "matchLabels": { "kubernetes.io/metadata.name": "chosen" } });
    let listeners = json!([
        listener("same", 80, json!({ "namespaces": { "from": "Same" } })),
        listener("all", 81, json!({ "namespaces": { "from": "All" } })),
        listener("chosen", 82, json!({ "namespaces": { "from": "Selector", "selector": selector } })),
        listener("grpc", 83, json!({ "kinds": [{ "kind": "GRPCRoute" }] })),
    ]);
    let check = |namespace: &str, parent: Value, expected: &str| {
        let mut parent = parent;
        parent["name"] = "g".into();
        parent["namespace"] = "n".into();
        let spec = json!({ "parentRefs": [parent], "rules": [rule(json!({}), "a")] });
        let route = http_route(&format!("{namespace}/r"), 1, spec);
        let snapshot = GatewaySnapshot {
            classes: vec![class()],
            gateways: vec![gateway("n/g", 1, listeners.clone())],
            http_routes: vec![route],
            ..GatewaySnapshot::default()
        };
        let found = parents(&built(&snapshot), "HTTPRoute", &format!("{namespace}/r"));
        assert_eq!(found, [format!("{expected} ResolvedRefs=T/ResolvedRefs")], "{namespace} {parent}");
    };
    let (fine, not_allowed) = ("Accepted=T/Accepted", "Accepted=F/NotAllowedByListeners");
    check("n", json!({ "sectionName": "same" }), fine);
    check("other", json!({ "sectionName": "same" }), not_allowed);
    check("other", json!({ "sectionName": "all" }), fine);
    check("other", json!({ "port": 81 }), fine);
    check("other", json!({}), fine);
    check("other", json!({ "sectionName": "chosen" }), not_allowed);
    check("chosen", json!({ "sectionName": "chosen" }), fine);
    check("n", json!({ "sectionName": "grpc" }), not_allowed);
    check("n", json!({ "sectionName": "none" }), "Accepted=F/NoMatchingParent");
    check("n", json!({ "port": 8080 }), "Accepted=F/NoMatchingParent");
    check("n", json!({ "sectionName": "same", "port": 81 }), "Accepted=F/NoMatchingParent");
}

#[test]
fn references_that_lead_nowhere_are_said_and_their_requests_fail() {
    let grant = read(
        "other/g",
        1,
        json!({
            "from": [{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "n" }],
            "to": [{ "group": "", "kind": "Service", "name": "a" }],
        }),
    );
    let check = |backends: Value, reason: &str, goes: &str| {
        let mut snapshot = one_gateway();
        snapshot.grants = vec![Arc::clone(&grant)];
        snapshot.http_routes = vec![http_route("n/r", 1, json!({ "rules": [{ "backendRefs": backends }] }))];
        let built = built(&snapshot);
        let status = if reason == "ResolvedRefs" { "T" } else { "F" };
        let expected = format!("Accepted=T/Accepted ResolvedRefs={status}/{reason}");
        assert_eq!(parents(&built, "HTTPRoute", "n/r"), [expected], "{backends}");
        assert_eq!(goes_to(&built, 80, "GET h.com/").as_deref(), Some(goes), "{backends}");
    };
    check(backend("a"), "ResolvedRefs", "a");
    check(json!([{ "name": "a", "namespace": "other", "port": 8080 }]), "ResolvedRefs", "a");
    check(json!([{ "name": "b", "namespace": "other", "port": 8080 }]), "RefNotPermitted", "500");
    check(json!([{ "name": "gone", "port": 8080 }]), "BackendNotFound", "500");
    check(json!([{ "name": "a", "port": 1 }]), "BackendNotFound", "500");
    check(json!([{ "name": "a", "kind": "Bucket", "group": "x.io" }]), "InvalidKind", "500");
    check(json!([]), "ResolvedRefs", "500");
    check(json!([{ "name": "a", "port": 8080, "weight": 0 }]), "ResolvedRefs", "500");
}

/// Any change in the cluster compiles the patterns of all routes anew, for everybody.
#[test]
fn an_author_of_thousands_of_large_patterns_is_refused() {
    let header = |number: usize| json!({ "name": format!("x-{number}"), "value": "[ab]*a[ab]{500}", "type": "RegularExpression" });
    let check = |headers: usize, matches: usize, expected: &str| {
        let one = json!({ "headers": (0..headers).map(header).collect::<Vec<_>>() });
        let rule = json!({ "matches": vec![one; matches], "backendRefs": backend("a") });
        let mut snapshot = one_gateway();
        snapshot.http_routes = vec![http_route("n/r", 1, json!({ "rules": [rule] }))];
        let expected = format!("{expected} ResolvedRefs=T/ResolvedRefs");
        assert_eq!(parents(&built(&snapshot), "HTTPRoute", "n/r"), [expected], "{headers} {matches}");
    };
    check(2, 2, "Accepted=T/Accepted");
    check(16, 8, "Accepted=F/UnsupportedValue");
}

#[test]
fn what_cannot_be_understood_makes_a_route_unaccepted() {
    let check = |rule: Value, accepted: &str, resolved: &str| {
        let mut snapshot = one_gateway();
        snapshot.http_routes = vec![http_route("n/r", 1, json!({ "rules": [rule] }))];
        let built = built(&snapshot);
        assert_eq!(parents(&built, "HTTPRoute", "n/r"), [format!("{accepted} {resolved}")], "{rule}");
        built
    };
    let fine = "ResolvedRefs=T/ResolvedRefs";
    let filtered = |filter: Value| json!({ "filters": [filter], "backendRefs": backend("a") });
    check(
        rule(json!({ "path": { "type": "RegularExpression", "value": "(" } }), "a"),
        "Accepted=F/UnsupportedValue",
        fine,
    );
    let replace = json!({ "type": "ReplacePrefixMatch", "replacePrefixMatch": "/x" });
    let mut exact = rule(json!({ "path": { "type": "Exact", "value": "/a" } }), "a");
    exact["filters"] = json!([{ "type": "URLRewrite", "urlRewrite": { "path": replace } }]);
    check(exact, "Accepted=F/UnsupportedValue", fine);
    let both = json!({ "backendRefs": backend("a"), "filters": [
        { "type": "URLRewrite", "urlRewrite": { "hostname": "x.com" } }, { "type": "RequestRedirect", "requestRedirect": {} }] });
    check(both, "Accepted=F/IncompatibleFilters", fine);
    let extension = json!({ "type": "ExtensionRef", "extensionRef": { "group": "x.io", "kind": "K", "name": "k" } });
    let built = check(filtered(extension), "Accepted=T/Accepted", "ResolvedRefs=F/InvalidKind");
    assert_eq!(goes_to(&built, 80, "GET h.com/").as_deref(), Some("500"));
    let mirror =
        json!({ "type": "RequestMirror", "requestMirror": { "backendRef": { "name": "gone", "port": 8080 } } });
    let built = check(filtered(mirror), "Accepted=T/Accepted", "ResolvedRefs=F/BackendNotFound");
    assert_eq!(goes_to(&built, 80, "GET h.com/").as_deref(), Some("a"), "the request itself goes on");
}

#[test]
fn listeners_say_what_is_wrong_with_them() {
    let fine = default_certificate().unwrap();
    let check = |listener: Value, expected: &str, kinds: &[&str]| {
        let mut world = World::default();
        for secret in ["n/good", "other/good"] {
            world.certificates.insert(secret.into(), Ok(fine.clone()));
        }
        world.certificates.insert("n/bad".into(), Err(CertificateProblem::Bad("no PEM".into())));
        let mut snapshot = one_gateway();
        snapshot.gateways = vec![gateway("n/g", 1, json!([listener]))];
        let built = build(&snapshot, &[], &mut world);
        let found = &built.statuses.gateways["n/g"].listeners[0];
        assert_eq!(show(&found.conditions), expected, "{listener}");
        let found: Vec<&str> = found.supported_kinds.iter().map(|kind| kind.kind.as_str()).collect();
        assert_eq!(found, kinds, "{listener}");
    };
    let good = "Accepted=T/Accepted Programmed=T/Programmed ResolvedRefs=T/ResolvedRefs Conflicted=F/NoConflicts";
    let invalid = |reason: &str| {
        format!("Accepted=T/Accepted Programmed=F/Invalid ResolvedRefs=F/{reason} Conflicted=F/NoConflicts")
    };
    let https = |reference: Value| json!({ "name": "l", "port": 443, "protocol": "HTTPS", "tls": { "certificateRefs": [reference] } });
    let http =
        |kinds: Value| json!({ "name": "l", "port": 80, "protocol": "HTTP", "allowedRoutes": { "kinds": kinds } });
    let both = &["HTTPRoute", "GRPCRoute"];
    check(http(json!([])), good, both);
    check(http(json!([{ "kind": "HTTPRoute" }])), good, &["HTTPRoute"]);
    let some = "Accepted=T/Accepted Programmed=T/Programmed ResolvedRefs=F/InvalidRouteKinds Conflicted=F/NoConflicts";
    check(http(json!([{ "kind": "Invalid" }, { "kind": "HTTPRoute" }])), some, &["HTTPRoute"]);
    check(http(json!([{ "kind": "TLSRoute" }])), &invalid("InvalidRouteKinds"), &[]);
    check(https(json!({ "name": "good" })), good, both);
    check(https(json!({ "name": "bad" })), &invalid("InvalidCertificateRef"), both);
    check(https(json!({ "name": "none" })), &invalid("InvalidCertificateRef"), both);
    check(https(json!({ "name": "good", "kind": "ConfigMap" })), &invalid("InvalidCertificateRef"), both);
    check(https(json!({ "name": "good", "namespace": "other" })), &invalid("RefNotPermitted"), both);
    let unsupported =
        "Accepted=F/UnsupportedProtocol Programmed=F/Invalid ResolvedRefs=T/ResolvedRefs Conflicted=F/NoConflicts";
    check(json!({ "name": "l", "port": 80, "protocol": "UDP" }), unsupported, &[]);
    check(json!({ "name": "l", "port": 80, "protocol": "example.com/Own" }), unsupported, &[]);
    let taken = "Accepted=F/PortUnavailable Programmed=F/Invalid ResolvedRefs=T/ResolvedRefs Conflicted=F/NoConflicts";
    check(json!({ "name": "l", "port": 9999, "protocol": "HTTP" }), taken, both);
    let tls = json!({ "name": "l", "port": 443, "protocol": "TLS", "tls": { "mode": "Passthrough" } });
    check(tls, good, &["TLSRoute"]);
}

#[test]
fn gateways_are_accepted_as_far_as_their_listeners_are() {
    let check = |spec: Value, expected: &str| {
        let mut snapshot = one_gateway();
        let mut spec = spec;
        spec["gatewayClassName"] = "minke".into();
        snapshot.gateways = vec![read("n/g", 1, spec.clone())];
        assert_eq!(show(&built(&snapshot).statuses.gateways["n/g"].conditions), expected, "{spec}");
    };
    let (http, udp) = (http_listener("a", None), json!({ "name": "b", "port": 80, "protocol": "UDP" }));
    let tls = json!({ "name": "c", "port": 80, "protocol": "TLS", "tls": { "mode": "Passthrough" } });
    check(json!({ "listeners": [http] }), "Accepted=T/Accepted Programmed=T/Programmed");
    check(json!({ "listeners": [http, udp] }), "Accepted=T/ListenersNotValid Programmed=T/Programmed");
    check(json!({ "listeners": [udp] }), "Accepted=F/ListenersNotValid Programmed=F/Invalid");
    check(json!({ "listeners": [http, tls] }), "Accepted=F/ListenersNotValid Programmed=F/Invalid");
    let at = |address: Value| json!({ "listeners": [http], "addresses": [address] });
    check(at(json!({ "value": "10.0.0.1" })), "Accepted=T/Accepted Programmed=T/Programmed");
    check(at(json!({ "type": "IPAddress" })), "Accepted=T/Accepted Programmed=T/Programmed");
    check(at(json!({ "value": "10.9.9.9" })), "Accepted=T/Accepted Programmed=F/AddressNotUsable");
    check(at(json!({ "type": "Hostname", "value": "x.com" })), "Accepted=F/UnsupportedAddress Programmed=F/Invalid");
    let parameters = json!({ "parametersRef": { "group": "x.io", "kind": "K", "name": "k" } });
    check(
        json!({ "listeners": [http], "infrastructure": parameters }),
        "Accepted=F/InvalidParameters Programmed=F/Invalid",
    );

    let mut snapshot = one_gateway();
    let foreign = json!({ "controllerName": "example.com/other" });
    snapshot.classes = vec![read("/minke", 0, foreign)];
    assert_eq!(built(&snapshot).statuses, Statuses::default(), "what is another controller's is left alone");
}

#[test]
fn of_two_gateways_the_older_one_has_the_port() {
    let passes = json!([{ "name": "tls", "port": 80, "protocol": "TLS", "tls": { "mode": "Passthrough" } }]);
    let mut snapshot = one_gateway();
    snapshot.gateways.push(gateway("n/young", 2, passes));
    snapshot.gateways.push(gateway("n/same", 3, json!([http_listener("http", None)])));
    let spec = json!({ "parentRefs": [{ "name": "same" }], "rules": [rule(json!({}), "a")] });
    snapshot.http_routes = vec![http_route("n/r", 1, spec)];
    let built = built(&snapshot);
    let conditions = show(&built.statuses.gateways["n/young"].listeners[0].conditions);
    assert!(conditions.contains("Accepted=F/ProtocolConflict") && conditions.contains("Conflicted=T/ProtocolConflict"));
    check(&built, &[("GET h.com/", Some("a"))]);
    let attached = |gateway: &str| built.statuses.gateways[gateway].listeners[0].attached_routes;
    assert_eq!((attached("n/g"), attached("n/same")), (0, 1));
}

#[test]
fn calls_go_by_service_and_method() {
    let call = |service: &str, method: &str| json!({ "method": { "service": service, "method": method } });
    let grpc = |key: &str, rules: Value| -> Arc<GrpcRoute> {
        read(key, 1, json!({ "parentRefs": [{ "name": "g" }], "rules": rules }))
    };
    let mut snapshot = one_gateway();
    snapshot.grpc_routes = vec![grpc(
        "n/r",
        json!([
            rule(call("echo.Echo", "One"), "a"),
            rule(json!({ "method": { "service": "echo.Echo" } }), "b"),
            rule(json!({ "headers": [{ "name": "version", "value": "two" }] }), "c"),
        ]),
    )];
    let built = built(&snapshot);
    check(
        &built,
        &[
            ("POST h.com/echo.Echo/One", Some("a")),
            ("POST h.com/echo.Echo/Two", Some("b")),
            ("POST h.com/other.Service/Two", None),
            ("POST h.com/other.Service/Two version=two", Some("c")),
        ],
    );
    assert_eq!(parents(&built, "GRPCRoute", "n/r"), [FINE]);
    let table = PortTable { gateway: built.ports[&80].clone(), ..PortTable::default() };
    let budget = &PatternBudget::default();
    let head = RequestHead { method: &Method::POST, headers: &HeaderMap::new(), query: None, budget };
    let route = table.find("h.com", "/echo.Echo/One", &head).unwrap();
    let backend = route.destinations.pick().unwrap().backend.as_ref().unwrap();
    assert_eq!(backend.key.protocol, Protocol::Http2);
    assert_eq!(route.settings.unresolved_status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[test]
fn tls_routes_go_by_server_name() {
    let listener = json!({ "name": "tls", "port": 443, "protocol": "TLS", "hostname": "*.example.com",
        "tls": { "mode": "Passthrough" } });
    let tls = |key: &str, created: u32, host: &str, service: &str| -> Arc<TlsRoute> {
        let rules = json!([{ "backendRefs": backend(service) }]);
        read(key, created, json!({ "parentRefs": [{ "name": "g" }], "hostnames": [host], "rules": rules }))
    };
    let mut snapshot = one_gateway();
    snapshot.gateways = vec![gateway("n/g", 1, json!([listener]))];
    snapshot.tls_routes = vec![
        tls("n/young", 3, "abc.example.com", "b"),
        tls("n/old", 2, "abc.example.com", "a"),
        tls("n/foreign", 2, "abc.other.com", "c"),
    ];
    let built = built(&snapshot);
    let found = |name: &str| built.ports[&443].passthrough.find(name).map(|found| found.owner.to_string());
    assert_eq!(found("abc.example.com").as_deref(), Some("n/old"));
    assert_eq!(found("abc.other.com"), None);
    assert!(built.only_passthrough.contains(&443));
    assert_eq!(parents(&built, "TLSRoute", "n/old"), [FINE]);
    let none = "Accepted=F/NoMatchingListenerHostname ResolvedRefs=T/ResolvedRefs";
    assert_eq!(parents(&built, "TLSRoute", "n/foreign"), [none]);
}

#[test]
fn backends_under_a_policy_are_spoken_to_in_tls_or_not_at_all() {
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = rcgen::CertificateParams::new(vec!["ca".to_string()]).unwrap().self_signed(&key).unwrap().pem();
    let policy = |name: &str, created: u32, validation: Value| -> Arc<BackendTlsPolicy> {
        let targets = json!([{ "group": "", "kind": "Service", "name": "a" }]);
        let mut validation = validation;
        validation["hostname"] = "abc.example.com".into();
        read(name, created, json!({ "targetRefs": targets, "validation": validation }))
    };
    let authorities =
        |kind: &str, name: &str| json!({ "caCertificateRefs": [{ "group": "", "kind": kind, "name": name }] });
    let check = |policies: Vec<Arc<BackendTlsPolicy>>, expected: &[&str], is_tls: Option<bool>| {
        let mut world = World::default();
        world.config_maps.insert("n/ca".into(), authority.clone());
        world.config_maps.insert("n/nonsense".into(), "nonsense".into());
        let mut snapshot = one_gateway();
        snapshot.policies = policies;
        snapshot.http_routes = vec![http_route("n/r", 1, json!({ "rules": [rule(json!({}), "a")] }))];
        let built = build(&snapshot, &[], &mut world);
        let found: Vec<String> = built.statuses.policies.values().map(|(conditions, _)| show(conditions)).collect();
        assert_eq!(found, expected);
        let table = PortTable { gateway: built.ports[&80].clone(), ..PortTable::default() };
        let budget = &PatternBudget::default();
        let head = RequestHead { method: &Method::GET, headers: &HeaderMap::new(), query: None, budget };
        let route = table.find("h.com", "/", &head).unwrap();
        let backend = route.destinations.pick().unwrap().backend.as_ref();
        assert_eq!(backend.map(|backend| backend.key.tls.is_some()), is_tls);
        built
    };
    check(vec![], &[], Some(false));
    let built = check(vec![policy("n/p", 1, authorities("ConfigMap", "ca"))], &[FINE], Some(true));
    assert_eq!(built.statuses.policies["n/p"].1, BTreeSet::from(["n/g".to_string()]));
    let broken = |reason: &str| format!("Accepted=F/NoValidCACertificate ResolvedRefs=F/{reason}");
    check(vec![policy("n/p", 1, authorities("Secret", "ca"))], &[&broken("InvalidKind")], None);
    for name in ["none", "nonsense"] {
        check(vec![policy("n/p", 1, authorities("ConfigMap", name))], &[&broken("InvalidCACertificateRef")], None);
    }
    let both = vec![
        policy("n/young", 2, authorities("ConfigMap", "none")),
        policy("n/old", 1, authorities("ConfigMap", "ca")),
    ];
    check(both, &[FINE, "Accepted=F/Conflicted"], Some(true));
}
