//! Credentials that a program prints: `users[].user.exec` of a kubeconfig.
//! Run by `https` when a request needs a credential, and by `cli` once for a command.
//! Never asks anybody anything unless a terminal is there and the kubeconfig lets it.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use jiff::Timestamp;
use serde_json::{Value, json};

const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// For who has never heard of such programs.
const PLUGIN_ADVICE: &str = "It looks like you are trying to use a client-go credential plugin that is not installed.

To learn more about this feature, consult the documentation available at:
      https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins";

#[derive(Debug, Default, Clone)]
pub struct ExecCredential {
    pub token: Option<String>,
    pub certificate_pem: Option<Vec<u8>>,
    pub key_pem: Option<Vec<u8>>,
    pub expires: Option<Timestamp>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ExecError {
    #[error("exec plugin: invalid apiVersion {0:?}")]
    Version(String),
    #[error("interactiveMode must be specified for {0} to use exec authentication plugin")]
    InteractiveMode(String),
    #[error("getting credentials: {0}")]
    Failed(String),
}

fn failed(cause: impl Into<String>) -> ExecError {
    ExecError::Failed(cause.into())
}

/// The program, and what it is told.
#[derive(Debug, Clone)]
pub struct ExecPlugin {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    install_hint: String,
    api_version: String,
    interactive_mode: String,
    cluster: Option<Value>,
}

impl ExecPlugin {
    /// `user` and `cluster` as the kubeconfig has them; relative paths are seen from its `directory`.
    pub fn new(
        user_name: &str,
        user: &Value,
        cluster: &Value,
        server: &str,
        ca_pem: &[u8],
        directory: &Path,
    ) -> Result<Self, ExecError> {
        let exec = &user["exec"];
        let text = |field: &str| exec[field].as_str().unwrap_or_default().to_string();
        let api_version = text("apiVersion");
        if !VERSIONS.contains(&api_version.as_str()) {
            return Err(ExecError::Version(api_version));
        }
        let interactive_mode = match text("interactiveMode") {
            none if none.is_empty() && api_version == VERSIONS[0] => {
                return Err(ExecError::InteractiveMode(user_name.to_string()));
            }
            none if none.is_empty() => "IfAvailable".to_string(),
            mode => mode,
        };
        let program = match text("command") {
            relative if relative.contains('/') && !relative.starts_with('/') => {
                PathBuf::from(directory).join(relative).display().to_string()
            }
            other => other,
        };
        let texts = exec["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let pairs = exec["env"].as_array().into_iter().flatten();
        let pair = |pair: &Value| Some((pair["name"].as_str()?.to_string(), pair["value"].as_str()?.to_string()));
        Ok(Self {
            program,
            arguments: texts.map(str::to_string).collect(),
            environment: pairs.filter_map(pair).collect(),
            install_hint: text("installHint"),
            api_version,
            interactive_mode,
            cluster: (exec["provideClusterInfo"] == true).then(|| cluster_info(cluster, server, ca_pem)),
        })
    }

    /// What is run, relative to nothing but the search path.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Runs the program and reads what it prints. Blocks for as long as it runs.
    /// `stdin_in_use`: the caller reads its own input there, so the program can't.
    pub fn run(&self, stdin_in_use: bool) -> Result<ExecCredential, ExecError> {
        let terminal = std::io::stdin().is_terminal();
        let interactive = match self.interactive_mode.as_str() {
            "Never" => false,
            "IfAvailable" => terminal && !stdin_in_use,
            "Always" if stdin_in_use => {
                return Err(failed(
                    "exec plugin cannot support interactive mode: standard input is unavailable: used by stdin \
                     resource manifest reader",
                ));
            }
            "Always" if !terminal => {
                return Err(failed("exec plugin cannot support interactive mode: standard input is not a terminal"));
            }
            _ => true,
        };
        let mut spec = json!({"interactive": interactive});
        if let Some(cluster) = &self.cluster {
            spec["cluster"] = cluster.clone();
        }
        let info = json!({"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec});
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.environment.iter().cloned());
        command.env("KUBERNETES_EXEC_INFO", info.to_string());
        command.stdin(if interactive { Stdio::inherit() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let program = &self.program;
        let done = command.spawn().and_then(|running| running.wait_with_output()).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                let hint = match self.install_hint.trim() {
                    "" => String::new(),
                    hint => format!("\n\n{hint}"),
                };
                failed(format!("exec: executable {program} not found\n\n{PLUGIN_ADVICE}{hint}"))
            }
            _ => failed(format!("exec: {e}")),
        })?;
        if !done.status.success() {
            let code = done.status.code().unwrap_or(-1);
            return Err(failed(format!("exec: executable {program} failed with exit code {code}")));
        }
        read(&done.stdout, &self.api_version)
    }
}

fn cluster_info(cluster: &Value, server: &str, ca_pem: &[u8]) -> Value {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let mut info = json!({"server": server, "certificate-authority-data": BASE64_STANDARD.encode(ca_pem)});
    for field in ["tls-server-name", "proxy-url"] {
        if let Some(text) = cluster[field].as_str() {
            info[field] = text.into();
        }
    }
    if cluster["insecure-skip-tls-verify"] == true {
        info["insecure-skip-tls-verify"] = true.into();
    }
    for extension in cluster["extensions"].as_array().into_iter().flatten() {
        if extension["name"] == "client.authentication.k8s.io/exec" {
            info["config"] = extension["extension"].clone();
        }
    }
    info
}

fn read(stdout: &[u8], version: &str) -> Result<ExecCredential, ExecError> {
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
        return Err(failed("exec plugin didn't return a status field"));
    }
    let text = |field: &str| status[field].as_str().filter(|t| !t.is_empty()).map(str::to_string);
    let credential = ExecCredential {
        token: text("token"),
        certificate_pem: text("clientCertificateData").map(String::into_bytes),
        key_pem: text("clientKeyData").map(String::into_bytes),
        expires: text("expirationTimestamp").and_then(|time| time.parse().ok()),
    };
    match (&credential.token, &credential.certificate_pem, &credential.key_pem) {
        (None, None, None) => Err(failed("exec plugin didn't return a token or cert/key pair")),
        (_, Some(_), None) | (_, None, Some(_)) => {
            Err(failed("exec plugin returned only certificate or key, not both"))
        }
        _ => Ok(credential),
    }
}
