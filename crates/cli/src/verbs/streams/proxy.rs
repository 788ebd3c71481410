//! `kubectl proxy`: a local port that leads to the API server under our own identity.
//! A row of `verbs::ROOT`.
//! Only hosts and paths that the flags accept get through.

use std::{convert::Infallible, net::IpAddr, rc::Rc};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream::FuturesUnordered};
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

    fn accepts(&self, method: &str, path: &str, host: &str) -> bool {
        let host = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
        let any = |all: &[Regex], text: &str| all.iter().any(|p| p.is_match(text));
        self.disabled
            || (any(&self.hosts, host)
                && any(&self.accept, path)
                && !any(&self.reject, path)
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
    if matches.bool("disable-filter") && matches.opt("unix-socket").is_none() {
        session
            .output
            .warn("W proxy.go] Request filter disabled, your proxy is vulnerable to XSRF attacks, please be cautious");
    }
    session.rest().await?;
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
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => open.push(serve(session, filter.clone(), TokioIo::new(accepted?.0))),
                Some(()) = open.next(), if !open.is_empty() => {}
            }
        }
    }
    let listener = TcpListener::bind((address, port))
        .await
        .map_err(|e| Failure::message(format!("listen tcp {address}:{port}: {e}")))?;
    session.output.line(&format!("Starting to serve on {}", listener.local_addr()?));
    session.output.flush();
    let mut open = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => open.push(serve(session, filter.clone(), TokioIo::new(accepted?.0))),
            Some(()) = open.next(), if !open.is_empty() => {}
        }
    }
}

async fn serve<S>(session: &Session, filter: Rc<Filter>, stream: TokioIo<S>)
where
    TokioIo<S>: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let service = hyper::service::service_fn(|request| answer(session, &filter, request));
    // A client that breaks off ends only its own connection.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await;
}

async fn answer(
    session: &Session,
    filter: &Filter,
    request: Request<Incoming>,
) -> std::result::Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_string();
    let host = request.headers().get(header::HOST).and_then(|v| v.to_str().ok()).unwrap_or_default().to_string();
    if !filter.accepts(request.method().as_str(), &path, &host) {
        return Ok(text(StatusCode::FORBIDDEN, "Forbidden"));
    }
    if let Some((prefix, folder)) = &filter.files
        && let Some(inner) = path.strip_prefix(prefix.as_str())
    {
        let inside = !inner.split('/').any(|part| part == "..");
        return Ok(match std::fs::read(folder.join(inner)) {
            Ok(bytes) if inside => {
                Response::new(Full::new(Bytes::from(bytes)).map_err(|never: Infallible| match never {}).boxed_unsync())
            }
            _ => text(StatusCode::NOT_FOUND, "404 page not found"),
        });
    }
    Ok(match forward(session, filter, request).await {
        Ok(response) => response,
        Err(failure) => text(StatusCode::BAD_GATEWAY, &failure.text()),
    })
}

async fn forward(session: &Session, filter: &Filter, request: Request<Incoming>) -> Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let whole = body.collect().await.map_err(|e| Failure::message(e.to_string()))?.to_bytes();
    let target = parts.uri.path_and_query().map_or("/", |p| p.as_str());
    let target = match filter.prefix.as_str() {
        "/" => target,
        prefix => target.strip_prefix(prefix).unwrap_or(target),
    };
    let mut onward = Request::builder().method(parts.method).uri(target);
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
    let (mut parts, body) = session.rest().await?.transport().send(onward).await?.into_parts();
    parts.headers.remove(header::CONNECTION);
    parts.headers.remove(header::TRANSFER_ENCODING);
    let body = StreamBody::new(body.map_ok(Frame::data)).boxed_unsync();
    parts.version = http::Version::HTTP_11;
    Ok(Response::from_parts(parts, body))
}

#[cfg(test)]
mod tests {
    use super::*;

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
