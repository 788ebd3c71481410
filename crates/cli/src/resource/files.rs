//! Objects of files, directories, standard input and URLs.
//! Used by `Selection::select`.
//! An error names the file, and the line of what can't be read.

use std::{
    io::Read,
    path::{Path, PathBuf},
    rc::Rc,
};

use serde_json::Value;

use super::{Info, Selection, items_of, metadata, suggestion, yaml};
use crate::{
    discovery::ApiResource,
    failure::{Failure, Result},
    output::Output,
    rest::{
        Rest,
        connect::{Connection, HttpTransport, host_of},
    },
    session::Session,
};

const EXTENSIONS: [&str; 3] = [".json", ".yaml", ".yml"];

/// One object of a file.
pub struct Document {
    pub source: String,
    pub object: Value,
}

fn in_directory(folder: &Path, recursive: bool, found: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)
        .map_err(|e| Failure::message(format!("error reading \"{}\": {e}", folder.display())))?
        .filter_map(|entry| entry.ok().map(|e| e.path().strip_prefix("./").map_or(e.path(), Path::to_path_buf)))
        .collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            if recursive {
                in_directory(&entry, recursive, found)?;
            }
        } else if EXTENSIONS.iter().any(|e| entry.to_string_lossy().ends_with(e)) {
            found.push(entry);
        }
    }
    Ok(())
}

fn expand(pattern: &str, recursive: bool) -> Result<Vec<PathBuf>> {
    let path = Path::new(pattern);
    if !path.exists() {
        return Err(Failure::message(format!("the path {pattern:?} does not exist")));
    }
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut found = Vec::new();
    in_directory(path, recursive, &mut found)?;
    if found.is_empty() {
        return Err(Failure::message(format!(
            "error reading [{pattern}]: recognized file extensions are [.json .yaml .yml]"
        )));
    }
    Ok(found)
}

async fn download(session: &Session, url: &str) -> Result<Vec<u8>> {
    let host = host_of(url);
    let at = url.find(&host).map_or(0, |at| at + host.len());
    let (server, path) = url.split_at(at);
    let connection = Connection { server: server.to_string(), ..Connection::default() };
    let quiet = Output::to(std::io::sink(), std::io::sink());
    let rest = Rest::new(Rc::new(HttpTransport::new(connection)?), quiet, 0, None, session.env.clone());
    let path = if path.is_empty() { "/" } else { path };
    match rest.get(path).bytes().await {
        Ok(bytes) => Ok(bytes.to_vec()),
        Err(Failure::Status(status)) => {
            let reason = http::StatusCode::from_u16(status.code).ok().and_then(|c| c.canonical_reason());
            let reason = format!("{} {}", status.code, reason.unwrap_or_default());
            Err(Failure::message(format!(
                "unable to read URL {url:?}, server reported {reason}, status code={}",
                status.code
            )))
        }
        Err(failure) => Err(failure),
    }
}

fn parse(source: &str, bytes: &[u8], validate: bool, found: &mut Vec<Document>, failures: &mut Vec<Failure>) {
    let text = String::from_utf8_lossy(bytes);
    let texts = match text.trim_start().starts_with('{') {
        true => json_documents(&text),
        false => Ok(yaml::documents(&text).into_iter().map(str::to_string).collect()),
    };
    let texts = match texts {
        Ok(texts) => texts,
        Err(why) => return failures.push(Failure::message(format!("error parsing {source}: {why}"))),
    };
    for text in texts {
        match yaml::read(text.as_bytes()) {
            Ok(Value::Null) => {}
            Ok(object) => match check_type(source, &object, validate) {
                Ok(()) => found.push(Document { source: source.to_string(), object }),
                Err(failure) => failures.push(failure),
            },
            Err(why) => return failures.push(Failure::message(format!("error parsing {source}: {why}"))),
        }
    }
}

/// JSON objects one behind another.
fn json_documents(text: &str) -> std::result::Result<Vec<String>, String> {
    let mut found = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match value {
            Ok(value) => found.push(value.to_string()),
            // YAML's flow style also begins with a brace.
            Err(_) if found.is_empty() && yaml::read(text.as_bytes()).is_ok() => {
                return Ok(yaml::documents(text).into_iter().map(str::to_string).collect());
            }
            Err(error) if error.is_eof() => return Err("unexpected EOF".to_string()),
            Err(error) => return Err(format!("json: {error}")),
        }
    }
    Ok(found)
}

fn check_type(source: &str, object: &Value, validate: bool) -> Result<()> {
    let broken = |field: &str| {
        let data = serde_json::to_string(object).unwrap_or_default();
        Failure::message(format!("unable to decode {source:?}: Object '{field}' is missing in '{data}'"))
    };
    if !object.is_object() && validate {
        return Err(Failure::message(format!(
            "error validating {source:?}: error validating data: invalid object to validate; if you choose to ignore these errors, turn validation off with --validate=false"
        )));
    }
    if !object.is_object() {
        let found = match object {
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Bool(_) => "bool",
            _ => "number",
        };
        return Err(Failure::message(format!(
            "unable to decode {source:?}: json: cannot unmarshal {found} into Go value of type unstructured.detector"
        )));
    }
    let absent = |field: &str| object[field].as_str().unwrap_or_default().is_empty();
    if validate && (absent("kind") || absent("apiVersion")) {
        let why = match (absent("apiVersion"), absent("kind")) {
            (true, true) => "[apiVersion not set, kind not set]",
            (true, false) => "apiVersion not set",
            _ => "kind not set",
        };
        return Err(Failure::message(format!(
            "error validating {source:?}: error validating data: {why}; if you choose to ignore these errors, turn validation off with --validate=false"
        )));
    }
    if absent("kind") {
        return Err(broken("Kind"));
    }
    if absent("apiVersion") {
        return Err(broken("apiVersion"));
    }
    match mistyped_metadata(object) {
        Some(why) => Err(Failure::message(format!("unable to decode {source:?}: {why}"))),
        None => Ok(()),
    }
}

/// What of the metadata is of another type than every object's, in the words of Go's JSON reader.
fn mistyped_metadata(object: &Value) -> Option<String> {
    let schema = api::schema::builtin();
    // Any kind will do: all have the same metadata.
    let id = schema.find_kind("", "v1", "ConfigMap")?;
    let value = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": object["metadata"]});
    let error = api::codec::decode_value(value, schema, id).err()?.to_string();
    error.split_once("cannot be handled as a ConfigMap: ").map(|(_, why)| why.to_string())
}

impl Selection {
    /// Everything that `-f` and `-k` name, lists taken apart.
    pub async fn documents(&self, session: &Session) -> Result<(Vec<Document>, Vec<Failure>)> {
        let (mut found, mut failures) = (Vec::new(), Vec::new());
        if !self.kustomize.is_empty() {
            let objects = crate::kustomize_objects(&self.kustomize)?;
            let source = self.kustomize.clone();
            found.extend(objects.into_iter().map(|object| Document { source: source.clone(), object }));
        }
        let mut stdin_read = false;
        for name in &self.filenames {
            if name == "-" {
                if stdin_read {
                    return Err(Failure::message("standard input cannot be used for multiple arguments"));
                }
                stdin_read = true;
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes)?;
                parse("STDIN", &bytes, self.validate, &mut found, &mut failures);
            } else if name.starts_with("http://") || name.starts_with("https://") {
                let bytes = download(session, name).await?;
                parse(name, &bytes, self.validate, &mut found, &mut failures);
            } else {
                for file in expand(name, self.recursive)? {
                    let bytes =
                        std::fs::read(&file).map_err(|e| Failure::message(format!("open {}: {e}", file.display())))?;
                    parse(&file.display().to_string(), &bytes, self.validate, &mut found, &mut failures);
                }
            }
        }
        Ok((found.into_iter().flat_map(flatten).collect(), failures))
    }

    pub(super) async fn in_files(&self, session: &Session) -> Result<(Vec<Info>, Vec<Failure>)> {
        let (documents, failures) = self.documents(session).await?;
        self.infos(session, documents, failures).await
    }

    /// The objects of documents; `failures` are those of reading them.
    pub async fn infos(
        &self,
        session: &Session,
        documents: Vec<Document>,
        mut failures: Vec<Failure>,
    ) -> Result<(Vec<Info>, Vec<Failure>)> {
        let mut infos = Vec::new();
        for document in documents {
            match self.info(session, document).await {
                Ok(Some(info)) => infos.push(info),
                Ok(None) => {}
                Err(failure @ Failure::Connection { .. }) => return Err(failure),
                Err(failure) => failures.push(failure),
            }
        }
        Ok((infos, failures))
    }

    /// An object with its resource and namespace; `None` if a selector does not want it.
    async fn info(&self, session: &Session, document: Document) -> Result<Option<Info>> {
        let Document { source, mut object } = document;
        if !self.selector.is_empty() && !selected(&self.selector, &object)? {
            return Ok(None);
        }
        let (version, kind) =
            (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default());
        let resource = match self.local {
            true => Rc::new(local_resource(version, kind)),
            false => match session.resource_of_kind(version, kind).await? {
                Some(resource) => resource,
                None => {
                    let discovery = session.discovery().await?;
                    let meant = suggestion::for_kind(&discovery, kind);
                    return Err(Failure::message(format!(
                        "resource mapping not found for name: {:?} namespace: {:?} from {source:?}: no matches for kind {kind:?} in version {version:?}\nensure CRDs are installed first{}",
                        metadata(&object, "name"),
                        metadata(&object, "namespace"),
                        meant.map(|meant| format!("\n{meant}")).unwrap_or_default(),
                    )));
                }
            },
        };
        let mut namespace = String::new();
        if resource.namespaced {
            let own = metadata(&object, "namespace").to_string();
            if own.is_empty() && self.local {
                // What no server is asked about stays as the file has it.
            } else if own.is_empty() {
                if !object["metadata"].is_object() {
                    object["metadata"] = Value::Object(Default::default());
                }
                object["metadata"]["namespace"] = self.namespace.clone().into();
                namespace = self.namespace.clone();
            } else if self.enforce_namespace && own != self.namespace {
                return Err(Failure::message(format!(
                    "the namespace from the provided object {own:?} does not match the namespace {:?}. You must pass '--namespace={own}' to perform this operation.",
                    self.namespace
                )));
            } else {
                namespace = own;
            }
        }
        let name = metadata(&object, "name").to_string();
        Ok(Some(Info { resource, namespace, name, source, object }))
    }
}

fn selected(selector: &str, object: &Value) -> Result<bool> {
    let selector = api::selectors::LabelSelector::parse(selector).map_err(Failure::message)?;
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    let labels = labels.map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_string())).collect();
    Ok(selector.matches(&labels))
}

fn flatten(document: Document) -> Vec<Document> {
    let is_list =
        document.object["kind"].as_str().is_some_and(|k| k.ends_with("List")) && document.object["items"].is_array();
    if !is_list {
        return vec![document];
    }
    let Document { source, object } = document;
    items_of(object).into_iter().flat_map(|object| flatten(Document { source: source.clone(), object })).collect()
}

/// What the kind is called, without asking anybody.
pub fn local_resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let singular = kind.to_lowercase();
    let name = match singular.as_str() {
        s if s.ends_with('s') => format!("{s}es"),
        s if s.ends_with('y') => format!("{}ies", &s[..s.len() - 1]),
        s => format!("{s}s"),
    };
    ApiResource {
        name,
        singular,
        namespaced: !matches!(
            kind,
            "Namespace"
                | "Node"
                | "ClusterRole"
                | "ClusterRoleBinding"
                | "PersistentVolume"
                | "StorageClass"
                | "PriorityClass"
        ),
        kind: kind.to_string(),
        group: group.to_string(),
        version: version.to_string(),
        ..ApiResource::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_no_object_is_said_as_go_says_it() {
        let check = |object: Value, validate: bool, wanted: Option<&str>| {
            let found = check_type("f", &object, validate).err().map(|failure| failure.text());
            assert_eq!(found.as_deref(), wanted, "{object}");
        };
        let named = |name: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}});
        check(named("a".into()), true, None);
        check(json!({"apiVersion": "v1", "kind": "Pod"}), true, None);
        let wanted = "unable to decode \"f\": json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.name of type string";
        check(named(true.into()), true, Some(wanted));
        let wanted = "unable to decode \"f\": json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string";
        check(json!({"apiVersion": "v1", "kind": "Own", "metadata": {"labels": ["a"]}}), true, Some(wanted));
        let wanted = "unable to decode \"f\": json: cannot unmarshal array into Go value of type unstructured.detector";
        check(json!(["a"]), false, Some(wanted));
        let wanted = "error validating \"f\": error validating data: invalid object to validate; if you choose to ignore these errors, turn validation off with --validate=false";
        check(json!("text"), true, Some(wanted));
    }
}
