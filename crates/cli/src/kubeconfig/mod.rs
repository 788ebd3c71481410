//! Kubeconfig files: read, merged, resolved to one connection, and written back.
//! Used by `session` and by `kubectl config`.
//! Asks no server, except that credentials may come from a program or an identity provider.

pub mod exec;
pub mod oidc;
mod prompt;
pub mod resolve;
pub(crate) mod schema;
mod validation;

use std::path::{Path, PathBuf};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use crate::{
    failure::{Failure, Result},
    flags::Matches,
};

/// A cluster, user or context, and the file it stands in.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub name: String,
    pub value: Value,
    pub file: PathBuf,
}

/// Several files as one. What an earlier file says stands.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    pub clusters: Vec<Entry>,
    pub users: Vec<Entry>,
    pub contexts: Vec<Entry>,
    pub current_context: String,
    /// The file that names the current context.
    pub current_context_file: PathBuf,
    pub preferences: Value,
    pub extensions: Value,
}

/// Which files are read, and where changes go.
#[derive(Debug, Clone)]
pub struct Places {
    pub files: Vec<PathBuf>,
    /// `--kubeconfig`: must be there.
    pub explicit: bool,
}

pub fn home() -> PathBuf {
    PathBuf::from(std::env::var_os("HOME").unwrap_or_default())
}

impl Places {
    pub fn of(matches: &Matches) -> Self {
        if let Some(file) = matches.opt("kubeconfig") {
            return Self { files: vec![file.into()], explicit: true };
        }
        match std::env::var("KUBECONFIG").ok().filter(|v| !v.is_empty()) {
            Some(list) => {
                let mut files: Vec<PathBuf> = Vec::new();
                for file in list.split(':').filter(|f| !f.is_empty()).map(PathBuf::from) {
                    if !files.contains(&file) {
                        files.push(file);
                    }
                }
                Self { files, explicit: false }
            }
            None => Self { files: vec![home().join(".kube/config")], explicit: false },
        }
    }

    /// Where something new is written: the last file that is there, or the last of the list.
    pub fn default_file(&self) -> PathBuf {
        let there = self.files.iter().rev().find(|f| f.exists());
        there.or(self.files.last()).cloned().unwrap_or_else(|| home().join(".kube/config"))
    }

    pub fn load(&self) -> Result<Config> {
        let mut merged = Config::default();
        for file in &self.files {
            match read(file) {
                Ok(config) => merged.merge(config),
                Err(Unread::Missing) if !self.explicit => {}
                Err(Unread::Missing) => {
                    return Err(Failure::message(format!("stat {}: no such file or directory", file.display())));
                }
                Err(Unread::Broken(why)) => {
                    return Err(Failure::message(format!("error loading config file \"{}\": {why}", file.display())));
                }
            }
        }
        Ok(merged)
    }
}

/// Where Go's reader of these files keeps the kinds it knows.
const SCHEME: &str = "k8s.io/client-go/tools/clientcmd/api/latest/latest.go:50";

/// What is in base64.
const DATA_FIELDS: [(&str, &str, &str); 3] = [
    ("clusters", "cluster", "certificate-authority-data"),
    ("users", "user", "client-certificate-data"),
    ("users", "user", "client-key-data"),
];

/// Base64 as Go reads it: over as many lines as it likes.
pub fn from_base64(text: &str) -> std::result::Result<Vec<u8>, String> {
    let joined: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    BASE64_STANDARD.decode(&joined).map_err(|error| {
        let at = match error {
            base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
            base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => joined.len() / 4 * 4,
        };
        format!("illegal base64 data at input byte {at}")
    })
}

pub enum Unread {
    Missing,
    Broken(String),
}

pub fn read(file: &Path) -> std::result::Result<Config, Unread> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Unread::Missing),
        Err(error) => {
            let word = match error.kind() {
                std::io::ErrorKind::PermissionDenied => "permission denied".to_string(),
                std::io::ErrorKind::IsADirectory => "is a directory".to_string(),
                _ => error.to_string(),
            };
            return Err(Unread::Broken(format!("open {}: {word}", file.display())));
        }
    };
    Config::parse(&text, file).map_err(Unread::Broken)
}

impl Config {
    pub fn parse(text: &str, file: &Path) -> std::result::Result<Self, String> {
        let value = match text.trim().is_empty() {
            true => json!({}),
            false => crate::resource::yaml::read(text.as_bytes())
                .map_err(|e| e.trim_start_matches("error converting YAML to JSON: ").to_string())?,
        };
        if !value.is_object() {
            let found = match value {
                Value::Array(_) => "array",
                Value::Number(_) => "number",
                Value::Bool(_) => "bool",
                _ => "string",
            };
            return Err(format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
            ));
        }
        if let Some(why) = schema::mismatch(&value) {
            return Err(why);
        }
        for (list, inner, field) in DATA_FIELDS {
            for item in value[list].as_array().into_iter().flatten() {
                item[inner][field].as_str().map_or(Ok(Vec::new()), from_base64)?;
            }
        }
        let kind = value["kind"].as_str().unwrap_or("Config");
        let version = value["apiVersion"].as_str().unwrap_or("v1");
        if kind != "Config" || version != "v1" {
            return Err(format!("no kind {kind:?} is registered for version {version:?} in scheme {SCHEME:?}"));
        }
        let entries = |list: &str, field: &str| -> Vec<Entry> {
            let mut found: Vec<Entry> = Vec::new();
            for item in value[list].as_array().into_iter().flatten() {
                let name = item["name"].as_str().unwrap_or_default().to_string();
                let inner = match &item[field] {
                    Value::Object(_) => item[field].clone(),
                    _ => json!({}),
                };
                // The first of a name counts.
                if !found.iter().any(|e| e.name == name) {
                    found.push(Entry { name, value: inner, file: file.to_path_buf() });
                }
            }
            found
        };
        Ok(Self {
            clusters: entries("clusters", "cluster"),
            users: entries("users", "user"),
            contexts: entries("contexts", "context"),
            current_context: value["current-context"].as_str().unwrap_or_default().to_string(),
            current_context_file: file.to_path_buf(),
            preferences: value["preferences"].clone(),
            extensions: value["extensions"].clone(),
        })
    }

    fn merge(&mut self, later: Config) {
        let join = |mine: &mut Vec<Entry>, theirs: Vec<Entry>| {
            for entry in theirs {
                if !mine.iter().any(|e| e.name == entry.name) {
                    mine.push(entry);
                }
            }
        };
        join(&mut self.clusters, later.clusters);
        join(&mut self.users, later.users);
        join(&mut self.contexts, later.contexts);
        if self.current_context.is_empty() {
            self.current_context = later.current_context;
            self.current_context_file = later.current_context_file;
        }
        if self.preferences.as_object().is_none_or(Map::is_empty) {
            self.preferences = later.preferences;
        }
        if self.extensions.is_null() {
            self.extensions = later.extensions;
        }
    }

    /// As a file says it: sorted by name.
    pub fn to_value(&self) -> Value {
        let list = |entries: &[Entry], field: &str, of: &schema::Struct| -> Value {
            if entries.is_empty() {
                return Value::Null;
            }
            let mut sorted: Vec<&Entry> = entries.iter().collect();
            sorted.sort_by(|a, b| a.name.cmp(&b.name));
            sorted.into_iter().map(|e| json!({"name": e.name, field: of.shaped(&e.value)})).collect()
        };
        let mut value = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": list(&self.clusters, "cluster", &schema::CLUSTER),
            "contexts": list(&self.contexts, "context", &schema::CONTEXT),
            "users": list(&self.users, "user", &schema::USER),
            "current-context": self.current_context,
        });
        if self.preferences.as_object().is_some_and(|p| !p.is_empty()) {
            value["preferences"] = self.preferences.clone();
        }
        if !self.extensions.is_null() {
            value["extensions"] = self.extensions.clone();
        }
        value
    }

    pub fn write(&self, file: &Path) -> Result<()> {
        let fail = |e: std::io::Error| Failure::message(format!("open {}: {e}", file.display()));
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).map_err(fail)?;
        }
        let text = crate::printers::yaml::to_string(&self.to_value());
        use std::{io::Write, os::unix::fs::OpenOptionsExt};
        let opened = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file);
        opened.and_then(|mut f| f.write_all(text.as_bytes())).map_err(fail)
    }

    pub fn cluster(&self, name: &str) -> Option<&Entry> {
        self.clusters.iter().find(|e| e.name == name)
    }

    pub fn user(&self, name: &str) -> Option<&Entry> {
        self.users.iter().find(|e| e.name == name)
    }

    pub fn context(&self, name: &str) -> Option<&Entry> {
        self.contexts.iter().find(|e| e.name == name)
    }

    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.users.is_empty() && self.contexts.is_empty() && self.current_context.is_empty()
    }
}

/// A path of a file, as seen from that file.
fn resolve_beside(entry: &Entry, path: &str) -> String {
    entry.file.parent().unwrap_or(Path::new("")).join(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str, file: &str) -> Config {
        Config::parse(text, Path::new(file)).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn the_first_file_wins_and_later_ones_add() {
        let mut merged =
            config("current-context: a\nclusters:\n- name: one\n  cluster: {server: http://first}\n", "/x/1");
        merged.merge(config(
            "current-context: b\nclusters:\n- name: one\n  cluster: {server: http://second}\n- name: two\n  cluster: {server: http://two}\n",
            "/x/2",
        ));
        assert_eq!(merged.current_context, "a");
        assert_eq!(merged.cluster("one").map(|e| e.value["server"].clone()), Some("http://first".into()));
        let foreign = Config::parse("apiVersion: v-1\nkind: Config\n", Path::new("/x/3"));
        assert_eq!(
            foreign.err().as_deref(),
            Some(
                "no kind \"Config\" is registered for version \"v-1\" in scheme \"k8s.io/client-go/tools/clientcmd/api/latest/latest.go:50\""
            )
        );
        assert_eq!(merged.cluster("two").map(|e| e.file.clone()), Some(PathBuf::from("/x/2")));
    }
}
