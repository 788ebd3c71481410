//! `create service`, `create ingress`.
//! Subcommands of `create`.
//! Ports and rules are checked before anything is sent.

use super::{MANAGER, create, given_namespace, name};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, array, int, list, string},
    generate::{ingress, service},
    printers::{PRINT, operation::DRY_RUN},
    run,
    session::Session,
    verbs::change::{VALIDATE, create::SAVE_CONFIG},
};

const TCP: &[Flag] = &[list("tcp", "Ports, as PORT:TARGET")];
const CLUSTER_IP: &[Flag] = &[string("clusterip", "", "Address of the service; None for a headless one")];
const NODE_PORT: &[Flag] = &[int("node-port", "0", "Port on every node")];
const EXTERNAL_NAME: &[Flag] = &[string("external-name", "", "Name that the service stands for")];
const INGRESS_FLAGS: &[Flag] = &[
    array("annotation", "Annotation, as KEY=value"),
    string("class", "", "Ingress class"),
    string("default-backend", "", "Service for what no rule fits, as NAME:PORT"),
    array("rule", "Rule, as HOST/PATH=SERVICE:PORT[,tls[=SECRET]]"),
];

pub static SERVICE: Command = Command {
    name: "service",
    aliases: &["svc"],
    usage: "[options]",
    about: "Create a service using a specified subcommand",
    flags: &[],
    commands: &[&CLUSTER_IP_SERVICE, &EXTERNAL_NAME_SERVICE, &LOAD_BALANCER_SERVICE, &NODE_PORT_SERVICE],
    run: None,
};

static CLUSTER_IP_SERVICE: Command = Command {
    name: "clusterip",
    aliases: &[],
    usage: "NAME [--tcp=port:targetPort] [--dry-run=server|client|none] [options]",
    about: "Create a ClusterIP service",
    flags: &[TCP, CLUSTER_IP, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(cluster_ip),
};

static NODE_PORT_SERVICE: Command = Command {
    name: "nodeport",
    aliases: &[],
    usage: "NAME [--tcp=port:targetPort] [--dry-run=server|client|none] [options]",
    about: "Create a NodePort service",
    flags: &[TCP, NODE_PORT, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(node_port),
};

static LOAD_BALANCER_SERVICE: Command = Command {
    name: "loadbalancer",
    aliases: &[],
    usage: "NAME [--tcp=port:targetPort] [--dry-run=server|client|none] [options]",
    about: "Create a LoadBalancer service",
    flags: &[TCP, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(load_balancer),
};

static EXTERNAL_NAME_SERVICE: Command = Command {
    name: "externalname",
    aliases: &[],
    usage: "NAME [--tcp=port:targetPort] [--dry-run=server|client|none] [options]",
    about: "Create an ExternalName service",
    flags: &[TCP, EXTERNAL_NAME, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(external_name),
};

pub static INGRESS: Command = Command {
    name: "ingress",
    aliases: &["ing"],
    usage: "NAME --rule=host/path=service:port[,tls[=secret]] [options]",
    about: "Create an ingress with the specified name",
    flags: &[INGRESS_FLAGS, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(make_ingress),
};

async fn made(session: &Session, matches: &Matches, kind: &str) -> Result<()> {
    let (name, namespace) = (name(matches)?, given_namespace(session)?);
    let text = |flag: &str| if matches.has(flag) { matches.str(flag) } else { "" };
    let tcp = matches.list("tcp");
    let object = service::service(&service::Service {
        name,
        namespace: namespace.as_deref(),
        kind,
        tcp: &tcp,
        cluster_ip: text("clusterip"),
        node_port: if matches.has("node-port") { matches.int("node-port") } else { 0 },
        external_name: text("external-name"),
    });
    create(session, matches, object).await
}

async fn cluster_ip(session: &Session, matches: &Matches) -> Result<()> {
    made(session, matches, "ClusterIP").await
}

async fn node_port(session: &Session, matches: &Matches) -> Result<()> {
    made(session, matches, "NodePort").await
}

async fn load_balancer(session: &Session, matches: &Matches) -> Result<()> {
    made(session, matches, "LoadBalancer").await
}

async fn external_name(session: &Session, matches: &Matches) -> Result<()> {
    if matches.opt("external-name").is_none() {
        return Err(Failure::message("required flag(s) \"external-name\" not set"));
    }
    made(session, matches, "ExternalName").await
}

async fn make_ingress(session: &Session, matches: &Matches) -> Result<()> {
    let (name, namespace) = (name(matches)?, given_namespace(session)?);
    let (rules, annotations) = (matches.list("rule"), matches.list("annotation"));
    let object = ingress::ingress(&ingress::Ingress {
        name,
        namespace: namespace.as_deref(),
        class: matches.str("class"),
        rules: &rules,
        default_backend: matches.str("default-backend"),
        annotations: &annotations,
    });
    create(session, matches, object).await
}
