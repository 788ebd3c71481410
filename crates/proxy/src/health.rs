//! The health check ports of Services with externalTrafficPolicy Local: a load balancer asks which nodes to use.
//! Kept by `run` in step with the applied rules.
//! Invariant: a port that cannot be bound is reported and the rest goes on.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use env::Env;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

struct Server {
    port: u16,
    local_endpoints: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub struct HealthChecks {
    env: Env,
    servers: HashMap<String, Server>,
}

impl HealthChecks {
    pub fn new(env: Env) -> Self {
        Self { env, servers: HashMap::new() }
    }

    /// What a Service wants now: a port and the number of its local endpoints, or no check at all.
    pub fn set(&mut self, service: &str, wanted: Option<(u16, usize)>) {
        let Some((port, count)) = wanted else {
            self.servers.remove(service);
            return;
        };
        if let Some(server) = self.servers.get(service).filter(|server| server.port == port) {
            server.local_endpoints.store(count, Ordering::Relaxed);
            return;
        }
        let local_endpoints = Arc::new(AtomicUsize::new(count));
        let task = self.env.spawn(serve(self.env.clone(), service.to_owned(), port, local_endpoints.clone()));
        self.servers.insert(service.to_owned(), Server { port, local_endpoints, task });
    }
}

async fn serve(env: Env, service: String, port: u16, local_endpoints: Arc<AtomicUsize>) {
    // IPv6 wildcard takes IPv4 too; a kernel without IPv6 gets IPv4.
    let listener = match TcpListener::bind(("::", port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(("0.0.0.0", port)).await,
    };
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%service, port, %error, "failed to listen on the health check node port");
            return;
        }
    };
    while let Ok((stream, _)) = listener.accept().await {
        let answer = answer(&service, local_endpoints.load(Ordering::Relaxed));
        let env = env.clone();
        env.clone().spawn(async move { env.timeout(Duration::from_secs(5), respond(stream, answer)).await });
    }
}

async fn respond(mut stream: TcpStream, answer: String) {
    let mut head = Vec::with_capacity(512);
    while !head.windows(4).any(|window| window == b"\r\n\r\n") && head.len() < 8192 {
        match stream.read_buf(&mut head).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    // The client may leave before it has read the answer.
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn answer(service: &str, local_endpoints: usize) -> String {
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    let body = serde_json::json!({
        "service": { "namespace": namespace, "name": name },
        "localEndpoints": local_endpoints,
        "serviceProxyHealthy": true,
    })
    .to_string();
    let status = if local_endpoints > 0 { "200 OK" } else { "503 Service Unavailable" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {local_endpoints}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
