//! Credentials that a program prints: `users[].user.exec`.
//! Used by `resolve`.
//! The program is run once for a command, and only if nothing else says who we are.

use std::process::Stdio;

use serde_json::{Value, json};

use super::Entry;
use crate::failure::{Failure, Result};

#[derive(Default)]
pub struct Credential {
    pub token: Option<String>,
    pub certificate: Option<Vec<u8>>,
    pub key: Option<Vec<u8>>,
}

const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

fn failed(cause: String) -> Failure {
    Failure::Connection { server: String::new(), refused: false, cause: format!("getting credentials: {cause}") }
}

/// `stdin_in_use`: the command reads its own input there.
pub async fn credential(
    user: &Entry,
    cluster: &Entry,
    server: &str,
    ca: &[u8],
    stdin_in_use: bool,
) -> Result<Credential> {
    let exec = &user.value["exec"];
    let text = |field: &str| exec[field].as_str().unwrap_or_default();
    let version = text("apiVersion");
    if !VERSIONS.contains(&version) {
        return Err(Failure::message(format!("exec plugin: invalid apiVersion {version:?}")));
    }
    let interactive_mode = match text("interactiveMode") {
        "" if version == VERSIONS[0] => {
            return Err(Failure::Plain(format!(
                "Error in configuration: interactiveMode must be specified for {} to use exec authentication plugin",
                user.name
            )));
        }
        "" => "IfAvailable",
        mode => mode,
    };
    use std::io::IsTerminal;
    let terminal = std::io::stdin().is_terminal();
    let interactive = match interactive_mode {
        "Never" => false,
        "IfAvailable" => terminal && !stdin_in_use,
        "Always" if stdin_in_use => {
            return Err(failed(
                "exec plugin cannot support interactive mode: standard input is unavailable: used by stdin resource manifest reader".to_string(),
            ));
        }
        "Always" if !terminal => {
            return Err(failed(
                "exec plugin cannot support interactive mode: standard input is not a terminal".to_string(),
            ));
        }
        _ => true,
    };
    let mut spec = json!({"interactive": interactive});
    if exec["provideClusterInfo"] == true {
        use base64::{Engine, prelude::BASE64_STANDARD};
        spec["cluster"] = json!({"server": server, "certificate-authority-data": BASE64_STANDARD.encode(ca)});
        if let Some(name) = cluster.value["tls-server-name"].as_str() {
            spec["cluster"]["tls-server-name"] = name.into();
        }
        if cluster.value["insecure-skip-tls-verify"] == true {
            spec["cluster"]["insecure-skip-tls-verify"] = true.into();
        }
        for extension in cluster.value["extensions"].as_array().into_iter().flatten() {
            if extension["name"] == "client.authentication.k8s.io/exec" {
                spec["cluster"]["config"] = extension["extension"].clone();
            }
        }
    }
    let info = json!({"apiVersion": version, "kind": "ExecCredential", "spec": spec});
    let program = match text("command") {
        relative if relative.contains('/') && !relative.starts_with('/') => super::resolve_beside(user, relative),
        other => other.to_string(),
    };
    let mut command = tokio::process::Command::new(&program);
    for argument in exec["args"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        command.arg(argument);
    }
    for pair in exec["env"].as_array().into_iter().flatten() {
        if let (Some(name), Some(value)) = (pair["name"].as_str(), pair["value"].as_str()) {
            command.env(name, value);
        }
    }
    command.env("KUBERNETES_EXEC_INFO", info.to_string());
    command.stdin(if interactive { Stdio::inherit() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let ran = command.spawn().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            let hint = text("installHint");
            let hint = if hint.is_empty() { String::new() } else { format!("\n\n{hint}") };
            failed(format!("exec: executable {program} not found{hint}"))
        }
        _ => failed(format!("exec: {e}")),
    })?;
    let done = ran.wait_with_output().await.map_err(|e| failed(format!("exec: {e}")))?;
    if !done.status.success() {
        let code = done.status.code().unwrap_or(-1);
        return Err(failed(format!("exec: executable {program} failed with exit code {code}")));
    }
    read(&done.stdout, version)
}

fn read(stdout: &[u8], version: &str) -> Result<Credential> {
    let value: Value = serde_json::from_slice(stdout)
        .map_err(|e| failed(format!("decoding stdout: couldn't get version/kind; json parse error: {e}")))?;
    if value["apiVersion"] != version {
        let found = value["apiVersion"].as_str().unwrap_or_default();
        return Err(failed(format!(
            "exec plugin is configured to use API version {version}, plugin returned version {found}"
        )));
    }
    let status = &value["status"];
    if !status.is_object() {
        return Err(failed("exec plugin didn't return a status field".to_string()));
    }
    let text = |field: &str| status[field].as_str().filter(|t| !t.is_empty()).map(str::to_string);
    let credential = Credential {
        token: text("token"),
        certificate: text("clientCertificateData").map(String::into_bytes),
        key: text("clientKeyData").map(String::into_bytes),
    };
    match (&credential.token, &credential.certificate, &credential.key) {
        (None, None, None) => Err(failed("exec plugin didn't return a token or cert/key pair".to_string())),
        (_, Some(_), None) | (_, None, Some(_)) => {
            Err(failed("exec plugin returned only certificate or key, not both".to_string()))
        }
        _ => Ok(credential),
    }
}
