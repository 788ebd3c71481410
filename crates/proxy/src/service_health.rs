//! The health check ports of Services with externalTrafficPolicy Local: a load balancer asks which nodes to use.
//! Kept by `run` in step with the applied rules.
//! A port that can't be bound is told to the Service and taken once it is free; the rest goes on.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use client::{EventRecorder, Informer, reference};
use env::Env;
use k8s_openapi::api::core::v1::Service;
use metrics::http::{listen, response, serve};
use tokio::task::JoinHandle;

use crate::proxy_health::ProxyHealth;

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

pub struct ServiceHealth {
    env: Env,
    node_name: String,
    proxy_health: ProxyHealth,
    services: Informer<Service>,
    recorder: EventRecorder,
    servers: HashMap<String, Server>,
}

impl ServiceHealth {
    pub fn new(
        env: Env,
        node_name: String,
        proxy_health: ProxyHealth,
        services: Informer<Service>,
        recorder: EventRecorder,
    ) -> Self {
        Self { env, node_name, proxy_health, services, recorder, servers: HashMap::new() }
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
        let task = self.env.spawn(self.listen(service.to_owned(), port, local_endpoints.clone()));
        self.servers.insert(service.to_owned(), Server { port, local_endpoints, task });
    }

    fn listen(
        &self,
        service: String,
        port: u16,
        local_endpoints: Arc<AtomicUsize>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (env, proxy_health, node) = (self.env.clone(), self.proxy_health.clone(), self.node_name.clone());
        let (services, recorder) = (self.services.clone(), self.recorder.clone());
        async move {
            let refused = |error: &std::io::Error| {
                tracing::error!(%service, port, %error, "failed to listen on the health check node port; will try again");
                if let Some(object) = services.get(&service) {
                    let message =
                        format!("node {node} failed to start healthcheck {service:?} on port {port}: {error}");
                    recorder.warning(&reference(&*object), "FailedToStartServiceHealthcheck", message);
                }
            };
            let listener = listen(&env, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), refused).await;
            let local = move || local_endpoints.load(Ordering::Relaxed);
            serve(&env, listener, move |_| Some(answer(&service, local(), proxy_health.is_healthy()))).await;
        }
    }
}

fn answer(service: &str, local_endpoints: usize, healthy: bool) -> String {
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    let body = serde_json::json!({
        "service": { "namespace": namespace, "name": name },
        "localEndpoints": local_endpoints,
        "serviceProxyHealthy": healthy,
    });
    let weight = ("X-Load-Balancing-Endpoint-Weight", local_endpoints.to_string());
    response(local_endpoints > 0 && healthy, &[weight], &body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_used_while_it_has_endpoints_and_keeps_up() {
        for (count, healthy, status) in [(2, true, "200 OK"), (0, true, "503 "), (2, false, "503 ")] {
            let text = answer("d/web", count, healthy);
            assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
            assert!(text.contains(&format!("X-Load-Balancing-Endpoint-Weight: {count}\r\n")), "{text}");
        }
    }
}
