//! Which route a request takes, as data.

use http::{HeaderMap, Method};

use super::*;

fn route(name: &str, path: PathMatch) -> Arc<Route> {
    Arc::new(Route {
        owner: name.into(),
        path,
        one_label: true,
        condition: RequestMatch::default(),
        destinations: Arc::default(),
        filters: None,
        settings: Arc::default(),
    })
}

fn find<'a>(table: &'a HostTable, host: &str, path: &str, method: Method) -> Option<&'a str> {
    let budget = &PatternBudget::default();
    let head = RequestHead { method: &method, headers: &HeaderMap::new(), query: None, budget };
    table.find(host, path, &head).map(|route| &*route.owner)
}

/// `host=path` for a prefix, `host==path` for an exact path, `host=~path` for a pattern; the route is named after its rule.
fn table(rules: &[&str]) -> HostTable {
    let mut table = HostTable::default();
    for rule in rules {
        let (host, path) = rule.split_once('=').expect("a rule");
        let path = match path.as_bytes()[0] {
            b'=' => PathMatch::Exact(path[1..].to_string()),
            b'~' => PathMatch::Pattern(PathPattern(Pattern::new(&path[1..]).unwrap())),
            _ => PathMatch::prefix(path),
        };
        table.insert(host, route(rule, path));
    }
    table
}

#[track_caller]
fn check(rules: &[&str], requests: &[(&str, &str, Option<&str>)]) {
    let table = table(rules);
    for (host, path, expected) in requests {
        assert_eq!(find(&table, host, path, Method::GET), *expected, "{host}{path} of {rules:?}");
    }
}

#[test]
fn paths_match_as_upstreams_table_says() {
    // Kind, path, request path, whether it matches.
    for (rule, request, matches) in [
        ("=/", "/any", true),
        ("==/foo", "/foo", true),
        ("==/foo", "/bar", false),
        ("==/foo", "/foo/", false),
        ("==/foo/", "/foo", false),
        ("=/foo", "/foo", true),
        ("=/foo", "/foo/", true),
        ("=/foo/", "/foo", true),
        ("=/foo/", "/foo/", true),
        ("=/aaa/bb", "/aaa/bbb", false),
        ("=/aaa/bbb", "/aaa/bbb", true),
        ("=/aaa/bbb/", "/aaa/bbb", true),
        ("=/aaa/bbb", "/aaa/bbb/", true),
        ("=/aaa/bbb", "/aaa/bbb/ccc", true),
        ("=/aaa/bbb", "/aaa/bbbxyz", false),
        ("=/aaa", "/aaa//ccc", true),
    ] {
        check(&[rule], &[("example.com", request, matches.then_some(rule))]);
    }
}

#[test]
fn the_longest_path_wins_and_an_exact_one_first() {
    check(
        &["=/", "=/aaa", "=/aaa/bbb", "==/aaa/bbb", "==/aaa/"],
        &[
            ("h", "/", Some("=/")),
            ("h", "/ccc", Some("=/")),
            ("h", "/aaa", Some("=/aaa")),
            ("h", "/aaa/", Some("==/aaa/")),
            ("h", "/aaa/ccc", Some("=/aaa")),
            ("h", "/aaa/bbb", Some("==/aaa/bbb")),
            ("h", "/aaa/bbb/", Some("=/aaa/bbb")),
            ("h", "/aaa/bbb/c/d/e", Some("=/aaa/bbb")),
        ],
    );
}

#[test]
fn hosts_match_by_name_then_by_one_label_then_any() {
    check(
        &["foo.com=/a", "*.foo.com=/", "=/any"],
        &[
            ("foo.com", "/a", Some("foo.com=/a")),
            ("foo.com", "/b", None),
            ("foo.com", "/any", Some("=/any")),
            ("bar.foo.com", "/b", Some("*.foo.com=/")),
            ("baz.bar.foo.com", "/b", None),
            ("xfoo.com", "/b", None),
            (".foo.com", "/b", None),
            ("", "/any/thing", Some("=/any")),
        ],
    );
}

#[test]
fn a_wildcard_of_many_labels_prefers_the_closest() {
    let mut table = HostTable::default();
    for host in ["*.com", "*.foo.com"] {
        let route = route(host, PathMatch::prefix("/"));
        table.insert(host, Arc::new(Route { one_label: false, ..Arc::into_inner(route).unwrap() }));
    }
    let found = |host: &str| find(&table, host, "/", Method::GET);
    assert_eq!(found("a.b.foo.com"), Some("*.foo.com"));
    assert_eq!(found("b.bar.com"), Some("*.com"));
    assert_eq!(found("com"), None);
}

#[test]
fn a_fallback_comes_after_every_path_and_the_first_one_stays() {
    let mut table = table(&["foo.com=/a", "=/b"]);
    assert!(table.set_fallback("foo.com", route("foo.com's", PathMatch::prefix("/"))));
    assert!(table.set_fallback("", route("first", PathMatch::prefix("/"))));
    assert!(!table.set_fallback("", route("second", PathMatch::prefix("/"))));
    let found = |host: &str, path: &str| find(&table, host, path, Method::GET).unwrap();
    assert_eq!(found("foo.com", "/a"), "foo.com=/a");
    assert_eq!(found("foo.com", "/b"), "=/b");
    assert_eq!(found("foo.com", "/c"), "foo.com's");
    assert_eq!(found("bar.com", "/c"), "first");
}

#[test]
fn a_condition_leaves_the_request_to_the_next_route() {
    let mut table = table(&["=/a"]);
    let posts = Route {
        condition: RequestMatch { method: Some(Method::POST), ..RequestMatch::default() },
        ..Arc::into_inner(route("posts", PathMatch::prefix("/a/b"))).unwrap()
    };
    table.insert("", Arc::new(posts));
    assert_eq!(find(&table, "h", "/a/b", Method::POST), Some("posts"));
    assert_eq!(find(&table, "h", "/a/b", Method::GET), Some("=/a"));
}

#[test]
fn a_pattern_comes_after_an_exact_path_and_before_a_prefix() {
    check(
        &["=/a/b", "=~/a/[a-z]+", "==/a/b"],
        &[
            ("h", "/a/b", Some("==/a/b")),
            ("h", "/a/c", Some("=~/a/[a-z]+")),
            ("h", "/a/b/c", Some("=/a/b")),
            ("h", "/c", None),
        ],
    );
}

#[test]
fn a_request_is_for_the_closest_listener_and_for_no_other() {
    let mut gateway = GatewayPort::default();
    for (host, rules) in [("", ["=/any"]), ("*.foo.com", ["=/wild"]), ("bar.foo.com", ["=/exact"])] {
        *gateway.listeners.entry(host, HostTable::default) = table(&rules);
    }
    let (hosts, gateway) = (Arc::new(table(&["=/ingress"])), Arc::new(gateway));
    let port = PortTable { hosts, gateway, ..PortTable::default() };
    let budget = &PatternBudget::default();
    let head = RequestHead { method: &Method::GET, headers: &HeaderMap::new(), query: None, budget };
    let check = |host: &str, path: &str, expected: Option<&str>| {
        assert_eq!(port.find(host, path, &head).map(|route| &*route.owner), expected, "{host}{path}");
    };
    check("bar.foo.com", "/exact", Some("=/exact"));
    check("bar.foo.com", "/wild", None);
    check("baz.foo.com", "/wild", Some("=/wild"));
    check("baz.foo.com", "/any", None);
    check("foo.com", "/any", Some("=/any"));
    check("baz.foo.com", "/ingress", Some("=/ingress"));
}
