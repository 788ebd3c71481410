//! Preferences of the person: defaults of flags and aliases of commands, from `~/.kube/kuberc`.
//! Applied by `lib` to the words of a command line before they are parsed.
//! A flag that was typed always wins; a command of ours is never replaced by an alias.

use std::path::PathBuf;

use serde_json::Value;

use crate::{command::Command, kubeconfig};

/// The file: `--kuberc`, `$KUBERC`, or the one at home. `off` is none.
fn file(words: &[String]) -> Option<PathBuf> {
    let flag = words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix("--kuberc") {
        Some("") => words.get(at + 1).cloned(),
        Some(value) => value.strip_prefix('=').map(str::to_string),
        None => None,
    });
    path(flag.as_deref())
}

/// As `file`, where the flag is known already.
pub fn path(flag: Option<&str>) -> Option<PathBuf> {
    let named = flag.map(str::to_string).or_else(|| std::env::var("KUBERC").ok().filter(|v| !v.is_empty()));
    if std::env::var("KUBECTL_KUBERC").is_ok_and(|v| v == "false") || named.as_deref() == Some("off") {
        return None;
    }
    Some(named.map_or_else(|| kubeconfig::home().join(".kube/kuberc"), PathBuf::from))
}

/// The words with what the preferences add. A file that was named must be there; one that is there must be readable.
pub fn apply(root: &Command, words: &[String]) -> Result<Vec<String>, String> {
    let Some(file) = file(words) else { return Ok(words.to_vec()) };
    let named = words.iter().any(|word| word == "--kuberc" || word.starts_with("--kuberc="));
    let failed = |why: String| format!("error occurred while applying preferences kuberc error kuberc: {why}");
    match std::fs::read(&file) {
        Ok(bytes) => {
            let preferences =
                crate::resource::yaml::read(&bytes).map_err(|why| failed(format!("{}: {why}", file.display())))?;
            Ok(preferred(root, words, &preferences))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => Ok(words.to_vec()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(failed(format!("open {}: no such file or directory", file.display())))
        }
        Err(error) => Err(failed(format!("{}: {error}", file.display()))),
    }
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_string).collect()
}

/// `--name=value` for each option that was not typed.
fn options(words: &[String], entry: &Value) -> Vec<String> {
    let listed = entry["options"].as_array().or(entry["flags"].as_array());
    let named = listed.into_iter().flatten().filter_map(|o| Some((o["name"].as_str()?, o["default"].as_str()?)));
    named
        .filter(|(name, _)| {
            let flag = format!("--{name}");
            !words.iter().any(|word| *word == flag || word.starts_with(&format!("{flag}=")))
        })
        .map(|(name, value)| format!("--{name}={value}"))
        .collect()
}

fn preferred(root: &Command, words: &[String], preferences: &Value) -> Vec<String> {
    let Some(at) = words.iter().position(|word| !word.starts_with('-')) else { return words.to_vec() };
    let dash = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let ours = root.commands.iter().any(|c| c.name == words[at] || c.aliases.contains(&words[at].as_str()));
    let mut aliases = preferences["aliases"].as_array().into_iter().flatten();
    if let Some(alias) = aliases.find(|alias| !ours && alias["name"] == words[at].as_str()) {
        let mut made = words[..at].to_vec();
        made.extend(alias["command"].as_str().unwrap_or_default().split_whitespace().map(str::to_string));
        made.extend(texts(&alias["prependArgs"]));
        made.extend(options(words, alias));
        made.extend_from_slice(&words[at + 1..]);
        made.extend(texts(&alias["appendArgs"]));
        return made;
    }
    let path: Vec<&str> = words[at..dash].iter().filter(|w| !w.starts_with('-')).map(String::as_str).collect();
    let listed = preferences["defaults"].as_array().or(preferences["overrides"].as_array());
    for entry in listed.into_iter().flatten() {
        let command: Vec<&str> = entry["command"].as_str().unwrap_or_default().split_whitespace().collect();
        if !command.is_empty() && path.starts_with(&command) {
            let mut made = words[..dash].to_vec();
            made.extend(options(words, entry));
            made.extend_from_slice(&words[dash..]);
            return made;
        }
    }
    words.to_vec()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn preferences_add_defaults_and_aliases() {
        let preferences = json!({
            "defaults": [{"command": "delete", "options": [{"name": "interactive", "default": "true"}]}],
            "aliases": [{"name": "getn", "command": "get", "prependArgs": ["nodes"], "options": [{"name": "output", "default": "wide"}]}],
        });
        let check = |line: &str, wanted: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
            assert_eq!(preferred(&crate::verbs::ROOT, &words, &preferences).join(" "), wanted, "{line}");
        };
        check("delete pod x", "delete pod x --interactive=true");
        check("delete pod x --interactive=false", "delete pod x --interactive=false");
        check("get pods", "get pods");
        check("getn -A", "get nodes --output=wide -A");
        check("getn --output=json", "get nodes --output=json");
        check("--namespace=x delete pod y -- z", "--namespace=x delete pod y --interactive=true -- z");
    }
}
