//! What containers leave in the log directories: logs, what was rotated away, and the links that log collectors read.
//! Called by `runtime_manager` when a container starts or a pod is removed, and by `container_gc` and `pod_cleanup`.
//! A log goes only with its container or its pod, and a link only with its log.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use cri::v1;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    config::Config,
    files::remove_tree::remove_tree,
    logs::log_rotation,
    pod::pod_spec,
    runtime::container_config::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE},
};

/// The longest name of a file.
const NAME_BYTES_MAX: usize = 255;

/// As collectors expect it: they find pod, namespace, container and id in the name.
fn link_name(pod: &str, namespace: &str, container: &str, id: &str) -> String {
    let mut name = format!("{pod}_{namespace}_{container}-{id}");
    // Names and ids are ASCII.
    name.truncate(NAME_BYTES_MAX - ".log".len());
    name + ".log"
}

fn link_path(config: &Config, pod: &Pod, container: &str, id: &str) -> PathBuf {
    config.container_logs_dir().join(link_name(pod_spec::name(pod), pod_spec::namespace(pod), container, id))
}

/// Shows the log of a container that was started. Runtimes that log elsewhere have none to show.
pub async fn link(config: &Config, pod: &Pod, container: &str, id: &str, log: &Path) {
    let (log, place) = (log.to_path_buf(), link_path(config, pod, container, id));
    let _ = env::spawn_blocking(move || make_link(&log, &place)).await;
}

fn make_link(log: &Path, place: &Path) {
    if log.symlink_metadata().is_err() {
        return;
    }
    let made = match std::os::unix::fs::symlink(log, place) {
        // Names that are too long may meet; the newest is shown.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(place).and_then(|()| std::os::unix::fs::symlink(log, place))
        }
        other => other,
    };
    if let Err(error) = made {
        tracing::warn!(link = %place.display(), %error, "failed to link a container's log");
    }
}

/// The link of a container whose pod is removed, logs and all.
pub async fn unlink(config: &Config, pod: &Pod, container: &str, id: &str) {
    let _ = tokio::fs::remove_file(link_path(config, pod, container, id)).await;
}

/// Removes the log of a container that is about to be removed, what was rotated away, and the link.
pub async fn remove(config: &Arc<Config>, status: v1::ContainerStatus) -> io::Result<()> {
    let config = config.clone();
    env::spawn_blocking(move || remove_all(&config, &status)).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

fn remove_all(config: &Config, status: &v1::ContainerStatus) -> io::Result<()> {
    let log = Path::new(&status.log_path);
    if !log.starts_with(config.pod_logs_dir()) {
        return Ok(());
    }
    log_rotation::rotated(log).iter().map(PathBuf::as_path).chain([log]).try_for_each(remove_tree)?;
    let label = |key: &str| status.labels.get(key).map(String::as_str).unwrap_or_default();
    let name = link_name(label(POD_NAME), label(POD_NAMESPACE), label(CONTAINER_NAME), &status.id);
    let place = config.container_logs_dir().join(name);
    match std::fs::read_link(&place) {
        Ok(target) if target == log => remove_tree(&place),
        _ => Ok(()),
    }
}

/// Directories of pods' logs, each with the UID its name ends in.
pub async fn directories(config: &Config) -> Vec<(String, PathBuf)> {
    let root = config.pod_logs_dir();
    let list = move || {
        let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
        let named = entries.filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Anything else there is not ours.
            let [_, _, uid] = name.split('_').collect::<Vec<_>>()[..] else { return None };
            Some((uid.to_string(), entry.path()))
        });
        named.collect()
    };
    env::spawn_blocking(list).await.unwrap_or_default()
}

/// Removes the logs of a pod.
pub async fn remove_directory(directory: PathBuf) -> io::Result<()> {
    env::spawn_blocking(move || remove_tree(&directory)).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// Removes links whose logs are gone.
pub async fn remove_dead_links(config: &Config) {
    let links = config.container_logs_dir();
    let remove = move || {
        for entry in std::fs::read_dir(links).into_iter().flatten().flatten() {
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            // While a log is rotated there is none of its own name.
            if target.symlink_metadata().is_err() && log_rotation::rotated(&target).is_empty() {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    };
    let _ = env::spawn_blocking(remove).await;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn names_are_as_collectors_want_them_and_never_too_long() {
        assert_eq!(link_name("web", "default", "main", "abc"), "web_default_main-abc.log");
        let long = link_name(&"p".repeat(253), "n", "c", &"f".repeat(64));
        assert!(long.len() == NAME_BYTES_MAX && long.ends_with(".log"), "{long}");
    }

    async fn remove_orphans(config: &Config, wanted: &str) {
        for (uid, directory) in directories(config).await {
            if uid != wanted {
                remove_directory(directory).await.unwrap();
            }
        }
        remove_dead_links(config).await;
    }

    #[tokio::test]
    async fn links_go_with_their_logs() {
        let directory = tempfile::tempdir().unwrap();
        let config = Arc::new(Config { log_dir: directory.path().into(), ..Config::default() });
        let logs = config.pod_logs_dir().join("ns_web_u1/main");
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::create_dir_all(config.pod_logs_dir().join("ns_gone_u2/main")).unwrap();
        std::fs::create_dir_all(config.pod_logs_dir().join("something else")).unwrap();
        std::fs::create_dir_all(config.container_logs_dir()).unwrap();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "ns"}})).unwrap();
        for file in ["0.log", "0.log.20260101-000000", "1.log"] {
            std::fs::write(logs.join(file), "").unwrap();
        }
        link(&config, &pod, "main", "c0", &logs.join("0.log")).await;
        link(&config, &pod, "main", "c1", &logs.join("1.log")).await;
        link(&config, &pod, "main", "c2", &logs.join("2.log")).await;
        let links = || names(&config.container_logs_dir());
        assert_eq!(links(), ["web_ns_main-c0.log", "web_ns_main-c1.log"], "nothing that leads nowhere");
        let label = |key: &str, value: &str| (key.to_string(), value.to_string());
        let status = v1::ContainerStatus {
            id: "c0".into(),
            log_path: logs.join("0.log").to_string_lossy().into_owned(),
            labels: [label(POD_NAME, "web"), label(POD_NAMESPACE, "ns"), label(CONTAINER_NAME, "main")].into(),
            ..Default::default()
        };
        remove(&config, status).await.unwrap();
        assert_eq!((names(&logs), links()), (vec!["1.log".into()], vec!["web_ns_main-c1.log".into()]));
        // In the middle of a rotation.
        std::fs::rename(logs.join("1.log"), logs.join("1.log.20260101-000000")).unwrap();
        remove_orphans(&config, "u1").await;
        assert_eq!(links(), ["web_ns_main-c1.log"]);
        assert_eq!(names(&config.pod_logs_dir()), ["ns_web_u1", "something else"]);
        remove_orphans(&config, "").await;
        assert!(links().is_empty(), "{:?}", links());
    }
}
