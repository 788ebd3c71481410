//! `kubectl alpha kuberc`: shows and changes the file of preferences.
//! A row of `verbs::ROOT` under `alpha`; `crate::kuberc` applies the file to command lines.
//! Writes the file only; asks no server.

use std::{fs, io, path::PathBuf};

use serde_json::{Value, json};

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, array, boolean, string},
    printers::{format::json_text, yaml},
    run,
    session::Session,
};

pub static ALPHA: Command = Command {
    name: "alpha",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Commands for features in alpha",
    flags: &[],
    commands: &[&KUBERC],
    run: None,
};

static KUBERC: Command = Command {
    name: "kuberc",
    aliases: &[],
    usage: "SUBCOMMAND [options]",
    about: "Manage kuberc configuration files",
    flags: &[],
    commands: &[&SET, &VIEW],
    run: None,
};

const VIEW_FLAGS: &[Flag] = &[string("output", "yaml", "json or yaml").short('o')];
static VIEW: Command = Command {
    name: "view",
    aliases: &[],
    usage: "[options]",
    about: "Display the current kuberc configuration",
    flags: &[VIEW_FLAGS],
    commands: &[],
    run: run!(view),
};

const SET_FLAGS: &[Flag] = &[
    string("section", "", "Section to change: defaults or aliases"),
    string("command", "", "Command that it is about, such as get, or set env"),
    string("name", "", "Name of the alias"),
    array("option", "Option as flag=value; may be repeated"),
    array("prependarg", "For aliases: argument in front of the typed ones; may be repeated"),
    array("appendarg", "For aliases: argument behind the typed ones; may be repeated"),
    boolean("overwrite", "false", "Replace what is there"),
];
static SET: Command = Command {
    name: "set",
    aliases: &[],
    usage: "--section (defaults|aliases) --command COMMAND [options]",
    about: "Set values in the kuberc configuration",
    flags: &[SET_FLAGS],
    commands: &[],
    run: run!(set),
};

fn path(matches: &Matches) -> Result<PathBuf> {
    let off = || Failure::message("KUBERC is disabled via KUBERC=off environment variable");
    let place = crate::kuberc::path(matches.opt("kuberc")).map_err(Failure::Message)?;
    place.map(|(file, _)| file).ok_or_else(off)
}

/// `None` where there is no file.
fn read(path: &PathBuf) -> Result<Option<Value>> {
    match fs::read(path) {
        Ok(bytes) if bytes.is_empty() => Ok(None),
        Ok(bytes) => crate::resource::yaml::read(&bytes)
            .map(Some)
            .map_err(|why| Failure::message(format!("error parsing kuberc file: {why}"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::message(format!("error reading kuberc file: {error}"))),
    }
}

fn save(session: &Session, path: &PathBuf, preference: &Value) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, yaml::to_string(preference))?;
    session.output.line(&format!("Updated {}", path.display()));
    Ok(())
}

fn empty() -> Value {
    json!({"apiVersion": "kubectl.config.k8s.io/v1beta1", "kind": "Preference"})
}

async fn view(session: &Session, matches: &Matches) -> Result<()> {
    let path = path(matches)?;
    let Some(mut preference) = read(&path)? else {
        let missing = format!("kuberc file not found at {}", path.display());
        if matches.opt("kuberc").is_some() {
            return Err(Failure::Message(missing));
        }
        session.output.line(&missing);
        session.output.print("Would you like to generate a default kuberc file with recommended options? (y/N): ");
        session.output.flush();
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        if !answer.trim().eq_ignore_ascii_case("y") {
            return Ok(());
        }
        let mut preference = empty();
        preference["defaults"] = json!([
            {"command": "apply", "options": [{"name": "server-side", "default": "true"}]},
            {"command": "delete", "options": [{"name": "interactive", "default": "true"}]},
        ]);
        return save(session, &path, &preference);
    };
    for section in ["aliases", "defaults"] {
        if preference[section].is_null() {
            preference[section] = json!([]);
        }
    }
    match matches.str("output") {
        "yaml" => session.output.print(&yaml::to_string(&preference)),
        "json" => session.output.print(&json_text(&preference)),
        other => {
            return Err(Failure::message(format!(
                "unable to match a printer suitable for the output format {other:?}, allowed formats are: json,yaml"
            )));
        }
    }
    Ok(())
}

async fn set(session: &Session, matches: &Matches) -> Result<()> {
    let path = path(matches)?;
    let mut preference = read(&path)?.unwrap_or_else(empty);
    change(&mut preference, matches)?;
    save(session, &path, &preference)
}

fn change(preference: &mut Value, matches: &Matches) -> Result<()> {
    let missing: Vec<String> = ["command", "section"]
        .into_iter()
        .filter(|name| !matches.changed(name))
        .map(|name| format!("{name:?}"))
        .collect();
    if !missing.is_empty() {
        return Err(Failure::message(format!("required flag(s) {} not set", missing.join(", "))));
    }
    let (section, command, name) = (matches.str("section"), matches.str("command"), matches.str("name"));
    let (before, behind) = (matches.list("prependarg"), matches.list("appendarg"));
    match section {
        "aliases" if name.is_empty() => return Err(Failure::message("--name is required when --section=aliases")),
        "aliases" => {}
        "defaults" if !name.is_empty() => {
            return Err(Failure::message("--name should not be specified when --section=defaults"));
        }
        "defaults" if !before.is_empty() || !behind.is_empty() => {
            return Err(Failure::message("--prependarg and --appendarg are only valid for --section=aliases"));
        }
        "defaults" => {}
        other => {
            return Err(Failure::message(format!("--section must be \"defaults\" or \"aliases\", got: {other}")));
        }
    }
    let mut options = Vec::new();
    for option in matches.list("option") {
        let Some((flag, value)) = option.split_once('=') else {
            return Err(Failure::message(format!("invalid option format {option:?}, expected flag=value")));
        };
        options.push(json!({"name": flag.trim_start_matches('-'), "default": value}));
    }
    let mut entry = json!({"command": command});
    if !options.is_empty() {
        entry["options"] = options.into();
    }
    let (key, wanted, taken) = match section {
        "aliases" => ("name", name, format!("alias {name:?} already exists, use --overwrite to replace")),
        _ => {
            ("command", command, format!("defaults for command {command:?} already exist, use --overwrite to replace"))
        }
    };
    if section == "aliases" {
        entry["name"] = name.into();
        for (field, words) in [("prependArgs", before), ("appendArgs", behind)] {
            if !words.is_empty() {
                entry[field] = words.into();
            }
        }
    }
    if preference[section].is_null() {
        preference[section] = json!([]);
    }
    let entries = preference[section]
        .as_array_mut()
        .ok_or_else(|| Failure::message(format!("error parsing kuberc file: {section} is no list")))?;
    match entries.iter_mut().find(|own| own[key] == wanted) {
        Some(_) if !matches.bool("overwrite") => return Err(Failure::Message(taken)),
        Some(own) => *own = entry,
        None => entries.push(entry),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::fake::FakeServer;

    #[test]
    fn preferences_are_written_and_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kuberc");
        let flag = format!("--kuberc={}", file.display());
        let check = |words: &str, wanted: &str| {
            let mut line = vec!["alpha", "kuberc"];
            line.extend(words.split(' '));
            line.push(&flag);
            let (out, err, _) = FakeServer::default().run(&line);
            assert!(format!("{out}{err}").contains(wanted), "{words}: {out}{err}");
        };
        check("view", "error occurred while applying preferences kuberc error kuberc: open");
        std::fs::write(&file, "").unwrap();
        check("view", "kuberc file not found at");
        check("set --section defaults --command get --option output=wide", "Updated");
        check("set --section defaults --command get --option output=json", "already exist, use --overwrite");
        check("set --section aliases --name getn --command get --prependarg nodes", "Updated");
        check("set --section aliases --command get", "--name is required");
        check("set --section x --command get", "--section must be");
        check("set --command get", "required flag(s) \"section\" not set");
        check("view", "command: get\n  name: getn\n  prependArgs:\n  - nodes");
        check("view -o json", "\"default\": \"wide\"");
    }
}
