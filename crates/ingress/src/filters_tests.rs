//! Redirects, rewrites, header changes and CORS, as data.

use super::*;

#[test]
fn a_prefix_is_replaced_as_the_specification_says() {
    // Path of the request, prefix that matched, what replaces it, path that goes on.
    for (path, prefix, new, expected) in [
        ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
        ("/foo", "/foo", "/xyz", "/xyz"),
        ("/foo/", "/foo", "/xyz", "/xyz/"),
        ("/foo/bar", "/foo", "", "/bar"),
        ("/foo/", "/foo", "", "/"),
        ("/foo", "/foo", "", "/"),
        ("/foo/", "/foo", "/", "/"),
        ("/foo", "/foo", "/", "/"),
        ("/bar", "/", "/xyz", "/xyz/bar"),
    ] {
        let changed = PathChange::Prefix(new.into()).apply(path, &PathMatch::prefix(prefix));
        assert_eq!(changed, expected, "{path} with {prefix} replaced by {new:?}");
    }
    assert_eq!(PathChange::Full("/one".into()).apply("/foo/bar", &PathMatch::prefix("/foo")), "/one");
}

#[test]
fn a_redirect_leads_where_its_fields_say() {
    let none = Redirect { scheme: None, hostname: None, path: None, port: None, status: StatusCode::FOUND };
    let check = |redirect: Redirect, (scheme, port): (&str, u16), expected: &str| {
        let from = Redirected { scheme, host: "example.org", port, path: "/foo/bar", query: Some("a=b") };
        assert_eq!(redirect.location(&from, &PathMatch::prefix("/foo")), expected, "{redirect:?}");
    };
    let scheme = |scheme: &str| Redirect { scheme: Some(scheme.into()), ..none.clone() };
    check(none.clone(), ("http", 80), "http://example.org/foo/bar?a=b");
    check(none.clone(), ("http", 8080), "http://example.org:8080/foo/bar?a=b");
    check(none.clone(), ("https", 443), "https://example.org/foo/bar?a=b");
    check(scheme("https"), ("http", 8080), "https://example.org/foo/bar?a=b");
    check(scheme("http"), ("https", 443), "http://example.org/foo/bar?a=b");
    check(Redirect { port: Some(443), ..scheme("https") }, ("http", 80), "https://example.org/foo/bar?a=b");
    check(Redirect { port: Some(8443), ..scheme("https") }, ("http", 80), "https://example.org:8443/foo/bar?a=b");
    check(Redirect { port: Some(80), ..none.clone() }, ("http", 8080), "http://example.org/foo/bar?a=b");
    check(
        Redirect { hostname: Some("other.org".into()), ..none.clone() },
        ("http", 80),
        "http://other.org/foo/bar?a=b",
    );
    let path = Redirect { path: Some(PathChange::Prefix("/new".into())), ..none };
    check(path, ("http", 80), "http://example.org/new/bar?a=b");
}

#[test]
fn headers_are_set_added_and_removed() {
    let header =
        |name: &'static str, value: &'static str| (HeaderName::from_static(name), HeaderValue::from_static(value));
    let changes = HeaderChanges {
        set: vec![header("x-set", "new")],
        add: vec![header("x-add", "second"), header("x-new", "first")],
        remove: vec![HeaderName::from_static("x-remove")],
    };
    let mut headers: HeaderMap =
        [header("x-set", "old"), header("x-add", "first"), header("x-remove", "1"), header("x-kept", "1")]
            .into_iter()
            .collect();
    changes.apply(&mut headers);
    let mut found: Vec<String> = headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
    found.sort();
    assert_eq!(found, ["x-add: first", "x-add: second", "x-kept: 1", "x-new: first", "x-set: new"]);
}

#[test]
fn a_mirror_takes_its_share() {
    let key = crate::BackendKey::new("n", "s", crate::ServicePort::Number(80));
    let backend = Arc::new(Backend::new(key, crate::BackendState::default()));
    for (numerator, denominator, expected) in [(100, 100, 1000), (0, 100, 0), (1, 4, 250), (1, 1, 1000)] {
        let mirror = Mirror { backend: backend.clone(), numerator, denominator, share: Share::default() };
        let taken = (0..1000).filter(|_| mirror.takes()).count();
        assert!(taken.abs_diff(expected) <= 5, "{numerator} of {denominator}: {taken}");
    }
}

#[test]
fn origins_that_may_are_told_so() {
    let cors = Cors {
        allow_origins: vec!["https://www.foo.com".into(), "https://*.bar.com".into()],
        allow_methods: vec!["GET".into(), "PUT".into()],
        allow_headers: vec!["*".into()],
        expose_headers: vec!["x-a".into(), "x-b".into()],
        allow_credentials: true,
        max_age_seconds: 5,
    };
    let check = |cors: &Cors, origin: &'static str, expected: Option<&str>| {
        let mut request = HeaderMap::new();
        request.insert(ORIGIN, HeaderValue::from_static(origin));
        request.insert(ACCESS_CONTROL_REQUEST_METHOD, HeaderValue::from_static("PUT"));
        request.insert(ACCESS_CONTROL_REQUEST_HEADERS, HeaderValue::from_static("x-c"));
        assert!(Cors::is_preflight(&Method::OPTIONS, &request) && !Cors::is_preflight(&Method::GET, &request));
        let answer = cors.preflight(&request);
        let shown = answer.get(ACCESS_CONTROL_ALLOW_ORIGIN).map(|value| value.to_str().unwrap());
        assert_eq!(shown, expected, "{origin}");
        let mut plain = HeaderMap::new();
        cors.answer(&request, &mut plain);
        assert_eq!(plain.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN), expected.is_some());
        answer
    };
    let answer = check(&cors, "https://www.foo.com", Some("https://www.foo.com"));
    for (name, expected) in [
        (ACCESS_CONTROL_ALLOW_METHODS, "GET, PUT"),
        (ACCESS_CONTROL_ALLOW_HEADERS, "x-c"),
        (ACCESS_CONTROL_ALLOW_CREDENTIALS, "true"),
        (ACCESS_CONTROL_MAX_AGE, "5"),
    ] {
        assert_eq!(answer[name], expected);
    }
    check(&cors, "https://a.b.bar.com", Some("https://a.b.bar.com"));
    check(&cors, "http://www.foo.com", None);
    assert!(check(&cors, "https://evil.com", None).is_empty());
    let open = Cors { allow_origins: vec!["*".into()], allow_credentials: false, ..cors };
    let answer = check(&open, "https://evil.com", Some("*"));
    assert_eq!(answer[ACCESS_CONTROL_ALLOW_HEADERS], "*");
}
