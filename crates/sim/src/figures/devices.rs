//! Devices: how fast claims get them, and what they weigh.
//! Rows `claims` and `device-memory` of `main`.

use std::time::Duration;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use serde_json::{Value, json};

use super::{Bench, NODES, resident_mib};

pub const DEVICES_PER_NODE: usize = 8;
const DRIVER: &str = "gpu.example.com";
/// After a load, until what it left in memory has been given back.
const SETTLED: Duration = Duration::from_secs(60);

impl Bench {
    /// The devices of a node, as its driver publishes them, and for all nodes the class that means them.
    async fn publish_devices(&self, nodes: usize) {
        let selectors = json!([{ "cel": { "expression": format!("device.driver == '{DRIVER}'") } }]);
        let class = json!({ "metadata": { "name": "gpu" }, "spec": { "selectors": selectors } });
        self.create::<DeviceClass>(None, class).await;
        self.many(0..nodes, |number| {
            let device = |n: usize| {
                let attributes = json!({ "model": { "string": "a100" }, "index": { "int": n } });
                let capacity = json!({ "memory": { "value": "80Gi" } });
                json!({ "name": format!("gpu-{n}"), "attributes": attributes, "capacity": capacity })
            };
            let devices: Vec<Value> = (0..DEVICES_PER_NODE).map(device).collect();
            let name = format!("node-{number}");
            let pool = json!({ "name": name, "generation": 1, "resourceSliceCount": 1 });
            let spec = json!({ "driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices });
            self.create::<ResourceSlice>(None, json!({ "metadata": { "name": name }, "spec": spec }))
        })
        .await;
    }

    /// A claim for one device, and a pod that has it.
    async fn pod_with_device(&self, namespace: &str, number: usize) {
        let name = format!("p{number}");
        let selectors = json!([{ "cel": { "expression": format!("device.attributes['{DRIVER}'].model == 'a100'") } }]);
        let exactly = json!({ "deviceClassName": "gpu", "selectors": selectors });
        let spec = json!({ "devices": { "requests": [{ "name": "r", "exactly": exactly }] } });
        let claim = json!({ "metadata": { "name": name }, "spec": spec });
        self.create::<ResourceClaim>(Some(namespace), claim).await;
        let more = json!({ "resourceClaims": [{ "name": "gpu", "resourceClaimName": name }] });
        self.pod(namespace, name, namespace, &more).await;
    }

    /// Claims per second, from the scheduler's start to the last device being given away: some claims get none.
    pub async fn claims(&self, nodes: usize, claims: usize) -> f64 {
        let (namespace, devices) = ("devices", nodes * DEVICES_PER_NODE);
        self.namespace(namespace).await;
        self.publish_devices(nodes).await;
        self.many(0..claims, |number| self.pod_with_device(namespace, number)).await;
        let began = self.env.monotonic();
        let _scheduler = self.scheduler();
        let bound = self.bound(namespace, devices.min(claims)).await;
        bound.len() as f64 / self.seconds_since(began)
    }

    /// MiB that the devices of all nodes take, in the API server and the scheduler.
    pub async fn device_memory(&self) -> f64 {
        let _scheduler = self.scheduler();
        self.env.sleep(SETTLED).await;
        let before = resident_mib();
        self.publish_devices(NODES).await;
        self.env.sleep(SETTLED).await;
        resident_mib() - before
    }
}
