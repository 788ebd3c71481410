//! projected volumes: the files of ConfigMaps, Secrets, the downward API, ServiceAccount tokens, trust bundles and
//! certificates in one directory, in memory only.
//! The sources' files come from the plugins of the same names, tokens from `tokens`, the rest from `certificates`.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Volume, VolumeProjection};

use super::{downward_api, keyed_object};
use crate::{
    pod::pod_spec,
    volumes::{
        atomic_writer::{File, Payload},
        certificates::{CertificateSource, pod_certificates::Credential},
        error::VolumeError,
        payload::{self, KeySelection, ObjectKind},
        plugin::{MountContext, Mounter, ObjectNames, Spec, VolumePlugin},
        tokens::{TokenError, TokenKey},
    },
};

pub struct ProjectedPlugin;

impl VolumePlugin for ProjectedPlugin {
    fn name(&self) -> &'static str {
        "projected"
    }

    fn can_support(&self, spec: Spec) -> bool {
        spec.inline().is_some_and(|volume| volume.projected.is_some())
    }

    fn requires_remount(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn is_relabelled(&self) -> bool {
        true
    }

    fn needs_pod_ip(&self, volume: &Volume) -> bool {
        let own = sources(volume).iter().filter_map(|source| source.downward_api.as_ref());
        downward_api::shows_pod_ip(own.flat_map(|source| source.items.iter().flatten()))
    }

    fn add_referenced(&self, volume: &Volume, names: &mut ObjectNames) {
        for source in sources(volume) {
            names.config_maps.extend(source.config_map.as_ref().map(|map| map.name.clone()));
            names.secrets.extend(source.secret.as_ref().map(|secret| secret.name.clone()));
        }
    }

    fn tokens(&self, volume: &Volume) -> HashSet<TokenKey> {
        sources(volume).iter().filter_map(|source| source.service_account_token.as_ref()).map(TokenKey::new).collect()
    }

    fn new_mounter(&self, spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError> {
        let volume = spec.inline().cloned().unwrap_or_default();
        let default_mode = payload::default_mode(volume.projected.as_ref().and_then(|source| source.default_mode));
        let files = content(context, sources(&volume), default_mode)?;
        Ok(payload::mounter(context, context.volume_dir(self, context.volume_name), files, true))
    }
}

fn sources(volume: &Volume) -> &[VolumeProjection] {
    volume.projected.as_ref().and_then(|source| source.sources.as_deref()).unwrap_or_default()
}

fn content(context: &MountContext, sources: &[VolumeProjection], default_mode: u32) -> Result<Payload, VolumeError> {
    let mut files = Payload::new();
    for (index, source) in sources.iter().enumerate() {
        if let Some(map) = &source.config_map {
            let (name, items, optional) = (&map.name, map.items.as_deref(), map.optional);
            files.extend(keyed_object::content(
                context,
                ObjectKind::ConfigMap,
                &KeySelection { name, items, optional, default_mode },
            )?);
        } else if let Some(s) = &source.secret {
            let (name, items, optional) = (&s.name, s.items.as_deref(), s.optional);
            files.extend(keyed_object::content(
                context,
                ObjectKind::Secret,
                &KeySelection { name, items, optional, default_mode },
            )?);
        } else if let Some(api) = &source.downward_api {
            files.extend(downward_api::content(context, api.items.as_deref().unwrap_or_default(), default_mode)?);
        } else if let Some(token) = &source.service_account_token {
            let text = context.tokens.get(&TokenKey::new(token)).ok_or(TokenError::Missing)?;
            files.insert(token.path.clone(), token_file(context, text, default_mode));
        } else if let Some(shown) = context.certificates.get(&index) {
            let written = certificate_files(source, shown).into_iter();
            files.extend(written.map(|(path, text)| (path, token_file(context, &text, default_mode))));
        }
    }
    Ok(files)
}

/// The files of a source that shows certificates.
fn certificate_files(source: &VolumeProjection, shown: &CertificateSource) -> Vec<(String, String)> {
    let files = match (shown, &source.cluster_trust_bundle, &source.pod_certificate) {
        (CertificateSource::TrustAnchors(anchors), Some(bundle), _) => {
            vec![(Some(bundle.path.clone()), anchors.clone())]
        }
        (CertificateSource::Credential(Credential { key, chain }), _, Some(wanted)) => vec![
            (wanted.credential_bundle_path.clone(), format!("{key}{chain}")),
            (wanted.key_path.clone(), key.clone()),
            (wanted.certificate_chain_path.clone(), chain.clone()),
        ],
        _ => Vec::new(),
    };
    let named = |(path, text): (Option<String>, String)| Some((path.filter(|path| !path.is_empty())?, text));
    files.into_iter().filter_map(named).collect()
}

/// A token or a key is readable by its container only: by its user when all agree on one, by its group when there is one.
fn token_file(context: &MountContext, text: &str, default_mode: u32) -> File {
    let pod_context = pod_spec::spec(context.pod).security_context.as_ref();
    let pod_user = pod_context.and_then(|c| c.run_as_user);
    let users: Vec<Option<i64>> = pod_spec::containers(context.pod)
        .iter()
        .chain(pod_spec::init_containers(context.pod))
        .map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(pod_user))
        .collect();
    let user = users.first().copied().flatten().filter(|user| users.iter().all(|u| *u == Some(*user)));
    let private = user.is_some() || pod_context.is_some_and(|c| c.fs_group.is_some());
    File {
        content: text.into(),
        mode: if private { 0o600 } else { default_mode },
        owner: user.and_then(|user| u32::try_from(user).ok()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, HashMap},
        path::Path,
        sync::Arc,
    };

    use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        runtime::container_config::{downward::NodeFacts, environment::References},
        volumes::{certificates::CertificateSources, volume_manager::actual_state_of_world::ActualStateOfWorld},
    };

    fn with_context<T>(
        pod: &Pod,
        references: &References,
        tokens: &BTreeMap<TokenKey, String>,
        certificates: &CertificateSources,
        then: impl Fn(&MountContext) -> T,
    ) -> T {
        then(&MountContext {
            pod,
            volume_name: "v",
            references,
            pod_ips: &[],
            host_ips: &[],
            node: &NodeFacts::default(),
            tokens,
            certificates,
            pods_dir: Path::new("/nowhere"),
            local_storage_dir: Path::new("/nowhere"),
            actual: &ActualStateOfWorld::default(),
            ownership: &Default::default(),
            timestamp: "now",
            selinux_label: None,
            secret: None,
            network_disks: &Default::default(),
        })
    }

    #[test]
    fn projections_merge_their_sources() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {"containers": []}}))
        .unwrap();
        let map: ConfigMap = serde_json::from_value(json!({"data": {"k": "v"}, "binaryData": {"b": "AAE="}})).unwrap();
        let secret: Secret = serde_json::from_value(json!({"data": {}})).unwrap();
        let references = References {
            config_maps: HashMap::from([("cm".into(), Some(Arc::new(map)))]),
            secrets: HashMap::from([("there".into(), Some(Arc::new(secret)))]),
        };
        let tokens = BTreeMap::from([(TokenKey { audience: String::new(), expiration_seconds: 600 }, "t".to_string())]);
        let credential = Credential { key: "K".into(), chain: "C".into() };
        let certificates = CertificateSources::from([
            (1, CertificateSource::TrustAnchors("A".into())),
            (2, CertificateSource::Credential(credential)),
        ]);
        let check = |sources: Value, expected: Result<&str, &str>| {
            let sources: Vec<VolumeProjection> = serde_json::from_value(sources.clone()).unwrap();
            let result =
                with_context(&pod, &references, &tokens, &certificates, |context| content(context, &sources, 0o640));
            let result = result.map_err(|error| error.to_string()).map(|payload| {
                let show = |(path, f): (&String, &File)| {
                    format!("{path}={}:{:o}", String::from_utf8_lossy(&f.content).escape_debug(), f.mode)
                };
                payload.iter().map(show).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(result.as_deref().map_err(String::as_str), expected);
        };
        check(json!([{"configMap": {"name": "cm"}}]), Ok("b=\\0\\u{1}:640 k=v:640"));
        check(
            json!([{"configMap": {"name": "cm", "items": [{"key": "k", "path": "x/y", "mode": 0o400}]}},
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
                {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]),
            Ok("name=p:640 token=t:640 x/y=v:400"),
        );
        let bundle = json!({"clusterTrustBundle": {"name": "b", "path": "ca.pem"}});
        let certificate = json!({"podCertificate": {"signerName": "x.io/x", "keyType": "ED25519",
            "credentialBundlePath": "bundle.pem", "keyPath": "key.pem", "certificateChainPath": "chain.pem"}});
        check(json!([{}, bundle, certificate]), Ok("bundle.pem=KC:640 ca.pem=A:640 chain.pem=C:640 key.pem=K:640"));
        check(json!([{"secret": {"name": "s"}}]), Err("secret \"s\" not found"));
        check(json!([{"secret": {"name": "s", "optional": true}}]), Ok(""));
        check(
            json!([{"configMap": {"name": "cm", "items": [{"key": "z", "path": "z"}]}}]),
            Err("configmap references non-existent config key: z"),
        );
        check(
            json!([{"secret": {"name": "there", "items": [{"key": "z", "path": "z"}]}}]),
            Err("references non-existent secret key: z"),
        );
    }

    #[test]
    fn tokens_belong_to_the_user_and_the_group() {
        let (tokens, references, none) = (BTreeMap::new(), References::default(), CertificateSources::new());
        let check = |pod: Value, container: Value, expected: (i32, Option<u32>)| {
            let containers = json!([{"name": "a", "securityContext": container}]);
            let spec = json!({"securityContext": pod, "containers": containers});
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            let file = with_context(&pod, &references, &tokens, &none, |context| token_file(context, "t", 0o644));
            assert_eq!((file.mode as i32, file.owner), expected, "{spec}");
        };
        check(json!({}), json!({}), (0o644, None));
        check(json!({"runAsUser": 1000}), json!({}), (0o600, Some(1000)));
        check(json!({"runAsUser": 1000}), json!({"runAsUser": 7}), (0o600, Some(7)));
        check(json!({"fsGroup": 10000}), json!({}), (0o600, None));
        check(json!({"runAsUser": 1000, "fsGroup": 10000}), json!({}), (0o600, Some(1000)));
    }
}
