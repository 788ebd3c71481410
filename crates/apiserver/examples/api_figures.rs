//! The API server under load, as ratios: `api_figures STANDALONE LAST_RUN [etcd]`, called by `tools/bench`.
//! Starts the `standalone` example as a process of its own, speaks JSON over TLS to it, and keeps its results in a file
//! to compare the next run with.
//! Measures from outside; shares nothing with the server but sockets.

use std::{
    collections::BTreeMap,
    error::Error,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use env::Env;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use serde_json::{Value, json};

type Failure = Box<dyn Error + Send + Sync>;

const OBJECTS: usize = 10_000;
const MANY_OBJECTS: usize = 100_000;
const CLIENTS: usize = 32;
const WATCHERS: [usize; 2] = [500, 1000];
const WRITES: usize = 1000;
const WRITES_PER_SECOND: u64 = 100;
const PATH: &str = "/api/v1/namespaces/default/configmaps";

/// kube-apiserver 1.35 over etcd on a machine like this one; with `-` before what is better when smaller.
const UPSTREAM: &[(&str, f64)] = &[
    ("create/s", 1189.0),
    ("-create p99 ms", 59.0),
    ("get/s", 2443.0),
    ("update/s", 938.0),
    ("patch/s", 906.0),
    ("apply/s", 853.0),
    ("delete/s", 1014.0),
    ("-list of 10,000 ms", 356.0),
    ("-watch p99 ms, 500 watchers", 94.0),
];

struct Target {
    port: u16,
    tls: tokio_rustls::TlsConnector,
}

impl Target {
    /// From the kubeconfig that `standalone` writes.
    fn read(port: u16, kubeconfig: &str) -> Result<Self, Failure> {
        let field = |name: &str| -> Result<Vec<u8>, Failure> {
            let rest = kubeconfig.split_once(&format!("{name}: ")).ok_or("the kubeconfig is incomplete")?.1;
            Ok(BASE64_STANDARD.decode(rest.split([',', '}']).next().unwrap_or_default())?)
        };
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&field("certificate-authority-data")?)?)?;
        let chain = vec![CertificateDer::from_pem_slice(&field("client-certificate-data")?)?];
        let key = PrivateKeyDer::from_pem_slice(&field("client-key-data")?)?;
        let config = ClientConfig::builder().with_root_certificates(roots).with_client_auth_cert(chain, key)?;
        Ok(Self { port, tls: Arc::new(config).into() })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        let stream = self.tls.connect(ServerName::try_from("localhost")?, stream).await?;
        let (sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        env::spawn(driver);
        Ok(sender)
    }
}

fn request(method: Method, path: &str, content_type: &str, body: &Value) -> Request<Full<Bytes>> {
    let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let mut request = Request::new(Full::new(bytes));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().expect("a constant path");
    request.headers_mut().insert(header::HOST, "localhost".parse().expect("a host"));
    request.headers_mut().insert(header::CONTENT_TYPE, content_type.parse().expect("a type"));
    request
}

fn config_map(name: &str, number: usize) -> Value {
    let filler = format!("{number:0>1000}");
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name },
        "data": { "n": number.to_string(), "filler": filler } })
}

#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn milliseconds(&mut self, fraction: f64) -> f64 {
        self.0.sort_unstable();
        let at = (self.0.len() as f64 * fraction) as usize;
        self.0.get(at.min(self.0.len().saturating_sub(1))).map_or(0.0, |t| t.as_secs_f64() * 1e3)
    }
}

struct Bench {
    env: Env,
    target: Arc<Target>,
    server: Child,
    figures: BTreeMap<String, f64>,
}

impl Bench {
    /// One request per object; requests per second, the slowest, and what the server worked for each.
    async fn each(&mut self, name: &str, make: fn(usize) -> Request<Full<Bytes>>) -> Result<(), Failure> {
        let (before, start) = (self.cpu(), self.env.monotonic());
        let mut times = self.send(OBJECTS, make).await?;
        let spent = (self.env.monotonic() - start).as_secs_f64();
        self.figures.insert(format!("{name}/s"), OBJECTS as f64 / spent);
        self.figures.insert(format!("-{name} p99 ms"), times.milliseconds(0.99));
        self.figures.insert(format!("-{name} server µs"), (self.cpu() - before) * 1e6 / OBJECTS as f64);
        Ok(())
    }

    /// Requests from all clients at once.
    async fn send(&self, count: usize, make: fn(usize) -> Request<Full<Bytes>>) -> Result<Times, Failure> {
        let next = Arc::new(AtomicUsize::new(0));
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(self.target.connect().await?);
        }
        let tasks = clients.into_iter().map(|mut client| {
            let (next, env) = (next.clone(), self.env.clone());
            env::spawn(async move {
                let mut times = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return Ok::<_, Failure>(times);
                    }
                    let sent = env.monotonic();
                    client.ready().await?;
                    let response = client.send_request(make(n)).await?;
                    let status = response.status();
                    response.into_body().collect().await?;
                    if !status.is_success() {
                        return Err(format!("request {n} was answered {status}").into());
                    }
                    times.push(env.monotonic() - sent);
                }
            })
        });
        let mut times = Times::default();
        for task in tasks.collect::<Vec<_>>() {
            times.0.extend(task.await??);
        }
        Ok(times)
    }

    /// What the server holds with many objects, against what it held with none.
    async fn memory(&mut self, empty: f64) -> Result<(), Failure> {
        const JSON: &str = "application/json";
        self.send(MANY_OBJECTS, |n| request(Method::POST, PATH, JSON, &config_map(&format!("cm-{n}"), n))).await?;
        let mut client = self.target.connect().await?;
        let stored = client.send_request(request(Method::GET, &format!("{PATH}/cm-1000"), JSON, &Value::Null)).await?;
        let size = stored.into_body().collect().await?.to_bytes().len() as f64;
        let held = self.resident();
        let each = (held - empty) / MANY_OBJECTS as f64;
        self.figures.insert("-memory per object, x its JSON".into(), each / size);
        self.figures.insert("-100,000 objects of 1 KiB, MiB".into(), held / f64::from(1 << 20));
        Ok(())
    }

    async fn lists(&mut self) -> Result<(), Failure> {
        let mut client = self.target.connect().await?;
        let mut times = Times::default();
        for _ in 0..20 {
            client.ready().await?;
            let sent = self.env.monotonic();
            let response = client.send_request(request(Method::GET, PATH, "application/json", &Value::Null)).await?;
            response.into_body().collect().await?;
            times.0.push(self.env.monotonic() - sent);
        }
        self.figures.insert("-list of 10,000 ms".into(), times.milliseconds(0.5));
        Ok(())
    }

    /// Every write to every watcher, timed from its sending; one that is lost, doubled or out of order is a failure.
    async fn watch(&mut self, count: usize) -> Result<(), Failure> {
        let name = format!("watched-{count}");
        let sent: Arc<Vec<AtomicU64>> = Arc::new((0..WRITES).map(|_| AtomicU64::new(0)).collect());
        let now = |env: &Env| env.monotonic().as_nanos() as u64;
        let mut watchers = Vec::new();
        for _ in 0..count {
            let path = format!("{PATH}?watch=1&fieldSelector=metadata.name%3D{name}&timeoutSeconds=600");
            let mut client = self.target.connect().await?;
            let response = client.send_request(request(Method::GET, &path, "application/json", &Value::Null)).await?;
            let (sent, env) = (sent.clone(), self.env.clone());
            watchers.push(env::spawn(async move {
                let _client = client;
                let mut body = response.into_body();
                let (mut rest, mut times) = (Vec::new(), Vec::new());
                while times.len() < WRITES {
                    let frame = body.frame().await.ok_or("a watch ended")??;
                    rest.extend_from_slice(&frame.into_data().unwrap_or_default());
                    while let Some(end) = rest.iter().position(|b| *b == b'\n') {
                        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
                        rest.drain(..=end);
                        let n =
                            line.split_once("\"n\":\"").and_then(|(_, r)| r.split('"').next()?.parse::<usize>().ok());
                        if n != Some(times.len()) {
                            return Err::<_, Failure>(format!("expected {}, found {n:?}", times.len()).into());
                        }
                        let at = sent[times.len()].load(Ordering::Relaxed);
                        times.push(Duration::from_nanos(now(&env).saturating_sub(at)));
                    }
                }
                Ok(times)
            }));
        }
        let mut client = self.target.connect().await?;
        let mut writes = Times::default();
        let (before, start) = (self.cpu(), self.env.monotonic());
        for (n, at) in sent.iter().enumerate() {
            let due = start + Duration::from_nanos(n as u64 * 1_000_000_000 / WRITES_PER_SECOND);
            self.env.sleep(due.saturating_sub(self.env.monotonic())).await;
            client.ready().await?;
            at.store(now(&self.env), Ordering::Relaxed);
            let (method, path) = match n {
                0 => (Method::POST, PATH.to_string()),
                _ => (Method::PUT, format!("{PATH}/{name}")),
            };
            let sent = self.env.monotonic();
            let response =
                client.send_request(request(method, &path, "application/json", &config_map(&name, n))).await?;
            response.into_body().collect().await?;
            writes.0.push(self.env.monotonic() - sent);
        }
        let mut times = Times::default();
        for watcher in watchers {
            times.0.extend(watcher.await??);
        }
        self.figures.insert(format!("-watch p99 ms, {count} watchers"), times.milliseconds(0.99));
        self.figures.insert(format!("-watch p50 ms, {count} watchers"), times.milliseconds(0.5));
        self.figures.insert(format!("-watched write p99 ms, {count} watchers"), writes.milliseconds(0.99));
        let events = (WRITES * count) as f64;
        let spent = (self.cpu() - before) * 1e6 / events;
        self.figures.insert(format!("-watch server µs per delivery, {count}"), spent);
        Ok(())
    }

    /// Seconds of processor time the server has used.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.server.id())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / 100.0
    }

    fn resident(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or_default();
        line.split_whitespace().next().and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
    }

    fn print(&self, last: &Value) {
        println!("{:<38} {:>12} {:>12} {:>12}", "figure", "value", "x upstream", "x last run");
        for (name, value) in &self.figures {
            // Above 1 is better, whichever way the figure goes.
            let ratio = |other: f64| match (name.starts_with('-'), other > 0.0 && *value > 0.0) {
                (_, false) => String::new(),
                (true, _) => format!("{:.2}", other / value),
                (false, _) => format!("{:.2}", value / other),
            };
            let upstream = UPSTREAM.iter().find(|(n, _)| n == name).map_or(String::new(), |(_, v)| ratio(*v));
            let before = last[name].as_f64().map_or(String::new(), ratio);
            println!("{:<38} {value:>12.1} {upstream:>12} {before:>12}", name.trim_start_matches('-'));
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let mut arguments = std::env::args().skip(1);
    let (Some(standalone), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("usage: api_figures STANDALONE LAST_RUN [etcd]".into());
    };
    let on_etcd = arguments.next().is_some_and(|place| place == "etcd");
    let directory = tempfile::tempdir()?;
    let kubeconfig = directory.path().join("kubeconfig");
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let data = directory.path().join("data");
    let (mut etcd, place) = match on_etcd {
        true => {
            let (process, url) = start_etcd(&data).await?;
            (Some(process), format!("etcd={url}"))
        }
        false => (None, data.display().to_string()),
    };
    let mut server = Command::new(standalone);
    server.arg(port.to_string()).arg(&kubeconfig).arg(&place).stdout(Stdio::piped());
    let mut server = server.spawn()?;
    let mut line = String::new();
    let output = server.stdout.take().ok_or("the server has no output")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)?;
    let target = Arc::new(Target::read(port, &std::fs::read_to_string(&kubeconfig)?)?);
    let mut bench = Bench { env: Env::real(), target, server, figures: BTreeMap::new() };
    let measured = measure(&mut bench, on_etcd).await;
    for process in [Some(&mut bench.server), etcd.as_mut()].into_iter().flatten() {
        process.kill()?;
        process.wait()?;
    }
    measured?;
    let last = std::fs::read(&file).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
    bench.print(&last);
    Ok(std::fs::write(&file, serde_json::to_vec_pretty(&bench.figures)?)?)
}

/// An etcd of its own, which syncs as it does by default.
async fn start_etcd(data: &std::path::Path) -> Result<(Child, String), Failure> {
    let free = || Ok::<_, Failure>(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port());
    let (client, peer) = (free()?, free()?);
    let (url, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let process = Command::new("etcd")
        .arg("--data-dir")
        .arg(data)
        .args(["--name", "one", "--log-level", "error", "--initial-cluster", &format!("one={peer}")])
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    for _ in 0..600 {
        if tokio::net::TcpStream::connect(("127.0.0.1", client)).await.is_ok() {
            break;
        }
        env::sleep(Duration::from_millis(50)).await;
    }
    Ok((process, url))
}

async fn measure(bench: &mut Bench, on_etcd: bool) -> Result<(), Failure> {
    const JSON: &str = "application/json";
    let empty = bench.resident();
    bench.each("create", |n| request(Method::POST, PATH, JSON, &config_map(&format!("cm-{n}"), n))).await?;
    bench.each("get", |n| request(Method::GET, &format!("{PATH}/cm-{n}"), JSON, &Value::Null)).await?;
    bench.lists().await?;
    bench
        .each("update", |n| {
            let body = config_map(&format!("cm-{n}"), n + OBJECTS);
            request(Method::PUT, &format!("{PATH}/cm-{n}"), JSON, &body)
        })
        .await?;
    bench
        .each("patch", |n| {
            let patch = json!({ "data": { "patched": n.to_string() } });
            request(Method::PATCH, &format!("{PATH}/cm-{n}"), "application/merge-patch+json", &patch)
        })
        .await?;
    bench
        .each("apply", |n| {
            let path = format!("{PATH}/cm-{n}?fieldManager=figures&force=true");
            let body = config_map(&format!("cm-{n}"), n + 2 * OBJECTS);
            request(Method::PATCH, &path, "application/apply-patch+yaml", &body)
        })
        .await?;
    for count in WATCHERS {
        bench.watch(count).await?;
    }
    bench.each("delete", |n| request(Method::DELETE, &format!("{PATH}/cm-{n}"), JSON, &Value::Null)).await?;
    match on_etcd {
        // The same objects in memory, however they are stored; 100,000 writes take etcd minutes.
        true => Ok(()),
        false => bench.memory(empty).await,
    }
}
