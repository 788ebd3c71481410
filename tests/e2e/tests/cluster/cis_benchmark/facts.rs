//! What a running cluster shows of itself, and the questions that rows ask of it.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::{Cluster, Kubectl, Namespace, eventually, minke};
use serde_json::Value;

/// One process runs all components, so that the files and flags of single ones are not there.
pub fn one_process(facts: &Facts) -> Result<(), String> {
    let path = facts.kubelet["staticPodPath"].as_str().unwrap_or_default();
    that(path.is_empty(), format!("static pods come from {path}"))
}

/// The store is the embedded one: no etcd listens, nothing is sent to one.
pub fn no_etcd(facts: &Facts) -> Result<(), String> {
    let named = facts.arguments.contains("--etcd") || facts.arguments.contains("etcd=");
    that(!named, facts.arguments.clone())
}

pub fn nothing(_: &Facts) -> Result<(), String> {
    Ok(())
}

pub const RESTRICTED: &str = "securityContext: {allowPrivilegeEscalation: false, runAsNonRoot: true, \
    capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}";

pub fn pod(container: &str) -> String {
    pod_with(container, "")
}

pub fn pod_with(container: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: cis}}\nspec:\n  {more}\n  containers:\n  - name: c\n    image: none\n    \
         {container}\n"
    )
}

pub fn that(holds: bool, seen: impl Into<String>) -> Result<(), String> {
    if holds { Ok(()) } else { Err(seen.into()) }
}

pub struct Facts {
    pub data: PathBuf,
    pub kubectl: Kubectl,
    /// In a namespace that enforces the restricted standard.
    pub restricted: Namespace,
    pub node: String,
    pub api: SocketAddr,
    pub kubelet_address: SocketAddr,
    /// What the kubelet says of its configuration.
    pub kubelet: Value,
    /// Of the process that runs the cluster.
    pub arguments: String,
    pub help: String,
    /// What the account of pods may do.
    pub account: String,
}

impl Facts {
    pub fn gather() -> Self {
        let cluster = Cluster::shared();
        let kubectl = cluster.kubectl();
        let restricted = kubectl.namespace("cis");
        let label = "pod-security.kubernetes.io/enforce=restricted";
        kubectl.run(&["label", "namespace", &restricted.name, label]);
        eventually("the namespace is restricted", || {
            let privileged = pod("securityContext: {privileged: true}");
            let made = restricted.try_run(&["create", "--dry-run=server", "-f", "-"], &privileged);
            if made.ok { Err(made) } else { Ok(()) }
        });
        let node = kubectl.json(&["get", "nodes"])["items"][0].clone();
        let name = node["metadata"]["name"].as_str().expect("a node").to_string();
        let configz = kubectl.run(&["get", "--raw", &format!("/api/v1/nodes/{name}/proxy/configz")]);
        let configz: Value = serde_json::from_str(&configz).expect("a document");
        let server = kubectl.run(&["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"]);
        let kubelet_port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().expect("a port");
        let arguments = fs::read(format!("/proc/{}/cmdline", cluster.pid())).expect("a process");
        let help = Command::new(minke()).args(["server", "--help"]).output().expect("minke runs");
        let account = format!("--as=system:serviceaccount:{}:default", restricted.name);
        let account = restricted.run(&["auth", "can-i", "--list", &account, "--as-group=system:serviceaccounts"]);
        Self {
            data: cluster.data.clone(),
            node: name,
            api: server.trim().trim_start_matches("https://").parse().expect("an address"),
            kubelet_address: SocketAddr::from(([127, 0, 0, 1], kubelet_port as u16)),
            kubelet: configz["kubeletconfig"].clone(),
            arguments: String::from_utf8_lossy(&arguments).replace('\0', " "),
            help: String::from_utf8_lossy(&help.stdout).into_owned(),
            account,
            kubectl,
            restricted,
        }
    }

    /// Root's, with no more rights than `most`.
    pub fn mode(&self, name: &str, most: u32) -> Result<(), String> {
        is_private(&self.data.join(name), most)
    }

    /// Every file in a directory whose name ends so; there is at least one.
    pub fn files(&self, directory: &str, ending: &str, most: u32) -> Result<(), String> {
        let directory = self.data.join(directory);
        let entries = fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        let files: Vec<_> = files.iter().filter(|path| path.to_string_lossy().ends_with(ending)).collect();
        that(!files.is_empty(), format!("{} holds no *{ending}", directory.display()))?;
        files.iter().try_for_each(|path| is_private(path, most))
    }

    pub fn without(&self, text: &str) -> Result<(), String> {
        that(!self.arguments.contains(text), self.arguments.clone())
    }

    /// No flag of that name is there to be given.
    pub fn unknown(&self, flag: &str) -> Result<(), String> {
        that(!self.help.contains(flag), format!("{flag} is there: mend the table"))
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl_with(arguments, "")
    }

    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let output = self.kubectl.try_run(arguments, input);
        if output.ok { Ok(output.stdout) } else { Err(output.stderr) }
    }

    pub fn refused(&self, arguments: &[&str], input: &str, saying: &str) -> Result<(), String> {
        match self.kubectl_with(arguments, input) {
            Ok(output) => Err(format!("it was done: {output}")),
            Err(said) => that(said.contains(saying), said),
        }
    }

    pub fn accepts(&self, what: &str, manifest: &str) -> Result<(), String> {
        let made = self.kubectl_with(&["create", "--dry-run=server", "-f", "-"], manifest);
        made.map(drop).map_err(|said| format!("{what} is refused, so mend the table: {said}"))
    }

    /// What kubectl says when it shows nothing: it asks for a name where a server answers Unauthorized.
    pub fn without_credentials(&self, address: SocketAddr, path: &str) -> Result<String, String> {
        let server = format!("--server=https://{address}");
        let mut command = Command::new("kubectl");
        command.args(["--kubeconfig", "/dev/null", &server, "--insecure-skip-tls-verify", "get", "--raw", path]);
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        that(!output.status.success(), said.clone())?;
        Ok(said)
    }

    pub fn anonymous(&self, arguments: &str) -> Result<(), String> {
        let arguments: Vec<&str> = ["--as=system:anonymous", "--as-group=system:unauthenticated"]
            .into_iter()
            .chain(arguments.split(' '))
            .collect();
        self.kubectl(&arguments).map(drop)
    }

    pub fn refused_to_anonymous(&self, arguments: &str) -> Result<(), String> {
        match self.anonymous(arguments) {
            Ok(()) => Err(format!("anonymous may {arguments}")),
            Err(said) => that(said.contains("orbidden"), said),
        }
    }

    pub fn account_has_no(&self, resource: &str) -> Result<(), String> {
        let named = |line: &str| {
            let listed = line.split_whitespace().next().unwrap_or_default();
            // Lines without a resource begin with the brackets of none.
            listed.starts_with(resource) || listed.contains(&format!("{resource}."))
        };
        let found = self.account.lines().skip(1).find(|line| named(line));
        that(found.is_none(), found.unwrap_or_default())
    }

    pub fn violates(&self, container: &str, saying: &str) -> Result<(), String> {
        self.is_violation(&pod(container), saying)
    }

    pub fn violates_pod(&self, more: &str, saying: &str) -> Result<(), String> {
        self.is_violation(&pod_with(RESTRICTED, more), saying)
    }

    pub fn is_violation(&self, manifest: &str, saying: &str) -> Result<(), String> {
        let output = self.restricted.try_run(&["create", "--dry-run=server", "-f", "-"], manifest);
        that(
            !output.ok && output.stderr.contains("violates PodSecurity"),
            format!("{}{}", output.stdout, output.stderr),
        )?;
        that(output.stderr.contains(saying), output.stderr)
    }
}

fn is_private(path: &Path, most: u32) -> Result<(), String> {
    let found = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let seen = format!("{} is {:o} of {}:{}", path.display(), found.mode() & 0o7777, found.uid(), found.gid());
    that(found.mode() & 0o7777 & !most == 0 && found.uid() == 0 && found.gid() == 0, seen)
}
