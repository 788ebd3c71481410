//! Commands of stock kubectl on running pods: `run`, `label`, `replace`, `describe`, `expose`, `patch`, `scale`, `logs`.
//! Those that need the API alone are tests of the API server.

use e2e::{BUSYBOX, Cluster, Kubectl, busybox_archive, eventually, http_get};

use crate::kubectl;

/// The same image under another name.
const OTHER: &str = "minke.local/busybox:other";

/// A ReplicationController whose pods serve at a port.
fn controller(name: &str, replicas: u32, port: u16) -> String {
    format!(
        r#"
apiVersion: v1
kind: ReplicationController
metadata: {{name: {name}, labels: {{app: {name}, role: primary}}}}
spec:
  replicas: {replicas}
  selector: {{app: {name}, role: primary}}
  template:
    metadata: {{labels: {{app: {name}, role: primary}}}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: net
        image: {BUSYBOX}
        command: [net, serve, '{port}']
        ports: [{{containerPort: {port}}}]
        readinessProbe: {{tcpSocket: {{port: {port}}}, periodSeconds: 1, timeoutSeconds: 30}}
"#
    )
}

/// The names of the pods once there are so many and all are ready.
fn ready(kubectl: &Kubectl, app: &str, count: usize) -> Vec<String> {
    eventually(&format!("{count} ready pods of {app}"), || {
        let pods = kubectl.json(&["get", "pods", "-l", &format!("app={app}")]);
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let is_ready = |pod: &&serde_json::Value| pod["status"]["containerStatuses"][0]["ready"] == true;
        match (pods.len(), pods.iter().filter(is_ready).count()) {
            found if found == (count, count) => {
                Ok(pods.iter().filter_map(|p| Some(p["metadata"]["name"].as_str()?.to_string())).collect())
            }
            found => Err(found),
        }
    })
}

/// Each line has its words, wherever in the text it is; at last, since events, counts and endpoints come on their own.
#[track_caller]
fn describes(kubectl: &Kubectl, what: &str, name: &str, lines: &[&[&str]]) {
    eventually(&format!("{what} {name} is described"), || {
        let text = kubectl.run(&["describe", what, name]);
        let found = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
        match lines.iter().find(|words| !found(words)) {
            None => Ok(()),
            Some(words) => Err(format!("no line with {words:?} in\n{text}")),
        }
    });
}

#[test]
fn a_controller_is_described_exposed_and_its_pods_annotated() {
    let ns = kubectl().namespace("controller");
    ns.run_with(&["create", "-f", "-"], &controller("store", 1, 6379));
    ns.run_with(
        &["create", "-f", "-"],
        "apiVersion: v1\nkind: Service\nmetadata: {name: store, labels: {app: store, role: primary}}\n\
         spec: {selector: {app: store, role: primary}, ports: [{port: 6379}]}\n",
    );
    let pods = ready(&ns, "store", 1);
    let field = |what: &str, path: &str| ns.run(&["get", what, "-o", &format!("jsonpath={{{path}}}")]);
    let pod = format!("pod/{}", pods[0]);
    let (node, address) = (field(&pod, ".spec.nodeName"), field("service/store", ".spec.clusterIP"));
    describes(
        &ns,
        "pod",
        &pods[0],
        &[
            &["Name:", "store-"],
            &["Namespace:", &ns.name],
            &["Node:", &node],
            &["Labels:", "app=store"],
            &["role=primary"],
            &["Annotations:"],
            &["Status:", "Running"],
            &["IP:", &field(&pod, ".status.podIP")],
            &["Controlled By:", "ReplicationController/store"],
            &["Image:", BUSYBOX],
            &["State:", "Running"],
            &["QoS Class:", "BestEffort"],
        ],
    );
    let rc: &[&[&str]] = &[
        &["Name:", "store"],
        &["Namespace:", &ns.name],
        &["Selector:", "app=store,role=primary"],
        &["Labels:", "app=store"],
        &["Replicas:", "1 current", "1 desired"],
        &["Pods Status:", "1 Running", "0 Waiting", "0 Succeeded", "0 Failed"],
        &["Pod Template:"],
        &["Image:", BUSYBOX],
        &["SuccessfulCreate", "Created pod: store-"],
    ];
    describes(&ns, "rc", "store", rc);
    describes(
        &ns,
        "service",
        "store",
        &[
            &["Selector:", "app=store", "role=primary"],
            &["Type:", "ClusterIP"],
            &["IP:", &address],
            &["Port:", "<unset>", "6379/TCP"],
            &["Endpoints:", ":6379"],
            &["Session Affinity:", "None"],
        ],
    );
    describes(
        &ns,
        "node",
        &node,
        &[
            &["Name:", &node],
            &["Labels:", "kubernetes.io/"],
            &["Annotations:"],
            &["CreationTimestamp:"],
            &["Type", "Status", "LastHeartbeatTime", "LastTransitionTime", "Reason", "Message"],
            &["Ready", "True"],
            &["InternalIP:"],
            &["Capacity:"],
            &["Kernel Version:"],
            &["OS Image:"],
            &["Container Runtime Version:", "containerd://"],
            &["Kubelet Version:", "v1.35."],
            &[&ns.name, &pods[0]],
        ],
    );
    describes(&ns, "namespace", &ns.name, &[&["Name:", &ns.name], &["Labels:"], &["Status:", "Active"]]);

    for (what, name, port) in [("rc/store", "rm2", 1234), ("service/rm2", "rm3", 2345)] {
        let flags = [format!("--name={name}"), format!("--port={port}")];
        ns.run(&["expose", what, &flags[0], &flags[1], "--target-port=6379"]);
        let service = ns.json(&["get", "service", name]);
        let ports = &service["spec"]["ports"];
        assert_eq!((&ports[0]["port"], &ports[0]["targetPort"]), (&port.into(), &6379.into()), "{service}");
        assert_eq!(ports.as_array().map(Vec::len), Some(1));
        let selector = format!("kubernetes.io/service-name={name}");
        eventually("its only endpoint is the pod", || {
            let slices = ns.json(&["get", "endpointslices", "-l", &selector]);
            let slice = &slices["items"][0];
            let endpoint = (&slice["endpoints"][0]["targetRef"]["name"], &slice["ports"][0]["port"]);
            let good = endpoint == (&pods[0].as_str().into(), &6379.into()) && slice["endpoints"][1].is_null();
            if good { Ok(()) } else { Err(slices.clone()) }
        });
        let address = service["spec"]["clusterIP"].as_str().expect("an address");
        let address = format!("{address}:{port}").parse().expect("an address");
        let answer = eventually("it answers", || http_get(address).map_err(|e| e.to_string()));
        assert!(answer.contains(&pods[0]), "{answer}");
    }

    for pod in &pods {
        ns.run(&["patch", "pod", pod, "-p", r#"{"metadata":{"annotations":{"x":"y"}}}"#]);
    }
    let annotations = ns.run(&["get", "pods", "-l", "app=store", "-o", "jsonpath={.items[*].metadata.annotations.x}"]);
    assert_eq!(annotations.trim(), "y");
    assert_eq!(ready(&ns, "store", 1), pods, "they run on");
}

#[test]
fn a_controller_is_scaled_and_stopped() {
    let ns = kubectl().namespace("scaled");
    ns.run_with(&["create", "-f", "-"], &controller("demo", 2, 8080));
    for count in [2, 1, 2] {
        ns.run(&["scale", "rc", "demo", &format!("--replicas={count}"), "--timeout=180s"]);
        for pod in ready(&ns, "demo", count) {
            let found = ns.json(&["get", "pod", &pod]);
            let status = &found["status"]["containerStatuses"][0];
            assert!(status["state"]["running"].is_object(), "{found}");
            assert_eq!(found["spec"]["containers"][0]["image"], BUSYBOX);
            let address = format!("{}:8080", found["status"]["podIP"].as_str().unwrap_or_default());
            let answer = http_get(address.parse().expect("an address")).expect("every instance answers");
            assert!(answer.contains(&pod), "{answer}");
        }
    }
    ns.run(&["delete", "rc", "demo", "--cascade=foreground", "--timeout=180s"]);
    assert_eq!(ns.run(&["get", "rc,pods", "-l", "app=demo", "-o", "name"]).trim(), "");
}

#[test]
fn a_pod_is_run_labeled_and_replaced() {
    let ns = kubectl().namespace("run");
    ns.run(&["run", "once", "--image", BUSYBOX, "--restart=Never", "--", "sleep", "100000"]);
    ns.run(&["wait", "--for=condition=Ready", "pod/once", "--timeout=180s"]);
    let pod = ns.json(&["get", "pod", "once"]);
    assert_eq!(
        (&pod["spec"]["restartPolicy"], pod["spec"]["containers"].as_array().map(Vec::len)),
        (&"Never".into(), Some(1))
    );
    assert_eq!(pod["spec"]["containers"][0]["image"], BUSYBOX);
    assert!(pod["status"]["containerStatuses"][0]["state"]["running"].is_object(), "{pod}");

    let labeled = |selector: &str| ns.run(&["get", "pods", "-l", selector, "-o", "name"]).trim().to_string();
    ns.run(&["label", "pods", "once", "testing-label=testing-label-value"]);
    assert!(ns.run(&["get", "pod", "once", "-L", "testing-label"]).contains("testing-label-value"));
    assert_eq!(labeled("testing-label=testing-label-value"), "pod/once");
    ns.run(&["label", "pods", "once", "testing-label-"]);
    assert!(!ns.run(&["get", "pod", "once", "-L", "testing-label"]).contains("testing-label-value"));
    assert_eq!(labeled("testing-label"), "");

    Cluster::shared().import_bytes(&busybox_archive(OTHER));
    let overrides = format!(
        r#"{{"spec":{{"terminationGracePeriodSeconds":0,"containers":[{{"name":"c","image":"{BUSYBOX}","command":["sleep","100000"]}}]}}}}"#
    );
    ns.run(&["run", "replaced", "--image", BUSYBOX, "--overrides", &overrides]);
    ns.run(&["wait", "--for=condition=Ready", "pod/replaced", "--timeout=180s"]);
    let pod = ns.run(&["get", "pod", "replaced", "-o", "json"]);
    // Whoever replaces says what was there before, and the node may have told something since.
    eventually("it is replaced", || {
        let now = ns.run(&["get", "pod", "replaced", "-o", "json"]);
        let replaced = ns.try_run(&["replace", "-f", "-"], &now.replace(BUSYBOX, OTHER));
        if replaced.ok { Ok(()) } else { Err(replaced) }
    });
    let running = |image: &str| {
        eventually(&format!("{image} runs"), || {
            let pod = ns.json(&["get", "pod", "replaced"]);
            let status = &pod["status"]["containerStatuses"][0];
            let good = pod["spec"]["containers"][0]["image"] == image && status["state"]["running"].is_object();
            if good { Ok(pod["metadata"]["uid"].clone()) } else { Err(status.clone()) }
        })
    };
    let before = running(OTHER);
    eventually("the container was made again", || {
        let pod = ns.json(&["get", "pod", "replaced"]);
        if pod["status"]["containerStatuses"][0]["restartCount"] == 1 { Ok(()) } else { Err(pod["status"].clone()) }
    });
    // By force it is another pod.
    ns.run_with(&["replace", "--force", "--grace-period=0", "-f", "-"], &pod);
    assert_ne!(running(BUSYBOX), before);
}

#[test]
fn logs_are_filtered() {
    let ns = kubectl().namespace("filtered");
    let script = "i=1; while [ $i -le 20 ]; do echo line-$i; i=$((i+1)); done; sleep 100000";
    ns.run(&["run", "talker", "--image", BUSYBOX, "--restart=Never", "--", "sh", "-c", script]);
    ns.run(&["wait", "--for=condition=Ready", "pod/talker", "--timeout=180s"]);
    let logs = |flags: &[&str]| ns.run(&[&["logs", "talker", "talker"], flags].concat());
    let all = eventually("it has said everything", || {
        let said = logs(&[]);
        if said.contains("line-20\n") { Ok(said) } else { Err(said) }
    });
    assert_eq!((all.lines().count(), all.starts_with("line-1\n")), (20, true), "{all}");
    assert_eq!(logs(&["--tail=1"]), "line-20\n");
    assert_eq!(logs(&["--limit-bytes=1"]), "l");
    let stamped = logs(&["--tail=1", "--timestamps"]);
    let (stamp, text) = stamped.trim_end().split_once(' ').expect("a time and the line");
    let digits = stamp.chars().filter(char::is_ascii_digit).count();
    let good = stamp.len() > 20 && digits >= 14 && stamp.as_bytes()[10] == b'T' && stamp.as_bytes()[4] == b'-';
    assert!(good && (stamp.ends_with('Z') || stamp[19..].contains(['+', '-'])), "RFC 3339: {stamp}");
    assert_eq!(text, "line-20");
    // Whatever it said is by then older than a second, and younger than a day.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(logs(&["--since=1s"]), "");
    assert_eq!(logs(&["--since=24h"]), all);
}
