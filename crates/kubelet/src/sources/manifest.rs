//! Turns a manifest into static pods: YAML or JSON, one Pod or a list, completed with what the API would have set.
//! Used by `file` and `url`.
//! Invariant: the same manifest on the same node always gives the same UID, and another one another UID.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::Source;
use crate::pod_spec::{CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE};

/// The pods of a manifest, or why it has none.
pub fn parse(text: &str, source: Source, node_name: &str, seen: &str) -> Result<Vec<Pod>, String> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let document: Value = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| format!("couldn't parse as pod: {error}"))?;
    let items = match document["kind"].as_str() {
        Some("PodList") | Some("List") => document["items"].as_array().cloned().unwrap_or_default(),
        Some("Pod") => vec![document],
        Some(other) => return Err(format!("couldn't parse as pod: it is a {other}")),
        None => return Err("couldn't parse as pod: it has no kind".into()),
    };
    items.into_iter().map(|item| complete(item, source, node_name, seen)).collect()
}

fn complete(item: Value, source: Source, node_name: &str, seen: &str) -> Result<Pod, String> {
    let given = item.to_string();
    let mut pod: Pod =
        serde_json::from_slice(given.as_bytes()).map_err(|error| format!("couldn't parse as pod: {error}"))?;
    let name =
        pod.metadata.name.clone().filter(|name| !name.is_empty()).ok_or("pod name is needed for the manifest")?;
    let uid = hash(&[&given, node_name, source.as_str()]);
    let meta = &mut pod.metadata;
    // Every node runs its own copy, so the node's name tells them apart.
    meta.name = Some(format!("{name}-{}", node_name.to_lowercase()));
    meta.namespace = Some(meta.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".into()));
    meta.uid = Some(uid.clone());
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(CONFIG_SOURCE.into(), source.as_str().into());
    annotations.insert(CONFIG_HASH.into(), uid);
    annotations.insert(CONFIG_SEEN.into(), seen.into());
    let spec = pod.spec.get_or_insert_default();
    if spec.containers.is_empty() {
        return Err(format!("pod {name:?} has no containers"));
    }
    spec.node_name = Some(node_name.into());
    spec.restart_policy.get_or_insert_with(|| "Always".into());
    spec.dns_policy.get_or_insert_with(|| "ClusterFirst".into());
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.enable_service_links.get_or_insert(true);
    spec.security_context.get_or_insert_default();
    // Taints must not drive it away: nothing would bring it back.
    let all: k8s_openapi::api::core::v1::Toleration =
        serde_json::from_value(json!({"operator": "Exists", "effect": "NoExecute"})).map_err(|e| e.to_string())?;
    spec.tolerations.get_or_insert_default().push(all);
    pod.status = None;
    Ok(pod)
}

/// 128 bits of FNV-1a in hexadecimal, the length of the digest that other kubelets use here.
fn hash(parts: &[&str]) -> String {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    let hash = bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58du128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_become_pods() {
        let check = |text: &str, expected: Result<&[&str], ()>| {
            let result = parse(text, Source::File, "Node1", "now");
            let names = result.as_ref().map(|pods| pods.iter().map(|p| p.metadata.name.as_deref().unwrap()).collect());
            assert_eq!(names.map_err(|_| ()), expected.map(|e: &[&str]| e.to_vec()), "{text}");
        };
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: b}]}\n";
        check(pod, Ok(&["web-node1"]));
        check("{\"kind\": \"PodList\", \"items\": []}", Ok(&[]));
        check("kind: Service\n", Err(()));
        check("a: [", Err(()));
        check("kind: Pod\nmetadata: {name: x}\nspec: {containers: []}\n", Err(()));
        let uid = |text: &str, node: &str| parse(text, Source::File, node, "n").unwrap()[0].metadata.uid.clone();
        assert_eq!(uid(pod, "a"), uid(pod, "a"));
        assert_ne!(uid(pod, "a"), uid(pod, "b"));
        assert_ne!(uid(pod, "a"), uid(&pod.replace("image: b", "image: c"), "a"));
    }
}
