//! Which API objects a pod needs: a static pod may need none, since nobody has said that its node may read them.
//! Used by `manifest`.
//! Invariant: pure; the first kind found is named as other kubelets name it (tidy: `pure_files`).

use k8s_openapi::api::core::v1::{PodSpec, Volume, VolumeProjection};

pub fn api_reference(spec: &PodSpec) -> Option<&'static str> {
    let account = [&spec.service_account_name, &spec.service_account];
    if account.into_iter().flatten().any(|name| !name.is_empty()) {
        return Some("serviceaccounts");
    }
    let containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let whole = || containers().flat_map(|c| c.env_from.iter().flatten());
    let single = || containers().flat_map(|c| c.env.iter().flatten()).filter_map(|e| e.value_from.as_ref());
    let volumes = || spec.volumes.iter().flatten();
    let projected = || volumes().flat_map(sources);
    if spec.image_pull_secrets.iter().flatten().any(|secret| !secret.name.is_empty())
        || whole().any(|from| from.secret_ref.is_some())
        || single().any(|from| from.secret_key_ref.is_some())
        || volumes().any(needs_secret)
        || projected().any(|source| source.secret.is_some())
    {
        return Some("secrets");
    }
    if whole().any(|from| from.config_map_ref.is_some())
        || single().any(|from| from.config_map_key_ref.is_some())
        || volumes().any(|volume| volume.config_map.is_some())
        || projected().any(|source| source.config_map.is_some())
    {
        return Some("configmaps");
    }
    if spec.resource_claims.iter().flatten().next().is_some() {
        return Some("resourceclaims");
    }
    volumes().find_map(|volume| volume_reference(volume).or_else(|| sources(volume).find_map(projection_reference)))
}

fn sources(volume: &Volume) -> impl Iterator<Item = &VolumeProjection> {
    volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten())
}

fn needs_secret(volume: &Volume) -> bool {
    volume.secret.is_some()
        || volume.azure_file.is_some()
        || volume.scale_io.is_some()
        || volume.cephfs.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.cinder.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.flex_volume.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.iscsi.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.rbd.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.storageos.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.csi.as_ref().is_some_and(|v| v.node_publish_secret_ref.is_some())
}

fn volume_reference(volume: &Volume) -> Option<&'static str> {
    match volume {
        v if v.csi.is_some() => Some("csidrivers (via CSI volumes)"),
        v if v.glusterfs.is_some() => Some("endpoints (via glusterFS volumes)"),
        v if v.persistent_volume_claim.is_some() => Some("persistentvolumeclaims"),
        v if v.ephemeral.is_some() => Some("persistentvolumeclaims (via ephemeral volumes)"),
        _ => None,
    }
}

fn projection_reference(source: &VolumeProjection) -> Option<&'static str> {
    match source {
        s if s.service_account_token.is_some() => Some("serviceaccounts (via projected volumes)"),
        s if s.cluster_trust_bundle.is_some() => Some("clustertrustbundles"),
        s if s.pod_certificate.is_some() => Some("podcertificates"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_way_to_name_an_object_is_found() {
        let check = |spec: Value, expected: Option<&str>| {
            let mut whole = json!({"containers": [{"name": "c"}]});
            whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            let parsed: PodSpec = serde_json::from_value(whole).unwrap();
            assert_eq!(api_reference(&parsed), expected, "{spec}");
        };
        let container = |fields: Value| {
            let mut container = json!({"name": "c"});
            container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json!({"initContainers": [container]})
        };
        let volume = |source: Value| {
            let mut volume = json!({"name": "v"});
            volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            json!({"volumes": [volume]})
        };
        let projected = |source: Value| volume(json!({"projected": {"sources": [source]}}));
        check(json!({}), None);
        check(volume(json!({"hostPath": {"path": "/"}})), None);
        check(projected(json!({"downwardAPI": {}})), None);
        check(json!({"serviceAccountName": "a"}), Some("serviceaccounts"));
        check(json!({"imagePullSecrets": [{"name": "a"}]}), Some("secrets"));
        check(container(json!({"envFrom": [{"secretRef": {"name": "a"}}]})), Some("secrets"));
        let value = |from: Value| container(json!({"env": [{"name": "A", "valueFrom": from}]}));
        check(value(json!({"secretKeyRef": {"name": "a", "key": "k"}})), Some("secrets"));
        check(value(json!({"configMapKeyRef": {"name": "a", "key": "k"}})), Some("configmaps"));
        check(value(json!({"fieldRef": {"fieldPath": "metadata.name"}})), None);
        check(volume(json!({"secret": {"secretName": "a"}})), Some("secrets"));
        check(volume(json!({"configMap": {"name": "a"}})), Some("configmaps"));
        check(projected(json!({"secret": {"name": "a"}})), Some("secrets"));
        check(
            projected(json!({"serviceAccountToken": {"path": "token"}})),
            Some("serviceaccounts (via projected volumes)"),
        );
        check(volume(json!({"persistentVolumeClaim": {"claimName": "a"}})), Some("persistentvolumeclaims"));
        check(volume(json!({"ephemeral": {}})), Some("persistentvolumeclaims (via ephemeral volumes)"));
        check(volume(json!({"csi": {"driver": "a"}})), Some("csidrivers (via CSI volumes)"));
        check(json!({"resourceClaims": [{"name": "a"}]}), Some("resourceclaims"));
    }
}
