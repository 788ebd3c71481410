//! For whom a node may ask for a pod's tokens: the audiences of its volumes, and those that it is permitted to ask for.
//! Asked by `node_restriction`.
//! A volume that can't be followed to its driver refuses nothing that another volume allows.

use serde_json::Value;

use api::{ApiError, volume_claims};

use super::Attributes;
use crate::{
    authz::{self, Chain, Decision},
    storage::cluster::Cluster,
};

/// Sources of volumes that a CSI driver serves under their old names.
const MIGRATED: [(&str, &str); 7] = [
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

pub async fn check(cluster: &Cluster, authorizer: &Chain, a: &Attributes<'_>, pod: &Value) -> Result<(), String> {
    let audiences = a.object["spec"]["audiences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let audience = match audiences {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return Err("node may only request 0 or 1 audiences".into()),
    };
    let named = is_named(cluster, a.namespace, pod, audience);
    if named.map_err(|why| format!("error validating audience {audience:?}: {why}"))? {
        return Ok(());
    }
    let attributes = authz::Attributes {
        user: a.user.clone(),
        verb: "request-serviceaccounts-token-audience".into(),
        is_resource: true,
        version: "v1".into(),
        resource: audience.into(),
        namespace: a.namespace.into(),
        name: a.name.into(),
        ..authz::Attributes::default()
    };
    match authorizer.authorize(&attributes).await {
        Decision::Allow(_) => Ok(()),
        _ => Err(format!(
            "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
            a.user.name
        )),
    }
}

fn is_named(cluster: &Cluster, namespace: &str, pod: &Value, audience: &str) -> Result<bool, String> {
    let mut failed: Vec<String> = Vec::new();
    for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
        let sources = volume["projected"]["sources"].as_array().into_iter().flatten();
        let mut tokens = sources.map(|s| &s["serviceAccountToken"]).filter(|t| t.is_object());
        if tokens.any(|token| names(token, audience)) {
            return Ok(true);
        }
        match drivers_audiences(cluster, namespace, pod, volume, audience) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) if failed.contains(&error.message) => {}
            Err(error) => failed.push(error.message.clone()),
        }
    }
    match failed.as_slice() {
        [] => Ok(false),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

fn names(token: &Value, audience: &str) -> bool {
    token["audience"].as_str().unwrap_or_default() == audience
}

/// Whether the CSI driver behind a volume, if there is one, asks for tokens for this audience.
fn drivers_audiences(
    cluster: &Cluster,
    namespace: &str,
    pod: &Value,
    volume: &Value,
    audience: &str,
) -> Result<bool, ApiError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let driver = if volume["ephemeral"]["volumeClaimTemplate"].is_object() {
        let claim = volume_claims::generated_name(&text(&pod["metadata"]["name"]), &text(&volume["name"]));
        driver_of_claim(cluster, namespace, &claim)?
    } else if volume["persistentVolumeClaim"].is_object() {
        driver_of_claim(cluster, namespace, &text(&volume["persistentVolumeClaim"]["claimName"]))?
    } else {
        driver_of_source(volume)
    };
    let Some(driver) = driver else { return Ok(false) };
    let found = cluster.get("csidrivers", "", &driver);
    let found = found.ok_or_else(|| ApiError::not_found("storage.k8s.io", "csidriver", &driver))?;
    let found = found.value();
    Ok(found["spec"]["tokenRequests"].as_array().into_iter().flatten().any(|token| names(token, audience)))
}

fn driver_of_claim(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<String>, ApiError> {
    let claim = cluster.get("persistentvolumeclaims", namespace, name);
    let claim = claim.ok_or_else(|| ApiError::not_found("", "persistentvolumeclaim", name))?.value();
    let name = claim["spec"]["volumeName"].as_str().unwrap_or_default();
    let volume = cluster.get("persistentvolumes", "", name);
    let volume = volume.ok_or_else(|| ApiError::not_found("", "persistentvolume", name))?;
    Ok(driver_of_source(&volume.value()["spec"]))
}

/// Of a volume of a pod, or of a PersistentVolume's spec: they name their sources alike.
fn driver_of_source(source: &Value) -> Option<String> {
    let named = source["csi"]["driver"].as_str().filter(|d| !d.is_empty());
    let migrated = || MIGRATED.iter().find(|(field, _)| source[*field].is_object()).map(|(_, driver)| *driver);
    named.or_else(migrated).map(str::to_string)
}
