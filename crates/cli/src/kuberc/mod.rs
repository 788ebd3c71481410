//! Preferences of the person: defaults of flags and aliases of commands, from `~/.kube/kuberc`.
//! Applied by `lib` to the words of a command line before they are parsed; `preference` reads the file.
//! A flag that was typed always wins; a command of ours is never replaced by an alias.

pub mod plugin_policy;
mod preference;

use std::path::PathBuf;

use serde_json::Value;

use self::{plugin_policy::PluginPolicy, preference::Loaded};
use crate::{
    command::{Command, finds},
    describe::fields::texts,
    flags::{Flag, globals::GLOBAL},
    kubeconfig,
};

/// A command line with what the preferences add to it.
#[derive(Debug, Default)]
pub struct Preferred {
    pub words: Vec<String>,
    pub plugins: PluginPolicy,
    /// Said on standard error, as it is.
    pub told: String,
    /// Logged with `-v=5`.
    pub logged: Vec<String>,
}

/// What `--kuberc` says among words that are not parsed yet.
fn named(words: &[String]) -> Result<Option<String>, String> {
    let missing = || "kuberc file is not found".to_string();
    for (at, word) in words.iter().enumerate().take_while(|(_, word)| *word != "--") {
        match word.strip_prefix("--kuberc") {
            Some("") => return words.get(at + 1).cloned().map(Some).ok_or_else(missing),
            Some(value) if value.starts_with('=') => {
                return Some(value[1..].to_string()).filter(|v| !v.is_empty()).map(Some).ok_or_else(missing);
            }
            _ => {}
        }
    }
    Ok(None)
}

/// The file, and whether somebody named it; `None` where preferences are switched off.
pub fn path(flag: Option<&str>) -> Result<Option<(PathBuf, bool)>, String> {
    place(flag, std::env::var("KUBERC").ok().as_deref())
}

fn place(flag: Option<&str>, variable: Option<&str>) -> Result<Option<(PathBuf, bool)>, String> {
    let variable = variable.filter(|v| !v.is_empty());
    match (flag, variable) {
        (Some(_), Some("off")) => {
            Err("disabling kuberc via KUBERC=off and passing kuberc flag are mutually exclusive".to_string())
        }
        (None, Some("off")) => Ok(None),
        (Some(file), _) | (None, Some(file)) => Ok(Some((file.into(), true))),
        (None, None) => Ok(Some((kubeconfig::home().join(".kube/kuberc"), false))),
    }
}

/// The words with what the preferences add. A file that was named must be there; one that is there must be readable.
pub fn apply(root: &'static Command, words: &[String]) -> Result<Preferred, String> {
    let plain = || Preferred { words: words.to_vec(), ..Preferred::default() };
    let disabled = std::env::var("KUBECTL_KUBERC").is_ok_and(|v| v.eq_ignore_ascii_case("false"));
    if words.is_empty() || disabled {
        return Ok(plain());
    }
    let failed = |why: String| format!("error occurred while applying preferences {why}");
    let of_file = |why: String| failed(format!("kuberc error {why}"));
    let flag = named(words).map_err(failed)?;
    let Some((file, explicit)) = path(flag.as_deref()).map_err(of_file)? else { return Ok(plain()) };
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !explicit => return Ok(plain()),
        Err(error) => {
            let why = format!("open {}: {}", file.display(), crate::failure::go_error(&error));
            return unread(plain(), &file.display().to_string(), explicit, why).map_err(of_file);
        }
    };
    let shown = file.display().to_string();
    let Loaded { preference, strict, logged } = match preference::load(&shown, &bytes) {
        Ok(loaded) => loaded,
        Err((why, logged)) => {
            return unread(Preferred { logged, ..plain() }, &shown, explicit, why).map_err(of_file);
        }
    };
    let told = match strict {
        Some(why) => format!("kuberc: ignoring strict decoding error in {shown}: {why}"),
        None => String::new(),
    };
    let Some(preference) = preference else { return Ok(Preferred { logged, ..plain() }) };
    let plugins = PluginPolicy::of(&preference);
    preference::validate(&preference).map_err(failed)?;
    let plugins = plugins.map_err(failed)?;
    let mut preferred = preferred(root, words, &preference).map_err(failed)?;
    preferred.told.insert_str(0, &told);
    Ok(Preferred { plugins, logged, ..preferred })
}

fn unread(plain: Preferred, file: &str, explicit: bool, why: String) -> Result<Preferred, String> {
    match explicit {
        true => Err(format!("kuberc: {why}")),
        false => Ok(Preferred { told: format!("kuberc: no preferences loaded from {file}: {why}"), ..plain }),
    }
}

/// Whether a flag stands in the line, in any of the ways of writing it.
fn typed(flag: &Flag, flags: &[&'static Flag], words: &[String]) -> bool {
    let long = format!("--{}", flag.name);
    let is_short = |c: char| flags.iter().any(|f| f.short == Some(c));
    words.iter().any(|word| {
        if *word == long || word.starts_with(&format!("{long}=")) {
            return true;
        }
        let (Some(short), Some(letters)) = (flag.short, word.strip_prefix('-')) else { return false };
        let joined = !letters.is_empty() && letters.chars().all(|c| c.is_ascii_alphabetic());
        letters.starts_with(short) || (joined && is_short(short) && letters.contains(short))
    })
}

/// `--name=value` for each option that was not typed.
fn options(
    command: &Command,
    words: &[String],
    entry: &Value,
    unknown: impl Fn(&str) -> String,
) -> Result<Vec<String>, String> {
    let flags: Vec<&'static Flag> = command.flags.iter().copied().flatten().chain(GLOBAL).collect();
    let mut added = Vec::new();
    for option in entry["options"].as_array().into_iter().flatten() {
        let name = option["name"].as_str().unwrap_or_default();
        let flag = flags.iter().find(|flag| flag.name == name).ok_or_else(|| unknown(name))?;
        if !typed(flag, &flags, words) {
            added.push(format!("--{name}={}", option["default"].as_str().unwrap_or_default()));
        }
    }
    Ok(added)
}

fn found(root: &'static Command, text: &str) -> Option<&'static Command> {
    let words: Vec<String> = text.split_whitespace().map(str::to_string).collect();
    finds(root, &words)
}

fn preferred(root: &'static Command, words: &[String], preference: &Value) -> Result<Preferred, String> {
    match finds(root, words) {
        Some(command) => with_defaults(root, command, words, preference),
        None => with_alias(root, words, preference),
    }
}

fn with_alias(root: &'static Command, words: &[String], preference: &Value) -> Result<Preferred, String> {
    let plain = || Preferred { words: words.to_vec(), ..Preferred::default() };
    let Some(at) = words.iter().position(|word| !word.starts_with('-') && !word.starts_with("__complete")) else {
        return Ok(plain());
    };
    let name = words[at].as_str();
    let mut aliases = preference["aliases"].as_array().into_iter().flatten();
    let Some(alias) = aliases.find(|alias| alias["name"] == name) else { return Ok(plain()) };
    if found(root, name).is_some() {
        let told = format!("Warning: Setting alias {name:?} to a built-in command is not supported\n");
        return Ok(Preferred { told, ..plain() });
    }
    let text = alias["command"].as_str().unwrap_or_default();
    let command = found(root, text)
        .ok_or_else(|| format!("command {text:?} not found to set alias {name:?}: {:?}", texts(&alias["command"])))?;
    let mut made = words[..at].to_vec();
    made.extend(text.split_whitespace().map(str::to_string));
    made.extend(options(command, words, alias, |flag| format!("invalid alias flag {flag} in alias kubectl"))?);
    made.extend(texts(&alias["prependArgs"]));
    made.extend_from_slice(&words[at + 1..]);
    made.extend(texts(&alias["appendArgs"]));
    Ok(Preferred { words: made, ..Preferred::default() })
}

fn with_defaults(
    root: &'static Command,
    command: &'static Command,
    words: &[String],
    preference: &Value,
) -> Result<Preferred, String> {
    let mut added = Vec::new();
    let mut told = String::new();
    for entry in preference["defaults"].as_array().into_iter().flatten() {
        let text = entry["command"].as_str().unwrap_or_default();
        let Some(meant) = found(root, text) else {
            told.push_str(&format!("Warning: command {text:?} not found to set kuberc override\n"));
            continue;
        };
        // Names are compared, not paths, as upstream does.
        if meant.name == command.name {
            added.extend(options(command, words, entry, |flag| format!("invalid flag {flag} for command {text}"))?);
        }
    }
    let dash = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let mut made = words[..dash].to_vec();
    made.extend(added);
    made.extend_from_slice(&words[dash..]);
    Ok(Preferred { words: made, told, ..Preferred::default() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn split(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_string).collect()
    }

    #[test]
    fn preferences_add_defaults_and_aliases() {
        let preference = json!({
            "defaults": [
                {"command": "delete", "options": [{"name": "interactive", "default": "true"}]},
                {"command": "get", "options": [{"name": "output", "default": "json"}, {"name": "namespace", "default": "x"}]},
                {"command": "set env", "options": [{"name": "list", "default": "true"}]},
                {"command": "nope", "options": []},
            ],
            "aliases": [
                {"name": "getn", "command": "get", "prependArgs": ["nodes"], "options": [{"name": "output", "default": "wide"}]},
                {"name": "runx", "command": "run", "options": [{"name": "image", "default": "i"}], "appendArgs": ["p", "--", "a"]},
                {"name": "get", "command": "describe"},
                {"name": "bad", "command": "get", "options": [{"name": "nope", "default": ""}]},
            ],
        });
        let check = |line: &str, wanted: Result<&str, &str>| {
            let made = preferred(&crate::verbs::ROOT, &split(line), &preference).map(|p| p.words.join(" "));
            assert_eq!(made, wanted.map(str::to_string).map_err(str::to_string), "{line}");
        };
        check("delete pod x", Ok("delete pod x --interactive=true"));
        check("delete pod x -i=false", Ok("delete pod x -i=false"));
        check("delete pod x --interactive=false", Ok("delete pod x --interactive=false"));
        check("describe pods", Ok("describe pods"));
        check("get pods", Ok("get pods --output=json --namespace=x"));
        check("get pods -oyaml -n y", Ok("get pods -oyaml -n y"));
        check("get pods -An y", Ok("get pods -An y --output=json"));
        check("-n y get pods -o name", Ok("-n y get pods -o name"));
        check("set env deploy/x", Ok("set env deploy/x --list=true"));
        check("set image deploy/x a=b", Ok("set image deploy/x a=b"));
        check("getn -A", Ok("get --output=wide nodes -A"));
        check("getn --output=json", Ok("get nodes --output=json"));
        check("getn -ojson", Ok("get nodes -ojson"));
        check("runx", Ok("run --image=i p -- a"));
        check("unknown x", Ok("unknown x"));
        check("bad", Err("invalid alias flag nope in alias kubectl"));
        check("--namespace=x delete pod y -- z", Ok("--namespace=x delete pod y --interactive=true -- z"));
        let told = preferred(&crate::verbs::ROOT, &split("get pods"), &preference).map(|p| p.told);
        assert_eq!(told.as_deref(), Ok("Warning: command \"nope\" not found to set kuberc override\n"));
    }

    #[test]
    fn the_flag_goes_before_the_variable() {
        let check = |flag: Option<&str>, variable: Option<&str>, wanted: Result<Option<&str>, &str>| {
            let found =
                place(flag, variable).map(|p| p.filter(|(_, named)| *named).map(|(p, _)| p.display().to_string()));
            assert_eq!(found, wanted.map(|w| w.map(str::to_string)).map_err(str::to_string), "{flag:?} {variable:?}");
        };
        check(Some("/a"), Some("/b"), Ok(Some("/a")));
        check(None, Some("/b"), Ok(Some("/b")));
        check(None, Some(""), Ok(None));
        check(None, Some("off"), Ok(None));
        check(Some("off"), None, Ok(Some("off")));
        check(
            Some("/a"),
            Some("off"),
            Err("disabling kuberc via KUBERC=off and passing kuberc flag are mutually exclusive"),
        );
        let check = |line: &str, wanted: Result<Option<&str>, &str>| {
            assert_eq!(named(&split(line)), wanted.map(|w| w.map(str::to_string)).map_err(str::to_string), "{line}");
        };
        check("get --kuberc=/a", Ok(Some("/a")));
        check("get --kuberc /a pods", Ok(Some("/a")));
        check("exec p -- --kuberc=/a", Ok(None));
        check("get --kuberc", Err("kuberc file is not found"));
        check("get --kuberc=", Err("kuberc file is not found"));
    }
}
