//! A container's environment: services, ConfigMaps, Secrets, fields of the pod, plain values.
//! Used by `container_config`; what it refers to is fetched beforehand into `References`.
//! Pure; a later source of a name replaces an earlier one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret, Service};

use super::{downward, env_file, expansion::expand};
use crate::pod::pod_spec;

/// The ConfigMaps and Secrets of the pod's namespace that the pod names; `None` for those that do not exist.
#[derive(Default, Clone)]
pub struct References {
    pub config_maps: HashMap<String, Option<Arc<ConfigMap>>>,
    pub secrets: HashMap<String, Option<Arc<Secret>>>,
}

pub struct Context<'a> {
    pub pod: &'a Pod,
    pub references: &'a References,
    /// Services with an address in the pod's namespace, and the masters' own.
    pub services: &'a [Arc<Service>],
    pub pod_ips: &'a [String],
    pub host_ips: &'a [String],
    pub node: &'a downward::NodeFacts,
    /// The files in volumes that the container takes values from.
    pub files: &'a env_file::Files,
}

/// Names of the ConfigMaps and Secrets that the container's environment uses.
pub fn referenced(container: &Container) -> (Vec<&str>, Vec<&str>) {
    let (mut config_maps, mut secrets) = (Vec::new(), Vec::new());
    for source in container.env_from.iter().flatten() {
        config_maps.extend(source.config_map_ref.as_ref().map(|r| r.name.as_str()));
        secrets.extend(source.secret_ref.as_ref().map(|r| r.name.as_str()));
    }
    for source in container.env.iter().flatten().filter_map(|env| env.value_from.as_ref()) {
        config_maps.extend(source.config_map_key_ref.as_ref().map(|r| r.name.as_str()));
        secrets.extend(source.secret_key_ref.as_ref().map(|r| r.name.as_str()));
    }
    (config_maps, secrets)
}

/// Why an environment can't be made: what the container's waiting state shows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    #[error("configmap {0:?} not found")]
    ConfigMapNotFound(String),
    #[error("secret {0:?} not found")]
    SecretNotFound(String),
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    KeyNotFound { kind: &'static str, namespace: String, name: String, key: String },
    #[error("{0}")]
    Downward(#[from] downward::DownwardError),
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    FileVolume(String),
    #[error("environment variable key {key:?} not found in file {path:?}")]
    FileKey { key: String, path: String },
    /// The pod is told no more than that: what is wrong may be about the host.
    #[error("couldn't parse env file")]
    UnreadableFile,
}

pub fn environment(context: &Context, container: &Container) -> Result<BTreeMap<String, String>, EnvironmentError> {
    let services = service_variables(context);
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    from_whole_objects(context, container, &mut variables)?;
    for env in container.env.iter().flatten() {
        let value = match (&env.value, &env.value_from) {
            (Some(value), _) if !value.is_empty() => {
                expand(value, |name| variables.get(name).or_else(|| services.get(name)).cloned())
            }
            (_, Some(source)) => match value_from(context, container, source)? {
                Some(value) => value,
                None => continue,
            },
            _ => String::new(),
        };
        variables.insert(env.name.clone(), value);
    }
    for (name, value) in services {
        variables.entry(name).or_insert(value);
    }
    Ok(variables)
}

fn from_whole_objects(
    context: &Context,
    container: &Container,
    variables: &mut BTreeMap<String, String>,
) -> Result<(), EnvironmentError> {
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            match config_map(context, &reference.name) {
                Ok(map) => variables
                    .extend(map.data.iter().flatten().map(|(key, value)| (format!("{prefix}{key}"), value.clone()))),
                Err(_) if reference.optional == Some(true) => {}
                Err(error) => return Err(error),
            }
        } else if let Some(reference) = &source.secret_ref {
            match secret(context, &reference.name) {
                Ok(secret) => {
                    variables.extend(
                        secret.data.iter().flatten().map(|(key, value)| {
                            (format!("{prefix}{key}"), String::from_utf8_lossy(&value.0).into_owned())
                        }),
                    )
                }
                Err(_) if reference.optional == Some(true) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// `None` when the source is optional and not there.
fn value_from(
    context: &Context,
    container: &Container,
    source: &EnvVarSource,
) -> Result<Option<String>, EnvironmentError> {
    let found = |value: Result<Option<String>, _>, optional: Option<bool>, missing| match value {
        Ok(Some(value)) => Ok(Some(value)),
        Ok(None) | Err(_) if optional == Some(true) => Ok(None),
        Ok(None) => Err(missing),
        Err(error) => Err(error),
    };
    let missing = |kind, name: &str, key: &str| EnvironmentError::KeyNotFound {
        kind,
        namespace: pod_spec::namespace(context.pod).into(),
        name: name.into(),
        key: key.into(),
    };
    if let Some(field) = &source.field_ref {
        let path = &field.field_path;
        let value = downward::field(context.pod, path, context.pod_ips, context.host_ips);
        return Ok(Some(value?));
    }
    if let Some(resource) = &source.resource_field_ref {
        let value = downward::resource(context.pod, Some(container), resource, context.node);
        return Ok(Some(value?));
    }
    if let Some(reference) = &source.config_map_key_ref {
        let (name, key) = (&reference.name, &reference.key);
        let value = config_map(context, name).map(|map| map.data.as_ref().and_then(|data| data.get(key)).cloned());
        return found(value, reference.optional, missing("ConfigMap", name, key));
    }
    if let Some(reference) = &source.secret_key_ref {
        let (name, key) = (&reference.name, &reference.key);
        let text = |bytes: &k8s_openapi::ByteString| String::from_utf8_lossy(&bytes.0).into_owned();
        let value = secret(context, name).map(|s| s.data.as_ref().and_then(|data| data.get(key)).map(text));
        return found(value, reference.optional, missing("Secret", name, key));
    }
    if let Some(reference) = &source.file_key_ref {
        return from_file(context, &reference.volume_name, &reference.path, &reference.key, reference.optional);
    }
    Ok(Some(String::new()))
}

fn from_file(
    context: &Context,
    volume: &str,
    path: &str,
    key: &str,
    optional: Option<bool>,
) -> Result<Option<String>, EnvironmentError> {
    let read = context
        .files
        .get(&(volume.to_string(), path.to_string()))
        .ok_or_else(|| EnvironmentError::FileVolume(volume.into()))?;
    let text = match read {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && optional == Some(true) => return Ok(None),
        Err(error) => return Err(unreadable(context, volume, path, error)),
    };
    match env_file::value(text, key) {
        Ok(Some(value)) => Ok(Some(value)),
        Ok(None) if optional == Some(true) => Ok(None),
        Ok(None) => Err(EnvironmentError::FileKey { key: key.into(), path: path.into() }),
        Err(error) => Err(unreadable(context, volume, path, &error)),
    }
}

fn unreadable(context: &Context, volume: &str, path: &str, error: &dyn std::error::Error) -> EnvironmentError {
    tracing::warn!(pod = pod_spec::display(context.pod), volume, path, %error, "failed to read an environment file");
    EnvironmentError::UnreadableFile
}

fn config_map(context: &Context, name: &str) -> Result<Arc<ConfigMap>, EnvironmentError> {
    let found = context.references.config_maps.get(name).cloned().flatten();
    found.ok_or_else(|| EnvironmentError::ConfigMapNotFound(name.into()))
}

fn secret(context: &Context, name: &str) -> Result<Arc<Secret>, EnvironmentError> {
    let found = context.references.secrets.get(name).cloned().flatten();
    found.ok_or_else(|| EnvironmentError::SecretNotFound(name.into()))
}

fn service_variables(context: &Context) -> BTreeMap<String, String> {
    let all = pod_spec::spec(context.pod).enable_service_links.unwrap_or(true);
    let namespace = pod_spec::namespace(context.pod);
    let mut variables = BTreeMap::new();
    let is_masters = |service: &Service| {
        service.metadata.namespace.as_deref() == Some("default")
            && service.metadata.name.as_deref() == Some("kubernetes")
    };
    let is_own = |service: &Service| all && service.metadata.namespace.as_deref() == Some(namespace);
    // The masters' one first: a service of the same name in the pod's own namespace hides it.
    let (first, others): (Vec<&Service>, Vec<&Service>) =
        context.services.iter().map(AsRef::as_ref).partition(|service| is_masters(service));
    for service in first.into_iter().chain(others.into_iter().filter(|service| is_own(service))) {
        let (Some(name), Some(spec)) = (service.metadata.name.as_deref(), &service.spec) else { continue };
        let Some(ip) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else { continue };
        let Some(first) = spec.ports.as_ref().and_then(|ports| ports.first()) else { continue };
        let prefix = upper(name);
        variables.insert(format!("{prefix}_SERVICE_HOST"), ip.to_string());
        variables.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
        for (index, port) in spec.ports.iter().flatten().enumerate() {
            if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                variables.insert(format!("{prefix}_SERVICE_PORT_{}", upper(port_name)), port.port.to_string());
            }
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let host_port =
                if ip.contains(':') { format!("[{ip}]:{}", port.port) } else { format!("{ip}:{}", port.port) };
            let url = format!("{}://{host_port}", protocol.to_lowercase());
            if index == 0 {
                variables.insert(format!("{prefix}_PORT"), url.clone());
            }
            let port_prefix = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
            variables.insert(format!("{port_prefix}_PROTO"), protocol.to_lowercase());
            variables.insert(format!("{port_prefix}_PORT"), port.port.to_string());
            variables.insert(format!("{port_prefix}_ADDR"), ip.to_string());
            variables.insert(port_prefix, url);
        }
    }
    variables
}

fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(container: Value, expected: Result<&[(&str, &str)], &str>) {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u",
            "labels": {"app": "x"}}, "spec": {"containers": [], "enableServiceLinks": false}}))
        .unwrap();
        let map: ConfigMap = serde_json::from_value(json!({"data": {"k": "v", "other": "w"}})).unwrap();
        let secret: Secret = serde_json::from_value(json!({"data": {"p": "c2VjcmV0"}})).unwrap();
        let references = References {
            config_maps: HashMap::from([("cm".into(), Some(Arc::new(map))), ("none".into(), None)]),
            secrets: HashMap::from([("s".into(), Some(Arc::new(secret)))]),
        };
        let service: Service =
            serde_json::from_value(json!({"metadata": {"name": "kubernetes", "namespace": "default"},
            "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "https", "port": 443}]}}))
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("env"), "K='of a file'\n").unwrap();
        let container: Container = serde_json::from_value(container).unwrap();
        let volumes = BTreeMap::from([("v".to_string(), directory.path().to_path_buf())]);
        let context = Context {
            pod: &pod,
            references: &references,
            services: &[Arc::new(service)],
            pod_ips: &["10.1.0.5".into()],
            host_ips: &["192.0.2.1".into()],
            node: &downward::NodeFacts { cpu_milli: 2000, memory_bytes: 1 << 30, ephemeral_bytes: 1 << 30 },
            files: &env_file::read_all(&env_file::named(&container, &volumes)),
        };
        let result = environment(&context, &container);
        match expected {
            Err(error) => assert_eq!(result.map_err(|error| error.to_string()), Err(error.to_string())),
            Ok(expected) => {
                let result = result.unwrap();
                for (name, value) in expected {
                    assert_eq!(result.get(*name).map(String::as_str), Some(*value), "{name}");
                }
                assert_eq!(result.get("KUBERNETES_SERVICE_HOST").map(String::as_str), Some("10.0.0.1"));
                assert_eq!(result.len(), expected.len() + 8, "{result:?}");
            }
        }
    }

    #[test]
    fn every_source_of_variables() {
        check(json!({"name": "c"}), Ok(&[]));
        check(
            json!({"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(C)-$$(A)"}]}),
            Ok(&[("A", "1"), ("B", "1-$(C)-$(A)")]),
        );
        check(
            json!({"name": "c", "envFrom": [{"configMapRef": {"name": "cm"}, "prefix": "P_"}, {"secretRef": {"name": "s"}}],
                "env": [{"name": "P_k", "value": "mine"}]}),
            Ok(&[("P_k", "mine"), ("P_other", "w"), ("p", "secret")]),
        );
        let from = |source: Value| json!({"name": "c", "env": [{"name": "X", "valueFrom": source}]});
        check(from(json!({"fieldRef": {"fieldPath": "status.podIP"}})), Ok(&[("X", "10.1.0.5")]));
        check(from(json!({"fieldRef": {"fieldPath": "metadata.labels['app']"}})), Ok(&[("X", "x")]));
        check(from(json!({"resourceFieldRef": {"resource": "limits.cpu"}})), Ok(&[("X", "2")]));
        check(from(json!({"configMapKeyRef": {"name": "cm", "key": "k"}})), Ok(&[("X", "v")]));
        check(from(json!({"configMapKeyRef": {"name": "none", "key": "k", "optional": true}})), Ok(&[]));
        check(from(json!({"configMapKeyRef": {"name": "none", "key": "k"}})), Err("configmap \"none\" not found"));
        check(from(json!({"secretKeyRef": {"name": "s", "key": "q"}})), Err("couldn't find key q in Secret n/s"));
        check(json!({"name": "c", "envFrom": [{"secretRef": {"name": "t", "optional": true}}]}), Ok(&[]));
        let file = |volume: &str, path: &str, key: &str, optional: bool| {
            let key = json!({"volumeName": volume, "path": path, "key": key, "optional": optional});
            from(json!({"fileKeyRef": key}))
        };
        check(file("v", "env", "K", false), Ok(&[("X", "of a file")]));
        check(file("v", "env", "L", false), Err("environment variable key \"L\" not found in file \"env\""));
        check(file("v", "none", "K", false), Err("couldn't parse env file"));
        check(file("w", "env", "K", false), Err("cannot find the volume \"w\" referenced by FileKeyRef"));
        check(file("v", "env", "L", true), Ok(&[]));
        check(file("v", "none", "K", true), Ok(&[]));
    }
}
