//! `kubectl api-resources`: what the server serves.
//! A row of `verbs::ROOT`.
//! Always asks the server, unless `--cached`.

use std::rc::Rc;

use serde_json::json;

use crate::{
    command::Command,
    discovery::{ApiResource, Discovery},
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, list, string},
    printers::{columns::TabWriter, format::json_text, yaml},
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    string("api-group", "", "Only of this group"),
    boolean("cached", "false", "Use the cache if there is one"),
    list("categories", "Only of these categories"),
    boolean("namespaced", "true", "Only namespaced ones, or only the others"),
    boolean("no-headers", "false", "Leave out the headers"),
    string("output", "", "json, yaml, wide or name").short('o'),
    boolean("show-managed-fields", "false", "").hidden(),
    string("sort-by", "", "name or kind"),
    list("verbs", "Only with these verbs"),
];

pub static COMMAND: Command = Command {
    name: "api-resources",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Print the supported API resources on the server",
    flags: &[FLAGS],
    commands: &[],
    run: run!(api_resources),
};

async fn api_resources(session: &Session, matches: &Matches) -> Result<()> {
    if !matches.args.is_empty() {
        return Err(Failure::usage(format!("unexpected arguments: [{}]", matches.args.join(" "))));
    }
    let (output, sort_by) = (matches.str("output"), matches.str("sort-by"));
    if !["", "wide", "name", "json", "yaml", "kyaml"].contains(&output) {
        return Err(Failure::message(format!(
            "unable to match a printer suitable for the output format {output:?}, allowed formats are: json,kyaml,name,wide,yaml"
        )));
    }
    if !["", "name", "kind"].contains(&sort_by) {
        return Err(Failure::message("--sort-by accepts only name or kind"));
    }
    let discovery = Discovery::load(session, !matches.bool("cached")).await?;
    let mut found: Vec<Rc<ApiResource>> = Vec::new();
    for group in &discovery.groups {
        // Of each resource the preferred version, or the first that has it.
        let mut of_group: Vec<Rc<ApiResource>> = Vec::new();
        let mut versions: Vec<&String> = vec![&group.preferred];
        versions.extend(group.versions.iter().filter(|v| **v != group.preferred));
        for version in versions {
            for resource in discovery.resources.iter().filter(|r| r.group == group.name && r.version == *version) {
                if !resource.name.contains('/') && !of_group.iter().any(|r| r.name == resource.name) {
                    of_group.push(resource.clone());
                }
            }
        }
        found.extend(of_group);
    }
    let (verbs, categories) = (matches.list("verbs"), matches.list("categories"));
    found.retain(|r| {
        !r.verbs.is_empty()
            && (!matches.changed("api-group") || r.group == matches.str("api-group"))
            && (!matches.changed("namespaced") || r.namespaced == matches.bool("namespaced"))
            && verbs.iter().all(|v| r.can(v))
            && categories.iter().all(|c| r.categories.contains(c))
    });
    match sort_by {
        "name" => found.sort_by(|a, b| a.name.cmp(&b.name)),
        "kind" => found.sort_by(|a, b| a.kind.cmp(&b.kind)),
        _ => found.sort_by(|a, b| (&a.group, &a.name).cmp(&(&b.group, &b.name))),
    }
    print(session, matches, output, &found)?;
    match discovery.failed.is_empty() {
        true => Ok(()),
        false => {
            let told: Vec<String> = discovery.failed.iter().map(|(group, why)| format!("{group}: {why}")).collect();
            Err(Failure::message(format!("unable to retrieve the complete list of server APIs: {}", told.join(", "))))
        }
    }
}

fn print(session: &Session, matches: &Matches, output: &str, found: &[Rc<ApiResource>]) -> Result<()> {
    match output {
        "name" => found.iter().for_each(|r| session.output.line(&r.qualified())),
        "json" | "yaml" | "kyaml" => {
            let resources: Vec<_> = found
                .iter()
                .map(|r| {
                    let mut value = r.json();
                    value["version"] = r.version.clone().into();
                    if !r.group.is_empty() {
                        value["group"] = r.group.clone().into();
                    }
                    value
                })
                .collect();
            let list =
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "", "resources": resources});
            match output {
                "json" => session.output.print(&json_text(&list)),
                "yaml" => session.output.print(&yaml::to_string(&list)),
                _ => session.output.print(&crate::printers::kyaml::to_string(&list)),
            }
        }
        _ => {
            let wide = output == "wide";
            let mut writer = TabWriter::default();
            let mut headers = vec!["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"];
            if wide {
                headers.extend(["VERBS", "CATEGORIES"]);
            }
            if !matches.bool("no-headers") {
                writer.row(headers.iter().map(|h| h.to_string()).collect());
            }
            for r in found {
                let mut cells = vec![
                    r.name.clone(),
                    r.short_names.join(","),
                    r.group_version(),
                    r.namespaced.to_string(),
                    r.kind.clone(),
                ];
                if wide {
                    cells.push(r.verbs.join(","));
                    cells.push(r.categories.join(","));
                }
                writer.row(cells);
            }
            session.output.print(&writer.flush());
        }
    }
    Ok(())
}
