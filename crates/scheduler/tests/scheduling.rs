//! The scheduler against a small API server in memory, under simulated time.
//! Each test states objects and what must come of them.

mod server;

use api::ApiError;
use client::{Client, InformerFactory};
use env::Env;
use scheduler::Config;
use serde_json::{Value, json};
use server::Server;
use tokio_util::sync::CancellationToken;

fn start(server: &Server, config: Config) -> CancellationToken {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 7);
    let shutdown = CancellationToken::new();
    let client = Client::new(server.clone());
    let informers = InformerFactory::new(client.clone(), env.clone(), shutdown.clone());
    let token = shutdown.clone();
    env.clone().spawn(async move { scheduler::run(config, client, informers, env, token).await.unwrap() });
    shutdown
}

fn node(name: &str, cpu: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": cpu, "memory": "32Gi", "pods": "110"}}})
}

fn pod(name: &str, cpu: &str, more: Value) -> Value {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
    let mut spec = json!({"schedulerName": "default-scheduler", "containers": [container]});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

fn node_of(server: &Server, name: &str) -> Option<String> {
    let pod = server.get("pods", &format!("default/{name}"))?;
    pod["spec"]["nodeName"].as_str().map(str::to_string)
}

fn nominated(server: &Server, name: &str) -> Option<String> {
    let pod = server.get("pods", &format!("default/{name}"))?;
    pod["status"]["nominatedNodeName"].as_str().map(str::to_string)
}

fn message_of(server: &Server, name: &str) -> Option<String> {
    let pod = server.get("pods", &format!("default/{name}"))?;
    let conditions = pod["status"]["conditions"].as_array()?;
    let condition = conditions.iter().find(|c| c["type"] == "PodScheduled")?;
    Some(format!("{}: {}", condition["reason"].as_str()?, condition["message"].as_str()?))
}

#[tokio::test(start_paused = true)]
async fn pods_are_bound_and_the_others_say_why_not() {
    let server = Server::new();
    let mut cordoned = node("b", "8");
    cordoned["spec"] = json!({"unschedulable": true});
    server.put("nodes", node("a", "1"));
    server.put("nodes", cordoned);
    server.put("pods", pod("fits", "600m", json!({})));
    let config = Config::default();
    let (diagnoses, metrics) = (config.diagnoses.clone(), config.metrics.clone());
    start(&server, config);
    server.until("binding", |s| node_of(s, "fits").as_deref() == Some("a")).await;
    server.put("pods", pod("waits", "600m", json!({})));
    server.until("the condition", |s| message_of(s, "waits").is_some()).await;
    assert_eq!(
        message_of(&server, "waits").unwrap(),
        "Unschedulable: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. \
         no new claims to deallocate, preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, \
         1 Preemption is not helpful for scheduling."
    );
    let verdict = diagnoses.get("default/waits").unwrap();
    assert_eq!(verdict.verdict("b").unwrap().plugin, "NodeUnschedulable");
    // Events of one object are named by the time.
    env::sleep(std::time::Duration::from_secs(5)).await;
    server.put("nodes", node("c", "1"));
    server.until("binding to the new node", |s| node_of(s, "waits").as_deref() == Some("c")).await;
    let events = server.all("events");
    let said = |reason: &str| events.iter().filter(|e| e["reason"] == reason).count();
    assert_eq!((said("Scheduled"), said("FailedScheduling")), (1, 1), "{events:#?}");
    server.until("the second event", |s| s.all("events").len() == 3).await;
    let mut out = metrics::Text::default();
    metrics.render(&mut out);
    let text = out.finish();
    for line in [
        "scheduler_schedule_attempts_total{result=\"scheduled\",profile=\"default-scheduler\"} 2",
        "scheduler_schedule_attempts_total{result=\"unschedulable\",profile=\"default-scheduler\"} 1",
        "scheduler_scheduling_attempt_duration_seconds_count{result=\"scheduled\",profile=\"default-scheduler\"} 2",
        "scheduler_pod_scheduling_attempts_sum 3",
        "scheduler_pod_scheduling_sli_duration_seconds_count{attempts=\"1\"} 1",
        "scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts=\"2\",le=\"2.56\"} 0",
        "scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts=\"2\",le=\"10.24\"} 1",
        "scheduler_queue_incoming_pods_total{queue=\"active\",event=\"UnschedulablePodAdd\"} 2",
        "scheduler_queue_incoming_pods_total{queue=\"unschedulable\",event=\"ScheduleAttemptFailure\"} 1",
        "scheduler_queue_incoming_pods_total{queue=\"active\",event=\"NodeAdd\"} 1",
        "scheduler_scheduling_algorithm_duration_seconds_count 2",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"PreFilter\",status=\"Success\",profile=\"default-scheduler\"} 2",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"PostFilter\",status=\"Unschedulable\",profile=\"default-scheduler\"} 1",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"Bind\",status=\"Success\",profile=\"default-scheduler\"} 2",
        "scheduler_cache_size{type=\"nodes\"} 3",
        "scheduler_cache_size{type=\"pods\"} 2",
        "scheduler_unschedulable_pods{plugin=\"NodeResourcesFit\",profile=\"default-scheduler\"} 0",
        "scheduler_unschedulable_pods{plugin=\"NodeUnschedulable\",profile=\"default-scheduler\"} 0",
        "scheduler_event_handling_duration_seconds_count{event=\"NodeAdd\"} 1",
        "scheduler_batch_attempts_total{profile=\"default-scheduler\",result=\"no_hint\"} 2",
        "scheduler_goroutines{operation=\"binding\"} 0",
        "scheduler_pending_pods{queue=\"active\"} 0",
        "scheduler_pending_pods{queue=\"unschedulable\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn gates_other_schedulers_and_bound_pods_are_respected() {
    let server = Server::new();
    server.put("nodes", node("a", "1"));
    server.put("pods", pod("gated", "100m", json!({"schedulingGates": [{"name": "g"}]})));
    server.put("pods", pod("foreign", "100m", json!({"schedulerName": "other"})));
    server.put("pods", pod("placed", "900m", json!({"nodeName": "a"})));
    server.put("pods", pod("plain", "200m", json!({})));
    start(&server, Config::default());
    server.until("the condition", |s| message_of(s, "plain").is_some()).await;
    assert_eq!((node_of(&server, "gated"), node_of(&server, "foreign")), (None, None));
    server.put("pods", pod("gated", "100m", json!({})));
    server.until("binding", |s| node_of(s, "gated").is_some()).await;
    // The finished pod's room is free again, and the waiting pod hears of it.
    let mut done = server.get("pods", "default/placed").unwrap();
    done["status"] = json!({"phase": "Succeeded"});
    server.put("pods", done);
    server.until("binding", |s| node_of(s, "plain").is_some()).await;
    assert_eq!(node_of(&server, "foreign"), None);
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_to_lead_knows_the_cluster_and_leaves_it_alone() {
    let server = Server::new();
    server.put("nodes", node("a", "1"));
    server.put("pods", pod("plain", "200m", json!({})));
    let spec = json!({"holderIdentity": "another", "leaseDurationSeconds": 15});
    server.put("leases", json!({"metadata": {"name": "kube-scheduler", "namespace": "kube-system"}, "spec": spec}));
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 7);
    let (shutdown, client) = (CancellationToken::new(), Client::new(server.clone()));
    let informers = InformerFactory::new(client.clone(), env.clone(), shutdown.clone());
    let mut config = Config::default();
    config.leader_election.get_or_insert_default().leader_elect = true;
    let (running, seen) = (scheduler::run(config, client, informers.clone(), env.clone(), shutdown), informers);
    assert!(!seen.is_synced());
    env.spawn(running);
    // Not so long that the lease would pass to it.
    for _ in 0..500 {
        env::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(seen.is_synced());
    assert_eq!(node_of(&server, "plain"), None);
    assert_eq!(server.get("leases", "kube-system/kube-scheduler").unwrap()["spec"]["holderIdentity"], "another");
}

/// Zone 2 is empty and its only node cordoned: spreading keeps a pod from zone 1 until `change` says otherwise.
async fn spread_waits_for(change: impl FnOnce(&Server, Value, Value)) {
    let server = Server::new();
    let zoned = |name: &str, zone: &str| {
        let mut node = node(name, "1");
        node["metadata"]["labels"]["zone"] = zone.into();
        node
    };
    let mut cordoned = zoned("b", "2");
    cordoned["spec"] = json!({"unschedulable": true});
    let mut placed = pod("placed", "100m", json!({"nodeName": "a"}));
    placed["metadata"]["labels"] = json!({"app": "web"});
    server.put("nodes", zoned("a", "1"));
    server.put("nodes", cordoned.clone());
    server.put("pods", placed.clone());
    let constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}});
    let mut waiting = pod("waits", "100m", json!({"topologySpreadConstraints": [constraint]}));
    waiting["metadata"]["labels"] = json!({"app": "web"});
    server.put("pods", waiting);
    start(&server, Config::default());
    server.until("the condition", |s| message_of(s, "waits").is_some()).await;
    change(&server, cordoned, placed);
    server.until("binding", |s| node_of(s, "waits").as_deref() == Some("a")).await;
}

#[tokio::test(start_paused = true)]
async fn what_makes_domains_even_wakes_those_that_spread() {
    spread_waits_for(|server, _, _| server.delete("nodes", "b")).await;
    spread_waits_for(|server, mut node, _| {
        node["metadata"]["labels"] = json!({"kubernetes.io/hostname": "b"});
        server.put("nodes", node);
    })
    .await;
    spread_waits_for(|server, _, mut pod| {
        pod["metadata"]["labels"] = json!({"app": "db"});
        server.put("pods", pod);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn higher_priorities_make_room() {
    let server = Server::new();
    server.put("nodes", node("a", "1"));
    server.put("pods", pod("low", "800m", json!({"priority": 1})));
    start(&server, Config::default());
    server.until("binding", |s| node_of(s, "low").is_some()).await;
    server.put("pods", pod("high", "800m", json!({"priority": 100})));
    server.until("preemption", |s| node_of(s, "high").is_some()).await;
    assert!(server.get("pods", "default/low").is_none());
    // Events of one moment are written together, at its end.
    server.until("the event", |s| s.all("events").iter().any(|e| e["reason"] == "Preempted")).await;
}

#[tokio::test(start_paused = true)]
async fn refused_bindings_are_tried_again() {
    let server = Server::new();
    server.put("nodes", node("a", "1"));
    server.refuse_binding(ApiError::internal("store is away"));
    server.refuse_binding(ApiError::conflict("", "pods/binding", "p", "try again"));
    server.put("pods", pod("p", "800m", json!({})));
    start(&server, Config::default());
    server.until("binding", |s| node_of(s, "p").is_some()).await;
    assert!(message_of(&server, "p").unwrap().starts_with("SchedulerError: binding rejected: "));
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_before_its_binding_leaves_no_trace() {
    let server = Server::new();
    server.put("nodes", node("a", "1"));
    start(&server, Config::default());
    for round in 0..50 {
        server.put("pods", pod(&format!("short-{round}"), "800m", json!({})));
        for _ in 0..round % 7 {
            tokio::task::yield_now().await;
        }
        server.delete("pods", &format!("default/short-{round}"));
    }
    server.put("pods", pod("p", "1", json!({})));
    server.until("binding", |s| node_of(s, "p").is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn claims_that_wait_for_a_node_get_one_first() {
    let server = Server::new();
    server.put("nodes", node("a", "1"));
    let class = json!({"metadata": {"name": "fast"}, "provisioner": "example.com/disk",
        "volumeBindingMode": "WaitForFirstConsumer"});
    server.put("storageclasses", class);
    let claim = json!({"metadata": {"name": "data", "namespace": "default"}, "spec": {"storageClassName": "fast"}});
    server.put("persistentvolumeclaims", claim);
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    server.put("pods", pod("p", "1", json!({"volumes": volumes})));
    start(&server, Config::default());
    let annotation = |s: &Server| {
        let claim = s.get("persistentvolumeclaims", "default/data").unwrap();
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "a"
    };
    server.until("the selected node", annotation).await;
    assert_eq!(node_of(&server, "p"), None);
    server.until("the nomination", |s| nominated(s, "p").as_deref() == Some("a")).await;
    let mut claim = server.get("persistentvolumeclaims", "default/data").unwrap();
    claim["spec"]["volumeName"] = json!("pv");
    claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
    server.put("persistentvolumes", json!({"metadata": {"name": "pv"}}));
    server.put("persistentvolumeclaims", claim);
    server.until("binding", |s| node_of(s, "p").is_some()).await;
    assert_eq!(nominated(&server, "p"), None);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_nobody_fills_takes_the_nomination_back() {
    let server = Server::new();
    server.put("nodes", node("a", "1"));
    let class = json!({"metadata": {"name": "fast"}, "provisioner": "example.com/disk",
        "volumeBindingMode": "WaitForFirstConsumer"});
    server.put("storageclasses", class);
    let claim = json!({"metadata": {"name": "data", "namespace": "default"}, "spec": {"storageClassName": "fast"}});
    server.put("persistentvolumeclaims", claim);
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    server.put("pods", pod("p", "1", json!({"volumes": volumes})));
    let config = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
        profiles: [{pluginConfig: [{name: VolumeBinding, args: {bindTimeoutSeconds: 5}}]}]\n";
    start(&server, Config::from_yaml(config).unwrap());
    server.until("the nomination", |s| nominated(s, "p").is_some()).await;
    server.until("giving up", |s| message_of(s, "p").is_some()).await;
    assert_eq!(
        message_of(&server, "p").unwrap(),
        "SchedulerError: binding volumes: timed out waiting for the condition"
    );
    server.until("the withdrawal", |s| nominated(s, "p").is_none()).await;
    server.until("another try", |s| nominated(s, "p").is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn many_pods_fill_nodes_and_never_overfill_them() {
    let server = Server::new();
    for n in 0..120 {
        server.put("nodes", node(&format!("n{n}"), "1"));
    }
    for p in 0..500 {
        server.put("pods", pod(&format!("p{p}"), "250m", json!({})));
    }
    start(&server, Config::default());
    let bound = |s: &Server| s.all("pods").iter().filter(|p| p["spec"]["nodeName"].is_string()).count();
    server.until("480 bindings", |s| bound(s) == 480).await;
    env::sleep(std::time::Duration::from_secs(30)).await;
    let mut used = std::collections::BTreeMap::<String, usize>::new();
    for pod in server.all("pods") {
        if let Some(node) = pod["spec"]["nodeName"].as_str() {
            *used.entry(node.into()).or_default() += 1;
        }
    }
    assert!(used.values().all(|count| *count == 4), "{used:?}");
}

/// An extender on a port of its own: refuses node a, likes node c, and agrees to victims on node b only.
async fn extender() -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    env::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            // One request per connection; its body ends with the brace that closes it.
            while !request.ends_with(b"}") {
                let count = stream.read(&mut buffer).await.unwrap();
                request.extend_from_slice(&buffer[..count]);
            }
            let text = String::from_utf8_lossy(&request);
            let asked: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
            let body = match text.split(' ').nth(1).unwrap() {
                "/filter" => json!({"NodeNames": ["b", "c"], "FailedNodes": {"a": "not this one"}}),
                "/preempt" => json!({"NodeNameToMetaVictims": {"b": asked["NodeNameToMetaVictims"]["b"]}}),
                _ => json!([{"Host": "b", "Score": 1}, {"Host": "c", "Score": 10}]),
            };
            let body = body.to_string();
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).await.unwrap();
        }
    });
    format!("http://{address}")
}

#[tokio::test]
async fn extenders_refuse_and_score_nodes() {
    let server = Server::new();
    for name in ["a", "b", "c"] {
        server.put("nodes", node(name, "1"));
    }
    let url = extender().await;
    let config = format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders:\n\
         - {{urlPrefix: '{url}', filterVerb: filter, prioritizeVerb: score, weight: 5, nodeCacheCapable: true}}\n"
    );
    start(&server, Config::from_yaml(&config).unwrap());
    server.put("pods", pod("p", "100m", json!({})));
    server.until("binding", |s| node_of(s, "p").is_some()).await;
    assert_eq!(node_of(&server, "p").as_deref(), Some("c"));
}

#[tokio::test]
async fn extenders_have_a_say_about_victims() {
    let server = Server::new();
    for name in ["a", "b", "c"] {
        server.put("nodes", node(name, "1"));
        let mut low = pod(&format!("on-{name}"), "1", json!({"nodeName": name, "priority": 0}));
        low["metadata"]["uid"] = format!("uid-{name}").into();
        server.put("pods", low);
    }
    let url = extender().await;
    let config = format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders:\n\
         - {{urlPrefix: '{url}', preemptVerb: preempt, nodeCacheCapable: true}}\n"
    );
    start(&server, Config::from_yaml(&config).unwrap());
    server.put("pods", pod("high", "1", json!({"priority": 1000})));
    server.until("preemption", |s| s.get("pods", "default/on-b").is_none()).await;
    assert_eq!(server.all("pods").len(), 3);
}

#[test]
fn extenders_over_tls_say_whom_to_believe() {
    let check = |rest: &str, expected: &str| {
        let config = format!(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders:\n- {{{rest}, filterVerb: f}}\n"
        );
        let found = Config::from_yaml(&config).map(drop).map_err(|error| error.to_string());
        match expected {
            "" => assert_eq!(found, Ok(()), "{rest}"),
            expected => assert!(found.clone().is_err_and(|error| error.contains(expected)), "{rest}: {found:?}"),
        }
    };
    check("urlPrefix: 'https://e'", "tlsConfig: give caFile or caData, or say insecure: true");
    check("urlPrefix: 'http://e', enableHTTPS: true", "tlsConfig: give caFile");
    check("urlPrefix: 'https://e', tlsConfig: {insecure: true}", "");
    check("urlPrefix: 'https://e', tlsConfig: {insecure: true, certFile: /no/such}", "tlsConfig.certFile: /no/such");
    check("urlPrefix: 'https://e', tlsConfig: {caData: '%'}", "tlsConfig.caData");
    check("urlPrefix: 'https://e', tlsConfig: {verify: false}", "verify");
    check("urlPrefix: 'ftp://e'", "must start with http:// or https://");
}

/// Not a check but a figure: `cargo test -p minke-scheduler --release -- --ignored --nocapture throughput`.
#[tokio::test]
#[ignore = "a figure, not a check"]
async fn throughput() {
    let anti = json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "w"}}}]}}});
    for (what, spec, service, count) in [
        ("plain", json!({}), false, 5000),
        ("behind a service", json!({}), true, 2000),
        ("each on its own node", anti, false, 900),
    ] {
        let server = Server::new();
        for n in 0..1000 {
            server.put("nodes", node(&format!("n{n}"), "8"));
        }
        if service {
            let service =
                json!({"metadata": {"name": "w", "namespace": "default"}, "spec": {"selector": {"app": "w"}}});
            server.put("services", service);
        }
        for p in 0..count {
            let mut pod = pod(&format!("p{p}"), "100m", spec.clone());
            pod["metadata"]["labels"] = json!({"app": "w"});
            server.put("pods", pod);
        }
        let env = Env::real();
        let began = env.monotonic();
        let shutdown = start(&server, Config::default());
        server.until("all bindings", |s| s.bindings() == count).await;
        let seconds = (env.monotonic() - began).as_secs_f64();
        println!("{count} pods {what} on 1000 nodes in {seconds:.2} s: {:.0} bindings/s", count as f64 / seconds);
        shutdown.cancel();
    }
}

fn slice(node: &str, devices: usize) -> Value {
    let devices: Vec<_> = (0..devices).map(|at| json!({"name": format!("gpu-{at}")})).collect();
    let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
    json!({"metadata": {"name": format!("{node}-gpus")},
        "spec": {"driver": "gpu.example.com", "nodeName": node, "pool": pool, "devices": devices}})
}

fn resource_claim(name: &str) -> Value {
    let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}})
}

fn with_claim(name: &str, claim: &str) -> Value {
    pod(name, "10m", json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}))
}

/// Every device that a claim has, as `pool/device`.
fn devices(server: &Server) -> Vec<String> {
    let claims = server.all("resourceclaims");
    let results = claims.iter().flat_map(|c| c["status"]["allocation"]["devices"]["results"].as_array()).flatten();
    let shown = |r: &Value| format!("{}/{}", r["pool"].as_str().unwrap(), r["device"].as_str().unwrap());
    let mut all: Vec<_> = results.map(shown).collect();
    all.sort();
    all
}

#[tokio::test(start_paused = true)]
async fn pods_get_devices_and_no_device_is_given_twice() {
    let server = Server::new();
    let pods = 12;
    for name in ["a", "b", "c"] {
        server.put("nodes", node(name, "4"));
        server.put("resourceslices", slice(name, 4));
    }
    server.put("deviceclasses", json!({"metadata": {"name": "gpu"}, "spec": {}}));
    start(&server, Config::default());
    // One attempt fails after its claim was written: the next finds the claim with its device.
    server.refuse_binding(ApiError::internal("no"));
    for at in 0..pods {
        server.put("pods", with_claim(&format!("p{at}"), &format!("c{at}")));
    }
    for at in 0..pods {
        server.put("resourceclaims", resource_claim(&format!("c{at}")));
    }
    server.until("all bound", |s| s.bindings() == pods).await;
    let given = devices(&server);
    assert_eq!(given.len(), pods);
    assert!(given.windows(2).all(|pair| pair[0] != pair[1]), "{given:?}");
    for at in 0..pods {
        let claim = server.get("resourceclaims", &format!("default/c{at}")).unwrap();
        let node = node_of(&server, &format!("p{at}")).unwrap();
        assert_eq!(claim["status"]["allocation"]["devices"]["results"][0]["pool"], json!(node));
        assert_eq!(claim["status"]["reservedFor"][0]["name"], json!(format!("p{at}")));
        assert_eq!(claim["metadata"]["finalizers"], json!(["resource.kubernetes.io/delete-protection"]));
    }
    // No device is left; the pod waits until a claim gives one back.
    server.put("resourceclaims", resource_claim("late"));
    server.put("pods", with_claim("late", "late"));
    server.until("the condition", |s| message_of(s, "late").is_some()).await;
    assert_eq!(
        message_of(&server, "late").unwrap(),
        "Unschedulable: 0/3 nodes are available: 3 cannot allocate all claims. still not schedulable, preemption: 0/3 \
         nodes are available: 3 Preemption is not helpful for scheduling."
    );
    let mut freed = server.get("resourceclaims", "default/c0").unwrap();
    freed["status"] = json!({});
    server.put("resourceclaims", freed);
    server.until("bound", |s| node_of(s, "late").is_some()).await;
    // Pods share a claim on the node where its device is.
    server.put("pods", with_claim("second", "late"));
    server.until("bound", |s| node_of(s, "second").is_some()).await;
    assert_eq!(node_of(&server, "second"), node_of(&server, "late"));
    let shared = server.get("resourceclaims", "default/late").unwrap();
    assert_eq!(shared["status"]["reservedFor"].as_array().map(Vec::len), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_selector_that_fails_on_one_node_keeps_its_pod_from_all() {
    let server = Server::new();
    for name in ["a", "b"] {
        server.put("nodes", node(name, "4"));
        let mut published = slice(name, 1);
        if name == "a" {
            published["spec"]["devices"][0]["attributes"] = json!({"exists": {"bool": true}});
        }
        server.put("resourceslices", published);
    }
    server.put("deviceclasses", json!({"metadata": {"name": "gpu"}, "spec": {}}));
    start(&server, Config::default());
    let mut claim = resource_claim("c");
    let expression = "device.attributes['gpu.example.com'].exists";
    claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = json!([{"cel": {"expression": expression}}]);
    server.put("resourceclaims", claim);
    // The second of its kind would be placed by what is known of the first.
    for name in ["p", "q"] {
        server.put("pods", with_claim(name, "c"));
        server.until("the condition", |s| message_of(s, name).is_some()).await;
        let message = message_of(&server, name).unwrap();
        let expected = "SchedulerError: running \"DynamicResources\" filter plugin: ";
        assert!(
            message.starts_with(expected) && message.contains("CEL runtime error: no such key: exists"),
            "{message}"
        );
    }
    server.put("resourceslices", slice("b", 0));
    server.until("both bound", |s| s.bindings() == 2).await;
    assert_eq!(node_of(&server, "p").as_deref(), Some("a"));
}

/// Not a check but a figure, as `throughput`: claims for all but a few of the devices.
#[tokio::test]
#[ignore = "a figure, not a check"]
async fn device_throughput() {
    let (nodes, devices, claims) = (100, 8, 790);
    let server = Server::new();
    for n in 0..nodes {
        server.put("nodes", node(&format!("n{n}"), "8"));
        server.put("resourceslices", slice(&format!("n{n}"), devices));
    }
    let selectors = json!([{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]);
    server.put("deviceclasses", json!({"metadata": {"name": "gpu"}, "spec": {"selectors": selectors}}));
    for at in 0..claims {
        server.put("resourceclaims", resource_claim(&format!("c{at}")));
        server.put("pods", with_claim(&format!("p{at}"), &format!("c{at}")));
    }
    let env = Env::real();
    let began = env.monotonic();
    start(&server, Config::default());
    server.until("all bindings", |s| s.bindings() == claims).await;
    let seconds = (env.monotonic() - began).as_secs_f64();
    println!("{claims} claims on {nodes} nodes in {seconds:.2} s: {:.0} a second", claims as f64 / seconds);
}
