//! What probes and hooks find, and what stays as it is while nobody looks.
//! The runtime answers only when it is told to, so nothing here depends on how fast a probe is.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use cri::fake::FakeRuntime;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Node, condition, pod};

fn ready(pod: &Value) -> bool {
    condition(pod, "Ready") == "True"
}

/// Answers every request on `address`, and keeps what was asked for.
async fn serve(address: &str) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = asked.clone();
    env::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let kept = kept.clone();
            env::spawn(async move {
                let mut buffer = vec![0; 4096];
                let length = stream.read(&mut buffer).await.unwrap_or(0);
                kept.lock().unwrap().push(String::from_utf8_lossy(&buffer[..length]).into_owned());
                let moved = buffer.starts_with(b"GET /moved ");
                let first = if moved { "302 Found\r\nLocation: http://192.0.2.1/" } else { "200 OK" };
                let answer = format!("HTTP/1.1 {first}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (port, asked)
}

/// In real time: a clock that jumps whenever nothing is to be done would not wait for sockets.
#[tokio::test]
async fn pods_in_the_nodes_network_are_reached_at_its_address() {
    let own = |_: &FakeRuntime, config: &mut kubelet::Config| config.node_ips = vec!["127.0.0.2".parse().unwrap()];
    let Some(node) = Node::start_with("hostnet", own) else { return };
    let (port, asked) = serve("127.0.0.2").await;
    let get = |path: &str| json!({"httpGet": {"path": path, "port": port}});
    let mut probe = get("/moved");
    probe["timeoutSeconds"] = 300.into();
    // What is said to speak TLS and does not is asked in the clear.
    let hello = json!({"httpGet": {"path": "/hello", "port": port, "scheme": "HTTPS"}});
    let mut spec = pod(json!({"readinessProbe": probe, "lifecycle": {"postStart": hello, "preStop": get("/bye")}}));
    spec["hostNetwork"] = true.into();
    node.api.create_pod("host", spec);
    node.wait("host", "ready", ready).await;
    node.event("ProbeWarning", "Readiness probe warning: Probe terminated redirects, Response body: ").await;
    let fallback =
        format!("request to HTTPS lifecycle hook 127.0.0.2:{port} got HTTP response, retry with HTTP succeeded");
    node.event("LifecycleHTTPFallback", &fallback).await;
    node.api.delete_pod("host", 300);
    node.wait("host", "gone", Value::is_null).await;
    let asked = asked.lock().unwrap().clone();
    for (path, agent) in
        [("/moved", "kube-probe/1.35"), ("/hello", "kube-lifecycle/1.35"), ("/bye", "kube-lifecycle/1.35")]
    {
        let by = |request: &&String| request.starts_with(&format!("GET {path} ")) && request.contains(agent);
        assert!(asked.iter().find(by).is_some(), "{path} {asked:?}");
    }
    node.stop().await;
}

/// Two of one container at once would be worse than one that is ill.
#[tokio::test(start_paused = true)]
async fn what_can_not_be_stopped_is_not_started_beside_itself() {
    let Some(node) = Node::start("unstoppable") else { return };
    let command = json!(["look", "$(WHERE)", "$(ELSEWHERE)"]);
    let probe = json!({"exec": {"command": command}, "periodSeconds": 1, "failureThreshold": 1});
    let env = json!([{"name": "WHERE", "value": "here"}]);
    node.api.create_pod("ill", pod(json!({"livenessProbe": probe, "env": env})));
    node.wait("ill", "ready", ready).await;
    let id = node.runtime.running("main").remove(0);
    (0..3).for_each(|_| node.runtime.fail_next("stop_container", cri::Error::Other("busy".into())));
    node.runtime.push_exec_result(&id, cri::v1::ExecSyncResponse { exit_code: 1, ..Default::default() });
    let other = || {
        let running = node.runtime.running("main");
        assert!(running.len() < 2, "{running:?}");
        running.first().is_some_and(|now| *now != id)
    };
    node.until("was it restarted", other).await;
    let calls = node.runtime.calls();
    assert_eq!(calls.iter().filter(|call| **call == format!("stop_container {id}")).count(), 4, "{calls:?}");
    // The words of the probe are expanded by what the container's specification says.
    assert!(calls.contains(&format!("exec_sync {id} look here $(ELSEWHERE)")), "{calls:?}");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_ready_stays_so_under_another_kubelet() {
    let Some(mut node) = Node::start("kept") else { return };
    let probe = json!({"exec": {"command": ["look"]}, "periodSeconds": 1, "timeoutSeconds": 3600});
    node.api.create_pod("kept", pod(json!({"readinessProbe": probe, "startupProbe": probe})));
    node.wait("kept", "ready", ready).await;
    let told = node.api.pod("kept").unwrap();
    // The next kubelet's probes have nothing to say for a while.
    node.runtime.hang("exec_sync", "look");
    node.restart().await;
    node.others_go_on().await;
    node.env.sleep(Duration::from_secs(60)).await;
    let now = node.api.pod("kept").unwrap();
    assert_eq!(now["status"]["conditions"], told["status"]["conditions"]);
    assert_eq!(now["status"]["containerStatuses"], told["status"]["containerStatuses"]);
    // What they say then holds.
    let id = node.runtime.running("main").remove(0);
    let refused = cri::v1::ExecSyncResponse { exit_code: 1, ..Default::default() };
    (0..3).for_each(|_| node.runtime.push_exec_result(&id, refused.clone()));
    node.runtime.release();
    node.wait("kept", "unready", |pod| condition(pod, "Ready") == "False").await;
    node.wait("kept", "ready again", ready).await;
    node.stop().await;
}

/// Not a whole period later, however long that is; and only what the period asks for is told in Events.
#[tokio::test(start_paused = true)]
async fn a_container_that_just_started_is_ready_soon_after_a_failed_probe() {
    let Some(node) = Node::start("soon") else { return };
    let probe = json!({"exec": {"command": ["look"]}, "periodSeconds": 60, "timeoutSeconds": 30});
    for (name, kind) in [("readiness", "readinessProbe"), ("startup", "startupProbe")] {
        node.runtime.hang("exec_sync", "look");
        node.api.create_pod(name, pod(json!({kind: probe})));
        node.until("did it run", || !node.runtime.running("main").is_empty()).await;
        let id = node.runtime.running("main").remove(0);
        let refused = cri::v1::ExecSyncResponse { exit_code: 1, ..Default::default() };
        (0..4).for_each(|_| node.runtime.push_exec_result(&id, refused.clone()));
        let began = node.env.monotonic();
        node.runtime.release();
        node.wait(name, "ready", ready).await;
        let took = node.env.monotonic() - began;
        assert!(took < Duration::from_secs(5), "{kind}: ready after {took:?}");
        let unhealthy = |e: &&Value| e["reason"] == "Unhealthy" && e["involvedObject"]["name"] == name;
        let told: Vec<Value> = node.api.find("/events/").iter().filter(unhealthy).cloned().collect();
        assert!(told.iter().all(|e| e["count"] == 1), "{told:#?}");
        node.api.delete_pod(name, 1);
        node.wait(name, "gone", Value::is_null).await;
    }
    node.stop().await;
}
