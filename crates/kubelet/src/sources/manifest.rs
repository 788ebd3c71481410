//! Turns a manifest into static pods: YAML or JSON, one Pod or a list, completed and checked as the API would have.
//! Used by `file` and `url`.
//! The same manifest at the same place on the same node always gives the same UID, and another one another.

use std::{
    io,
    path::{Path, PathBuf},
};

use api::field::ErrorList;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{Source, references::api_reference};
use crate::pod::pod_spec::{CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE};

/// Where a manifest was found, and when, on which node.
pub struct Origin<'a> {
    pub source: Source,
    /// The path of the file, or the URL.
    pub place: &'a str,
    pub node_name: &'a str,
    pub seen: &'a str,
}

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: Box<ManifestError> },
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("it has more than {0} bytes")]
    TooLarge(u64),
    #[error("couldn't parse as pod: {0}")]
    Syntax(String),
    #[error("couldn't parse as pod: it is a {0}")]
    OtherKind(String),
    #[error("couldn't parse as pod: it has no kind")]
    NoKind,
    #[error("invalid pod: name is needed for the pod")]
    NoName,
    #[error("invalid pod: [{0}]")]
    Invalid(String),
    #[error("static pods may not reference {0}")]
    ApiReference(&'static str),
}

impl ManifestError {
    pub fn in_file(self, path: &Path) -> Self {
        Self::File { path: path.into(), source: Box::new(self) }
    }
}

/// The pods of a manifest.
pub fn parse(text: &str, origin: &Origin) -> Result<Vec<Pod>, ManifestError> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let document: Value =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| ManifestError::Syntax(error.to_string()))?;
    let items = match document["kind"].as_str() {
        Some("PodList") | Some("List") => document["items"].as_array().cloned().unwrap_or_default(),
        Some("Pod") => vec![document],
        Some(other) => return Err(ManifestError::OtherKind(other.into())),
        None => return Err(ManifestError::NoKind),
    };
    items.into_iter().map(|item| complete(item, origin)).collect()
}

fn complete(mut item: Value, origin: &Origin) -> Result<Pod, ManifestError> {
    let given = item.to_string();
    let (kind, schema) = (api::kinds::resource_of::<Pod>(), api::schema::builtin());
    if let Some(fields) = item.as_object_mut() {
        // Items of a list need not say what they are.
        fields.insert("apiVersion".into(), "v1".into());
        fields.insert("kind".into(), "Pod".into());
    }
    if let Some(id) = schema.find_kind(&kind.group, &kind.version, &kind.kind) {
        let decoded = api::codec::decode_value(item, schema, id);
        item = decoded.map_err(|error| ManifestError::Syntax(error.message.clone()))?.value;
        schema.apply_defaults(id, &mut item);
    }
    kind.behavior.default(&mut item);
    place_on_node(&mut item, &given, origin)?;
    let mut errors = ErrorList::new();
    api::kinds::metadata::validate_create(kind, &item, &mut errors);
    kind.behavior.validate_create(&item, &mut errors);
    if !errors.is_empty() {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        return Err(ManifestError::Invalid(errors.join(", ")));
    }
    let pod: Pod = serde_json::from_value(item).map_err(|error| ManifestError::Syntax(error.to_string()))?;
    match pod.spec.as_ref().and_then(api_reference) {
        Some(kind) => Err(ManifestError::ApiReference(kind)),
        None => Ok(pod),
    }
}

/// Gives the pod its identity and its place.
fn place_on_node(item: &mut Value, given: &str, origin: &Origin) -> Result<(), ManifestError> {
    let filled = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(String::from);
    let Origin { source, place, node_name, seen } = origin;
    let metadata = &mut item["metadata"];
    let name = filled(&metadata["name"]).ok_or(ManifestError::NoName)?;
    let uid =
        filled(&metadata["uid"]).unwrap_or_else(|| hash(&[given, *node_name, &format!("{}:{place}", source.as_str())]));
    // Every node runs its own copy, so the node's name tells them apart.
    metadata["name"] = format!("{name}-{}", node_name.to_lowercase()).into();
    metadata["namespace"] = filled(&metadata["namespace"]).unwrap_or_else(|| "default".into()).into();
    metadata["uid"] = uid.as_str().into();
    if !metadata["annotations"].is_object() {
        metadata["annotations"] = json!({});
    }
    for (key, value) in [(CONFIG_SOURCE, source.as_str()), (CONFIG_HASH, uid.as_str()), (CONFIG_SEEN, *seen)] {
        metadata["annotations"][key] = value.into();
    }
    item["spec"]["nodeName"] = (*node_name).into();
    // Taints must not drive it away: nothing would bring it back.
    let all = json!({"operator": "Exists", "effect": "NoExecute"});
    match item["spec"]["tolerations"].as_array_mut() {
        Some(tolerations) if tolerations.contains(&all) => {}
        Some(tolerations) => tolerations.push(all),
        None => item["spec"]["tolerations"] = json!([all]),
    }
    if let Some(fields) = item.as_object_mut() {
        fields.remove("status");
    }
    Ok(())
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

    fn origin<'a>(place: &'a str, node_name: &'a str) -> Origin<'a> {
        Origin { source: Source::File, place, node_name, seen: "now" }
    }

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: b}]}\n";

    #[test]
    fn manifests_become_pods() {
        let check = |text: &str, expected: Result<&[&str], &str>| {
            let result = parse(text, &origin("/web.yaml", "node1"));
            match (result, expected) {
                (Ok(pods), Ok(expected)) => {
                    let names: Vec<_> = pods.iter().map(|p| p.metadata.name.as_deref().unwrap()).collect();
                    assert_eq!(names, expected, "{text}");
                }
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text}: {error}"),
                (found, expected) => panic!("{text}: {found:?} instead of {expected:?}"),
            }
        };
        check(POD, Ok(&["web-node1"]));
        check("{\"kind\": \"PodList\", \"items\": []}", Ok(&[]));
        let item = "kind: PodList\nitems: [{metadata: {name: a}, spec: {containers: [{name: a, image: b}]}}]\n";
        check(item, Ok(&["a-node1"]));
        check("kind: Service\n", Err("it is a Service"));
        check("a: [", Err("couldn't parse as pod"));
        check(&POD.replace("web", "''"), Err("invalid pod: name is needed for the pod"));
        check("kind: Pod\nmetadata: {name: x}\nspec: {containers: []}\n", Err("spec.containers: Required value"));
        check(&POD.replace("name: a", "name: A_"), Err("invalid pod: [spec.containers[0].name: Invalid value: \"A_\""));
        check(&POD.replace("containers: [", "containers: 3, x: ["), Err("couldn't parse as pod"));
        let account = POD.replace("spec: {", "spec: {serviceAccountName: a, ");
        check(&account, Err("static pods may not reference serviceaccounts"));
    }

    #[test]
    fn pods_are_completed_as_the_api_would() {
        let pod = parse(POD, &origin("/web.yaml", "node")).unwrap().remove(0);
        let spec = pod.spec.unwrap();
        assert_eq!(
            (spec.restart_policy.as_deref(), spec.dns_policy.as_deref()),
            (Some("Always"), Some("ClusterFirst"))
        );
        assert_eq!((spec.termination_grace_period_seconds, spec.enable_service_links), (Some(30), Some(true)));
        let container = &spec.containers[0];
        assert_eq!(container.termination_message_policy.as_deref(), Some("File"));
        assert_eq!(container.image_pull_policy.as_deref(), Some("Always"));
        assert_eq!(spec.tolerations.map(|t| t.len()), Some(1));
    }

    #[test]
    fn what_is_the_same_at_the_same_place_has_the_same_uid() {
        let uid = |text: &str, place: &str, node: &str| {
            parse(text, &origin(place, node)).unwrap().remove(0).metadata.uid.unwrap()
        };
        let own = uid(POD, "/a.yaml", "a");
        assert_eq!(own, uid(POD, "/a.yaml", "a"));
        assert_ne!(own, uid(POD, "/a.yaml", "b"));
        assert_ne!(own, uid(POD, "/b.yaml", "a"));
        assert_ne!(own, uid(&POD.replace("image: b", "image: c"), "/a.yaml", "a"));
        assert_eq!(uid(&POD.replace("name: web", "name: web, uid: given"), "/a.yaml", "a"), "given");
    }
}
