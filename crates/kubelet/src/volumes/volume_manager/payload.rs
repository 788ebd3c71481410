//! The files of configMap, secret, downwardAPI and projected volumes, from the objects they name.
//! Used by `volume_manager`.
//! Invariant: pure; a missing object or key is an error in the API's words unless it is optional.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, ServiceAccountTokenProjection, VolumeProjection,
};

use super::atomic_writer::{File, Payload};
use crate::runtime::container_config::{downward, environment::References};

pub const DEFAULT_MODE: i32 = 0o644;

pub struct Context<'a> {
    pub pod: &'a Pod,
    pub references: &'a References,
    pub pod_ips: &'a [String],
    pub host_ips: &'a [String],
    pub node: &'a downward::NodeFacts,
    /// Tokens already asked for, by what asks.
    pub tokens: &'a BTreeMap<TokenKey, String>,
    /// Trust bundles already resolved, by name or signer.
    pub default_mode: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenKey {
    pub audience: String,
    pub expiration_seconds: i64,
}

impl TokenKey {
    pub fn of(projection: &ServiceAccountTokenProjection) -> Self {
        Self {
            audience: projection.audience.clone().unwrap_or_default(),
            expiration_seconds: projection.expiration_seconds.unwrap_or(3600),
        }
    }
}

fn file(content: impl Into<Vec<u8>>, mode: Option<i32>, default: u32) -> File {
    File { content: content.into(), mode: mode.map_or(default, |m| m as u32) & 0o7777, owner: None }
}

/// All keys, or those that are listed under their new names.
fn pick(
    content: BTreeMap<String, Vec<u8>>,
    items: Option<&Vec<KeyToPath>>,
    optional: bool,
    default_mode: u32,
    missing: &str,
) -> Result<Payload, String> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return Ok(content.into_iter().map(|(key, bytes)| (key, file(bytes, None, default_mode))).collect());
    };
    let mut payload = Payload::new();
    for item in items {
        match content.get(&item.key) {
            Some(bytes) => {
                payload.insert(item.path.clone(), file(bytes.clone(), item.mode, default_mode));
            }
            None if optional => {}
            None => return Err(format!("{missing}: {}", item.key)),
        }
    }
    Ok(payload)
}

fn config_map_content(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
    text.chain(binary).collect()
}

fn secret_content(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect()
}

pub fn config_map(
    context: &Context,
    name: &str,
    items: Option<&Vec<KeyToPath>>,
    optional: bool,
) -> Result<Payload, String> {
    match context.references.config_maps.get(name).cloned().flatten() {
        Some(map) => {
            let missing = "configmap references non-existent config key";
            pick(config_map_content(&map), items, optional, context.default_mode, missing)
        }
        None if optional => Ok(Payload::new()),
        None => Err(format!("configmap {name:?} not found")),
    }
}

pub fn secret(
    context: &Context,
    name: &str,
    items: Option<&Vec<KeyToPath>>,
    optional: bool,
) -> Result<Payload, String> {
    match context.references.secrets.get(name).cloned().flatten() {
        Some(secret) => {
            let missing = "references non-existent secret key";
            pick(secret_content(&secret), items, optional, context.default_mode, missing)
        }
        None if optional => Ok(Payload::new()),
        None => Err(format!("secret {name:?} not found")),
    }
}

pub fn downward_api(context: &Context, items: &[DownwardAPIVolumeFile]) -> Result<Payload, String> {
    let mut payload = Payload::new();
    for item in items {
        let text = if let Some(field) = &item.field_ref {
            downward::field(context.pod, &field.field_path, context.pod_ips, context.host_ips)?
        } else if let Some(resource) = &item.resource_field_ref {
            downward::resource(context.pod, None, resource, context.node)?
        } else {
            String::new()
        };
        payload.insert(item.path.clone(), file(text, item.mode, context.default_mode));
    }
    Ok(payload)
}

pub fn projected(context: &Context, sources: &[VolumeProjection]) -> Result<Payload, String> {
    let mut payload = Payload::new();
    for source in sources {
        if let Some(map) = &source.config_map {
            payload.extend(config_map(context, &map.name, map.items.as_ref(), map.optional.unwrap_or(false))?);
        } else if let Some(s) = &source.secret {
            payload.extend(secret(context, &s.name, s.items.as_ref(), s.optional.unwrap_or(false))?);
        } else if let Some(api) = &source.downward_api {
            payload.extend(downward_api(context, api.items.as_deref().unwrap_or_default())?);
        } else if let Some(token) = &source.service_account_token {
            let text = context.tokens.get(&TokenKey::of(token)).ok_or("failed to fetch token")?;
            payload.insert(token.path.clone(), token_file(context, text));
        } else if source.cluster_trust_bundle.is_some() || source.pod_certificate.is_some() {
            return Err("this projected volume source is not supported by this node".into());
        }
    }
    Ok(payload)
}

/// A token is readable by its container only: by its user when all agree on one, by its group when there is one.
fn token_file(context: &Context, text: &str) -> File {
    let spec = crate::pod::pod_spec::spec(context.pod);
    let pod_context = spec.security_context.as_ref();
    let pod_user = pod_context.and_then(|c| c.run_as_user);
    let users: Vec<Option<i64>> = crate::pod::pod_spec::containers(context.pod)
        .iter()
        .chain(crate::pod::pod_spec::init_containers(context.pod))
        .map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(pod_user))
        .collect();
    let user = users.first().copied().flatten().filter(|user| users.iter().all(|u| *u == Some(*user)));
    let private = user.is_some() || pod_context.is_some_and(|c| c.fs_group.is_some());
    File {
        content: text.into(),
        mode: if private { 0o600 } else { context.default_mode },
        owner: user.and_then(|user| u32::try_from(user).ok()),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::Arc};

    use serde_json::{Value, json};

    use super::*;

    fn context<'a>(
        pod: &'a Pod,
        references: &'a References,
        tokens: &'a BTreeMap<TokenKey, String>,
        node: &'a downward::NodeFacts,
        default_mode: u32,
    ) -> Context<'a> {
        Context { pod, references, pod_ips: &[], host_ips: &[], node, tokens, default_mode }
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
        let node = downward::NodeFacts::default();
        let context = context(&pod, &references, &tokens, &node, 0o640);
        let check = |sources: Value, expected: Result<&str, &str>| {
            let sources: Vec<VolumeProjection> = serde_json::from_value(sources.clone()).unwrap();
            let result = projected(&context, &sources).map(|payload| {
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
        let tokens = BTreeMap::new();
        let references = References { config_maps: HashMap::new(), secrets: HashMap::new() };
        let check = |pod: Value, container: Value, expected: (i32, Option<u32>)| {
            let containers = json!([{"name": "a", "securityContext": container}]);
            let spec = json!({"securityContext": pod, "containers": containers});
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            let node = downward::NodeFacts::default();
            let file = token_file(&context(&pod, &references, &tokens, &node, 0o644), "t");
            assert_eq!((file.mode as i32, file.owner), expected, "{spec}");
        };
        check(json!({}), json!({}), (0o644, None));
        check(json!({"runAsUser": 1000}), json!({}), (0o600, Some(1000)));
        check(json!({"runAsUser": 1000}), json!({"runAsUser": 7}), (0o600, Some(7)));
        check(json!({"fsGroup": 10000}), json!({}), (0o600, None));
        check(json!({"runAsUser": 1000, "fsGroup": 10000}), json!({}), (0o600, Some(1000)));
    }
}
