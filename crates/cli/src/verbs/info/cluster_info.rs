//! `kubectl cluster-info`: where the control plane and its services are; `dump` writes everything that explains a cluster.
//! A row of `verbs::ROOT`.
//! Reads only.

use serde_json::Value;

use crate::{
    command::Command,
    failure::Result,
    flags::{Flag, Matches, boolean, duration, list, string},
    printers::{format::json_text, yaml},
    resource::{items_of, metadata},
    run,
    session::Session,
};

pub static COMMAND: Command = Command {
    name: "cluster-info",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Display cluster information",
    flags: &[],
    commands: &[&DUMP],
    run: run!(cluster_info),
};

const DUMP_FLAGS: &[Flag] = &[
    boolean("all-namespaces", "false", "Of all namespaces").short('A'),
    list("namespaces", "Namespaces to dump"),
    string("output", "json", "json or yaml").short('o'),
    string("output-directory", "", "Directory to write to; - or empty is standard output"),
    duration("pod-running-timeout", "20s", "How long to wait for a pod"),
    boolean("allow-missing-template-keys", "true", "").hidden(),
    boolean("show-managed-fields", "false", "").hidden(),
    string("template", "", "").hidden(),
];

static DUMP: Command = Command {
    name: "dump",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Dump relevant information for debugging and diagnosis",
    flags: &[DUMP_FLAGS],
    commands: &[],
    run: run!(dump),
};

fn told(session: &Session, name: &str, link: &str) {
    match session.output.is_terminal() {
        true => session.output.line(&format!("\x1b[0;32m{name}\x1b[0m is running at \x1b[0;33m{link}\x1b[0m")),
        false => session.output.line(&format!("{name} is running at {link}")),
    }
}

async fn cluster_info(session: &Session, _: &Matches) -> Result<()> {
    let rest = session.rest().await?;
    let namespace = session.matches.opt("namespace").unwrap_or("kube-system");
    let services = rest
        .get(format!("/api/v1/namespaces/{namespace}/services"))
        .query("labelSelector", "kubernetes.io/cluster-service=true")
        .value()
        .await?;
    told(session, "Kubernetes control plane", rest.server());
    for service in items_of(services) {
        let (namespace, name) = (metadata(&service, "namespace"), metadata(&service, "name"));
        let ingress = &service["status"]["loadBalancer"]["ingress"][0];
        let link = match ingress["ip"].as_str().or(ingress["hostname"].as_str()) {
            Some(host) => {
                let ports = service["spec"]["ports"].as_array().into_iter().flatten();
                let shown: Vec<String> = ports.map(|p| format!("http://{host}:{} ", p["port"])).collect();
                shown.concat()
            }
            None => {
                let port = service["spec"]["ports"][0]["name"].as_str().unwrap_or_default();
                let port = if port.is_empty() { String::new() } else { format!(":{port}") };
                let scheme = if service["spec"]["ports"][0]["port"] == 443 { "https:" } else { "" };
                format!("{}/api/v1/namespaces/{namespace}/services/{scheme}{name}{port}/proxy", rest.server())
            }
        };
        let shown = service["metadata"]["labels"]["kubernetes.io/name"].as_str().unwrap_or(name);
        told(session, shown, &link);
    }
    session.output.line("\nTo further debug and diagnose cluster problems, use 'kubectl cluster-info dump'.");
    Ok(())
}

fn write(session: &Session, matches: &Matches, file: &str, value: &Value) -> Result<()> {
    let (text, extension) = match matches.str("output") {
        "yaml" => (yaml::to_string(value), "yaml"),
        _ => (json_text(value), "json"),
    };
    put(session, matches, &format!("{file}.{extension}"), &text)
}

fn put(session: &Session, matches: &Matches, file: &str, text: &str) -> Result<()> {
    match matches.str("output-directory") {
        "" | "-" => session.output.print(text),
        folder => {
            let path = std::path::Path::new(folder).join(file);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(path, text)?;
        }
    }
    Ok(())
}

const DUMPED: [(&str, &str); 7] = [
    ("events", "/api/v1"),
    ("replicationcontrollers", "/api/v1"),
    ("services", "/api/v1"),
    ("daemonsets", "/apis/apps/v1"),
    ("deployments", "/apis/apps/v1"),
    ("replicasets", "/apis/apps/v1"),
    ("pods", "/api/v1"),
];

async fn dump(session: &Session, matches: &Matches) -> Result<()> {
    let rest = session.rest().await?;
    write(session, matches, "nodes", &rest.get("/api/v1/nodes").value().await?)?;
    let namespaces: Vec<String> = if matches.bool("all-namespaces") {
        let all = rest.get("/api/v1/namespaces").value().await?;
        items_of(all).iter().map(|n| metadata(n, "name").to_string()).collect()
    } else {
        match matches.list("namespaces") {
            list if list.is_empty() => vec!["kube-system".to_string(), session.namespace()?.0],
            list => list,
        }
    };
    for namespace in namespaces {
        for (resource, prefix) in DUMPED {
            let list = rest.get(format!("{prefix}/namespaces/{namespace}/{resource}")).value().await?;
            let file = match resource {
                "replicationcontrollers" => "replication-controllers",
                other => other,
            };
            write(session, matches, &format!("{namespace}/{file}"), &list)?;
            if resource != "pods" {
                continue;
            }
            for pod in items_of(list) {
                dump_logs(session, matches, &namespace, &pod).await?;
            }
        }
    }
    match matches.str("output-directory") {
        "" | "-" => {}
        folder => session.output.line(&format!("Cluster info dumped to {folder}")),
    }
    Ok(())
}

async fn dump_logs(session: &Session, matches: &Matches, namespace: &str, pod: &Value) -> Result<()> {
    let name = metadata(pod, "name");
    let mut text = String::new();
    for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
        let container = container["name"].as_str().unwrap_or_default();
        let call = session.rest().await?.get(format!("/api/v1/namespaces/{namespace}/pods/{name}/log"));
        text.push_str(&format!("==== START logs for container {container} of pod {namespace}/{name} ====\n"));
        match call.query("container", container).bytes().await {
            Ok(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
            Err(failure) => text.push_str(&format!("{}\n", failure.text())),
        }
        text.push_str(&format!("==== END logs for container {container} of pod {namespace}/{name} ====\n"));
    }
    put(session, matches, &format!("{namespace}/{name}/logs.txt"), &text)
}
