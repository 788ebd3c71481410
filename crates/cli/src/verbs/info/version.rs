//! `kubectl version`: of the client and of the server.
//! A row of `verbs::ROOT`.
//! Without a server, or with `--client`, only the client's.

use serde_json::{Value, json};

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Matches, boolean, string},
    printers::yaml,
    run,
    session::{CLIENT_VERSION, Session},
};

const KUSTOMIZE_VERSION: &str = "v5.7.1";
const CLIENT_MINOR: i64 = 35;

pub static COMMAND: Command = Command {
    name: "version",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Print the client and server version information",
    flags: &[&[
        boolean("client", "false", "Show only the version of the client; needs no server"),
        string("output", "", "One of 'yaml' or 'json'").short('o'),
    ]],
    commands: &[],
    run: run!(version),
};

/// The client as the server would describe itself.
pub fn client_version() -> Value {
    json!({
        "major": "1",
        "minor": CLIENT_MINOR.to_string(),
        "gitVersion": CLIENT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("linux/{}", architecture()),
    })
}

/// Of a version, as Go's `%#v` prints it.
pub fn go_value(version: &Value) -> String {
    let fields = [
        "major",
        "minor",
        "emulationMajor",
        "emulationMinor",
        "minCompatibilityMajor",
        "minCompatibilityMinor",
        "gitVersion",
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ];
    let shown = fields.map(|field| {
        let (first, rest) = field.split_at(1);
        format!("{}{rest}:{:?}", first.to_uppercase(), version[field].as_str().unwrap_or_default())
    });
    format!("version.Info{{{}}}", shown.join(", "))
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

async fn version(session: &Session, matches: &Matches) -> Result<()> {
    if !matches.args.is_empty() && !matches.bool("client") {
        return Err(Failure::message(format!("extra arguments: {}", go_list(&matches.args))));
    }
    if !["", "yaml", "json"].contains(&matches.str("output")) {
        return Err(Failure::message("--output must be 'yaml' or 'json'"));
    }
    let server = match matches.bool("client") {
        true => None,
        false => Some(match session.rest().await {
            Ok(rest) => rest.get("/version").value().await,
            Err(failure) => Err(failure),
        }),
    };
    let mut shown = json!({"clientVersion": client_version(), "kustomizeVersion": KUSTOMIZE_VERSION});
    if let Some(Ok(found)) = &server {
        shown["serverVersion"] = found.clone();
    }
    match matches.str("output") {
        "json" => session.output.line(&serde_json::to_string_pretty(&shown)?),
        "yaml" => session.output.print(&yaml::to_string(&shown)),
        _ => {
            session.output.line(&format!("Client Version: {CLIENT_VERSION}"));
            session.output.line(&format!("Kustomize Version: {KUSTOMIZE_VERSION}"));
            if let Some(Ok(found)) = &server {
                let version = found["gitVersion"].as_str().unwrap_or_default();
                session.output.line(&format!("Server Version: {version}"));
                warn_of_skew(session, version);
            }
        }
    }
    match server {
        Some(Err(failure)) => Err(failure),
        _ => Ok(()),
    }
}

fn warn_of_skew(session: &Session, version: &str) {
    let mut parts = version.trim_start_matches('v').split('.').map(|p| p.parse::<i64>().unwrap_or(0));
    let (major, minor) = (parts.next().unwrap_or(1), parts.next().unwrap_or(CLIENT_MINOR));
    if major != 1 || (minor - CLIENT_MINOR).abs() > 1 {
        session.output.warn(&format!(
            "Warning: version difference between client (1.{CLIENT_MINOR}) and server ({major}.{minor}) exceeds the supported minor version skew of +/-1"
        ));
    }
}

/// A list as Go prints it.
pub fn go_list(words: &[String]) -> String {
    format!("[{}]", words.join(" "))
}
