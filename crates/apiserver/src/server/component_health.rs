//! How the other parts of the control plane are, as ComponentStatuses show it.
//! Those of this process say it themselves; of others it is known by their Leases, wherever they run.
//! Asked by `registry::reviews`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::ApiError;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use crate::storage::cluster::Cluster;

/// How long the store may take to say that it lives.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Where those who lead hold their Leases.
const LEASES: &str = "kube-system";

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

#[derive(Clone, Default)]
pub struct ComponentHealth(Arc<Mutex<BTreeMap<&'static str, Check>>>);

pub const CONTROLLER_MANAGER: &str = "controller-manager";
pub const SCHEDULER: &str = "scheduler";
pub const ETCD: &str = "etcd-0";
pub const COMPONENTS: [&str; 3] = [CONTROLLER_MANAGER, SCHEDULER, ETCD];

impl ComponentHealth {
    /// One that runs in this process; `Err` says what is wrong.
    pub fn set(&self, component: &'static str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.0.lock().insert(component, Arc::new(check));
    }

    pub async fn ask(&self, cluster: &Cluster, component: &str) -> Result<(), String> {
        let own = self.0.lock().get(component).cloned();
        match own {
            Some(check) => check(),
            None if component == ETCD => store(cluster).await,
            None => leads(cluster, &format!("kube-{component}")).await,
        }
    }
}

async fn store(cluster: &Cluster) -> Result<(), String> {
    match cluster.env.timeout(STORE_TIMEOUT, cluster.store.revision()).await {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("no answer in time".into()),
    }
}

/// Whether somebody leads under this name.
async fn leads(cluster: &Cluster, lease: &str) -> Result<(), String> {
    let found = async {
        let served = cluster.served.find("coordination.k8s.io", "v1", "leases");
        let served = served.ok_or_else(|| ApiError::internal("leases are not served"))?;
        cluster.live(&served, LEASES, lease).await
    };
    let found = found.await.map_err(|error| error.message.clone())?;
    let held = found.is_some_and(|lease| is_held(&lease.value()["spec"], cluster.env.now()));
    if held { Ok(()) } else { Err(format!("nobody holds the Lease {LEASES}/{lease}")) }
}

fn is_held(spec: &Value, now: Timestamp) -> bool {
    let renewed: Option<Timestamp> = spec["renewTime"].as_str().and_then(|time| time.parse().ok());
    let seconds = spec["leaseDurationSeconds"].as_i64().unwrap_or(0);
    let has_holder = spec["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty());
    has_holder && renewed.is_some_and(|at| now.as_second() - at.as_second() <= seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lease_is_held_until_its_time_is_over() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let check = |holder: &str, renewed: &str, expected: bool| {
            let spec = json!({ "holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15 });
            assert_eq!(is_held(&spec, now), expected, "{spec}");
        };
        check("a", "2026-01-01T00:00:50.000000Z", true);
        check("a", "2026-01-01T00:00:44.000000Z", false);
        check("", "2026-01-01T00:00:50.000000Z", false);
        check("a", "", false);
        assert!(!is_held(&Value::Null, now));
    }
}
