//! Logs of containers and the links to them: there while their container is, and gone with it.
//! What was never ours, or is still wanted, stays.

use std::{path::Path, time::Duration};

use serde_json::{Value, json};

use crate::harness::{Node, condition, pod};

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn logs_are_linked_and_go_with_their_containers() {
    let Some(node) = Node::start("logs") else { return };
    let (links, logs) = (node.directory.path().join("log/containers"), node.directory.path().join("log/pods"));
    std::fs::create_dir_all(logs.join("default_gone_0-1-2/main")).unwrap();
    node.api.create_pod("talks", pod(json!({})));
    let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
    for count in 0..4 {
        let again = |pod: &Value| restarts(pod) == Some(count) && condition(pod, "Ready") == "True";
        node.wait("talks", "ready", again).await;
        let running = node.runtime.running("main");
        let link = links.join(format!("talks_default_main-{}.log", running[0]));
        assert!(std::fs::read_link(&link).is_ok_and(|log| log.ends_with(format!("main/{count}.log"))), "{link:?}");
        // A log that was rotated goes as well.
        std::fs::write(format!("{}.20260101-000000", link.canonicalize().unwrap().display()), "").unwrap();
        if count < 3 {
            node.runtime.exit(&running[0], 1);
        }
        node.env.sleep(Duration::from_secs(1200)).await;
    }
    let own = names(&logs).into_iter().find(|name| name.starts_with("default_talks_")).unwrap();
    // The one that runs and the one before, whose log can still be asked for.
    let left = ["2.log", "2.log.20260101-000000", "3.log", "3.log.20260101-000000"];
    assert_eq!(names(&logs.join(own).join("main")), left);
    assert_eq!(names(&links).len(), 2, "{:?}", names(&links));
    assert_eq!(names(&logs).len(), 1, "those of a pod that is gone: {:?}", names(&logs));
    node.api.delete_pod("talks", 1);
    node.wait("talks", "gone", Value::is_null).await;
    node.until("were links and logs gone", || names(&links).is_empty() && names(&logs).is_empty()).await;
    node.stop().await;
}
