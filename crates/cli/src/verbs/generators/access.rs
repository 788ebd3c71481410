//! `create role`, `create clusterrole`, their bindings, and `create token`.
//! Subcommands of `create`.
//! Resources are looked up, so that a short name becomes the plural that RBAC knows.

use http::Method;
use serde_json::json;

use super::{MANAGER, create, given_namespace, name};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, array, duration, list, string},
    generate::rbac::{self, ResourceName, Subjects},
    printers::{
        PRINT,
        format::Printer,
        operation::{ALLOWED, DRY_RUN},
    },
    run,
    session::Session,
    verbs::change::{VALIDATE, create::SAVE_CONFIG},
};

const RULES: &[Flag] = &[
    list("resource", "Resources, as RESOURCE.GROUP/SUBRESOURCE"),
    array("resource-name", "Name that the rule is limited to; may be repeated"),
    list("verb", "Verbs"),
];
const CLUSTER_RULES: &[Flag] = &[
    string("aggregation-rule", "", "Labels of the roles that are joined"),
    list("non-resource-url", "Paths that are no resources"),
];
const SUBJECTS: &[Flag] = &[
    array("group", "Group to bind; may be repeated"),
    array("serviceaccount", "Service account to bind, as NAMESPACE:NAME; may be repeated"),
    array("user", "User to bind; may be repeated"),
];
const ROLE_REF: &[Flag] = &[string("clusterrole", "", "Cluster role of the binding")];
const ROLE_NAME: &[Flag] = &[string("role", "", "Role of the binding")];
const TOKEN_FLAGS: &[Flag] = &[
    array("audience", "Audience of the token; may be repeated"),
    string("bound-object-kind", "", "Kind of the object that the token lives with: Pod, Secret or Node"),
    string("bound-object-name", "", "Name of that object"),
    string("bound-object-uid", "", "UID of that object"),
    duration("duration", "0s", "How long the token is good"),
];

pub static ROLE: Command = Command {
    name: "role",
    aliases: &[],
    usage: "NAME --verb=verb --resource=resource.group/subresource [--resource-name=resourcename] [--dry-run=server|client|none] [options]",
    about: "Create a role with single rule",
    flags: &[RULES, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(role),
};

pub static CLUSTER_ROLE: Command = Command {
    name: "clusterrole",
    aliases: &[],
    usage: "NAME --verb=verb --resource=resource.group [--resource-name=resourcename] [--dry-run=server|client|none] [options]",
    about: "Create a cluster role",
    flags: &[RULES, CLUSTER_RULES, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(cluster_role),
};

pub static ROLE_BINDING: Command = Command {
    name: "rolebinding",
    aliases: &[],
    usage: "NAME --clusterrole=NAME|--role=NAME [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname] [--dry-run=server|client|none] [options]",
    about: "Create a role binding for a particular role or cluster role",
    flags: &[SUBJECTS, ROLE_REF, ROLE_NAME, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(role_binding),
};

pub static CLUSTER_ROLE_BINDING: Command = Command {
    name: "clusterrolebinding",
    aliases: &[],
    usage: "NAME --clusterrole=NAME [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname] [--dry-run=server|client|none] [options]",
    about: "Create a cluster role binding for a particular cluster role",
    flags: &[SUBJECTS, ROLE_REF, MANAGER, SAVE_CONFIG, PRINT, DRY_RUN, VALIDATE],
    commands: &[],
    run: run!(cluster_role_binding),
};

pub static TOKEN: Command = Command {
    name: "token",
    aliases: &[],
    usage: "SERVICE_ACCOUNT_NAME [options]",
    about: "Request a service account token",
    flags: &[TOKEN_FLAGS, PRINT],
    commands: &[],
    run: run!(token),
};

async fn resources(session: &Session, matches: &Matches) -> Result<Vec<ResourceName>> {
    let mut found = Vec::new();
    for text in matches.list("resource") {
        let (resource, group, subresource) = rbac::split_resource(&text).map_err(Failure::Message)?;
        if resource == "*" && matches.list("resource").len() == 1 && group.is_empty() {
            found.push(ResourceName { group: "*".into(), resource, subresource });
            continue;
        }
        let word = if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
        let served = session.resource(&word).await.map_err(|failure| match failure {
            Failure::Message(_) => {
                let place = if group.is_empty() { String::new() } else { format!(" in group {group:?}") };
                Failure::Plain(format!("the server doesn't have a resource type {resource:?}{place}"))
            }
            failure => failure,
        })?;
        found.push(ResourceName { group: served.group.clone(), resource: served.name.clone(), subresource });
    }
    Ok(found)
}

async fn role(session: &Session, matches: &Matches) -> Result<()> {
    let (name, namespace) = (name(matches)?, given_namespace(session)?);
    let verbs = rbac::verbs(&matches.list("verb"));
    rbac::verb_warnings(&verbs).iter().for_each(|warning| session.output.warn(warning));
    let (resources, names) = (resources(session, matches).await?, matches.list("resource-name"));
    create(session, matches, rbac::role(name, namespace.as_deref(), &verbs, &resources, &names)).await
}

async fn cluster_role(session: &Session, matches: &Matches) -> Result<()> {
    let name = name(matches)?;
    let verbs = rbac::verbs(&matches.list("verb"));
    let (resources, names) = (resources(session, matches).await?, matches.list("resource-name"));
    let urls = matches.list("non-resource-url");
    let aggregation: Vec<(String, String)> = matches
        .str("aggregation-rule")
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
    let made = rbac::cluster_role(&rbac::ClusterRole {
        name,
        verbs: &verbs,
        resources: &resources,
        resource_names: &names,
        urls: &urls,
        aggregation: &aggregation,
    });
    create(session, matches, made).await
}

async fn role_binding(session: &Session, matches: &Matches) -> Result<()> {
    let (name, namespace) = (name(matches)?, given_namespace(session)?);
    let role = (matches.str("clusterrole"), matches.str("role"));
    let (users, groups, accounts) = (matches.list("user"), matches.list("group"), matches.list("serviceaccount"));
    let subjects = Subjects { users: &users, groups: &groups, service_accounts: &accounts };
    create(session, matches, rbac::role_binding(name, namespace.as_deref(), role, &subjects)).await
}

async fn cluster_role_binding(session: &Session, matches: &Matches) -> Result<()> {
    let name = name(matches)?;
    let (users, groups, accounts) = (matches.list("user"), matches.list("group"), matches.list("serviceaccount"));
    let subjects = Subjects { users: &users, groups: &groups, service_accounts: &accounts };
    if matches.opt("clusterrole").is_none() {
        return Err(Failure::message("required flag(s) \"clusterrole\" not set"));
    }
    create(session, matches, rbac::cluster_role_binding(name, matches.str("clusterrole"), &subjects)).await
}

async fn token(session: &Session, matches: &Matches) -> Result<()> {
    let [name] = matches.args.as_slice() else {
        return Err(Failure::usage(format!("exactly one NAME is required, got {}", matches.args.len())));
    };
    let mut printer = Printer::of(matches, ALLOWED)?;
    if let Some(printer) = &mut printer {
        printer.typed = true;
    }
    let (namespace, _) = session.namespace()?;
    let mut spec = json!({"audiences": matches.list("audience")});
    if !matches.duration("duration").is_zero() {
        spec["expirationSeconds"] = matches.duration("duration").as_secs().into();
    }
    match matches.str("bound-object-kind") {
        "" if matches.opt("bound-object-name").is_some() => {
            return Err(Failure::message("--bound-object-name can only be set if --bound-object-kind is provided"));
        }
        "" => {}
        kind if ["Pod", "Secret", "Node"].contains(&kind) => {
            if matches.opt("bound-object-name").is_none() {
                return Err(Failure::message("--bound-object-name is required if --bound-object-kind is provided"));
            }
            spec["boundObjectRef"] = json!({"kind": kind, "apiVersion": "v1", "name": matches.str("bound-object-name"), "uid": matches.str("bound-object-uid")});
        }
        _ => {
            return Err(Failure::message("supported --bound-object-kind values are Node, Pod, Secret"));
        }
    }
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {"name": name, "namespace": namespace}, "spec": spec});
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let answer =
        session.rest().await?.call(Method::POST, path).json(&request).value().await.map_err(|failure| match failure
            .reason()
        {
            "" => failure,
            _ => Failure::message(format!("failed to create token: {}", failure.text())),
        })?;
    match printer {
        Some(mut printer) => session.output.print(&printer.text(&answer)?),
        None => session.output.print(answer["status"]["token"].as_str().unwrap_or_default()),
    }
    Ok(())
}
