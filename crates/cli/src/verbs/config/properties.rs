//! `kubectl config set` and `unset`: one property by its path.
//! Subcommands of `config`.
//! A path is `users.NAME.token`, `contexts.NAME.namespace`, `current-context`, `preferences.colors`.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{merged, open};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean},
    kubeconfig::{Config, Entry, from_base64},
    run,
    session::Session,
};

const FLAGS: &[Flag] =
    &[boolean("set-raw-bytes", "false", "The value of a data field is not in base64 yet").bare("true")];

pub static SET: Command = Command {
    name: "set",
    aliases: &[],
    usage: "PROPERTY_NAME PROPERTY_VALUE [options]",
    about: "Set an individual value in a kubeconfig file",
    flags: &[FLAGS],
    commands: &[],
    run: run!(set),
};

pub static UNSET: Command = Command {
    name: "unset",
    aliases: &[],
    usage: "PROPERTY_NAME [options]",
    about: "Unset an individual value in a kubeconfig file",
    flags: &[],
    commands: &[],
    run: run!(unset),
};

/// `users.a.b.c.token` is the token of user `a.b.c`, if there is one of that name.
fn entry_and_field<'a>(entries: &[Entry], rest: &'a str) -> (&'a str, &'a str) {
    let mut cuts = rest.rmatch_indices('.').map(|(at, _)| at);
    let known = cuts.find(|at| entries.iter().any(|e| e.name == rest[..*at]));
    match known.or_else(|| rest.find('.')) {
        Some(at) if !entries.iter().any(|e| e.name == rest) => (&rest[..at], &rest[at + 1..]),
        _ => (rest, ""),
    }
}

fn list<'a>(config: &'a mut Config, kind: &str) -> Option<&'a mut Vec<Entry>> {
    match kind {
        "clusters" => Some(&mut config.clusters),
        "users" => Some(&mut config.users),
        "contexts" => Some(&mut config.contexts),
        _ => None,
    }
}

fn change(session: &Session, property: &str, value: Option<Value>) -> Result<()> {
    let mut all = merged(session)?;
    let default = session.places().default_file();
    let (kind, rest) = property.split_once('.').unwrap_or((property, ""));
    let unknown = || Failure::message(format!("unable to parse {property} after [] at api.Config"));
    if kind == "current-context" {
        let file = if all.current_context.is_empty() { default } else { all.current_context_file.clone() };
        let mut config = open(&file)?;
        config.current_context = value.and_then(|v| v.as_str().map(str::to_string)).unwrap_or_default();
        return config.write(&file);
    }
    if kind == "preferences" {
        let mut config = open(&default)?;
        match value {
            Some(value) => config.preferences[rest] = value,
            None => config.preferences = Value::Null,
        }
        return config.write(&default);
    }
    let entries = list(&mut all, kind).ok_or_else(unknown)?;
    if rest.is_empty() {
        return match value {
            Some(_) => Err(Failure::message("can't set a map to a value: map[]")),
            None => {
                let mut config = open(&default)?;
                list(&mut config, kind).ok_or_else(unknown)?.clear();
                config.write(&default)
            }
        };
    }
    let (name, field) = entry_and_field(entries, rest);
    let file = entries.iter().find(|e| e.name == name).map_or(default, |e| e.file.clone());
    let mut config = open(&file)?;
    let entries = list(&mut config, kind).ok_or_else(unknown)?;
    match value {
        Some(_) if field.is_empty() => return Err(Failure::message("can't set a map to a value: map[]")),
        Some(value) => {
            if !entries.iter().any(|e| e.name == name) {
                entries.push(Entry { name: name.to_string(), value: json!({}), file: file.clone() });
            }
            if let Some(entry) = entries.iter_mut().find(|e| e.name == name) {
                entry.value[field] = value;
            }
        }
        None if field.is_empty() => entries.retain(|e| e.name != name),
        None => {
            let entry = entries.iter_mut().find(|e| e.name == name);
            let entry = entry.ok_or_else(|| Failure::message(format!("current map key `{name}` is invalid")))?;
            if let Some(map) = entry.value.as_object_mut() {
                map.remove(field);
            }
        }
    }
    config.write(&file)
}

async fn set(session: &Session, matches: &Matches) -> Result<()> {
    let [property, text] = matches.args.as_slice() else {
        return Err(Failure::Help(Some(format!("Unexpected args: [{}]", matches.args.join(" ")))));
    };
    let value: Value = if property.ends_with("-data") {
        match matches.bool("set-raw-bytes") {
            true => BASE64_STANDARD.encode(text).into(),
            false => {
                let decoded = from_base64(text);
                let bytes = decoded.map_err(|e| Failure::message(format!("error decoding input value: {e}")))?;
                BASE64_STANDARD.encode(bytes).into()
            }
        }
    } else if property.ends_with("insecure-skip-tls-verify") || property.ends_with("disable-compression") {
        text.parse::<bool>()
            .map_err(|_| Failure::message(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")))?
            .into()
    } else {
        text.clone().into()
    };
    change(session, property, Some(value))?;
    session.output.line(&format!("Property {property:?} set."));
    Ok(())
}

async fn unset(session: &Session, matches: &Matches) -> Result<()> {
    let [property] = matches.args.as_slice() else {
        return Err(Failure::Help(Some(format!("Unexpected args: [{}]", matches.args.join(" ")))));
    };
    change(session, property, None)?;
    session.output.line(&format!("Property {property:?} unset."));
    Ok(())
}
