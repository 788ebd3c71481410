//! Validation of a pod's volumes.
//! Neighbours: `environment` (fields and resources of downward API files), `persistent_volume` (shared sources).
//! A volume has one source.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{environment, projections, validation::SpecOwner};
use crate::{
    field::{ErrorList, Path},
    kinds::{
        common::{
            access::{int, is_set, items, part, text},
            checks::{complaints, local_path, no_backsteps, required, required_name},
        },
        core::persistent_volume_claim,
    },
    names,
    quantity::Quantity,
};

/// In upstream's order: the first one found counts, the others are too many.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// The valid ones by name; true when it may be used as a block device.
pub fn volumes<'a>(errors: &mut ErrorList, path: &Path, spec: &'a Value, owner: SpecOwner) -> BTreeMap<&'a str, bool> {
    let mut valid = BTreeMap::new();
    let all = items(spec, "volumes");
    let pod_name = match owner {
        SpecOwner::Pod(metadata) => text(metadata, "name"),
        SpecOwner::Template => "",
    };
    for (index, volume) in all.iter().enumerate() {
        let path = path.index(index);
        let name = text(volume, "name");
        let before = errors.len();
        source(errors, &path, volume, pod_name);
        required_name(errors, &path, volume, "name", |name| names::dns_label(name, false));
        if valid.contains_key(name) {
            errors.duplicate(&path.child("name"), name);
        }
        if errors.len() == before {
            valid.insert(name, ["persistentVolumeClaim", "ephemeral"].iter().any(|kind| part(volume, kind).is_some()));
        }
        let claim = text(&volume["persistentVolumeClaim"], "claimName");
        let made_here = !pod_name.is_empty()
            && all.iter().filter(|other| part(other, "ephemeral").is_some()).any(|other| {
                claim.strip_prefix(pod_name).and_then(|rest| rest.strip_prefix('-')) == Some(text(other, "name"))
            });
        if made_here {
            errors.invalid(
                &path.child("persistentVolumeClaim").child("claimName"),
                claim,
                "must not reference a PVC that gets created for an ephemeral volume",
            );
        }
    }
    valid
}

fn source(errors: &mut ErrorList, path: &Path, volume: &Value, pod_name: &str) {
    let mut found = SOURCES.iter().filter_map(|kind| part(volume, kind).map(|source| (*kind, source)));
    let Some((kind, source)) = found.next() else {
        return errors.required(path, "must specify a volume type");
    };
    for (kind, _) in found {
        errors.forbidden(&path.child(kind), "may not specify more than 1 volume type");
    }
    let at = path.child(kind);
    match kind {
        "emptyDir" => {
            if source.get("sizeLimit").and_then(Quantity::from_value).is_some_and(|limit| limit.sign() < 0) {
                let path = at.child("sizeLimit");
                errors.forbidden(&path, "SizeLimit field must be a valid resource quantity");
            }
        }
        "secret" => {
            required(errors, &at, source, "secretName");
            default_mode(errors, &at, source);
            keys(errors, &at, source, &mut BTreeSet::new());
        }
        "configMap" => {
            required(errors, &at, source, "name");
            default_mode(errors, &at, source);
            keys(errors, &at, source, &mut BTreeSet::new());
        }
        "persistentVolumeClaim" => required(errors, &at, source, "claimName"),
        "downwardAPI" => {
            default_mode(errors, &at, source);
            for file in items(source, "items") {
                downward_file(errors, &at, file);
            }
        }
        "projected" => projected(errors, &at, source),
        "ephemeral" => ephemeral(errors, path, volume, source, pod_name),
        "image" => {
            required(errors, &at, source, "reference");
            match text(source, "pullPolicy") {
                "" | "Always" | "IfNotPresent" | "Never" => {}
                policy => {
                    errors.not_supported(&at.child("pullPolicy"), policy, &["Always", "IfNotPresent", "Never"]);
                }
            }
        }
        _ => shared_source(errors, path, kind, source),
    }
}

/// Sources that persistent volumes have too. `path` is that of the volume (or of the volume's spec).
pub fn shared_source(errors: &mut ErrorList, path: &Path, kind: &str, source: &Value) {
    let at = path.child(kind);
    let fields: &[&str] = match kind {
        "hostPath" => {
            let directory = text(source, "path");
            if directory.is_empty() {
                return errors.required(&at.child("path"), "");
            }
            no_backsteps(errors, &at.child("path"), directory);
            host_path_type(errors, &at.child("type"), text(source, "type"));
            return;
        }
        "nfs" => {
            let directory = text(source, "path");
            required(errors, &at, source, "server");
            required(errors, &at, source, "path");
            if !directory.starts_with('/') {
                errors.invalid(&at.child("path"), directory, "must be an absolute path");
            }
            return;
        }
        "csi" => {
            let driver = text(source, "driver");
            if driver.is_empty() {
                errors.required(&at.child("driver"), "");
            }
            if driver.len() > 63 {
                errors.too_long(&at.child("driver"), 63);
            }
            if !driver.is_empty() {
                complaints(errors, &at.child("driver"), driver, names::dns_subdomain(&driver.to_lowercase(), false));
            }
            if let Some(secret) = part(source, "nodePublishSecretRef") {
                required(errors, &at.child("nodePublishSecretRef"), secret, "name");
            }
            return;
        }
        "gcePersistentDisk" => &["pdName"],
        "awsElasticBlockStore" => &["volumeID"],
        "iscsi" => &["targetPortal", "iqn"],
        "glusterfs" => &["endpoints", "path"],
        "rbd" => &["monitors", "image"],
        "cinder" => &["volumeID"],
        "cephfs" => &["monitors"],
        "quobyte" => &["registry", "volume"],
        "flexVolume" => &["driver"],
        "azureFile" => &["secretName", "shareName"],
        "vsphereVolume" => &["volumePath"],
        "photonPersistentDisk" => &["pdID"],
        "portworxVolume" => &["volumeID"],
        "azureDisk" => &["diskName", "diskURI"],
        "scaleIO" => &["gateway", "system", "volumeName"],
        "gitRepo" => &["repository"],
        "local" => {
            required(errors, &at, source, "path");
            no_backsteps(errors, &at.child("path"), text(source, "path"));
            return;
        }
        _ => &[],
    };
    for field in fields {
        required(errors, &at, source, field);
    }
}

fn host_path_type(errors: &mut ErrorList, path: &Path, kind: &str) {
    const TYPES: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    if !TYPES.contains(&kind) {
        errors.not_supported(path, kind, &TYPES);
    }
}

fn mode(errors: &mut ErrorList, path: &Path, owner: &Value, field: &str) {
    if let Some(mode) = int(owner, field).filter(|mode| !(0..=0o777).contains(mode)) {
        errors.invalid(&path.child(field), mode, FILE_MODE);
    }
}

fn default_mode(errors: &mut ErrorList, path: &Path, source: &Value) {
    mode(errors, path, source, "defaultMode");
}

/// The items of a secret or config map. `seen` gathers the paths that are taken.
fn keys<'a>(errors: &mut ErrorList, path: &Path, source: &'a Value, seen: &mut BTreeSet<&'a str>) -> bool {
    let mut unique = true;
    for (index, item) in items(source, "items").iter().enumerate() {
        let path = path.child("items").index(index);
        required(errors, &path, item, "key");
        required(errors, &path, item, "path");
        let file = text(item, "path");
        local_path(errors, &path.child("path"), file);
        mode(errors, &path, item, "mode");
        unique &= file.is_empty() || seen.insert(file);
    }
    unique
}

fn downward_file(errors: &mut ErrorList, path: &Path, file: &Value) {
    required(errors, path, file, "path");
    local_path(errors, &path.child("path"), text(file, "path"));
    match (part(file, "fieldRef"), part(file, "resourceFieldRef")) {
        (Some(field), resource) => {
            environment::field(errors, &path.child("fieldRef"), field, &environment::VOLUME_FIELDS);
            if resource.is_some() {
                errors.invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously");
            }
        }
        (None, Some(resource)) => {
            environment::resource(errors, &path.child("resourceFieldRef"), resource, true);
        }
        (None, None) => errors.required(path, "one of fieldRef and resourceFieldRef is required"),
    }
    mode(errors, path, file, "mode");
}

fn projected(errors: &mut ErrorList, path: &Path, source: &Value) {
    const CONFLICT: &str = "conflicting duplicate paths";
    default_mode(errors, path, source);
    let mut seen = BTreeSet::new();
    for (index, projection) in items(source, "sources").iter().enumerate() {
        let at = path.child("sources").index(index);
        let mut count = 0;
        for kind in ["secret", "configMap"] {
            let Some(found) = part(projection, kind) else { continue };
            count += 1;
            required(errors, &at.child(kind), found, "name");
            if !keys(errors, &at.child(kind), found, &mut seen) {
                errors.invalid(path, text(found, "name"), CONFLICT);
            }
        }
        if let Some(found) = part(projection, "downwardAPI") {
            count += 1;
            for file in items(found, "items") {
                downward_file(errors, &at.child("downwardAPI"), file);
                let name = text(file, "path");
                if !name.is_empty() && !seen.insert(name) {
                    errors.invalid(path, name, CONFLICT);
                }
            }
        }
        if let Some(token) = part(projection, "serviceAccountToken") {
            count += 1;
            let seconds = int(token, "expirationSeconds").unwrap_or(0);
            let at = at.child("serviceAccountToken").child("expirationSeconds");
            if seconds < 600 {
                errors.invalid(&at, seconds, "may not specify a duration less than 10 minutes");
            }
            if seconds > 1 << 32 {
                errors.invalid(&at, seconds, "may not specify a duration larger than 2^32 seconds");
            }
            if is_set(token, "path") {
                local_path(errors, &path.child("path"), text(token, "path"));
            } else {
                errors.required(&path.child("path"), "");
            }
        }
        if let Some(bundle) = part(projection, "clusterTrustBundle") {
            count += 1;
            projections::cluster_trust_bundle(errors, &at.child("clusterTrustBundle"), bundle);
            if !seen.insert(text(bundle, "path")) {
                errors.invalid(path, text(bundle, "path"), CONFLICT);
            }
        }
        if let Some(certificate) = part(projection, "podCertificate") {
            count += 1;
            projections::pod_certificate(errors, &at.child("podCertificate"), certificate);
            for name in projections::paths(certificate).filter(|name| !seen.insert(name)) {
                errors.invalid(path, name, CONFLICT);
            }
        }
        if count > 1 {
            errors.forbidden(&at, "may not specify more than 1 volume type per source");
        }
    }
}

fn ephemeral(errors: &mut ErrorList, path: &Path, volume: &Value, source: &Value, pod_name: &str) {
    let at = path.child("ephemeral").child("volumeClaimTemplate");
    match part(source, "volumeClaimTemplate") {
        None => errors.required(&at, ""),
        Some(template) => {
            persistent_volume_claim::validate_spec(errors, &at.child("spec"), &template["spec"]);
        }
    }
    let name = text(volume, "name");
    if !pod_name.is_empty() && !name.is_empty() {
        let claim = format!("{pod_name}-{name}");
        for complaint in names::dns_subdomain(&claim, false) {
            errors.invalid(&path.child("name"), name, format!("PVC name {claim:?}: {complaint}"));
        }
    }
}
