//! `kubectl debug`: an ephemeral container in a pod, a copy of a pod, or a pod on a node.
//! A row of `verbs::ROOT`; what the container may do is decided in `debug_profiles`.
//! The pod that is debugged is never changed, except that it gets the ephemeral container.

use http::Method;
use serde_json::{Value, json};

use super::{attach::attach_to, containers::all_names, debug_profiles as profiles};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, array, boolean, string},
    generate::workloads::{environment, is_image_reference},
    resource::{FILES, Info, Selection, metadata},
    run,
    session::Session,
    verbs::{
        change::STRATEGIC,
        generators::run::{until, until_started},
    },
};

const FLAGS: &[Flag] = &[
    boolean("arguments-only", "false", "What stands behind -- are arguments, not the command"),
    boolean("attach", "false", "Attach to the container"),
    string("container", "", "Name of the debug container").short('c'),
    string("copy-to", "", "Debug a copy of the pod, of this name"),
    string("custom", "", "File with a partial container, YAML or JSON, that goes over the profile"),
    array("env", "Variable, as NAME=value; may be repeated"),
    string("image", "", "Image of the debug container"),
    string("image-pull-policy", "", "Always, Never or IfNotPresent"),
    boolean("keep-annotations", "false", "With --copy-to: keep the annotations"),
    boolean("keep-init-containers", "true", "With --copy-to: keep init containers"),
    boolean("keep-labels", "false", "With --copy-to: keep the labels"),
    boolean("keep-liveness", "false", "With --copy-to: keep liveness probes"),
    boolean("keep-readiness", "false", "With --copy-to: keep readiness probes"),
    boolean("keep-startup", "false", "With --copy-to: keep startup probes"),
    string("profile", "legacy", "legacy, general, baseline, netadmin, restricted or sysadmin"),
    boolean("quiet", "false", "Only what the container prints").short('q'),
    boolean("replace", "false", "With --copy-to: delete the original pod"),
    boolean("same-node", "false", "With --copy-to: on the same node"),
    array("set-image", "With --copy-to: other images, as CONTAINER=IMAGE,…"),
    boolean("share-processes", "true", "With --copy-to: one process namespace"),
    boolean("stdin", "false", "Keep standard input open").short('i'),
    string("target", "", "Container whose processes are seen"),
    boolean("tty", "false", "Give the container a terminal").short('t'),
];

pub static COMMAND: Command = Command {
    name: "debug",
    aliases: &[],
    usage: "(POD | TYPE[[.VERSION].GROUP]/NAME) [ -- COMMAND [args...] ] [options]",
    about: "Create debugging sessions for troubleshooting workloads and nodes",
    flags: &[FLAGS, FILES],
    commands: &[],
    run: run!(debug),
};

async fn debug(session: &Session, matches: &Matches) -> Result<()> {
    let dash = matches.args_before_dash.unwrap_or(matches.args.len());
    let (names, command) = matches.args.split_at(dash);
    check(matches, names, command)?;
    let custom = custom_profile(matches)?;
    if matches.opt("target").is_some() && !matches.bool("quiet") {
        session.output.line(&format!("Targeting container {:?}. If you don't see processes from this container it may be because the container runtime doesn't support this feature.", matches.str("target")));
    }
    if matches.str("profile") == "legacy" {
        session.output.warn("--profile=legacy is deprecated and will be removed in the future. It is recommended to explicitly specify a profile, for example \"--profile=general\".");
    }
    let mut selection = Selection::of(session, matches)?;
    selection.arguments = match names {
        [one] if !one.contains('/') => vec!["pods".to_string(), one.clone()],
        other => other.to_vec(),
    };
    for info in selection.all_or_nothing(session).await? {
        let (pod, container) = match info.resource.kind.as_str() {
            "Node" => on_node(session, matches, &info, command, &custom).await?,
            "Pod" if matches.opt("copy-to").is_some() => copied(session, matches, &info, command, &custom).await?,
            "Pod" => ephemeral(session, matches, &info, command, &custom).await?,
            kind => return Err(Failure::message(format!("{kind:?} not supported by debug"))),
        };
        let attach = if matches.changed("attach") { matches.bool("attach") } else { matches.bool("stdin") };
        if attach && !container.is_empty() {
            attached(session, matches, &pod, &container).await?;
        }
    }
    Ok(())
}

fn check(matches: &Matches, names: &[String], command: &[String]) -> Result<()> {
    let (image, copy) = (matches.str("image"), matches.opt("copy-to").is_some());
    let fail = |text: &str| Err(Failure::message(text));
    let profile = matches.str("profile");
    if !["legacy", "general", "baseline", "netadmin", "restricted", "sysadmin"].contains(&profile) {
        return fail(&format!("unknown profile: {profile}"));
    }
    if copy {
        if image.is_empty() && matches.list("set-image").is_empty() && command.is_empty() {
            return fail("you must specify --image, --set-image or command arguments.");
        }
        if matches.opt("target").is_some() {
            return fail("--target is incompatible with --copy-to. Use --share-processes instead.");
        }
    } else {
        for (flag, text) in [
            ("replace", "--replace may only be used with --copy-to."),
            ("same-node", "--same-node may only be used with --copy-to."),
        ] {
            if matches.bool(flag) {
                return fail(text);
            }
        }
        if !matches.list("set-image").is_empty() {
            return fail("--set-image may only be used with --copy-to.");
        }
        if image.is_empty() {
            return fail("you must specify --image when not using --copy-to.");
        }
    }
    if !image.is_empty() && !is_image_reference(image) {
        return Err(Failure::message(format!("invalid image name {image:?}: invalid reference format")));
    }
    if names.is_empty() && matches.list("filename").is_empty() {
        return fail("NAME or filename is required for debug");
    }
    if matches.bool("tty") && !matches.bool("stdin") {
        return fail("-i/--stdin is required for containers with -t/--tty=true");
    }
    Ok(())
}

/// What `--custom` names; null without it.
fn custom_profile(matches: &Matches) -> Result<Value> {
    let Some(path) = matches.opt("custom") else { return Ok(Value::Null) };
    let bytes = std::fs::read(path)
        .map_err(|e| Failure::message(format!("must pass a container spec json file for custom profile: {e}")))?;
    let custom = crate::resource::yaml::read(&bytes)
        .map_err(|e| Failure::message(format!("{path} does not contain a valid container spec: {e}")))?;
    profiles::check_custom(&custom).map_err(Failure::Message)?;
    Ok(custom)
}

/// The debug container as the flags say, without what its profile adds.
fn container(matches: &Matches, name: &str, command: &[String]) -> Result<Value> {
    let mut made =
        json!({"name": name, "image": matches.str("image"), "resources": {}, "terminationMessagePolicy": "File"});
    if let Some(policy) = matches.opt("image-pull-policy") {
        made["imagePullPolicy"] = policy.into();
    }
    let env = environment(&matches.list("env")).map_err(Failure::Message)?;
    if !env.is_empty() {
        made["env"] = env.into();
    }
    if !command.is_empty() {
        made[if matches.bool("arguments-only") { "args" } else { "command" }] = json!(command);
    }
    for flag in ["stdin", "tty"] {
        if matches.bool(flag) {
            made[flag] = true.into();
        }
    }
    Ok(made)
}

fn container_name(session: &Session, matches: &Matches, pod: &Value) -> String {
    if let Some(name) = matches.opt("container") {
        return name.to_string();
    }
    let taken = all_names(pod);
    loop {
        let name = format!("debugger-{}", session.env.name_suffix(5));
        if !taken.contains(&name) {
            if !matches.bool("quiet") {
                session.output.line(&format!("Defaulting debug container name to {name}."));
            }
            return name;
        }
    }
}

async fn ephemeral(
    session: &Session,
    matches: &Matches,
    info: &Info,
    command: &[String],
    custom: &Value,
) -> Result<(Value, String)> {
    let name = container_name(session, matches, &info.object);
    let mut made = container(matches, &name, command)?;
    if let Some(target) = matches.opt("target") {
        made["targetContainerName"] = target.into();
    }
    profiles::ephemeral(matches.str("profile"), &mut made).map_err(Failure::Message)?;
    profiles::customize(&mut made, custom).map_err(Failure::Message)?;
    let patch = json!({"spec": {"ephemeralContainers": [made]}});
    let call = session.rest().await?.call(Method::PATCH, format!("{}/ephemeralcontainers", info.path()));
    let sent = call.query("fieldManager", "kubectl-debug").body(STRATEGIC, patch.to_string()).value().await;
    let pod =
        sent.map_err(|failure| match failure.is_not_found() && failure.text().contains("requested resource") {
            true => Failure::message(format!(
                "ephemeral containers are disabled for this cluster (error from server: {:?})",
                failure.text()
            )),
            false => failure,
        })?;
    Ok((pod, name))
}

async fn created(session: &Session, namespace: &str, pod: &Value) -> Result<Value> {
    let call = session.rest().await?.call(Method::POST, format!("/api/v1/namespaces/{namespace}/pods"));
    call.query("fieldManager", "kubectl-debug").json(pod).value().await
}

async fn on_node(
    session: &Session,
    matches: &Matches,
    node: &Info,
    command: &[String],
    custom: &Value,
) -> Result<(Value, String)> {
    let (namespace, _) = session.namespace()?;
    let name = matches.opt("container").unwrap_or("debugger").to_string();
    let pod_name = format!("node-debugger-{}-{}", node.name, session.env.name_suffix(5));
    if !matches.bool("quiet") {
        session.output.line(&format!("Creating debugging pod {pod_name} with container {name} on node {}.", node.name));
    }
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod_name, "labels": {"app.kubernetes.io/managed-by": "kubectl-debug"}},
        "spec": {
            "containers": [container(matches, &name, command)?],
            "nodeName": node.name,
            "restartPolicy": "Never",
            "tolerations": [{"operator": "Exists"}],
        },
    });
    profiles::node(matches.str("profile"), &mut pod).map_err(Failure::Message)?;
    profiles::customize(&mut pod["spec"]["containers"][0], custom).map_err(Failure::Message)?;
    Ok((created(session, &namespace, &pod).await?, name))
}

async fn copied(
    session: &Session,
    matches: &Matches,
    info: &Info,
    command: &[String],
    custom: &Value,
) -> Result<(Value, String)> {
    let original = &info.object;
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": matches.str("copy-to"), "namespace": info.namespace},
        "spec": original["spec"],
    });
    for (flag, field) in [("keep-annotations", "annotations"), ("keep-labels", "labels")] {
        if matches.bool(flag) {
            pod["metadata"][field] = original["metadata"][field].clone();
        }
    }
    let spec = &mut pod["spec"];
    for field in ["ephemeralContainers", if matches.bool("same-node") { "" } else { "nodeName" }] {
        spec.as_object_mut().map(|s| s.remove(field));
    }
    if !matches.bool("keep-init-containers") {
        spec.as_object_mut().map(|s| s.remove("initContainers"));
    }
    spec["shareProcessNamespace"] = matches.bool("share-processes").into();
    for one in spec["containers"].as_array_mut().into_iter().flatten() {
        for (flag, field) in
            [("keep-liveness", "livenessProbe"), ("keep-readiness", "readinessProbe"), ("keep-startup", "startupProbe")]
        {
            if !matches.bool(flag) {
                one.as_object_mut().map(|c| c.remove(field));
            }
        }
    }
    let images = matches.list("set-image").join(",");
    for (name, image) in images.split(',').filter_map(|pair| pair.split_once('=')) {
        for one in spec["containers"].as_array_mut().into_iter().flatten() {
            if name == "*" || one["name"] == name {
                one["image"] = image.into();
            }
        }
    }
    let wanted = matches.str("container");
    let known = all_names(original).iter().any(|name| name == wanted);
    let name = match (known, matches.str("image")) {
        (true, image) => {
            for one in pod["spec"]["containers"].as_array_mut().into_iter().flatten().filter(|c| c["name"] == wanted) {
                if !image.is_empty() {
                    one["image"] = image.into();
                }
                if !command.is_empty() {
                    one[if matches.bool("arguments-only") { "args" } else { "command" }] = json!(command);
                }
                for flag in ["stdin", "tty"] {
                    if matches.bool(flag) {
                        one[flag] = true.into();
                    }
                }
            }
            wanted.to_string()
        }
        (false, "") if command.is_empty() => String::new(),
        (false, "") => {
            // Without an image the first container gets the command.
            let first = &mut pod["spec"]["containers"][0];
            first[if matches.bool("arguments-only") { "args" } else { "command" }] = json!(command);
            first["name"].as_str().unwrap_or_default().to_string()
        }
        (false, _) => {
            let name = container_name(session, matches, original);
            let mut made = container(matches, &name, command)?;
            profiles::ephemeral(matches.str("profile"), &mut made).map_err(Failure::Message)?;
            if let Some(list) = pod["spec"]["containers"].as_array_mut() {
                list.push(made);
            }
            name
        }
    };
    for one in pod["spec"]["containers"].as_array_mut().into_iter().flatten().filter(|c| c["name"] == name.as_str()) {
        profiles::customize(one, custom).map_err(Failure::Message)?;
    }
    let made = created(session, &info.namespace, &pod).await?;
    if matches.bool("replace") {
        session.rest().await?.call(Method::DELETE, info.path()).value().await?;
    }
    Ok((made, name))
}

/// Waits until the container has started, then attaches.
async fn attached(session: &Session, matches: &Matches, pod: &Value, name: &str) -> Result<()> {
    let info = Info {
        resource: session.resource("pods").await?,
        namespace: metadata(pod, "namespace").to_string(),
        name: metadata(pod, "name").to_string(),
        source: String::new(),
        object: pod.clone(),
    };
    let started = |pod: &Value| {
        ["containerStatuses", "ephemeralContainerStatuses", "initContainerStatuses"]
            .iter()
            .flat_map(|field| pod["status"][*field].as_array().into_iter().flatten())
            .any(|s| s["name"] == name && (s["state"]["running"].is_object() || s["state"]["terminated"].is_object()))
    };
    let minute = std::time::Duration::from_secs(60);
    until_started(session, &info, minute).await?;
    let pod = until(session, &info, minute, started).await?;
    match attach_to(session, &pod, name, matches.bool("stdin"), matches.bool("tty"), matches.bool("quiet")).await {
        Err(failure) if !matches!(failure, Failure::Exit(_)) => {
            session.output.warn(&format!(
                "warning: couldn't attach to pod/{}, falling back to streaming logs: {}",
                info.name,
                failure.text()
            ));
            let call = session.rest().await?.get(format!("{}/log", info.path())).query("container", name);
            session.output.bytes(&call.bytes().await?);
            Ok(())
        }
        other => other,
    }
}
