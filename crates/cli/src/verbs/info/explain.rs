//! `kubectl explain`: what a kind is and what its fields mean.
//! A row of `verbs::ROOT`; the text is made in `crate::explain`.
//! Reads the server's OpenAPI v3 document of one group and version.

use serde_json::Value;

use crate::{
    command::Command,
    explain::{GroupVersionResource, plaintext},
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    boolean("recursive", "false", "Fields of fields too, without their descriptions"),
    string("api-version", "", "Version of the API to read, as group/version"),
    string("output", "plaintext", "plaintext or plaintext-openapiv2").short('o'),
];

pub static COMMAND: Command = Command {
    name: "explain",
    aliases: &[],
    usage: "TYPE [--recursive=FALSE|TRUE] [--api-version=api-version-group] [-o|--output=plaintext|plaintext-openapiv2] [options]",
    about: "Get documentation for a resource",
    flags: &[FLAGS],
    commands: &[],
    run: run!(run),
};

async fn run(session: &Session, matches: &Matches) -> Result<()> {
    let argument = match matches.args.as_slice() {
        [] => {
            return Err(Failure::Plain("error: You must specify the type of resource to explain. Use \"kubectl api-resources\" for a complete list of supported resources.\n".to_string()));
        }
        [one] => one,
        _ => return Err(Failure::message("We accept only this format: explain RESOURCE\n")),
    };
    if !["plaintext", "plaintext-openapiv2"].contains(&matches.str("output")) {
        return Err(Failure::message(format!("unrecognized format: {}", matches.str("output"))));
    }
    let (resource, path) = resource_and_path(session, argument).await?;
    let (mut group, mut version) = (resource.group.clone(), resource.version.clone());
    if let Some(given) = matches.opt("api-version") {
        let (given_group, given_version) = given.split_once('/').unwrap_or(("", given));
        (group, version) = (given_group.to_string(), given_version.to_string());
    }
    let document = document(session, &group, &version, &resource.name).await?;
    let wanted = GroupVersionResource { group: &group, version: &version, resource: &resource.name };
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    match plaintext(&document, wanted, &path, matches.bool("recursive")) {
        Ok(text) => session.output.print(&text),
        Err(why) => {
            // What it is was known before the field was looked for.
            let group = if group.is_empty() { String::new() } else { format!("GROUP:      {group}\n") };
            let head = format!("{group}KIND:       {}\nVERSION:    {version}\n\n", resource.kind);
            session.output.print(&head);
            return Err(Failure::message(why));
        }
    }
    Ok(())
}

/// `pods.spec.containers` or `deployments.apps.spec`: the longest beginning that names a resource, then fields.
async fn resource_and_path(
    session: &Session,
    argument: &str,
) -> Result<(std::rc::Rc<crate::discovery::ApiResource>, Vec<String>)> {
    let parts: Vec<&str> = argument.split('.').collect();
    let served = session.discovery().await?;
    if let Some(found) = served.find(parts[0]) {
        // A group behind the name is part of it only if it is that resource's own.
        for length in (2..=parts.len()).rev() {
            if let Some(qualified) = served
                .find(&parts[..length].join("."))
                .filter(|own| parts[1..length].join(".").ends_with(&own.group) && !own.group.is_empty())
            {
                return Ok((qualified, parts[length..].iter().map(|part| part.to_string()).collect()));
            }
        }
        return Ok((found, parts[1..].iter().map(|part| part.to_string()).collect()));
    }
    let plain = |failure: Failure| match failure {
        // Upstream leaves the prefix out here.
        Failure::Message(text) => Failure::Plain(text),
        other => other,
    };
    let found = session.resource(parts[0]).await.map_err(plain)?;
    Ok((found, parts[1..].iter().map(|part| part.to_string()).collect()))
}

async fn document(session: &Session, group: &str, version: &str, resource: &str) -> Result<Value> {
    let rest = session.rest().await?;
    let key = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
    let index = rest.get("/openapi/v3").value().await?;
    let Some(url) = index["paths"][&key]["serverRelativeURL"].as_str() else {
        let shown = if group.is_empty() { version.to_string() } else { format!("{group}/{version}") };
        return Err(Failure::message(format!("couldn't find resource for \"{shown}, Resource={resource}\"")));
    };
    rest.get(url).value().await
}
