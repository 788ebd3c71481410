//! What containers leave in the log directories: logs, what was rotated away, and the links that log collectors read.
//! Called by `runtime_manager` when a container starts or a pod is removed, and by `container_gc` and `housekeeping`.
//! Invariant: a log goes only with its container or its pod, and a link only with its log.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};

use cri::v1;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    config::Config,
    container_config::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE},
    log_rotation, pod_spec,
};

/// The longest name of a file.
const LONGEST_NAME: usize = 255;

/// As collectors expect it: they find pod, namespace, container and id in the name.
fn link_name(pod: &str, namespace: &str, container: &str, id: &str) -> String {
    let mut name = format!("{pod}_{namespace}_{container}-{id}");
    // Names and ids are ASCII.
    name.truncate(LONGEST_NAME - ".log".len());
    name + ".log"
}

fn link_path(config: &Config, pod: &Pod, container: &str, id: &str) -> PathBuf {
    config.container_logs_dir().join(link_name(pod_spec::name(pod), pod_spec::namespace(pod), container, id))
}

/// Shows the log of a container that was started. Runtimes that log elsewhere have none to show.
pub fn link(config: &Config, pod: &Pod, container: &str, id: &str, log: &Path) {
    if !log.exists() {
        return;
    }
    let place = link_path(config, pod, container, id);
    let made = match std::os::unix::fs::symlink(log, &place) {
        // Names that are too long may meet; the newest is shown.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(&place).and_then(|()| std::os::unix::fs::symlink(log, &place))
        }
        other => other,
    };
    if let Err(error) = made {
        tracing::warn!(link = %place.display(), %error, "failed to link a container's log");
    }
}

/// The link of a container whose pod is removed, logs and all.
pub fn unlink(config: &Config, pod: &Pod, container: &str, id: &str) {
    let _ = std::fs::remove_file(link_path(config, pod, container, id));
}

/// Removes the log of a container that is about to be removed, what was rotated away, and the link.
pub fn remove(config: &Config, status: &v1::ContainerStatus) -> io::Result<()> {
    let log = Path::new(&status.log_path);
    if !log.starts_with(config.pod_logs_dir()) {
        return Ok(());
    }
    log_rotation::rotated(log).iter().map(PathBuf::as_path).chain([log]).try_for_each(remove_file)?;
    let label = |key: &str| status.labels.get(key).map(String::as_str).unwrap_or_default();
    let name = link_name(label(POD_NAME), label(POD_NAMESPACE), label(CONTAINER_NAME), &status.id);
    let place = config.container_logs_dir().join(name);
    match std::fs::read_link(&place) {
        Ok(target) if target == log => remove_file(&place),
        _ => Ok(()),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io::Error::new(error.kind(), format!("failed to remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Directories of pods' logs by the UID their names end in.
fn pods(config: &Config) -> HashMap<String, Vec<PathBuf>> {
    let mut found: HashMap<String, Vec<PathBuf>> = HashMap::new();
    for entry in std::fs::read_dir(config.pod_logs_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Anything else there is not ours.
        if let [_, _, uid] = name.split('_').collect::<Vec<_>>()[..] {
            found.entry(uid.into()).or_default().push(entry.path());
        }
    }
    found
}

/// Removes the logs of pods that nobody wants, and links whose logs are gone.
pub fn remove_orphans(config: &Config, wanted: impl Fn(&str) -> bool) {
    for (uid, directories) in pods(config) {
        if wanted(&uid) {
            continue;
        }
        for directory in directories {
            if let Err(error) = std::fs::remove_dir_all(&directory) {
                tracing::warn!(uid, %error, "failed to remove an orphaned pod's logs");
            }
        }
    }
    for entry in std::fs::read_dir(config.container_logs_dir()).into_iter().flatten().flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        // While a log is rotated there is none of its own name.
        if !target.exists() && log_rotation::rotated(&target).is_empty() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
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
        assert!(long.len() == LONGEST_NAME && long.ends_with(".log"), "{long}");
    }

    #[test]
    fn links_go_with_their_logs() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config { log_dir: directory.path().into(), ..Config::default() };
        let logs = config.pod_logs_dir().join("ns_web_u1/main");
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::create_dir_all(config.pod_logs_dir().join("ns_gone_u2/main")).unwrap();
        std::fs::create_dir_all(config.pod_logs_dir().join("something else")).unwrap();
        std::fs::create_dir_all(config.container_logs_dir()).unwrap();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "ns"}})).unwrap();
        for file in ["0.log", "0.log.20260101-000000", "1.log"] {
            std::fs::write(logs.join(file), "").unwrap();
        }
        link(&config, &pod, "main", "c0", &logs.join("0.log"));
        link(&config, &pod, "main", "c1", &logs.join("1.log"));
        link(&config, &pod, "main", "c2", &logs.join("2.log"));
        let links = || names(&config.container_logs_dir());
        assert_eq!(links(), ["web_ns_main-c0.log", "web_ns_main-c1.log"], "nothing that leads nowhere");
        let label = |key: &str, value: &str| (key.to_string(), value.to_string());
        let status = v1::ContainerStatus {
            id: "c0".into(),
            log_path: logs.join("0.log").to_string_lossy().into_owned(),
            labels: [label(POD_NAME, "web"), label(POD_NAMESPACE, "ns"), label(CONTAINER_NAME, "main")].into(),
            ..Default::default()
        };
        remove(&config, &status).unwrap();
        assert_eq!((names(&logs), links()), (vec!["1.log".into()], vec!["web_ns_main-c1.log".into()]));
        // In the middle of a rotation.
        std::fs::rename(logs.join("1.log"), logs.join("1.log.20260101-000000")).unwrap();
        remove_orphans(&config, |uid| uid == "u1");
        assert_eq!(links(), ["web_ns_main-c1.log"]);
        assert_eq!(names(&config.pod_logs_dir()), ["ns_web_u1", "something else"]);
        remove_orphans(&config, |_| false);
        assert!(links().is_empty(), "{:?}", links());
    }
}
