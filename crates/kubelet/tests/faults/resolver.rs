//! The node's resolver file: pods do not start without what it says.
//! A pod that could resolve nothing does not run as if it could.

use std::path::PathBuf;

use serde_json::json;

use crate::harness::{Node, condition, pod};

#[tokio::test(start_paused = true)]
async fn pods_wait_for_a_resolver_file_that_can_be_read() {
    let files = tempfile::tempdir().unwrap();
    let file: PathBuf = files.path().join("resolv.conf");
    let place = file.display();
    let Some(node) = Node::start_with("resolver", |_, config| config.resolv_conf = file.clone()) else { return };
    for policy in ["Default", "None"] {
        let mut spec = pod(json!({}));
        spec["dnsPolicy"] = policy.into();
        spec["dnsConfig"] = json!({"nameservers": ["192.0.2.1"]});
        node.api.create_pod(&policy.to_lowercase(), spec);
    }
    let failed = "Failed to create pod sandbox: ";
    let parsing = "Encountered error while parsing resolv conf file. Error: ";
    node.event("FailedCreatePodSandBox", &format!("{failed}open {place}: no such file or directory")).await;
    std::fs::create_dir(&file).unwrap();
    node.event("FailedCreatePodSandBox", &format!("{failed}{parsing}read {place}: is a directory")).await;
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, "nameserver\n").unwrap();
    node.event("FailedCreatePodSandBox", &format!("{failed}{parsing}nameserver list is empty ")).await;
    for name in ["default", "none"] {
        assert_eq!(node.api.pod(name).unwrap()["status"]["phase"], "Pending", "{name}");
    }
    std::fs::write(&file, "nameserver 192.0.2.53\n").unwrap();
    for name in ["default", "none"] {
        node.wait(name, "ready", |pod| condition(pod, "Ready") == "True").await;
    }
    node.stop().await;
}
