//! `minke down` leaves nothing of ours behind; a second `up` says that the cluster runs.

use e2e::{BUSYBOX, Cluster, Options, id, traces};

#[test]
fn down_leaves_nothing_behind_and_up_twice_changes_nothing() {
    let cluster = Cluster::prepare(Options::default());
    let first = cluster.up();
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let text = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(text.contains("export KUBECONFIG="), "{text}");
    let pid = cluster.pid();
    let second = cluster.up();
    let text = String::from_utf8_lossy(&second.stdout).into_owned();
    assert!(second.status.success() && text.contains("already running"), "{text}");
    assert_eq!(cluster.pid(), pid);

    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    kubectl.run(&["create", "configmap", "kept"]);
    kubectl.run(&["create", "deployment", "busy", "--image", BUSYBOX, "--replicas=2", "--", "sleep", "1000"]);
    kubectl.run(&["rollout", "status", "deployment/busy", "--timeout=180s"]);
    let id = id(&cluster);
    for kind in ["process", "mount", "interface", "table", "cgroup", "directory"] {
        let found = traces(&cluster, &id);
        assert!(
            found.iter().any(|t| t.starts_with(kind)),
            "a running cluster has a {kind}, or this test sees nothing: {found:#?}"
        );
    }

    assert!(cluster.down(false).status.success());
    assert_eq!(traces(&cluster, &id), [] as [String; 0], "after down");
    assert!(cluster.data.join("store").exists(), "down keeps the data");
    assert!(cluster.up().status.success(), "up again on the same data");
    kubectl.run(&["get", "configmap", "kept"]);
    kubectl.run(&["rollout", "status", "deployment/busy", "--timeout=180s"]);
    assert!(cluster.down(true).status.success());
    assert_eq!(traces(&cluster, &id), [] as [String; 0], "after down --purge");
    assert!(!cluster.data.exists(), "purge removes the data");
}
