//! `create configmap`, `create secret generic|docker-registry|tls`, `create namespace` and `create serviceaccount`.
//! Neighbours: `source_files` reads, `name_hash` names.
//! A key is written once or refused.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use super::{
    metadata,
    name_hash::hash,
    source_files::{SourceFiles, env_file},
};
use crate::template::go_format::quote;

/// Where the data of a ConfigMap or Secret comes from.
#[derive(Default, Clone)]
pub struct DataSources {
    pub literals: Vec<String>,
    pub files: Vec<String>,
    pub env_files: Vec<String>,
}

/// Keys with their bytes in the order in which they were given.
fn collect(sources: &DataSources, files: &impl SourceFiles, kind: &str) -> Result<Vec<(String, Vec<u8>)>, String> {
    let others = sources.files.len() + sources.literals.len();
    if !sources.env_files.is_empty() && others > 0 {
        return Err("from-env-file cannot be combined with from-file or from-literal".to_string());
    }
    let mut pairs = Vec::new();
    for source in &sources.files {
        let (key, path) = file_source(source)?;
        if let Some(names) = files.directory(&path) {
            if source.contains('=') {
                return Err("cannot give a key name for a directory path".to_string());
            }
            for name in names.into_iter().filter(|name| api::names::config_map_key(name).is_empty()) {
                let inner = format!("{}/{name}", path.trim_end_matches('/'));
                let bytes = files.read(&inner).map_err(|error| format!("error reading {inner}: {error}"))?;
                pairs.push((name, bytes));
            }
            continue;
        }
        pairs.push((key, files.read(&path).map_err(|error| format!("error reading {path}: {error}"))?));
    }
    for literal in &sources.literals {
        pairs.push(literal_source(literal)?);
    }
    for path in &sources.env_files {
        if files.directory(path).is_some() {
            let noun = if kind == "Secret" { "secret" } else { "config" };
            return Err(format!("env {noun} file cannot be a directory"));
        }
        let bytes = files.read(path).map_err(|error| format!("error reading {path}: {error}"))?;
        pairs.extend(env_file(&bytes, |key| std::env::var(key).ok())?.into_iter().map(|(k, v)| (k, v.into_bytes())));
    }
    Ok(pairs)
}

/// `path` or `key=path`.
fn file_source(source: &str) -> Result<(String, String), String> {
    let parts: Vec<&str> = source.split('=').collect();
    match parts[..] {
        [path] => Ok((path.trim_end_matches('/').rsplit('/').next().unwrap_or(path).to_string(), path.to_string())),
        ["", path] => Err(format!("key name for file path {path} missing")),
        [key, ""] => Err(format!("file path for key name {key} missing")),
        [key, path] => Ok((key.to_string(), path.to_string())),
        _ => Err("key names or file paths cannot contain '='".to_string()),
    }
}

fn literal_source(literal: &str) -> Result<(String, Vec<u8>), String> {
    match literal.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            // Quotes that a shell left around the value are taken away, as upstream does.
            let unquoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
            Ok((key.to_string(), unquoted.unwrap_or(value).as_bytes().to_vec()))
        }
        _ => Err(format!("invalid literal source {literal}, expected key=value")),
    }
}

fn append_hash(object: &mut Value) {
    let hashed = format!("{}-{}", object["metadata"]["name"].as_str().unwrap_or_default(), hash(object));
    object["metadata"]["name"] = hashed.into();
}

pub fn config_map(
    name: &str,
    namespace: Option<&str>,
    sources: &DataSources,
    hashed: bool,
    files: &impl SourceFiles,
) -> Result<Value, String> {
    let (mut data, mut binary) = (Map::new(), Map::new());
    for (key, bytes) in collect(sources, files, "ConfigMap")? {
        let wrong = api::names::config_map_key(&key);
        if !wrong.is_empty() {
            return Err(format!("{} is not a valid key name for a ConfigMap: {}", quote(&key), wrong.join(",")));
        }
        for (present, field) in [(data.contains_key(&key), "Data"), (binary.contains_key(&key), "BinaryData")] {
            if present {
                let (key, name) = (quote(&key), quote(name));
                return Err(format!(
                    "cannot add key {key}, another key by that name already exists in {field} for ConfigMap {name}"
                ));
            }
        }
        match String::from_utf8(bytes) {
            Ok(text) => data.insert(key, text.into()),
            Err(error) => binary.insert(key, STANDARD.encode(error.as_bytes()).into()),
        };
    }
    let mut object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(name, namespace) });
    if !data.is_empty() {
        object["data"] = data.into();
    }
    if !binary.is_empty() {
        object["binaryData"] = binary.into();
    }
    if hashed {
        append_hash(&mut object);
    }
    Ok(object)
}

pub fn generic_secret(
    name: &str,
    namespace: Option<&str>,
    kind: &str,
    sources: &DataSources,
    hashed: bool,
    files: &impl SourceFiles,
) -> Result<Value, String> {
    let mut data = Map::new();
    for (key, bytes) in collect(sources, files, "Secret")? {
        let wrong = api::names::config_map_key(&key);
        if !wrong.is_empty() {
            return Err(format!("{} is not valid key name for a Secret {}", quote(&key), wrong.join(";")));
        }
        if data.contains_key(&key) {
            return Err(format!("cannot add key {key}, another key by that name already exists"));
        }
        data.insert(key, STANDARD.encode(bytes).into());
    }
    Ok(secret(name, namespace, kind, data, hashed))
}

fn secret(name: &str, namespace: Option<&str>, kind: &str, data: Map<String, Value>, hashed: bool) -> Value {
    let mut object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata(name, namespace) });
    if !data.is_empty() {
        object["data"] = data.into();
    }
    if !kind.is_empty() {
        object["type"] = kind.into();
    }
    if hashed {
        append_hash(&mut object);
    }
    object
}

/// What `create secret docker-registry` was told about the registry.
#[derive(Default)]
pub struct Registry<'a> {
    pub server: &'a str,
    pub username: &'a str,
    pub password: &'a str,
    pub email: &'a str,
}

pub fn registry_secret(
    name: &str,
    namespace: Option<&str>,
    registry: &Registry,
    from_files: &[String],
    hashed: bool,
    files: &impl SourceFiles,
) -> Result<Value, String> {
    let kind = "kubernetes.io/dockerconfigjson";
    let Registry { server, username, password, email } = registry;
    if from_files.is_empty() && (username.is_empty() || password.is_empty() || server.is_empty()) {
        return Err(
            "either --from-file or the combination of --docker-username, --docker-password and --docker-server is \
                    required"
                .to_string(),
        );
    }
    if !from_files.is_empty() {
        let sources = DataSources { files: from_files.to_vec(), ..DataSources::default() };
        return generic_secret(name, namespace, kind, &sources, hashed, files);
    }
    // Field by field in the order of Go's type: the text is what is stored.
    let text = |value: &str| crate::template::go_format::json(&Value::from(value));
    let email = if email.is_empty() { String::new() } else { format!(",\"email\":{}", text(email)) };
    let auth = STANDARD.encode(format!("{username}:{password}"));
    let config = format!(
        "{{\"auths\":{{{}:{{\"username\":{},\"password\":{}{email},\"auth\":{}}}}}}}",
        text(server),
        text(username),
        text(password),
        text(&auth)
    );
    let data = Map::from_iter([(".dockerconfigjson".to_string(), STANDARD.encode(config).into())]);
    Ok(secret(name, namespace, kind, data, hashed))
}

/// `check` says why a certificate and a key do not belong together.
pub fn tls_secret(
    name: &str,
    namespace: Option<&str>,
    (certificate, key): (&str, &str),
    hashed: bool,
    files: &impl SourceFiles,
    check: impl Fn(&[u8], &[u8]) -> Result<(), String>,
) -> Result<Value, String> {
    if certificate.is_empty() || key.is_empty() {
        return Err("key and cert must be specified".to_string());
    }
    let read = |path: &str| files.read(path).map_err(|error| format!("Cannot read file {path}, open {path}: {error}"));
    let (certificate, key) = (read(certificate)?, read(key)?);
    check(&certificate, &key)?;
    let data = Map::from_iter([
        ("tls.crt".to_string(), STANDARD.encode(certificate).into()),
        ("tls.key".to_string(), STANDARD.encode(key).into()),
    ]);
    Ok(secret(name, namespace, "kubernetes.io/tls", data, hashed))
}

pub fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata(name, None), "spec": {}, "status": {} })
}

pub fn service_account(name: &str, namespace: Option<&str>) -> Value {
    json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(name, namespace) })
}
