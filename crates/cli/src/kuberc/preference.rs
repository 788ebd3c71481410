//! The documents of a kuberc file: the first that is a Preference of a known version counts.
//! Used by `kuberc`.
//! Pure. A field that nobody knows is told and ignored; v1alpha1 is brought to the names of v1beta1.

use serde_json::Value;

use crate::resource::yaml;

#[derive(Debug, Default)]
pub struct Loaded {
    /// None in an empty file.
    pub preference: Option<Value>,
    /// What a strict reader would refuse.
    pub strict: Option<String>,
    pub logged: Vec<String>,
}

const GROUP: &str = "kubectl.config.k8s.io";

/// Fields of an object, and what its lists hold.
struct Shape {
    fields: &'static [&'static str],
    lists: &'static [(&'static str, Shape)],
}

const OPTION: Shape = Shape { fields: &["name", "default"], lists: &[] };
const BETA: Shape = Shape {
    fields: &["apiVersion", "kind", "credentialPluginPolicy"],
    lists: &[
        ("defaults", Shape { fields: &["command"], lists: &[("options", OPTION)] }),
        ("aliases", Shape { fields: &["name", "command", "prependArgs", "appendArgs"], lists: &[("options", OPTION)] }),
        ("credentialPluginAllowlist", Shape { fields: &["name"], lists: &[] }),
    ],
};
const ALPHA: Shape = Shape {
    fields: &["apiVersion", "kind"],
    lists: &[
        ("overrides", Shape { fields: &["command"], lists: &[("flags", OPTION)] }),
        ("aliases", Shape { fields: &["name", "command", "prependArgs", "appendArgs"], lists: &[("flags", OPTION)] }),
    ],
};

impl Shape {
    fn unknown(&self, value: &Value, path: &str, found: &mut Vec<String>) {
        for (name, inner) in value.as_object().into_iter().flatten() {
            let here = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match self.lists.iter().find(|(list, _)| list == name) {
                Some((_, shape)) => {
                    for (at, item) in inner.as_array().into_iter().flatten().enumerate() {
                        shape.unknown(item, &format!("{here}[{at}]"), found);
                    }
                }
                None if self.fields.contains(&name.as_str()) => {}
                None => found.push(format!("unknown field {here:?}")),
            }
        }
    }
}

/// Renamed fields of v1alpha1.
fn as_beta(mut value: Value) -> Value {
    let rename = |value: &mut Value, old: &str, new: &str| {
        if let Some(fields) = value.as_object_mut()
            && let Some(moved) = fields.remove(old)
        {
            fields.insert(new.to_string(), moved);
        }
    };
    rename(&mut value, "overrides", "defaults");
    for list in ["defaults", "aliases"] {
        let entries = value.get_mut(list).and_then(Value::as_array_mut);
        entries.into_iter().flatten().for_each(|entry| rename(entry, "flags", "options"));
    }
    value
}

/// What the file says; why nothing of it counts, and what is logged of that.
pub fn load(file: &str, bytes: &[u8]) -> Result<Loaded, (String, Vec<String>)> {
    let text = String::from_utf8_lossy(bytes);
    let mut loaded = Loaded::default();
    let mut tried = 0;
    for document in yaml::documents(&text) {
        tried += 1;
        let value = match yaml::read(document.as_bytes()) {
            Ok(value) => value,
            Err(why) => {
                loaded.logged.push(format!("kuberc: strict decoding error for entry {tried} in {file}: {why}"));
                continue;
            }
        };
        let (version, kind) = (value["apiVersion"].as_str().unwrap_or_default(), &value["kind"]);
        let shape = match version.split_once('/') {
            Some((GROUP, "v1beta1")) if kind == "Preference" => &BETA,
            Some((GROUP, "v1alpha1")) if kind == "Preference" => &ALPHA,
            _ => {
                let kind = kind.as_str().unwrap_or_default();
                loaded.logged.push(format!(
                    "kuberc: strict decoding error for entry {tried} in {file}: no kind {kind:?} is registered for version {version:?} in scheme \"pkg/config/scheme/scheme.go:28\""
                ));
                continue;
            }
        };
        let mut unknown = Vec::new();
        shape.unknown(&value, "", &mut unknown);
        if !unknown.is_empty() {
            loaded.strict = Some(format!("strict decoding error: {}", unknown.join(", ")));
        }
        loaded.logged.push(format!("kuberc: using entry {tried} ({version}) in {file}"));
        loaded.preference = Some(as_beta(value));
        return Ok(loaded);
    }
    if tried > 0 {
        return Err((format!("no valid preferences found in {file}, use --v=5 to see details"), loaded.logged));
    }
    loaded.logged.push(format!("kuberc: no preferences found in {file}"));
    Ok(loaded)
}

pub fn validate(preference: &Value) -> Result<(), String> {
    let all = |list: &str| preference[list].as_array().into_iter().flatten();
    let options = |entry: &Value| -> Result<(), String> {
        let names = entry["options"].as_array().into_iter().flatten().filter_map(|o| o["name"].as_str());
        match names.into_iter().find(|name| name.starts_with('-')) {
            Some(name) => Err(format!("flag name {name} should be in long form without dashes")),
            None => Ok(()),
        }
    };
    let mut seen = Vec::new();
    for alias in all("aliases") {
        let name = alias["name"].as_str().unwrap_or_default();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphabetic()) {
            return Err("invalid alias name, can only include alphabetical characters".to_string());
        }
        options(alias)?;
        if seen.contains(&name) {
            return Err(format!("duplicate alias name {name}"));
        }
        seen.push(name);
    }
    all("defaults").try_for_each(options)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_document_of_a_known_version_counts() {
        let check = |text: &str, wanted: Result<Option<Value>, &str>, strict: Option<&str>| {
            let loaded = load("f", text.as_bytes());
            let told = loaded.as_ref().ok().and_then(|l| l.strict.clone());
            assert_eq!(told.as_deref(), strict, "{text}");
            let found = loaded.map(|l| l.preference).map_err(|(why, _)| why);
            assert_eq!(found, wanted.map_err(str::to_string), "{text}");
        };
        let head = "apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n";
        let beta = json!({"apiVersion": "kubectl.config.k8s.io/v1beta1", "kind": "Preference"});
        check("", Ok(None), None);
        check("# nothing\n", Ok(None), None);
        check(head, Ok(Some(beta.clone())), None);
        check(&format!("a: b\n---\n{head}"), Ok(Some(beta.clone())), None);
        let nothing = "no valid preferences found in f, use --v=5 to see details";
        check("apiVersion: kubectl.config.k8s.io/v9\nkind: Preference\n", Err(nothing), None);
        check("{", Err(nothing), None);
        let mut odd = beta.clone();
        odd["unknown"] = "x".into();
        check(&format!("{head}unknown: x\n"), Ok(Some(odd)), Some("strict decoding error: unknown field \"unknown\""));
        check(
            "apiVersion: kubectl.config.k8s.io/v1alpha1\nkind: Preference\noverrides: [{command: get, flags: []}]\n",
            Ok(Some(json!({"apiVersion": "kubectl.config.k8s.io/v1alpha1", "kind": "Preference",
                           "defaults": [{"command": "get", "options": []}]}))),
            None,
        );
    }

    #[test]
    fn names_are_checked() {
        let check = |preference: Value, wanted: Result<(), &str>| {
            assert_eq!(validate(&preference), wanted.map_err(str::to_string), "{preference}");
        };
        check(json!({"aliases": [{"name": "getn"}]}), Ok(()));
        check(
            json!({"aliases": [{"name": "get-n"}]}),
            Err("invalid alias name, can only include alphabetical characters"),
        );
        check(json!({"aliases": [{"name": "a"}, {"name": "a"}]}), Err("duplicate alias name a"));
        check(
            json!({"defaults": [{"options": [{"name": "-o"}]}]}),
            Err("flag name -o should be in long form without dashes"),
        );
    }
}
