//! `POST /checkpoint/…`: has the runtime write a running container to an archive on the node.
//! Part of the node's server; off with the gate ContainerCheckpoint.
//! The archive holds all of the container's memory: only root reads it.

use std::{fs, os::unix::fs::DirBuilderExt};

use api::{ApiError, Reason};
use http::Response;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::{Body, Shared, json_answer};
use crate::pod::pod_spec;

pub(super) async fn checkpoint(
    server: &Shared,
    pod: &Pod,
    container: &str,
    query: &[(String, String)],
) -> Result<Response<Body>, ApiError> {
    let timeout = query.iter().rfind(|(name, _)| name == "timeout").map(|(_, value)| value.parse::<i64>());
    let timeout = timeout.transpose().map_err(|_| not_found("cannot parse value of timeout parameter".into()))?;
    if pod_spec::find_container(pod, container).is_none() {
        let (namespace, name) = (pod_spec::namespace(pod), pod_spec::name(pod));
        return Err(not_found(format!("container {container} does not exist in pod {namespace}/{name}")));
    }
    let of = || format!("{}/{}/{container}", pod_spec::namespace(pod), pod_spec::name(pod));
    let failed = |why: String| ApiError::internal(format!("checkpointing of {} failed ({why})", of()));
    let view = server.view.container(pod, container, false).await?;
    let directory = server.config.root_dir.join("checkpoints");
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| failed(error.to_string()))?;
    let file = directory.join(file_name(pod, container, &server.env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()));
    let location = file.to_string_lossy().into_owned();
    let written = server.runtime.checkpoint_container(&view.id, &location, timeout.unwrap_or(0)).await;
    written.map_err(|error| failed(error.to_string()))?;
    Ok(json_answer(&json!({ "items": [location] })))
}

fn not_found(message: String) -> ApiError {
    ApiError::new(Reason::NotFound, message)
}

fn file_name(pod: &Pod, container: &str, time: &str) -> String {
    format!("checkpoint-{}_{}-{container}-{time}.tar", pod_spec::name(pod), pod_spec::namespace(pod))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_named_after_their_container() {
        let pod = serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "shop"}})).unwrap();
        let name = file_name(&pod, "main", "2026-01-01T00:00:00Z");
        assert_eq!(name, "checkpoint-web_shop-main-2026-01-01T00:00:00Z.tar");
    }
}
