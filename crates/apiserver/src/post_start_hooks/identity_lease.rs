//! The Lease by which this API server is known among those of a cluster, and the end of those that died long ago.
//! A row of the table beside it, under upstream's name.
//! A server removes only Leases that bear the label of such, and only after they have expired.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use api::ApiError;

use super::ControlLoop;
use crate::server::{loopback, pipeline::ApiServer};

/// Quiet ones; the loop goes by its own clock.
pub const WATCHES: &[&str] = &["namespaces"];
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const LABEL: &str = "apiserver.kubernetes.io/identity";
const COMPONENT: &str = "kube-apiserver";
const DURATION_SECONDS: i64 = 3600;
/// Upstream renews every ten seconds what lasts for an hour; this many writes fewer are worth it.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(300);

#[derive(Default)]
pub struct IdentityLease {
    holder: Option<String>,
    renewed: Option<Duration>,
}

/// As upstream's: a hash of the host's name in base 32.
pub fn identity(hostname: &str) -> String {
    const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz234567";
    let hash = Sha256::digest(hostname.as_bytes());
    let mut name = String::from("apiserver-");
    let (mut bits, mut count) = (0u32, 0);
    for byte in &hash[..16] {
        bits = (bits << 8) | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            name.push(ALPHABET[(bits >> count) as usize & 31] as char);
        }
    }
    name.push(ALPHABET[(bits << (5 - count)) as usize & 31] as char);
    name
}

fn expired(lease: &Value, now: Timestamp) -> bool {
    let renewed = lease["spec"]["renewTime"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let seconds = lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(0).max(0);
    renewed.is_none_or(|renewed| renewed + Duration::from_secs(seconds as u64) < now)
}

impl IdentityLease {
    async fn renew(&mut self, server: &Arc<ApiServer>) -> Result<(), ApiError> {
        let (env, hostname) = (&server.cluster.env, &server.config.hostname);
        let name = identity(hostname);
        // Whoever begins anew is another, also on the same host.
        let holder = self.holder.get_or_insert_with(|| format!("{name}_{:x}", env.now().as_nanosecond())).clone();
        let now = json!(MicroTime(env.now()));
        let path = format!("{LEASES}/{name}");
        match loopback::send(server, Method::GET, &path, &Value::Null).await {
            Ok(mut lease) => {
                lease["spec"]["holderIdentity"] = holder.into();
                lease["spec"]["renewTime"] = now;
                loopback::send(server, Method::PUT, &path, &lease).await.map(drop)
            }
            Err(error) if error.is_not_found() => {
                let lease = json!({
                    "metadata": { "name": name, "labels": { LABEL: COMPONENT, "kubernetes.io/hostname": hostname } },
                    "spec": { "holderIdentity": holder, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": now },
                });
                loopback::send(server, Method::POST, LEASES, &lease).await.map(drop)
            }
            Err(error) => Err(error),
        }
    }

    async fn collect(&self, server: &Arc<ApiServer>) -> Result<(), ApiError> {
        let list = format!("{LEASES}?labelSelector={LABEL}%3D{COMPONENT}");
        let found = loopback::send(server, Method::GET, &list, &Value::Null).await?;
        let now = server.cluster.env.now();
        for lease in found["items"].as_array().into_iter().flatten().filter(|lease| expired(lease, now)) {
            let meta = &lease["metadata"];
            let path = format!("{LEASES}/{}", meta["name"].as_str().unwrap_or_default());
            let options = json!({ "preconditions": { "resourceVersion": meta["resourceVersion"] } });
            match loopback::send(server, Method::DELETE, &path, &options).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

#[async_trait]
impl ControlLoop for IdentityLease {
    async fn sync(&mut self, server: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError> {
        let now = server.cluster.env.monotonic();
        if let Some(left) = self.renewed.and_then(|renewed| (renewed + RENEWAL_INTERVAL).checked_sub(now))
            && !left.is_zero()
        {
            return Ok(Some(left));
        }
        self.renew(server).await?;
        self.collect(server).await?;
        self.renewed = Some(now);
        Ok(Some(RENEWAL_INTERVAL))
    }
}

#[cfg(test)]
mod tests {
    use env::Env;

    use crate::Config;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_has_a_lease_and_dead_ones_lose_theirs() {
        // As upstream's server names the host `node`.
        assert_eq!(identity("node").len(), "apiserver-".len() + 26);
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let server = ApiServer::new(Config::in_process(key), store, env.clone()).await.unwrap();
        env.sleep(Duration::from_secs(5)).await;
        let lease = |name: &str, labels: Value| {
            json!({ "metadata": { "name": name, "labels": labels },
            "spec": { "leaseDurationSeconds": 3600, "renewTime": "2025-12-31T22:00:00.000000Z" } })
        };
        for object in [lease("apiserver-dead", json!({ LABEL: COMPONENT })), lease("another", json!({}))] {
            loopback::send(&server, Method::POST, LEASES, &object).await.unwrap();
        }
        let names = async || {
            let found = loopback::send(&server, Method::GET, LEASES, &Value::Null).await.unwrap();
            let names =
                found["items"].as_array().unwrap().iter().map(|l| l["metadata"]["name"].as_str().unwrap().to_string());
            names.collect::<Vec<_>>()
        };
        let own = identity(&server.config.hostname);
        assert!(names().await.contains(&own));
        env.sleep(RENEWAL_INTERVAL * 2).await;
        let mut left = names().await;
        left.retain(|name| *name == own || name.starts_with("a"));
        left.sort();
        let mut expected = vec!["another".to_string(), own];
        expected.sort();
        assert_eq!(left, expected);
    }
}
