//! Devices for some seeds: every node has a few, and workloads ask for them by claims of their own or share one.
//! Steps of `Workload`; `checkers::devices` looks at what becomes of the claims.
//! Asks for no more devices than there are, so that everything can come true.

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        batch::v1::Job,
        resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
    },
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde_json::{Value, json};

use super::{NAMESPACES, Result, Workload};
use crate::Simulation;

/// Seeds from here on have devices; those below play as they did before there were any.
pub const DEVICE_SEEDS_FIRST: u64 = 100_000;

const DRIVER: &str = "sim.example.com";
const DEVICES_PER_NODE: usize = 4;
const RESOURCE_VERSION: &str = "resource.k8s.io/v1";
const SHARED: &str = "shared";

fn request(count: u64) -> Value {
    let exactly = json!({ "deviceClassName": "sim", "allocationMode": "ExactCount", "count": count });
    json!({ "devices": { "requests": [{ "name": "r", "exactly": exactly }] } })
}

impl Workload<'_> {
    /// Before anything else is declared.
    pub(super) async fn prepare_devices(&mut self) -> Result {
        self.apply::<DeviceClass>(None, RESOURCE_VERSION, "DeviceClass", "sim", json!({ "spec": {} })).await?;
        for number in 0..self.simulation.node_count() {
            let node = Simulation::node_name(number);
            let devices: Vec<_> = (0..DEVICES_PER_NODE).map(|n| json!({ "name": format!("device-{n}") })).collect();
            let pool = json!({ "name": node, "generation": 1, "resourceSliceCount": 1 });
            let spec = json!({ "driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices });
            let body = json!({ "spec": spec });
            self.apply::<ResourceSlice>(None, RESOURCE_VERSION, "ResourceSlice", &node, body).await?;
        }
        for namespace in NAMESPACES {
            for (name, count) in [("one", 1), ("two", 2)] {
                let body = json!({ "spec": { "spec": request(count) } });
                let kind = "ResourceClaimTemplate";
                self.apply::<ResourceClaimTemplate>(Some(namespace), RESOURCE_VERSION, kind, name, body).await?;
            }
            self.shared_claim(namespace).await?;
        }
        Ok(())
    }

    async fn shared_claim(&mut self, namespace: &str) -> Result {
        let body = json!({ "spec": request(1) });
        self.apply::<ResourceClaim>(Some(namespace), RESOURCE_VERSION, "ResourceClaim", SHARED, body).await
    }

    pub(super) async fn take_devices(&mut self) -> Result {
        let namespace = self.one(&NAMESPACES);
        match self.below(8) {
            0..4 => self.deployment_with_devices(namespace).await,
            4..6 => self.job_with_devices(namespace).await,
            _ => self.delete_claim(namespace).await,
        }
    }

    /// Only one that was made for a pod: pods that share one could not come back without it.
    async fn delete_claim(&mut self, namespace: &str) -> Result {
        let Some((name, _)) = self.any::<ResourceClaim>(namespace).await?.filter(|(name, _)| name != SHARED) else {
            return Ok(());
        };
        self.note(format!("delete claim {namespace}/{name}"));
        self.api::<ResourceClaim>(Some(namespace)).delete(&name, &DeleteOptions::default()).await
    }

    fn with_claim(&self, mut template: Value, claim: Value) -> Value {
        template["spec"]["resourceClaims"] = json!([claim]);
        template["spec"]["containers"][0]["resources"]["claims"] = json!([{ "name": "gpu" }]);
        template
    }

    /// At most three of the twelve devices in each namespace, one more while pods are replaced.
    async fn deployment_with_devices(&mut self, namespace: &str) -> Result {
        let (name, claim) = match self.below(3) {
            0 => ("sharing", json!({ "name": "gpu", "resourceClaimName": SHARED })),
            _ => ("owning", json!({ "name": "gpu", "resourceClaimTemplateName": "one" })),
        };
        let template = self.with_claim(self.template(name, &format!("good:{}", self.below(3))), claim);
        let body = json!({ "spec": { "replicas": self.below(4), "selector": { "matchLabels": { "app": name } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 } },
            "template": template } });
        self.apply::<Deployment>(Some(namespace), "apps/v1", "Deployment", name, body).await
    }

    async fn job_with_devices(&mut self, namespace: &str) -> Result {
        let claim = json!({ "name": "gpu", "resourceClaimTemplateName": self.one(&["one", "two"]) });
        let mut spec = self.job_spec();
        spec["template"] = self.with_claim(spec["template"].take(), claim);
        let name = format!("compute-{}", self.simulation.env.name_suffix(4));
        self.apply::<Job>(Some(namespace), "batch/v1", "Job", &name, json!({ "spec": spec })).await
    }
}
