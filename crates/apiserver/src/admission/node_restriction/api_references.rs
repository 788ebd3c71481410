//! Whether a pod names objects of the API, which a mirror pod may not.
//! Asked by `pods`.
//! A kind of volume that is not known counts as one that may.

use serde_json::Value;

/// Sources of volumes that need nothing of the API but, some of them, a Secret, which is looked for first.
const PLAIN: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// Source of a volume, and what it names.
const VOLUMES: [(&str, &str); 7] = [
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];

const PROJECTED: [(&str, &str); 5] = [
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// The first kind of object that the pod names, in upstream's words.
pub fn first(pod: &Value) -> Result<Option<&'static str>, String> {
    let spec = &pod["spec"];
    if is_named(&spec["serviceAccountName"]) {
        return Ok(Some("serviceaccounts"));
    }
    if names_secret(spec) {
        return Ok(Some("secrets"));
    }
    if names_config_map(spec) {
        return Ok(Some("configmaps"));
    }
    if items(&spec["resourceClaims"]).next().is_some() {
        return Ok(Some("resourceclaims"));
    }
    for volume in items(&spec["volumes"]) {
        let has = |field: &str| volume[field].is_object();
        if PLAIN.iter().any(|field| has(field)) {
            continue;
        }
        if let Some((_, resource)) = VOLUMES.iter().find(|(field, _)| has(field)) {
            return Ok(Some(resource));
        }
        let name = volume["name"].as_str().unwrap_or_default();
        if !has("projected") {
            return Err(format!("unknown volume type for volume  {name:?}"));
        }
        for source in items(&volume["projected"]["sources"]) {
            match PROJECTED.iter().find(|(field, _)| source[*field].is_object()) {
                Some((_, resource)) => return Ok(Some(resource)),
                None if source["downwardAPI"].is_object() => {}
                None => return Err(format!("unknown source for projected volume {name:?}")),
            }
        }
    }
    Ok(None)
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn is_named(name: &Value) -> bool {
    name.as_str().is_some_and(|name| !name.is_empty())
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|list| items(&spec[list]))
}

/// Whether a container's environment comes from such objects.
fn in_environment(spec: &Value, whole: &str, key: &str) -> bool {
    containers(spec).any(|container| {
        items(&container["envFrom"]).any(|source| is_named(&source[whole]["name"]))
            || items(&container["env"]).any(|variable| is_named(&variable["valueFrom"][key]["name"]))
    })
}

fn names_secret(spec: &Value) -> bool {
    const WITH_REFERENCE: [&str; 7] = ["cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"];
    items(&spec["imagePullSecrets"]).any(|secret| is_named(&secret["name"]))
        || in_environment(spec, "secretRef", "secretKeyRef")
        || items(&spec["volumes"]).any(|volume| {
            WITH_REFERENCE.iter().any(|source| is_named(&volume[*source]["secretRef"]["name"]))
                || is_named(&volume["secret"]["secretName"])
                || is_named(&volume["azureFile"]["secretName"])
                || is_named(&volume["csi"]["nodePublishSecretRef"]["name"])
                || items(&volume["projected"]["sources"]).any(|source| is_named(&source["secret"]["name"]))
        })
}

fn names_config_map(spec: &Value) -> bool {
    in_environment(spec, "configMapRef", "configMapKeyRef")
        || items(&spec["volumes"]).any(|volume| {
            is_named(&volume["configMap"]["name"])
                || items(&volume["projected"]["sources"]).any(|source| is_named(&source["configMap"]["name"]))
        })
}
