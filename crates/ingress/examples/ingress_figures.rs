//! Requests per second and the 99th percentile through the ingress, beside nginx on the same machine: small answers, plain
//! and over TLS. Run by `tools/bench`; the proxy, nginx and the backend are processes of their own.
//! Usage: `ingress_figures`, or `ingress_figures serve|backend …` as its own child.

use std::{
    net::{SocketAddr, TcpListener as StdListener},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use env::Env;
use ingress::{
    Backend, BackendKey, BackendState, Destinations, Entry, HostTable, PathMatch, PortTable, Protocol, Proxy,
    ProxyConfig, RequestMatch, Route, RouteSettings, RouteTable, ServicePort, SharedTable, TableResolver, TrustedRoots,
    UpstreamTls, UpstreamTlsSettings, default_certificate, server_config,
};
use serve::{Limits, serve_http, serve_https};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

const CONNECTIONS: usize = 64;
const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(5);
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\nContent-Type: text/plain\r\n\r\nHello, whale\n";
const REQUEST: &[u8] = b"GET /small HTTP/1.1\r\nHost: figures.test\r\nUser-Agent: figures\r\n\r\n";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[derive(Clone, Copy)]
struct Figure {
    per_second: f64,
    p99: Duration,
}

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ports: Vec<u16> = arguments.iter().skip(1).filter_map(|text| text.parse().ok()).collect();
    match (arguments.first().map(String::as_str), ports.as_slice()) {
        (Some("backend"), [port]) => runtime.block_on(backend(*port)),
        (Some("serve"), [http, https, backend]) => runtime.block_on(serve(*http, *https, *backend)),
        _ => runtime.block_on(compare()),
    }
}

fn row(figure: &str, value: String, goal: &str) {
    println!("{figure:<44} {value:>12}   {goal}");
}

async fn compare() -> std::io::Result<()> {
    let [backend, http, https, nginx_http, nginx_https] = free_ports()?;
    let own = std::env::current_exe()?;
    let _backend = Killed(Command::new(&own).args(["backend", &backend.to_string()]).spawn()?);
    let ports = [http, https, backend].map(|port| port.to_string());
    let _proxy = Killed(Command::new(&own).arg("serve").args(ports).spawn()?);
    let directory = std::env::temp_dir().join(format!("ingress-figures-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let _nginx = nginx(&directory, nginx_http, nginx_https, backend)?;
    for (name, is_tls, ours, theirs) in [("plain", false, http, nginx_http), ("TLS", true, https, nginx_https)] {
        let ours = measure(ours, is_tls).await?;
        row(&format!("ingress, {name}: requests per second"), format!("{:.0}", ours.per_second), "");
        row(&format!("ingress, {name}: 99th percentile"), format!("{:.2} ms", ours.p99.as_secs_f64() * 1e3), "");
        if _nginx.is_some() {
            let theirs = measure(theirs, is_tls).await?;
            let ratio = format!("{:.2} x", ours.per_second / theirs.per_second);
            row(&format!("ingress to nginx, {name}: requests"), ratio, ">= 1.0");
            let ratio = format!("{:.2} x", ours.p99.as_secs_f64() / theirs.p99.as_secs_f64());
            row(&format!("ingress to nginx, {name}: 99th percentile"), ratio, "<= 1.0");
        } else {
            row(&format!("ingress to nginx, {name}"), "no nginx".into(), "apt-get install -y nginx-light");
        }
    }
    std::fs::remove_dir_all(&directory)
}

fn free_ports<const N: usize>() -> std::io::Result<[u16; N]> {
    let listeners: Vec<StdListener> = (0..N).map(|_| StdListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

/// None where it is not installed.
fn nginx(directory: &Path, http: u16, https: u16, backend: u16) -> std::io::Result<Option<Killed>> {
    let key = rcgen::KeyPair::generate().map_err(std::io::Error::other)?;
    let params = rcgen::CertificateParams::new(vec!["figures.test".to_string()]).map_err(std::io::Error::other)?;
    let certificate = params.self_signed(&key).map_err(std::io::Error::other)?;
    std::fs::write(directory.join("tls.crt"), certificate.pem())?;
    std::fs::write(directory.join("tls.key"), key.serialize_pem())?;
    let at = directory.display();
    let text = format!(
        "daemon off; worker_processes 2; pid {at}/pid; error_log {at}/error.log crit;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; keepalive_requests 1000000; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;\n\
         fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\n\
         upstream backend {{ server 127.0.0.1:{backend}; keepalive 64; }}\n\
         server {{ listen 127.0.0.1:{http}; listen 127.0.0.1:{https} ssl; ssl_certificate {at}/tls.crt;\n\
         ssl_certificate_key {at}/tls.key; location / {{ proxy_pass http://backend; proxy_http_version 1.1;\n\
         proxy_set_header Connection ''; proxy_set_header Host $host; proxy_set_header X-Real-IP $remote_addr;\n\
         proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto $scheme; }} }} }}\n"
    );
    let config = directory.join("nginx.conf");
    std::fs::write(&config, text)?;
    let started = Command::new("nginx").arg("-c").arg(&config).arg("-p").arg(directory).stderr(Stdio::null()).spawn();
    match started {
        Ok(child) => Ok(Some(Killed(child))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Answers every request with the same bytes.
async fn backend(port: u16) -> std::io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        env::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(1..) = stream.read(&mut buffer).await {
                if stream.write_all(ANSWER).await.is_err() {
                    return;
                }
            }
        });
    }
}

async fn serve(http: u16, https: u16, backend: u16) -> std::io::Result<()> {
    let (env, stop, table) = (Env::real(), CancellationToken::new(), SharedTable::default());
    let endpoints = vec![SocketAddr::from(([127, 0, 0, 1], backend))];
    let state = BackendState { protocol: Protocol::Http1, endpoints, problem: None };
    let backend = Backend::new(BackendKey::new("n", "s", ServicePort::Number(80)), state);
    let route = Arc::new(Route {
        owner: "n/figures".into(),
        path: PathMatch::prefix("/"),
        one_label: true,
        condition: RequestMatch::default(),
        destinations: Arc::new(Destinations::one(Some(Arc::new(backend)))),
        filters: None,
        settings: Arc::new(RouteSettings::default()),
    });
    let mut hosts = HostTable::default();
    hosts.insert("figures.test", route);
    let hosts = Arc::new(hosts);
    let port = |port: u16| (port, PortTable { hosts: hosts.clone(), ..PortTable::default() });
    table.store(RouteTable { ports: [port(http), port(https)].into() });
    let proxy = Proxy::new(table.clone(), ProxyConfig::default(), env.clone());
    let default = default_certificate().map_err(std::io::Error::other)?;
    let tls = server_config(TableResolver { table, port: https, default }).map_err(std::io::Error::other)?;
    let plain = Entry::new(proxy.clone(), http, false, None);
    let secure = Entry::new(proxy, https, true, None);
    let (http, https) = (TcpListener::bind(("127.0.0.1", http)).await?, TcpListener::bind(("127.0.0.1", https)).await?);
    env.spawn(serve_http(http, plain, Limits::INGRESS, env.clone(), stop.clone()));
    serve_https(https, tls, secure, Limits::INGRESS, env, stop).await;
    Ok(())
}

async fn measure(port: u16, is_tls: bool) -> std::io::Result<Figure> {
    let settings = UpstreamTlsSettings {
        hostname: "figures.test".into(),
        subject_alt_names: Vec::new(),
        roots: TrustedRoots::Anybody,
    };
    let tls = Arc::new(UpstreamTls::new(&settings).map_err(std::io::Error::other)?);
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = connect(port).await?;
        stream.set_nodelay(true)?;
        clients.push(match is_tls {
            false => env::spawn(client(stream)),
            true => {
                let connector = TlsConnector::from(tls.config(Protocol::Http1).clone());
                env::spawn(client(connector.connect(tls.server_name().clone(), stream).await?))
            }
        });
    }
    let mut times = Vec::new();
    for each in clients {
        times.extend(each.await.map_err(std::io::Error::other)??);
    }
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
    Ok(Figure { per_second: times.len() as f64 / MEASURED.as_secs_f64(), p99 })
}

/// Whoever listens there may still be starting.
async fn connect(port: u16) -> std::io::Result<TcpStream> {
    for _ in 0..500 {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)).await {
            return Ok(stream);
        }
        env::sleep(Duration::from_millis(20)).await;
    }
    TcpStream::connect(("127.0.0.1", port)).await
}

/// One request after the other; how long each took, after the warm-up.
async fn client(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<Vec<Duration>> {
    let (mut times, mut buffer, mut answer) = (Vec::new(), [0; 4096], Vec::new());
    let began = env::instant_now();
    loop {
        let sent = env::instant_now();
        stream.write_all(REQUEST).await?;
        answer.clear();
        while !answer.ends_with(b"Hello, whale\n") {
            let length = stream.read(&mut buffer).await?;
            if length == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&buffer[..length]);
        }
        let now = env::instant_now();
        if now - began > WARM_UP + MEASURED {
            return Ok(times);
        }
        if now - began > WARM_UP {
            times.push(now - sent);
        }
    }
}
