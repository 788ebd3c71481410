//! `kubectl proxy`: a local port that leads to the API server under our own identity.
//! A row of `verbs::ROOT`.
//! Only hosts and paths that the flags accept get through.

use std::{cell::RefCell, convert::Infallible, net::IpAddr, pin::pin, rc::Rc};

use bytes::Bytes;
use futures::{
    FutureExt, StreamExt, TryStreamExt,
    future::{FusedFuture, LocalBoxFuture},
    stream::FuturesUnordered,
};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use regex::Regex;
use tokio::net::TcpListener;

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, duration, int, string},
    kustomize::clean_path,
    rest::Transport,
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    string("accept-hosts", "^localhost$,^127\\.0\\.0\\.1$,^\\[::1\\]$", "Hosts that get through"),
    string("accept-paths", "^.*", "Paths that get through"),
    string("address", "127.0.0.1", "Address to listen on"),
    string("api-prefix", "/", "Path under which the API is served"),
    boolean("append-server-path", "false", "Put the server's own path in front"),
    boolean("disable-filter", "false", "Let everything through"),
    duration("keepalive", "0s", "Keep-alive period of connections"),
    int("port", "8001", "Port to listen on; 0 takes a free one").short('p'),
    string("reject-methods", "^$", "Methods that do not get through"),
    string("reject-paths", "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach", "Paths that do not get through"),
    string("unix-socket", "", "Socket to listen on instead").short('u'),
    string("www", "", "Directory of files to serve as well").short('w'),
    string("www-prefix", "/static/", "Path under which they are served").short('P'),
];

pub static COMMAND: Command = Command {
    name: "proxy",
    aliases: &[],
    usage: "[--port=PORT] [--www=static-dir] [--www-prefix=prefix] [--api-prefix=prefix] [options]",
    about: "Run a proxy to the Kubernetes API server",
    flags: &[FLAGS],
    commands: &[],
    run: run!(proxy),
};

struct Filter {
    hosts: Vec<Regex>,
    accept: Vec<Regex>,
    reject: Vec<Regex>,
    methods: Vec<Regex>,
    disabled: bool,
    prefix: String,
    files: Option<(String, std::path::PathBuf)>,
}

fn patterns(text: &str) -> Result<Vec<Regex>> {
    text.split(',').map(|p| Regex::new(p).map_err(|e| Failure::message(format!("{p}: {e}")))).collect()
}

impl Filter {
    fn of(matches: &Matches) -> Result<Self> {
        let files = matches.opt("www").map(|folder| (matches.str("www-prefix").to_string(), folder.into()));
        Ok(Self {
            hosts: patterns(matches.str("accept-hosts"))?,
            accept: patterns(matches.str("accept-paths"))?,
            reject: patterns(matches.str("reject-paths"))?,
            methods: patterns(matches.str("reject-methods"))?,
            disabled: matches.bool("disable-filter"),
            prefix: format!("/{}", matches.str("api-prefix").trim_matches('/')),
            files,
        })
    }

    /// `path` is judged as it came, decoded, and as a server reads it that takes empty elements and dots out of it: what
    /// any of the three must not be does not get through.
    fn accepts(&self, method: &str, path: &str, host: &str) -> bool {
        let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
        let paths = [path, &decoded, &clean_path(&decoded)];
        let host = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
        let any = |all: &[Regex], text: &str| all.iter().any(|p| p.is_match(text));
        self.disabled
            || (any(&self.hosts, host)
                && paths.iter().all(|path| any(&self.accept, path) && !any(&self.reject, path))
                && !any(&self.methods, method))
    }
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

fn text(status: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(text.to_string())).map_err(|never: Infallible| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

async fn proxy(session: &Session, matches: &Matches) -> Result<()> {
    let filter = Rc::new(Filter::of(matches)?);
    if matches.opt("unix-socket").is_some() && matches.changed("port") {
        return Err(Failure::message("cannot set --unix-socket and --port at the same time"));
    }
    if matches.bool("disable-filter") && matches.opt("unix-socket").is_none() {
        session
            .output
            .warn("W proxy.go] Request filter disabled, your proxy is vulnerable to XSRF attacks, please be cautious");
    }
    let rest = session.rest().await?;
    let transport = rest.transport();
    let address: IpAddr = matches
        .str("address")
        .parse()
        .map_err(|_| Failure::message(format!("{} is not an address", matches.str("address"))))?;
    let port = u16::try_from(matches.int("port"))
        .map_err(|_| Failure::message(format!("listen tcp: address {}: invalid port", matches.int("port"))))?;
    if let Some(path) = matches.opt("unix-socket") {
        let listener = tokio::net::UnixListener::bind(path).map_err(|e| Failure::message(format!("{path}: {e}")))?;
        session.output.line(&format!("Starting to serve on {path}"));
        session.output.flush();
        return serve_all(transport, &filter, async || Ok(listener.accept().await?.0)).await;
    }
    let listener = TcpListener::bind((address, port))
        .await
        .map_err(|e| Failure::message(format!("listen tcp {address}:{port}: {e}")))?;
    session.output.line(&format!("Starting to serve on {}", listener.local_addr()?));
    session.output.flush();
    serve_all(transport, &filter, async || Ok(listener.accept().await?.0)).await
}

/// Until a connection can't be accepted.
async fn serve_all<S>(
    transport: &dyn Transport,
    filter: &Rc<Filter>,
    accept: impl AsyncFn() -> std::io::Result<S>,
) -> Result<()>
where
    TokioIo<S>: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let mut open = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = accept() => open.push(serve(transport, filter.clone(), TokioIo::new(accepted?))),
            Some(()) = open.next(), if !open.is_empty() => {}
        }
    }
}

async fn serve<S>(transport: &dyn Transport, filter: Rc<Filter>, stream: TokioIo<S>)
where
    TokioIo<S>: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let tunnel = Tunnel::default();
    let service = hyper::service::service_fn(|request| answer(transport, &filter, request, &tunnel));
    // A client that breaks off ends only its own connection.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(stream, service).with_upgrades().await;
    let open = tunnel.borrow_mut().take();
    if let Some(open) = open {
        open.await;
    }
}

/// What carries the bytes of a connection that speaks HTTP no more.
type Tunnel = RefCell<Option<LocalBoxFuture<'static, ()>>>;

async fn answer(
    transport: &dyn Transport,
    filter: &Filter,
    request: Request<Incoming>,
    tunnel: &Tunnel,
) -> std::result::Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_string();
    if let Some(elsewhere) = redirect(filter, request.method(), request.uri()) {
        return Ok(moved(&elsewhere));
    }
    let host = request.headers().get(header::HOST).and_then(|v| v.to_str().ok()).unwrap_or_default().to_string();
    if !filter.accepts(request.method().as_str(), &path, &host) {
        return Ok(text(StatusCode::FORBIDDEN, "Forbidden"));
    }
    if let Some((prefix, folder)) = &filter.files
        && let Some(inner) = path.strip_prefix(prefix.as_str())
    {
        let Some(place) = below(folder, inner) else { return Ok(text(StatusCode::NOT_FOUND, "404 page not found")) };
        if place.is_dir() && !place.join("index.html").exists() {
            return Ok(listing(&place));
        }
        let file = if place.is_dir() { place.join("index.html") } else { place };
        return Ok(match std::fs::read(file) {
            Ok(bytes) => {
                Response::new(Full::new(Bytes::from(bytes)).map_err(|never: Infallible| match never {}).boxed_unsync())
            }
            Err(_) => text(StatusCode::NOT_FOUND, "404 page not found"),
        });
    }
    if filter.prefix != "/" && !path.starts_with(&format!("{}/", filter.prefix)) {
        return Ok(text(StatusCode::NOT_FOUND, "404 page not found\n"));
    }
    let forwarded = match request.headers().contains_key(header::UPGRADE) {
        true => upgraded(transport, filter, request, tunnel).await,
        false => forward(transport, filter, request).await,
    };
    Ok(match forwarded {
        Ok(response) => response,
        Err(failure) => text(StatusCode::BAD_GATEWAY, &failure.text()),
    })
}

/// Where a path that is not clean leads, and the prefix without its slash.
fn redirect(filter: &Filter, method: &http::Method, uri: &http::Uri) -> Option<String> {
    if method == http::Method::CONNECT {
        return None;
    }
    let path = uri.path();
    let mut clean = clean_path(path);
    if (path.ends_with('/') && !clean.ends_with('/')) || (clean == filter.prefix && filter.prefix != "/") {
        clean.push('/');
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    (clean != path).then(|| format!("{clean}{query}"))
}

fn moved(place: &str) -> Response<Body> {
    let mut response = text(StatusCode::MOVED_PERMANENTLY, "");
    if let Ok(value) = header::HeaderValue::from_str(place) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

/// The place that a path names below the folder; none where it would lead out of it.
fn below(folder: &std::path::Path, path: &str) -> Option<std::path::PathBuf> {
    // A path that begins with a slash would take the place of the folder.
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.clone().all(|part| part != "..").then(|| parts.fold(folder.to_path_buf(), |place, part| place.join(part)))
}

/// The names in a directory, as links.
fn listing(folder: &std::path::Path) -> Response<Body> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_dir() { format!("{name}/") } else { name }
        })
        .collect();
    names.sort();
    let escaped =
        |name: &str| name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
    let link = |name: &String| {
        let target = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string();
        format!("<a href=\"{}\">{}</a>\n", target.replace("%2F", "/").replace("%2E", "."), escaped(name))
    };
    let page = format!("<pre>\n{}</pre>\n", names.iter().map(link).collect::<String>());
    let mut response = text(StatusCode::OK, &page);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

/// The path and query behind the prefix under which the API is served here.
fn target<'a>(filter: &Filter, uri: &'a http::Uri) -> &'a str {
    let target = uri.path_and_query().map_or("/", |p| p.as_str());
    match filter.prefix.as_str() {
        "/" => target,
        prefix => target.strip_prefix(prefix).unwrap_or(target),
    }
}

/// A request that changes protocols (exec, attach, port-forward) gets a connection of its own.
async fn upgraded(
    transport: &dyn Transport,
    filter: &Filter,
    mut request: Request<Incoming>,
    tunnel: &Tunnel,
) -> Result<Response<Body>> {
    let failed = |e: hyper::Error| Failure::message(e.to_string());
    let upgrade = transport.connect().await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(upgrade.stream)).await.map_err(failed)?;
    let mut connection = Box::pin(connection.with_upgrades().fuse());
    let prefix =
        transport.server().split_once("://").map_or("", |(_, host)| host.find('/').map_or("", |at| &host[at..]));
    let mut onward = Request::builder()
        .method(request.method())
        .uri(format!("{prefix}{}", target(filter, request.uri())))
        .header(header::HOST, &upgrade.host);
    for (name, value) in request.headers() {
        if ![header::HOST, header::AUTHORIZATION, header::USER_AGENT].contains(name) {
            onward = onward.header(name, value);
        }
    }
    for (name, value) in &upgrade.headers {
        onward = onward.header(name, value);
    }
    let onward = onward.body(Full::<Bytes>::default()).map_err(|e| Failure::message(e.to_string()))?;
    let client = hyper::upgrade::on(&mut request);
    let mut response = {
        // The connection moves only while somebody polls it.
        let mut sent = pin!(sender.send_request(onward));
        let answered = tokio::select! {
            answered = &mut sent => answered,
            _ = &mut connection => sent.await,
        };
        answered.map_err(failed)?
    };
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (mut parts, body) = response.into_parts();
        let mut whole = pin!(body.collect());
        let collected = tokio::select! {
            collected = &mut whole => collected,
            _ = &mut connection, if !connection.is_terminated() => whole.await,
        };
        let bytes = collected.map_err(failed)?.to_bytes();
        parts.headers.remove(header::CONNECTION);
        parts.headers.remove(header::TRANSFER_ENCODING);
        return Ok(Response::from_parts(parts, Full::new(bytes).map_err(|never| match never {}).boxed_unsync()));
    }
    let server = hyper::upgrade::on(&mut response);
    let carried = async move {
        if !connection.is_terminated() {
            // Its end is that the stream is ours.
            let _ = connection.await;
        }
        if let (Ok(server), Ok(client)) = (server.await, client.await) {
            // Whichever side breaks off, both are done.
            let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(server), &mut TokioIo::new(client)).await;
        }
    };
    *tunnel.borrow_mut() = Some(carried.boxed_local());
    let (parts, _) = response.into_parts();
    Ok(Response::from_parts(parts, Full::default().map_err(|never: Infallible| match never {}).boxed_unsync()))
}

async fn forward(transport: &dyn Transport, filter: &Filter, request: Request<Incoming>) -> Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let whole = body.collect().await.map_err(|e| Failure::message(e.to_string()))?.to_bytes();
    let mut onward = Request::builder().method(parts.method).uri(target(filter, &parts.uri));
    for (name, value) in &parts.headers {
        let kept = ![
            header::HOST,
            header::CONNECTION,
            header::CONTENT_LENGTH,
            header::AUTHORIZATION,
            header::TRANSFER_ENCODING,
            header::USER_AGENT,
        ]
        .contains(name);
        if kept {
            onward = onward.header(name, value);
        }
    }
    let onward = onward.body(whole).map_err(|e| Failure::message(e.to_string()))?;
    let (mut parts, body) = transport.send(onward).await?.into_parts();
    parts.headers.remove(header::CONNECTION);
    parts.headers.remove(header::TRANSFER_ENCODING);
    let body = StreamBody::new(body.map_ok(Frame::data)).boxed_unsync();
    parts.version = http::Version::HTTP_11;
    Ok(Response::from_parts(parts, body))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::rest::{self, Upgrade};

    #[test]
    fn files_come_only_from_the_folder() {
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(below("/srv".as_ref(), path).as_deref(), expected.map(std::path::Path::new), "{path}");
        };
        check("a/b", Some("/srv/a/b"));
        check("", Some("/srv"));
        check("/etc/passwd", Some("/srv/etc/passwd"));
        check("a//etc", Some("/srv/a/etc"));
        check("../etc/passwd", None);
        check("a/../../etc", None);
    }

    #[test]
    fn a_refused_path_is_refused_in_every_spelling() {
        let default = |name: &str| FLAGS.iter().find(|flag| flag.name == name).unwrap().default;
        let filter = Filter {
            hosts: patterns(default("accept-hosts")).unwrap(),
            accept: patterns(default("accept-paths")).unwrap(),
            reject: patterns(default("reject-paths")).unwrap(),
            methods: patterns(default("reject-methods")).unwrap(),
            disabled: false,
            prefix: "/".into(),
            files: None,
        };
        let check =
            |path: &str, expected: bool| assert_eq!(filter.accepts("POST", path, "127.0.0.1"), expected, "{path}");
        check("/api/v1/namespaces/a/pods/b/log", true);
        check("/", true);
        check("/api/v1/namespaces/a/pods/b/exec", false);
        check("/api/v1/namespaces/a/pods/b/%65xec", false);
        check("/%61pi/v1/namespaces/a/pods/b%2Fexec", false);
        check("//api/v1/namespaces/a/pods/b/exec", false);
        check("/x/../api/v1/namespaces/a/pods/b//attach", false);
    }

    #[test]
    fn paths_that_are_not_clean_lead_elsewhere() {
        let check = |prefix: &str, uri: &str, wanted: Option<&str>| {
            let filter = Filter {
                hosts: Vec::new(),
                accept: Vec::new(),
                reject: Vec::new(),
                methods: Vec::new(),
                disabled: false,
                prefix: prefix.into(),
                files: None,
            };
            let uri = uri.parse().expect("a uri");
            assert_eq!(redirect(&filter, &http::Method::GET, &uri).as_deref(), wanted, "{prefix} {uri}");
        };
        check("/", "/api/v1", None);
        check("/", "/", None);
        check("/custom", "/custom/api/", None);
        check("/custom", "/custom", Some("/custom/"));
        check("/custom", "//custom/healthz?a=b", Some("/custom/healthz?a=b"));
        check("/", "/api/../apis/", Some("/apis/"));
    }

    /// Gives its one connection away.
    struct OneConnection(RefCell<Option<DuplexStream>>);

    impl Transport for OneConnection {
        fn server(&self) -> &str {
            "http://api.test/behind"
        }

        fn headers(&self) -> &[(http::HeaderName, http::HeaderValue)] {
            &[]
        }

        fn send(&self, _: Request<Bytes>) -> LocalBoxFuture<'_, Result<Response<rest::Body>>> {
            async { Err(Failure::message("no plain requests here")) }.boxed_local()
        }

        fn connect(&self) -> LocalBoxFuture<'_, Result<Upgrade>> {
            let stream = self.0.borrow_mut().take().expect("one connection");
            let headers = vec![(header::AUTHORIZATION, http::HeaderValue::from_static("Bearer ours"))];
            async { Ok(Upgrade { stream: Box::pin(stream), host: "api.test".into(), headers }) }.boxed_local()
        }
    }

    async fn head(stream: &mut DuplexStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a whole head"));
        }
        String::from_utf8(head).expect("text")
    }

    #[tokio::test]
    async fn connections_that_change_protocols_are_carried_under_our_identity() {
        let (near, mut server) = tokio::io::duplex(4096);
        let (mut client, far) = tokio::io::duplex(4096);
        let transport = OneConnection(RefCell::new(Some(near)));
        let filter = Filter {
            hosts: Vec::new(),
            accept: Vec::new(),
            reject: Vec::new(),
            methods: Vec::new(),
            disabled: true,
            prefix: "/".into(),
            files: None,
        };
        let served = serve(&transport, Rc::new(filter), TokioIo::new(far));
        let answering = async move {
            let asked = head(&mut server).await.to_lowercase();
            assert!(asked.starts_with("get /behind/api/v1/namespaces/n/pods/p/exec?command=id http/1.1"), "{asked}");
            assert!(asked.contains("upgrade: websocket"), "{asked}");
            assert!(asked.contains("authorization: bearer ours") && !asked.contains("theirs"), "{asked}");
            let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            server.write_all(answer.as_bytes()).await.unwrap();
            let mut said = [0; 4];
            server.read_exact(&mut said).await.unwrap();
            server.write_all(&said).await.unwrap();
        };
        let asking = async move {
            let request = "GET /api/v1/namespaces/n/pods/p/exec?command=id HTTP/1.1\r\nHost: localhost\r\n\
                Connection: Upgrade\r\nUpgrade: websocket\r\nAuthorization: Bearer theirs\r\n\r\n";
            client.write_all(request.as_bytes()).await.unwrap();
            let answer = head(&mut client).await;
            assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
            client.write_all(b"ping").await.unwrap();
            let mut said = [0; 4];
            client.read_exact(&mut said).await.unwrap();
            assert_eq!(&said, b"ping");
        };
        futures::join!(served, answering, asking);
    }

    #[test]
    fn only_what_the_filter_accepts_gets_through() {
        let filter = Filter {
            hosts: patterns("^localhost$,^127\\.0\\.0\\.1$").unwrap_or_default(),
            accept: patterns("^.*").unwrap_or_default(),
            reject: patterns("^/api/.*/pods/.*/exec").unwrap_or_default(),
            methods: patterns("^$").unwrap_or_default(),
            disabled: false,
            prefix: "/".into(),
            files: None,
        };
        let check = |path: &str, host: &str, wanted: bool| {
            assert_eq!(filter.accepts("GET", path, host), wanted, "{path} {host}")
        };
        check("/api", "localhost:8001", true);
        check("/api", "127.0.0.1", true);
        check("/api", "evil.example", false);
        check("/api/v1/namespaces/x/pods/y/exec", "localhost", false);
    }
}
