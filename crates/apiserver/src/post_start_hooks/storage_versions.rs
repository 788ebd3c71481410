//! Tells the other API servers, as StorageVersions, in which version this one stores each resource.
//! A row of the table beside it, behind the gate StorageVersionAPI; the storage version garbage collector among the
//! controllers removes what servers that are gone have said.
//! Says nothing before this server's identity Lease is there, so that nobody takes it for one that is gone.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::future::try_join_all;
use http::Method;
use serde_json::{Value, json};

use api::ApiError;

use super::{ControlLoop, identity_lease};
use crate::{
    discovery::served::Set,
    server::{loopback, pipeline::ApiServer},
};

pub const WATCHES: &[&str] = &["storageversions", "customresourcedefinitions"];
const PATH: &str = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
const LEASE_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Another server may write the same object.
const ATTEMPTS_MAX: usize = 10;
const WRITES_MAX: usize = 16;

/// What this server says of itself for each resource, by the object's name.
fn wanted(set: &Set, server_id: &str) -> BTreeMap<String, Value> {
    let mut wanted: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for served in set.resources.iter().filter(|served| served.stored()) {
        // A second view of the same objects (events.k8s.io) is not another resource.
        let stored = &served.storage_version;
        if stored.group != served.group {
            continue;
        }
        let encoding = match stored.group.as_str() {
            "" => stored.version.clone(),
            group => format!("{group}/{}", stored.version),
        };
        let group = if served.group.is_empty() { "core" } else { &served.group };
        let entry = wanted.entry(format!("{group}.{}", served.plural)).or_insert((encoding, Vec::new()));
        entry.1.push(served.api_version());
    }
    let version = |(name, (encoding, versions)): (String, (String, Vec<String>))| {
        let mut decodable = versions.clone();
        if !decodable.contains(&encoding) {
            decodable.push(encoding.clone());
        }
        let version = json!({
            "apiServerID": server_id, "encodingVersion": encoding, "decodableVersions": decodable,
            "servedVersions": versions,
        });
        (name, version)
    };
    wanted.into_iter().map(version).collect()
}

/// Puts what a server says into an object; false where it says so already.
fn merge(object: &mut Value, version: &Value, now: jiff::Timestamp) -> bool {
    let versions = object["status"]["storageVersions"].as_array().cloned().unwrap_or_default();
    if versions.contains(version) {
        return false;
    }
    let others = versions.into_iter().filter(|other| other["apiServerID"] != version["apiServerID"]);
    let all: Vec<Value> = others.chain([version.clone()]).collect();
    object["status"]["storageVersions"] = all.into();
    api::kinds::set_common_encoding_version(object, now);
    true
}

async fn update(server: &Arc<ApiServer>, name: &str, version: &Value) -> Result<(), ApiError> {
    let path = format!("{PATH}/{name}");
    let mut result = Ok(());
    for _ in 0..ATTEMPTS_MAX {
        let found = match loopback::send(server, Method::GET, &path, &Value::Null).await {
            Err(error) if error.is_not_found() => {
                let object = json!({ "metadata": { "name": name }, "spec": {} });
                loopback::send(server, Method::POST, PATH, &object).await
            }
            other => other,
        };
        let written = match found {
            Ok(mut object) => match merge(&mut object, version, server.cluster.env.now()) {
                true => loopback::send(server, Method::PUT, &format!("{path}/status"), &object).await.map(drop),
                false => Ok(()),
            },
            Err(error) => Err(error),
        };
        match written {
            Err(error) if error.is_conflict() || error.is_already_exists() => result = Err(error),
            other => return other,
        }
    }
    result
}

pub struct StorageVersions;

#[async_trait]
impl ControlLoop for StorageVersions {
    async fn sync(&mut self, server: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError> {
        let identity = identity_lease::identity(&server.config.hostname);
        // Where it is not served nobody asks.
        if server.cluster.served.current().find("internal.apiserver.k8s.io", "v1alpha1", "storageversions").is_none() {
            return Ok(None);
        }
        if server.cluster.get("leases", "kube-system", &identity).is_none() {
            return Ok(Some(LEASE_RETRY_INTERVAL));
        }
        let wanted = wanted(&server.cluster.served.current(), &identity);
        let known = server.cluster.list("storageversions", "");
        let said = |name: &str, version: &Value| {
            let object = known.iter().find(|object| object.meta.name == name).map(|object| object.value());
            let said = object.and_then(|o| o["status"]["storageVersions"].as_array().map(|all| all.contains(version)));
            said.unwrap_or(false)
        };
        let missing: Vec<_> = wanted.into_iter().filter(|(name, version)| !said(name, version)).collect();
        // A few at a time, so that the store commits them in groups.
        for batch in missing.chunks(WRITES_MAX) {
            try_join_all(batch.iter().map(|(name, version)| update(server, name, version))).await?;
        }
        Ok(None)
    }

    /// What a definition defines is served a moment after it is stored; our own writes come in bulk.
    fn settle_interval(&self) -> Duration {
        Duration::from_millis(500)
    }
}

#[cfg(test)]
mod tests {
    use api::feature_gates::FeatureGates;
    use env::Env;

    use crate::{Config, config::RuntimeConfig};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_says_what_it_stores_and_says_it_again() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let mut config = Config::in_process(rcgen::KeyPair::generate().unwrap().serialize_pem());
        config.feature_gates = FeatureGates::parse(["StorageVersionAPI=true"]).unwrap();
        config.runtime_config = RuntimeConfig::parse(["internal.apiserver.k8s.io/v1alpha1=true"]).unwrap();
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let server = ApiServer::new(config, store, env.clone()).await.unwrap();
        env.sleep(Duration::from_secs(10)).await;
        let get =
            async |name: &str| loopback::send(&server, Method::GET, &format!("{PATH}/{name}"), &Value::Null).await;
        let identity = identity_lease::identity(&server.config.hostname);
        for (name, encoding, served) in [
            ("apps.deployments", "apps/v1", json!(["apps/v1"])),
            ("core.pods", "v1", json!(["v1"])),
            ("core.events", "v1", json!(["v1"])),
            ("autoscaling.horizontalpodautoscalers", "autoscaling/v2", json!(["autoscaling/v2", "autoscaling/v1"])),
        ] {
            let object = get(name).await.unwrap();
            let version = &object["status"]["storageVersions"][0];
            assert_eq!((&version["apiServerID"], &version["encodingVersion"]), (&json!(identity), &json!(encoding)));
            assert_eq!(version["servedVersions"], served, "{name}");
            assert_eq!(object["status"]["commonEncodingVersion"], encoding);
            assert_eq!(object["status"]["conditions"][0]["type"], "AllEncodingVersionsEqual");
        }
        assert!(get("events.k8s.io.events").await.is_err());
        assert!(get("authorization.k8s.io.subjectaccessreviews").await.is_err());
        loopback::send(&server, Method::DELETE, &format!("{PATH}/core.pods"), &Value::Null).await.unwrap();
        env.sleep(Duration::from_secs(10)).await;
        assert_eq!(get("core.pods").await.unwrap()["status"]["commonEncodingVersion"], "v1");
    }

    #[test]
    fn servers_speak_for_themselves() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let version = |id: &str, encoding: &str| json!({ "apiServerID": id, "encodingVersion": encoding });
        let mut object = json!({ "metadata": {}, "status": {} });
        assert!(merge(&mut object, &version("a", "v1"), now));
        assert!(!merge(&mut object, &version("a", "v1"), now));
        assert!(merge(&mut object, &version("b", "v2"), now));
        assert_eq!(object["status"]["commonEncodingVersion"], Value::Null);
        assert!(merge(&mut object, &version("a", "v2"), now));
        assert_eq!(object["status"]["commonEncodingVersion"], "v2");
        assert_eq!(object["status"]["storageVersions"], json!([version("b", "v2"), version("a", "v2")]));
    }
}
