//! `run`, `create deployment`, `create job` and `create cronjob`.
//! Neighbours: `service::service` for `run --expose`.
//! An image name is checked before an object is made of it.

use serde_json::{Map, Value, json};

use super::{container, labels, metadata};
use crate::template::go_format::quote;

#[derive(Default)]
pub struct Deployment<'a> {
    pub name: &'a str,
    pub namespace: Option<&'a str>,
    pub images: &'a [String],
    pub replicas: Option<i32>,
    pub port: Option<i32>,
    pub command: &'a [String],
}

/// The last part of an image's name as the name of its container.
fn container_name(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    name.split([':', '@']).next().unwrap_or(name).replace('_', "-")
}

pub fn deployment(options: &Deployment) -> Result<Value, String> {
    if options.images.len() > 1 && !options.command.is_empty() {
        return Err("cannot specify multiple --image options and command".to_string());
    }
    let selected = json!({ "app": options.name });
    let mut containers = Vec::new();
    for image in options.images {
        let mut one = container(&container_name(image), image);
        if !options.command.is_empty() {
            one["command"] = json!(options.command);
        }
        if let Some(port) = options.port.filter(|port| *port >= 0) {
            one["ports"] = json!([{ "containerPort": port }]);
        }
        containers.push(one);
    }
    let mut meta = metadata(options.name, options.namespace);
    meta["labels"] = selected.clone();
    Ok(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta,
        "spec": {
            "replicas": options.replicas.unwrap_or(1), "selector": { "matchLabels": selected }, "strategy": {},
            "template": { "metadata": { "labels": selected }, "spec": { "containers": containers } },
        },
        "status": {},
    }))
}

/// A job of one image; `from` a CronJob its template is taken.
pub fn job(name: &str, namespace: Option<&str>, image: &str, command: &[String]) -> Result<Value, String> {
    if image.is_empty() {
        return Err("either --image or --from must be specified".to_string());
    }
    let spec = pod_spec(name, image, command, "Never");
    Ok(json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(name, namespace),
        "spec": { "template": { "metadata": {}, "spec": spec } }, "status": {},
    }))
}

pub fn job_from_cron_job(name: &str, namespace: Option<&str>, cron_job: &Value) -> Result<Value, String> {
    if cron_job["kind"] != "CronJob" {
        return Err("from must be an existing cronjob".to_string());
    }
    let template = &cron_job["spec"]["jobTemplate"];
    let mut annotations = template["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    annotations.insert("cronjob.kubernetes.io/instantiate".to_string(), "manual".into());
    let mut meta = metadata(name, namespace);
    meta["annotations"] = annotations.into();
    if template["metadata"]["labels"].is_object() {
        meta["labels"] = template["metadata"]["labels"].clone();
    }
    meta["ownerReferences"] = json!([{
        "apiVersion": "batch/v1", "kind": "CronJob", "name": cron_job["metadata"]["name"], "uid": cron_job["metadata"]["uid"],
        "controller": true,
    }]);
    Ok(json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": template["spec"], "status": {} }))
}

fn pod_spec(name: &str, image: &str, command: &[String], restart: &str) -> Value {
    let mut one = container(name, image);
    if !command.is_empty() {
        one["command"] = json!(command);
    }
    json!({ "containers": [one], "restartPolicy": restart })
}

pub fn cron_job(
    name: &str,
    namespace: Option<&str>,
    (image, schedule, restart): (&str, &str, &str),
    command: &[String],
) -> Value {
    let restart = if restart.is_empty() { "OnFailure" } else { restart };
    json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata(name, namespace),
        "spec": {
            "schedule": schedule,
            "jobTemplate": {
                "metadata": { "name": name },
                "spec": { "template": { "metadata": {}, "spec": pod_spec(name, image, command, restart) } },
            },
        },
        "status": {},
    })
}

/// The flags of `run`.
#[derive(Default)]
pub struct Run<'a> {
    pub name: &'a str,
    pub namespace: Option<&'a str>,
    pub image: &'a str,
    pub image_pull_policy: &'a str,
    pub labels: &'a str,
    pub annotations: &'a [String],
    pub env: &'a [String],
    pub port: &'a str,
    pub restart: &'a str,
    pub stdin: bool,
    pub leave_stdin_open: bool,
    pub tty: bool,
    pub privileged: bool,
    /// Whether `arguments` are the command instead of its arguments.
    pub command: bool,
    pub arguments: &'a [String],
}

/// A reference of the registry's grammar: a host, paths in lower case, a tag, a digest.
pub fn is_image_reference(image: &str) -> bool {
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    let digest_fits = digest.is_none_or(|digest| {
        digest.split_once(':').is_some_and(|(algorithm, hex)| {
            !algorithm.is_empty() && hex.len() >= 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    });
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (rest, None),
    };
    let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let tag_fits = tag
        .is_none_or(|tag| !tag.is_empty() && tag.len() <= 128 && tag.bytes().all(word) && !tag.starts_with(['.', '-']));
    let mut parts = path.split('/').peekable();
    let mut fits = !path.is_empty() && path.len() <= 255;
    let mut first = true;
    while let Some(part) = parts.next() {
        let is_host = first && parts.peek().is_some() && (part.contains(['.', ':']) || part == "localhost");
        first = false;
        let host = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
        let lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
        fits &= match is_host {
            true => part.bytes().all(host),
            false => {
                !part.is_empty()
                    && part.bytes().all(lower)
                    && !part.starts_with(['.', '-', '_'])
                    && !part.ends_with(['.', '-', '_'])
            }
        };
    }
    fits && tag_fits && digest_fits
}

pub fn pod(options: &Run) -> Result<Value, String> {
    if options.image.is_empty() {
        return Err("--image is required".to_string());
    }
    if !is_image_reference(options.image) {
        return Err(format!("Invalid image name {}: invalid reference format", quote(options.image)));
    }
    let policies = ["", "Always", "IfNotPresent", "Never"];
    if !policies.contains(&options.image_pull_policy) {
        return Err(format!("invalid image pull policy: {}", options.image_pull_policy));
    }
    let restart = match options.restart {
        "" | "Always" => "Always",
        restart @ ("OnFailure" | "Never") => restart,
        other => return Err(format!("invalid restart policy: {other}")),
    };
    let mut one = container(options.name, options.image);
    if !options.image_pull_policy.is_empty() {
        one["imagePullPolicy"] = options.image_pull_policy.into();
    }
    if !options.arguments.is_empty() {
        one[if options.command { "command" } else { "args" }] = json!(options.arguments);
    }
    let env = environment(options.env)?;
    if !env.is_empty() {
        one["env"] = env.into();
    }
    if !options.port.is_empty() {
        let port: i64 = options
            .port
            .parse()
            .map_err(|_| format!("strconv.Atoi: parsing {}: invalid syntax", quote(options.port)))?;
        one["ports"] = json!([{ "containerPort": port }]);
    }
    for (flag, field) in [(options.stdin, "stdin"), (options.tty, "tty")] {
        if flag {
            one[field] = true.into();
        }
    }
    if options.stdin && !options.leave_stdin_open {
        one["stdinOnce"] = true.into();
    }
    if options.privileged {
        one["securityContext"] = json!({ "privileged": true });
    }
    let mut meta = metadata(options.name, options.namespace);
    meta["labels"] = match options.labels {
        "" => json!({ "run": options.name }),
        given => labels(given)?.into(),
    };
    if !options.annotations.is_empty() {
        meta["annotations"] = annotations(options.annotations)?.into();
    }
    Ok(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": meta,
        "spec": { "containers": [one], "dnsPolicy": "ClusterFirst", "restartPolicy": restart }, "status": {},
    }))
}

fn annotations(given: &[String]) -> Result<Map<String, Value>, String> {
    let pair = |annotation: &String| match annotation.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_string(), Value::from(value))),
        _ => Err(format!("unexpected annotation spec: {annotation}")),
    };
    given.iter().map(pair).collect()
}

/// `NAME=value` pairs; a name may come once.
pub fn environment(given: &[String]) -> Result<Vec<Value>, String> {
    let pair = |pair: &String| match pair.split_once('=') {
        Some((name, value)) if !name.is_empty() && api::names::environment_variable(name).is_empty() => {
            Ok(json!({ "name": name, "value": value }))
        }
        _ => Err(format!("invalid env: {pair}")),
    };
    given.iter().map(pair).collect()
}
