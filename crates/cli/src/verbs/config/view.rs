//! `kubectl config view`: the merged kubeconfig, secrets left out unless `--raw`.
//! A subcommand of `config`.
//! Read only.

use serde_json::Value;

use super::merged;
use crate::{
    command::Command,
    failure::Result,
    flags::{Flag, Matches, boolean, string},
    printers::{
        format::{Format, Printer},
        operation::ALLOWED,
    },
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    boolean("allow-missing-template-keys", "true", "Templates skip fields that are not there"),
    boolean("flatten", "false", "Put the content of files into the output, with certificates and secrets"),
    boolean("merge", "true", "Merge all kubeconfig files").bare("true"),
    boolean("minify", "false", "Only what the current context uses"),
    string("output", "yaml", "Form of the output").short('o'),
    boolean("raw", "false", "Show certificates and secrets"),
    boolean("show-managed-fields", "false", "").hidden(),
    string("template", "", "Template, for the forms that take one"),
];

pub static VIEW: Command = Command {
    name: "view",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Display merged kubeconfig settings or a specified kubeconfig file",
    flags: &[FLAGS],
    commands: &[],
    run: run!(view),
};

const SECRETS: [(&str, &str); 5] = [
    ("client-certificate-data", "DATA+OMITTED"),
    ("client-key-data", "DATA+OMITTED"),
    ("certificate-authority-data", "DATA+OMITTED"),
    ("token", "REDACTED"),
    ("password", "REDACTED"),
];

async fn view(session: &Session, matches: &Matches) -> Result<()> {
    let mut config = merged(session)?;
    if matches.bool("minify") {
        let context = matches.opt("context").unwrap_or(&config.current_context).to_string();
        if !context.is_empty() && config.context(&context).is_none() {
            return Err(crate::failure::Failure::message(format!("cannot locate context {context}")));
        }
        let resolved = crate::kubeconfig::resolve::choose(&config, matches)?;
        config.current_context = context.clone();
        config.contexts.retain(|e| e.name == context);
        config.clusters.retain(|e| e.name == resolved.cluster.name);
        config.users.retain(|e| e.name == resolved.user.name);
    }
    if matches.bool("flatten") {
        use base64::{Engine, prelude::BASE64_STANDARD};
        for entry in config.clusters.iter_mut().chain(config.users.iter_mut()) {
            for field in ["certificate-authority", "client-certificate", "client-key"] {
                let Some(path) = entry.value[field].as_str().filter(|p| !p.is_empty()) else { continue };
                let bytes = std::fs::read(entry.file.parent().unwrap_or(std::path::Path::new("")).join(path))?;
                entry.value[format!("{field}-data")] = BASE64_STANDARD.encode(bytes).into();
                if let Some(map) = entry.value.as_object_mut() {
                    map.remove(field);
                }
            }
        }
    }
    if !matches.bool("raw") && !matches.bool("flatten") {
        for entry in config.clusters.iter_mut().chain(config.users.iter_mut()) {
            for (field, shown) in SECRETS {
                if entry.value[field].is_string() {
                    entry.value[field] = shown.into();
                }
            }
        }
    }
    let mut value: Value = config.to_value();
    if let Some(map) = value.as_object_mut() {
        map.retain(|_, v| !v.is_null());
        for list in ["clusters", "contexts", "users"] {
            map.entry(list).or_insert(Value::Null);
        }
    }
    let format = Format::parse(matches, ALLOWED)?.unwrap_or(Format::Yaml);
    let mut printer = Printer::new(format, true);
    printer.typed = true;
    session.output.print(&printer.text(&value)?);
    Ok(())
}
