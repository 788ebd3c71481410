//! `kubectl debug`: an ephemeral container in a pod, a copy of a pod, or a pod on a node.
//! A row of `verbs::ROOT`; what the container may do is decided in `profiles`, copies are made in `pod_copy`.
//! The pod that is debugged is never changed, except that it gets the ephemeral container.

mod pod_copy;
mod profiles;

use http::Method;
use serde_json::{Value, json};

use self::profiles::{Keep, Style};
use super::{attach::attach_to, containers::all_names};
use crate::{
    command::Command,
    failure::{Failure, Result, go_error},
    flags::{Flag, Matches, array, boolean, string},
    generate::workloads::{environment, is_image_reference},
    resource::{FILES, Info, Selection, metadata},
    run,
    session::Session,
    verbs::{change::STRATEGIC, generators::run::until},
};

const ATTACH_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);

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
    let named = |name: &String| if name.contains('/') { name.clone() } else { format!("pods/{name}") };
    selection.arguments = names.iter().map(named).collect();
    for info in selection.all_or_nothing(session).await? {
        let (pod, container) = match info.resource.kind.as_str() {
            "Node" => on_node(session, matches, &info, command, &custom).await?,
            "Pod" if matches.opt("copy-to").is_some() => copied(session, matches, &info, command, &custom).await?,
            "Pod" => ephemeral(session, matches, &info, command, &custom).await?,
            kind => {
                let shown = format!("{}/{}, Kind={kind}", info.resource.group, info.resource.version);
                return Err(Failure::message(format!("{shown:?} not supported by debug")));
            }
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
    profiles::known(matches.str("profile")).map_err(Failure::Message)?;
    let no_container = matches.str("container").is_empty();
    if matches.changed("attach") && matches.bool("attach") && image.is_empty() && no_container {
        return fail("you must specify --container or create a new container using --image in order to attach.");
    }
    if copy {
        if image.is_empty() && matches.list("set-image").is_empty() && command.is_empty() {
            return fail("you must specify --image, --set-image or command arguments.");
        }
        if !command.is_empty() && no_container && image.is_empty() {
            return fail("you must specify an existing container or a new image when specifying args.");
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
    let policy = matches.str("image-pull-policy");
    if !["", "Always", "IfNotPresent", "Never"].contains(&policy) {
        return fail(&format!("invalid image pull policy: {policy}"));
    }
    for (name, image) in set_images(matches) {
        if !is_image_reference(&image) {
            return fail(&format!("invalid image name {image:?} for container {name:?}: invalid reference format"));
        }
    }
    if copy && matches.opt("target").is_some() {
        return fail("--target is incompatible with --copy-to. Use --share-processes instead.");
    }
    if matches.bool("tty") && !matches.bool("stdin") {
        return fail("-i/--stdin is required for containers with -t/--tty=true");
    }
    Ok(())
}

/// Containers and the images that they get in a copy: `--set-image`.
fn set_images(matches: &Matches) -> Vec<(String, String)> {
    let joined = matches.list("set-image").join(",");
    let pairs = joined.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, image)| (name.to_string(), image.to_string())).collect()
}

/// What `--custom` names; null without it.
fn custom_profile(matches: &Matches) -> Result<Value> {
    let Some(path) = matches.opt("custom") else { return Ok(Value::Null) };
    let bytes = std::fs::read(path)
        .map_err(|e| format!("must pass a container spec json file for custom profile: open {path}: {}", go_error(&e)))
        .map_err(Failure::Message)?;
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

fn warn_of_user(session: &Session, pod: &Value, container: &Value) {
    if profiles::granted_to_nobody(pod, container) {
        session.output.warn("Warning: Non-root user is configured for the entire target Pod, and some capabilities granted by debug profile may not work. Please consider using \"--custom\" with a custom profile that specifies \"securityContext.runAsUser: 0\".");
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
    let mut alone = json!({"spec": {"ephemeralContainers": [made]}});
    profiles::apply(matches.str("profile"), Keep::default(), &mut alone, &name, Style::Ephemeral)
        .map_err(Failure::Message)?;
    let made = &mut alone["spec"]["ephemeralContainers"][0];
    profiles::customize(made, custom).map_err(Failure::Message)?;
    warn_of_user(session, &info.object, made);
    // The new container goes behind those that are there.
    let before = info.object["spec"]["ephemeralContainers"].as_array().into_iter().flatten();
    let mut order: Vec<Value> = before.map(|one| json!({"name": one["name"]})).collect();
    order.push(json!({"name": name}));
    let mut patch = alone;
    patch["spec"]["$setElementOrder/ephemeralContainers"] = order.into();
    let call = session.rest().await?.call(Method::PATCH, format!("{}/ephemeralcontainers", info.path()?));
    let sent = call.body(STRATEGIC, patch.to_string()).value().await;
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
    call.json(pod).value().await
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
    profiles::apply(matches.str("profile"), Keep::default(), &mut pod, &name, Style::Node).map_err(Failure::Message)?;
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
    let new_name = |pod: &Value| container_name(session, matches, pod);
    let (pod, name) = pod_copy::copied(matches, info, command, custom, new_name)?;
    let debugger = pod["spec"]["containers"].as_array().into_iter().flatten().find(|one| one["name"] == name.as_str());
    if let Some(container) = debugger.cloned() {
        warn_of_user(session, &pod, &container);
    }
    let made = created(session, &info.namespace, &pod).await?;
    if matches.bool("replace") {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
        session.rest().await?.call(Method::DELETE, info.path()?).json(&options).value().await?;
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
    // As long as it takes: an image may be large.
    let pod = until(session, &info, ATTACH_TIMEOUT, |pod| {
        let Some(state) = state_of(pod, name) else { return false };
        let waits = state["waiting"]["message"].as_str().unwrap_or_default();
        if !waits.is_empty() && !matches.bool("quiet") {
            session.output.warn(&format!("Warning: container {name}: {waits}"));
        }
        state["running"].is_object() || state["terminated"].is_object()
    })
    .await?;
    if state_of(&pod, name).is_some_and(|state| state["terminated"].is_object()) {
        return log(session, &info, name).await;
    }
    match attach_to(session, &pod, name, matches.bool("stdin"), matches.bool("tty"), matches.bool("quiet")).await {
        Err(failure) if !matches!(failure, Failure::Exit(_)) => {
            session.output.warn(&format!(
                "warning: couldn't attach to pod/{}, falling back to streaming logs: {}",
                info.name,
                failure.text()
            ));
            log(session, &info, name).await
        }
        // It may have said everything before we were there.
        Ok(false) => log(session, &info, name).await,
        other => other.map(drop),
    }
}

fn state_of<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let fields = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    let all = fields.iter().flat_map(|field| pod["status"][*field].as_array().into_iter().flatten());
    all.into_iter().find(|status| status["name"] == name).map(|status| &status["state"])
}

async fn log(session: &Session, info: &Info, name: &str) -> Result<()> {
    let call = session.rest().await?.get(format!("{}/log", info.path()?)).query("container", name);
    session.output.bytes(&call.bytes().await?);
    Ok(())
}
