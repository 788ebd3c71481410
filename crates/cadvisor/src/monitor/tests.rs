//! Groups as plain files, under simulated time.

use std::path::Path;

use super::*;

struct Pods;

impl Naming for Pods {
    fn identities(&self) -> HashMap<String, Identity> {
        let identity = |kind, container: &str| Identity {
            kind,
            pod: "web".into(),
            namespace: "default".into(),
            container: container.into(),
            ..Identity::default()
        };
        HashMap::from([
            ("/kubepods/podu".to_string(), identity(GroupKind::Pod, "")),
            ("/kubepods/podu/c".to_string(), identity(GroupKind::Container, "main")),
            ("/kubepods/podgone".to_string(), identity(GroupKind::Pod, "")),
        ])
    }

    fn roots(&self) -> Vec<String> {
        vec!["/kubepods".into()]
    }
}

fn cpu(root: &Path, group: &str, microseconds: u64) {
    let place = root.join(group);
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("cpu.stat"), format!("usage_usec {microseconds}\n")).unwrap();
}

fn monitor(root: &Path) -> (Monitor, Env) {
    for group in ["", "kubepods", "kubepods/podu", "kubepods/podu/c", "kubepods/podu/c/deep/er", "other"] {
        cpu(root, group, 1);
    }
    let env = Env::simulated(Timestamp::UNIX_EPOCH, 1);
    let versions = Versions { kernel: "k".into(), system: "s".into(), own: "v".into() };
    (Monitor::new(Cgroups::Unified { root: root.into() }, Arc::new(Pods), versions, env.clone()), env)
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_has_the_node_and_what_is_below_the_pods_group() {
    let dir = tempfile::tempdir().unwrap();
    let (monitor, _) = monitor(dir.path());
    let snapshot = monitor.snapshot();
    let ids: Vec<&str> = snapshot.iter().map(|container| container.id.as_str()).collect();
    assert_eq!(ids, ["/", "/kubepods", "/kubepods/podu", "/kubepods/podu/c", "/kubepods/podu/c/deep"]);
    let container = &snapshot[3];
    assert_eq!((container.pod.as_str(), container.container.as_str()), ("web", "main"));
    assert_eq!(container.spec.labels["io.kubernetes.pod.name"], "web");
    assert!(!snapshot[0].stats.filesystem.is_empty());
    let mut text = Text::default();
    monitor.metrics(&mut text);
    let page = text.finish();
    assert!(
        page.contains("container_cpu_usage_seconds_total{container=\"main\",cpu=\"total\",id=\"/kubepods/podu/c\"")
    );
    assert!(page.contains("machine_cpu_cores{"));
}

#[tokio::test(start_paused = true)]
async fn samples_are_shared_and_remembered_while_somebody_looks() {
    let dir = tempfile::tempdir().unwrap();
    let (monitor, env) = monitor(dir.path());
    let totals = |view: Option<ViewedGroup>| -> Vec<u64> {
        view.unwrap().history.iter().map(|sample| sample.cpu.usage.total).collect()
    };
    assert_eq!(totals(monitor.view("/kubepods/podu/c")), [1000]);
    cpu(dir.path(), "kubepods/podu/c", 2);
    assert_eq!(totals(monitor.view("/kubepods/podu/c")), [1000], "young enough");
    env.sleep(Duration::from_secs(1)).await;
    assert_eq!(totals(monitor.view("/kubepods/podu/c")), [1000, 2000]);
    for _ in 0..2 * HISTORY_SAMPLES_MAX {
        env.sleep(Duration::from_secs(1)).await;
        monitor.view("/kubepods/podu/c");
    }
    assert_eq!(totals(monitor.view("/kubepods/podu/c")).len(), HISTORY_SAMPLES_MAX);
    env.sleep(2 * HISTORY_IDLE_MAX).await;
    assert_eq!(totals(monitor.view("/kubepods/podu/c")).len(), 1, "forgotten");
    std::fs::remove_dir_all(dir.path().join("kubepods/podu")).unwrap();
    env.sleep(Duration::from_secs(1)).await;
    assert!(monitor.view("/kubepods/podu/c").is_none(), "gone");
    assert!(monitor.view("/../etc").is_none());
}

#[tokio::test(start_paused = true)]
async fn lists_are_of_pods_and_of_what_is_in_them() {
    let dir = tempfile::tempdir().unwrap();
    let (monitor, env) = monitor(dir.path());
    let ids = |id: &str| -> Vec<String> { monitor.list(id).iter().map(|row| row.id.clone()).collect() };
    assert_eq!(ids("/"), ["/kubepods/podu"], "one that is gone is left out");
    assert_eq!(ids("/kubepods/podu"), ["/kubepods/podu/c"]);
    assert!(ids("/none").is_empty());
    cpu(dir.path(), "kubepods/podu", 5);
    assert_eq!(monitor.list("/")[0].usage.cpu_nanoseconds, 1000, "young enough");
    env.sleep(Duration::from_secs(1)).await;
    assert_eq!(monitor.list("/")[0].usage.cpu_nanoseconds, 5000);
}

#[tokio::test(start_paused = true)]
async fn processes_are_those_of_a_group_and_below_it() {
    let dir = tempfile::tempdir().unwrap();
    let (monitor, _) = monitor(dir.path());
    std::fs::write(dir.path().join("kubepods/podu/c/cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
    for (id, expected) in [("/kubepods/podu", 1), ("/kubepods/podu/c", 1), ("/kubepods/podu/c/deep", 0), ("/", 1)] {
        assert_eq!(monitor.processes(id).len(), expected, "{id}");
    }
}
