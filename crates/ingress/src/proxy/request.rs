//! What is read from a request's head, what is refused in it, and what is changed before it goes on.
//! Called by `proxy` for every request and every answer.
//! Pure (tidy: `pure_files`). Invariant: nothing that describes one connection is passed to another, and no header in which a
//! client says who it is or where it comes from is passed on (test:
//! `a_backend_learns_what_we_know_and_not_what_the_client_claims`).

use std::{borrow::Cow, net::IpAddr};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version,
    header::{
        CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
        TRANSFER_ENCODING, UPGRADE,
    },
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY: HeaderName = HeaderName::from_static("proxy");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// A request that goes nowhere.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub reason: &'static str,
}

fn refuse<T>(reason: &'static str) -> Result<T, Refusal> {
    Err(Refusal { status: StatusCode::BAD_REQUEST, reason })
}

/// Whom a request is for.
#[derive(Debug)]
pub struct Target<'a> {
    /// As it was asked for, with its port.
    pub authority: &'a str,
    /// In lower case and without the port; what routes are found by.
    pub host: Cow<'a, str>,
    pub path: &'a str,
}

/// Refuses what two readers could understand in two ways.
pub fn target<B>(request: &Request<B>) -> Result<Target<'_>, Refusal> {
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        return Err(Refusal { status: StatusCode::METHOD_NOT_ALLOWED, reason: "the method is not allowed" });
    }
    let (headers, uri) = (request.headers(), request.uri());
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next()
        && (codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return refuse("the transfer coding is not known");
    }
    let authority = authority(request)?;
    let host = host(authority)?;
    let path = uri.path();
    if !path.starts_with('/') {
        return refuse("the path does not begin with a slash");
    }
    // A backend would take them out, and be somewhere else than its route says.
    if has_parent_element(path) {
        return refuse("the path leads upward");
    }
    Ok(Target { authority, host, path })
}

fn authority<B>(request: &Request<B>) -> Result<&str, Refusal> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let named = hosts.next();
    if hosts.next().is_some() {
        return refuse("there is more than one Host");
    }
    if let Some(authority) = request.uri().authority() {
        return match authority.as_str().contains('@') {
            true => refuse("the authority names a user"),
            false => Ok(authority.as_str()),
        };
    }
    match named.map(HeaderValue::to_str) {
        Some(Ok(host)) => Ok(host),
        Some(Err(_)) => refuse("the Host is not readable"),
        None if request.version() < Version::HTTP_11 => Ok(""),
        None => refuse("there is no Host"),
    }
}

/// Without port, final dot and capitals.
fn host(authority: &str) -> Result<Cow<'_, str>, Refusal> {
    let (name, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address, port),
        None => authority.find(':').map_or((authority, ""), |at| authority.split_at(at)),
    };
    let is_port =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':');
    if !is_port || !name.bytes().all(is_name) {
        return refuse("the Host is not a name");
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    Ok(match name.bytes().any(|b| b.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    })
}

/// Whether an element is `..`, in whatever spelling.
fn has_parent_element(path: &str) -> bool {
    // Few paths have any of it.
    if !path.contains("..") && !path.contains("%2") {
        return false;
    }
    let is_parent = |element: &str| {
        let element = element.to_ascii_lowercase().replace("%2e", ".");
        element == ".." || element.starts_with("..;")
    };
    let decoded = path.replace("%2f", "/").replace("%2F", "/").replace("%5c", "\\").replace("%5C", "\\");
    // Some backends take a backslash for a slash.
    decoded.split(['/', '\\']).any(is_parent)
}

/// Whether the client asks to go on in another protocol, and in which. Not in another HTTP: requests would go through the
/// tunnel that no route was looked up for.
pub fn upgrade(headers: &HeaderMap, version: Version) -> Option<HeaderValue> {
    let asked = version == Version::HTTP_11 && lists(headers, "upgrade");
    headers.get(UPGRADE).filter(|protocol| asked && !names_http(protocol)).cloned()
}

fn names_http(protocols: &HeaderValue) -> bool {
    // What can't be read is not passed on either.
    let Ok(text) = protocols.to_str() else { return true };
    text.split(',').map(|protocol| protocol.trim().to_ascii_lowercase()).any(|protocol| {
        let name = protocol.split('/').next().unwrap_or_default();
        matches!(name, "h2" | "h2c" | "h3" | "http" | "tls")
    })
}

fn lists(headers: &HeaderMap, word: &str) -> bool {
    tokens(headers).any(|token| token.eq_ignore_ascii_case(word))
}

fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',').map(str::trim))
}

/// Takes out what belongs to one connection only.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = tokens(headers).filter_map(|token| token.parse().ok()).collect();
        for name in named {
            // A client does not decide what a backend learns of it.
            if !matches!(name, HOST | CONTENT_LENGTH) {
                headers.remove(name);
            }
        }
        headers.remove(CONNECTION);
    }
    let always = [
        KEEP_ALIVE,
        PROXY,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        HTTP2_SETTINGS,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    for name in always {
        headers.remove(name);
    }
}

/// What a backend is told about the client.
pub struct Client<'a> {
    pub address: Option<IpAddr>,
    pub authority: &'a str,
    pub tls: bool,
    pub port: HeaderValue,
}

/// The headers as they go on to a backend.
pub fn prepare(headers: &mut HeaderMap, client: &Client<'_>, upgrade: Option<HeaderValue>) {
    let takes_trailers = headers.get(TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    remove_hop_by_hop(headers);
    headers.remove(TE);
    // The listener has answered it.
    headers.remove(EXPECT);
    headers.remove(FORWARDED);
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    join_cookies(headers);
    match client.address.and_then(|address| HeaderValue::try_from(address.to_canonical().to_string()).ok()) {
        Some(address) => {
            headers.insert(X_FORWARDED_FOR, address.clone());
            headers.insert(X_REAL_IP, address);
        }
        None => {
            headers.remove(X_FORWARDED_FOR);
            headers.remove(X_REAL_IP);
        }
    }
    if let Ok(authority) = HeaderValue::from_str(client.authority) {
        headers.insert(HOST, authority.clone());
        headers.insert(X_FORWARDED_HOST, authority);
    }
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(if client.tls { "https" } else { "http" }));
    headers.insert(X_FORWARDED_PORT, client.port.clone());
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// HTTP/2 sends them one by one, HTTP/1.1 knows one line only.
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    if cookies.next().is_none() || cookies.next().is_none() {
        return;
    }
    let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Path and query alone, as a server is asked.
pub fn origin_form(uri: Uri) -> Uri {
    if uri.authority().is_none() {
        return uri;
    }
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = uri.into_parts().path_and_query;
    Uri::from_parts(parts).unwrap_or_default()
}

/// Whether it may be done twice without doing more.
pub fn is_idempotent(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str, headers: &[(&str, &str)]) -> Request<()> {
        let (method, uri) = line.split_once(' ').expect("a request line");
        let mut builder = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).expect("a request")
    }

    #[test]
    fn a_request_is_for_one_host_and_path_or_for_none() {
        let check = |line: &str, headers: &[(&str, &str)], expected: Result<(&str, &str), &str>| {
            let request = request(line, headers);
            let found = target(&request);
            let found = found.as_ref().map(|t| (t.host.as_ref(), t.path)).map_err(|refusal| refusal.reason);
            assert_eq!(found, expected, "{line} {headers:?}");
        };
        let host = ("host", "foo.com");
        check("GET /a?b=c", &[("host", "Foo.COM.:8080")], Ok(("foo.com", "/a")));
        check("GET /", &[("host", "[fd00::1]:80")], Ok(("fd00::1", "/")));
        check("GET http://bar.com/a", &[host], Ok(("bar.com", "/a")));
        check("GET /", &[], Err("there is no Host"));
        check("GET /", &[host, ("host", "bar.com")], Err("there is more than one Host"));
        check("GET /", &[("host", "foo.com/x")], Err("the Host is not a name"));
        check("GET /", &[("host", "foo.com:80@evil")], Err("the Host is not a name"));
        check("GET http://u@bar.com/", &[host], Err("the authority names a user"));
        check("OPTIONS *", &[host], Err("the path does not begin with a slash"));
        check("GET /a/../b", &[host], Err("the path leads upward"));
        check("GET /a/%2e%2E/b", &[host], Err("the path leads upward"));
        check("GET /a/..%2fb", &[host], Err("the path leads upward"));
        check("GET /a/..%5cb", &[host], Err("the path leads upward"));
        check("GET /a/..;x/b", &[host], Err("the path leads upward"));
        check("GET /a/x\\..\\..\\b", &[host], Err("the path leads upward"));
        check("GET /a/x%5c..%5C..%5cb", &[host], Err("the path leads upward"));
        check("GET /a..b/...", &[host], Ok(("foo.com", "/a..b/...")));
        check("POST /", &[host, ("transfer-encoding", "Chunked")], Ok(("foo.com", "/")));
        check("POST /", &[host, ("transfer-encoding", "gzip, chunked")], Err("the transfer coding is not known"));
        let twice = [host, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")];
        check("POST /", &twice, Err("the transfer coding is not known"));
        check("CONNECT foo.com:443", &[host], Err("the method is not allowed"));
        check("TRACE /", &[host], Err("the method is not allowed"));
    }

    #[test]
    fn a_backend_learns_what_we_know_and_not_what_the_client_claims() {
        let mut headers = request(
            "GET /",
            &[
                ("host", "foo.com:8080"),
                ("connection", "close, X-Private, Host"),
                ("x-private", "1"),
                ("keep-alive", "timeout=5"),
                ("te", "trailers"),
                ("transfer-encoding", "chunked"),
                ("proxy", "evil"),
                ("expect", "100-continue"),
                ("x-forwarded-for", "1.2.3.4"),
                ("x-forwarded-proto", "https"),
                ("x-real-ip", "1.2.3.4"),
                ("forwarded", "for=1.2.3.4"),
                ("cookie", "a=1"),
                ("cookie", "b=2"),
                ("accept", "*/*"),
            ],
        )
        .headers()
        .clone();
        let client = Client {
            address: Some("::ffff:10.1.2.3".parse().unwrap()),
            authority: "foo.com:8080",
            tls: false,
            port: HeaderValue::from_static("80"),
        };
        prepare(&mut headers, &client, None);
        let mut found: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        found.sort();
        assert_eq!(
            found,
            [
                "accept: */*",
                "cookie: a=1; b=2",
                "host: foo.com:8080",
                "te: trailers",
                "x-forwarded-for: 10.1.2.3",
                "x-forwarded-host: foo.com:8080",
                "x-forwarded-port: 80",
                "x-forwarded-proto: http",
                "x-real-ip: 10.1.2.3",
            ]
        );
    }

    #[test]
    fn an_upgrade_is_asked_for_by_both_headers() {
        let asked = |headers: &[(&str, &str)], version| upgrade(request("GET /", headers).headers(), version).is_some();
        let both = [("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
        assert!(asked(&both, Version::HTTP_11));
        assert!(!asked(&both, Version::HTTP_2));
        assert!(!asked(&both[1..], Version::HTTP_11));
        assert!(!asked(&both[..1], Version::HTTP_11));
        for smuggled in ["h2c", "H2C", "websocket, h2c", "HTTP/2.0", "TLS/1.3"] {
            assert!(!asked(&[both[0], ("upgrade", smuggled)], Version::HTTP_11), "{smuggled}");
        }
    }
}
