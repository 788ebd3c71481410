//! Log lines about a pod, from whichever module, carry the pod's name and UID.
//! The subscriber is this test's own.

use std::{
    io::{self, Write},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::{Node, condition, pod};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn lines_of_a_pod_sync_carry_its_name_and_uid() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = testkit::scoped_log(subscriber);
    let Some(node) = Node::start("spans") else { return };
    node.api.create_pod("told", pod(json!({})));
    node.wait("told", "ready", |pod| condition(pod, "Ready") == "True").await;
    let uid = node.api.pod("told").unwrap()["metadata"]["uid"].as_str().unwrap().to_string();
    node.runtime.fail_next("stop_container", cri::Error::Other("busy".into()));
    node.api.delete_pod("told", 1);
    node.wait("told", "gone", Value::is_null).await;
    node.stop().await;
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    let told = text.lines().find(|line| line.contains("failed to stop a container")).expect("the line is there");
    let span = format!("sync_terminating_pod{{pod=\"default/told\" uid=\"{uid}\"}}");
    assert!(told.contains(&span), "{told}");
}
