//! The static policy of the CPU manager as the kernel sees it: cpuset.cpus of containers.
//! Part of the node's cases, with a node of its own on the same containerd.

use std::{path::Path, time::Duration};

use resource_managers::CpuSet;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{CGROUP, LIMIT, Node, TRAP, container, fake_api::FakeApi, gone, host_pod};

/// What the kernel lets the pod's container run on.
fn kernel_cpus(pod: &Value) -> Option<CpuSet> {
    let uid = pod["metadata"]["uid"].as_str()?;
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str()?.strip_prefix("containerd://")?;
    let classes = ["", "burstable/", "besteffort/"];
    let places = ["/sys/fs/cgroup/cpuset", "/sys/fs/cgroup"].into_iter();
    let mut files = places
        .flat_map(|root| classes.map(|class| format!("{root}/{CGROUP}/kubepods/{class}pod{uid}/{id}/cpuset.cpus")));
    let text = files.find_map(|file| std::fs::read_to_string(file).ok())?;
    CpuSet::parse(text.trim()).ok()
}

async fn until(node: &Node, name: &str, wanted: &CpuSet) {
    let end = env::instant_now() + LIMIT;
    loop {
        let found = kernel_cpus(&node.api.pod(name).unwrap());
        if found.as_ref() == Some(wanted) {
            return;
        }
        assert!(env::instant_now() < end, "{name} runs on {found:?}, not {wanted}");
        env::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn cases(shutdown: &CancellationToken, dir: &Path, socket: &Path) {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("left out: needs two processors");
        return;
    }
    let dir = dir.join("static");
    std::fs::create_dir_all(dir.join("manifests")).unwrap();
    let node = Node::start_with(&FakeApi::new(), shutdown, &dir, socket, |config| {
        config.managers.cpu_policy = "static".into();
        config.managers.reserved_cpus = CpuSet::from_iter([0]);
        config.reserved.cpu_milli = 1000;
    });
    node.api.create_pod("shared", host_pod(container(TRAP)));
    let all = kernel_cpus(&node.wait_ready("shared").await).unwrap();
    let mut own = container(TRAP);
    let amounts = json!({"cpu": "1", "memory": "64Mi"});
    own["resources"] = json!({"requests": amounts, "limits": amounts});
    node.api.create_pod("own", host_pod(own));
    let own = kernel_cpus(&node.wait_ready("own").await).unwrap();
    assert!(own.len() == 1 && !own.contains(0) && own.is_subset(&all), "{own} of {all}");
    until(&node, "shared", &all.difference(&own)).await;
    node.api.delete_pod("own", 5);
    gone(&node, "own").await;
    until(&node, "shared", &all).await;
    node.api.delete_pod("shared", 5);
    gone(&node, "shared").await;
    node.stop().await;
}
