//! `minke up --nodes 3`: pods reach each other across nodes, an update under load drops nothing, a cable is cut and
//! healed, an agent is killed, a node stopped and started, and made again with another range.

use std::process::Command;

use e2e::{BUSYBOX, Cluster, Kubectl, Options, eventually, free_port, minke, update_under_load};

use crate::pushed_images;

fn node(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = Command::new(minke()).arg("node").args(arguments).arg("--data-dir").arg(&cluster.data).output();
    let output = output.expect("minke node");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The process of a node's agent, if it runs.
fn process(cluster: &Cluster, name: &str) -> Option<i32> {
    let listed = node(cluster, &["ls"]);
    let line = listed.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

/// A web server that ends at once when it is told to, on every node or as often as asked.
fn servers(kubectl: &Kubectl, kind: &str, name: &str, replicas: &str) {
    kubectl.apply(&format!(
        r#"
apiVersion: apps/v1
kind: {kind}
metadata: {{name: {name}}}
spec:
  {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: web
        image: {BUSYBOX}
        command: [sh, -c, "mkdir /www; hostname > /www/index.html; trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait"]
        readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1, timeoutSeconds: 30}}
"#
    ));
    kubectl.run(&["rollout", "status", &format!("{kind}/{name}"), "--timeout=180s"]);
}

/// The pods of the DaemonSet: node, name, address.
fn pods(kubectl: &Kubectl) -> Vec<[String; 3]> {
    let format = "jsonpath={range .items[*]}{.spec.nodeName} {.metadata.name} {.status.podIP}{\"\\n\"}{end}";
    let listed = kubectl.run(&["get", "pods", "-l", "app=each", "-o", format]);
    let words = |line: &str| line.split(' ').map(str::to_string).collect::<Vec<_>>().try_into().expect("three words");
    listed.lines().map(words).collect()
}

fn reaches(kubectl: &Kubectl, from: &str, address: &str) -> Result<(), String> {
    let url = format!("http://{address}:8080/");
    // Debian's busybox crashes on wget's own -T.
    let output = kubectl.try_run(&["exec", from, "--", "timeout", "5", "wget", "-q", "-O", "-", &url], "");
    if output.ok { Ok(()) } else { Err(output.stderr) }
}

/// Lets this machine take every node's address on the switch for certain, as it does for a while after it has heard of
/// it: only then does the kernel send a frame back over the switch itself instead of routing it.
fn know_neighbours(nodes: &[String]) {
    for address in nodes {
        let shown = Command::new("ip").args(["-json", "neigh", "show", address]).output().expect("ip runs");
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        for entry in shown.as_array().into_iter().flatten() {
            let (Some(device), Some(station)) = (entry["dev"].as_str(), entry["lladdr"].as_str()) else { continue };
            let known = ["neigh", "replace", address, "lladdr", station, "dev", device, "nud", "reachable"];
            assert!(Command::new("ip").args(known).status().expect("ip runs").success(), "{entry}");
        }
    }
}

/// Those of the nodes of which `wanted` says yes.
fn node_addresses(kubectl: &Kubectl, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let format = "jsonpath={.items[*].status.addresses[?(@.type==\"InternalIP\")].address}";
    let listed = kubectl.run(&["get", "nodes", "-o", format]);
    listed.split_whitespace().filter(|ip| wanted(ip)).map(str::to_string).collect()
}

/// Whichever node is asked by whichever pod, and wherever the answer comes from: also from the node that asks.
fn node_ports(kubectl: &Kubectl, pods: &[[String; 3]]) {
    kubectl.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: each}\n\
         spec: {type: NodePort, selector: {app: each}, ports: [{port: 80, targetPort: 8080}]}\n",
    );
    let port = kubectl.run(&["get", "service", "each", "-o", "jsonpath={.spec.ports[0].nodePort}"]);
    let nodes = node_addresses(kubectl, |ip| !ip.contains(':'));
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    for node in &nodes {
        for [_, from, _] in pods {
            let script = format!(
                "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do wget -q -O /dev/null http://{node}:{port}/ || exit 1; done"
            );
            eventually(&format!("{from} gets every answer from {node}:{port}"), || {
                know_neighbours(&nodes);
                let output = kubectl.try_run(&["exec", from, "--", "timeout", "60", "sh", "-c", &script], "");
                if output.ok { Ok(()) } else { Err(output.stderr) }
            });
        }
    }
    kubectl.run(&["delete", "service", "each"]);
}

/// Pods and node ports of every node answer over IPv6 too.
fn both_families(kubectl: &Kubectl, pods: &[[String; 3]]) {
    let listed = kubectl.run(&["get", "pods", "-l", "app=each", "-o", "jsonpath={.items[*].status.podIPs[*].ip}"]);
    let addresses: Vec<&str> = listed.split_whitespace().filter(|ip| ip.contains(':')).collect();
    let nodes = node_addresses(kubectl, |ip| ip.contains(':'));
    assert_eq!((addresses.len(), nodes.len()), (3, 3), "{addresses:?} {nodes:?}");
    kubectl.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: six}\n\
         spec: {type: NodePort, ipFamilies: [IPv6], selector: {app: each}, ports: [{port: 80, targetPort: 8080}]}\n",
    );
    let port = kubectl.run(&["get", "service", "six", "-o", "jsonpath={.spec.ports[0].nodePort}"]);
    let of_pods = addresses.iter().map(|address| format!("http://[{address}]:8080/"));
    let targets: Vec<String> = of_pods.chain(nodes.iter().map(|node| format!("http://[{node}]:{port}/"))).collect();
    for [_, from, _] in pods {
        for target in &targets {
            eventually(&format!("{from} reaches {target}"), || {
                let output =
                    kubectl.try_run(&["exec", from, "--", "timeout", "5", "wget", "-q", "-O", "-", target], "");
                if output.ok { Ok(()) } else { Err(output.stderr) }
            });
        }
    }
    kubectl.run(&["delete", "service", "six"]);
}

/// Every kubelet shows a certificate that is good for each of its node's addresses, by the kubelets' own authority and not
/// by that of the API server, and strangers nothing else.
fn kubelets_are_known_by_every_address(cluster: &Cluster, kubectl: &Kubectl) {
    let nodes = kubectl.json(&["get", "nodes"])["items"].as_array().cloned().unwrap_or_default();
    let mut asked = 0;
    for status in nodes.iter().map(|node| &node["status"]) {
        let port = &status["daemonEndpoints"]["kubeletEndpoint"]["Port"];
        let addresses = status["addresses"].as_array().into_iter().flatten().filter(|a| a["type"] == "InternalIP");
        for address in addresses.filter_map(|address| address["address"].as_str()) {
            let host = if address.contains(':') { format!("[{address}]") } else { address.to_string() };
            let url = format!("https://{host}:{port}/healthz");
            let ask = |authority: &str| {
                let mut curl = Command::new("curl");
                curl.args(["--silent", "--show-error", "--max-time", "30", "--output", "/dev/null"]);
                curl.args(["--write-out", "%{http_code}", "--cacert"]).arg(cluster.data.join("pki").join(authority));
                curl.arg(&url).output().expect("curl runs")
            };
            eventually(&format!("{url} is vouched for"), || {
                let output = ask("kubelet-serving-ca.crt");
                match output.status.success() && output.stdout == b"401" {
                    true => Ok(()),
                    false => Err(format!("{output:?}")),
                }
            });
            assert!(!ask("ca.crt").status.success(), "{url} passes for the API server");
            asked += 1;
        }
    }
    assert_eq!(asked, 6, "two addresses of three nodes: {nodes:?}");
}

/// A node is emptied one pod at a time, since the budget lets only one go; its daemons stay.
fn drain(kubectl: &Kubectl, node: &str) {
    servers(kubectl, "Deployment", "web", "replicas: 3");
    kubectl.run(&["create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=2"]);
    let drain = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s"];
    kubectl.run(&drain);
    let left = kubectl.run(&["get", "pods", "--field-selector", &format!("spec.nodeName={node}"), "-o", "name"]);
    assert!(left.lines().all(|pod| pod.starts_with("pod/each-")), "{left}");
    kubectl.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    kubectl.run(&["uncordon", node]);
    kubectl.run(&["delete", "deployment/web", "poddisruptionbudget/web"]);
}

/// A node that is not heard of any more: it is said so, its endpoints leave the Service, and the rest serves.
fn vanishes(cluster: &Cluster, kubectl: &Kubectl, here: &str) {
    const GONE: &str = "node-1-3";
    kubectl.run(&["expose", "pod", here, "--name=left", "--port=80", "--target-port=8080", "--selector=app=each"]);
    let ready = || {
        let slices = kubectl.json(&["get", "endpointslices", "-l", "kubernetes.io/service-name=left"]);
        let endpoints = slices["items"][0]["endpoints"].as_array().cloned().unwrap_or_default();
        let nodes = endpoints.iter().filter(|e| e["conditions"]["ready"] == true).map(|e| e["nodeName"].to_string());
        nodes.collect::<Vec<_>>()
    };
    let serve = |count: usize| {
        eventually(&format!("{count} endpoints are ready"), || match ready() {
            found if found.len() == count => Ok(()),
            found => Err(found),
        });
    };
    let condition = || {
        let node = kubectl.json(&["get", "node", GONE]);
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.into_iter().find(|c| c["type"] == "Ready").unwrap_or_default();
        (ready["status"].as_str().unwrap_or_default().to_string(), ready["message"].to_string())
    };
    serve(3);
    node(cluster, &["cut", GONE]);
    eventually("the silent node is Unknown", || match condition() {
        (status, message) if status == "Unknown" && message.contains("Kubelet stopped posting node status.") => Ok(()),
        other => Err(other),
    });
    serve(2);
    assert!(ready().iter().all(|node| !node.contains(GONE)));
    let said = ["get", "events", "--field-selector", "involvedObject.kind=Node,reason=NodeNotReady", "-o", "name"];
    eventually("it is said", || match kubectl.run(&said) {
        none if none.is_empty() => Err(none),
        _ => Ok(()),
    });
    // Its rules follow in a moment; then no request may be sent to a node that does not answer.
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do timeout 5 wget -q -O /dev/null http://left/ || exit 1; done";
    eventually("every request is served by those that are left", || {
        let output = kubectl.try_run(&["exec", here, "--", "sh", "-c", script], "");
        if output.ok { Ok(()) } else { Err(output.stderr) }
    });
    node(cluster, &["heal", GONE]);
    eventually("the healed node is ready", || match condition() {
        (status, _) if status == "True" => Ok(()),
        other => Err(other),
    });
    serve(3);
    kubectl.run(&["delete", "service", "left"]);
}

/// A node whose object is deleted and made again with other ranges: its next pods have addresses of those, and names.
fn made_again(kubectl: &Kubectl, here: &str, name: &str) {
    let range = kubectl.run(&["get", "node", name, "-o", "jsonpath={.spec.podCIDR}"]);
    let number = range.split('.').nth(1).expect("an IPv4 range").to_string();
    let (four, six) = (format!("10.{number}.77.0/24"), format!("fd77:{number}:0:4d::/64"));
    let again = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\nspec: {{podCIDR: {four}, podCIDRs: [{four}, '{six}']}}\n"
    );
    // Its kubelet registers it again by itself before long: then it was faster.
    eventually("the node is made again", || {
        kubectl.run(&["delete", "node", name, "--ignore-not-found"]);
        let made = kubectl.try_run(&["create", "-f", "-"], &again);
        if made.ok { Ok(()) } else { Err(made.stderr) }
    });
    let prefix = four.trim_end_matches("0/24");
    let pod = eventually("a pod with an address of the new range answers", || {
        let Some([_, pod, address]) = pods(kubectl).into_iter().find(|[on, ..]| on == name) else {
            return Err("there is none".to_string());
        };
        if address.starts_with(prefix) {
            return reaches(kubectl, here, &address).map(|()| pod);
        }
        if !address.is_empty() {
            kubectl.try_run(&["delete", "pod", &pod, "--ignore-not-found", "--wait=false"], "");
        }
        Err(format!("{address} is not in {four}"))
    });
    eventually("it finds names and is answered", || {
        let output = kubectl.try_run(&["exec", &pod, "--", "nslookup", "kubernetes.default.svc.cluster.local"], "");
        if output.ok { Ok(()) } else { Err(output) }
    });
}

fn check(network: &str) {
    let registry = free_port();
    let port = registry.to_string();
    let extra = ["--nodes", "3", "--pod-network", network, "--registry", "--registry-port", &port];
    let extra = extra.map(str::to_string).to_vec();
    let cluster = Cluster::prepare(Options { extra }).both_families().started();
    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    let open = |node: &&serde_json::Value| node["spec"]["taints"].is_null() && node["spec"]["unschedulable"].is_null();
    eventually("all take pods", || {
        let nodes = kubectl.json(&["get", "nodes"])["items"].as_array().cloned().unwrap_or_default();
        if (nodes.len(), nodes.iter().filter(open).count()) == (3, 3) { Ok(()) } else { Err(nodes) }
    });
    pushed_images::run_on_every_node(&cluster, registry);
    servers(&kubectl, "DaemonSet", "each", "minReadySeconds: 0");
    let found = pods(&kubectl);
    assert_eq!(found.len(), 3, "{found:?}");
    for [_, from, _] in &found {
        for [_, _, address] in &found {
            eventually(&format!("{network}: {from} reaches {address}"), || reaches(&kubectl, from, address));
        }
    }
    both_families(&kubectl, &found);
    kubelets_are_known_by_every_address(&cluster, &kubectl);
    node_ports(&kubectl, &found);
    // Endpoints on other nodes leave the rules of this one before their servers stop.
    servers(&kubectl, "Deployment", "web", "replicas: 6");
    kubectl.run(&["expose", "deployment", "web", "--port=80", "--target-port=8080"]);
    update_under_load(&kubectl, 6);
    kubectl.run(&["delete", "deployment,service", "web"]);
    drain(&kubectl, "node-1-2");

    let of = |node: &str| found.iter().find(|[on, ..]| on == node).expect("a pod on every node").clone();
    let ([_, here, _], [_, _, there]) = (of("node-1"), of("node-1-3"));
    node(&cluster, &["cut", "node-1-3"]);
    assert!(reaches(&kubectl, &here, &there).is_err(), "a cut node can't be reached");
    assert!(node(&cluster, &["ls"]).lines().any(|l| l.starts_with("node-1-3") && l.contains("cut")));
    node(&cluster, &["heal", "node-1-3"]);
    eventually("the healed node is reached", || reaches(&kubectl, &here, &there));

    if network == "vxlan" {
        vanishes(&cluster, &kubectl, &here);
    }

    // An agent that crashes is started again; its pods never notice.
    let before = process(&cluster, "node-1-2").expect("an agent");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(before), nix::sys::signal::Signal::SIGKILL).expect("killed");
    eventually("the agent runs again", || match process(&cluster, "node-1-2") {
        Some(now) if now != before => Ok(()),
        other => Err(other),
    });
    let [_, _, untouched] = of("node-1-2");
    eventually("its pod answers", || reaches(&kubectl, &here, &untouched));

    node(&cluster, &["stop", "node-1-2"]);
    assert!(node(&cluster, &["ls"]).lines().any(|l| l.starts_with("node-1-2") && l.contains("stopped")));
    node(&cluster, &["start", "node-1-2"]);
    eventually("the pod of the started node answers", || {
        let address = pods(&kubectl).into_iter().find(|[on, ..]| on == "node-1-2").map(|[_, _, a]| a);
        reaches(&kubectl, &here, &address.unwrap_or_default())
    });
    made_again(&kubectl, &here, "node-1-2");
    assert!(cluster.down(true).status.success());
    let data = cluster.data.display().to_string();
    let processes = Command::new("ps").args(["-eo", "pid,args"]).output().expect("ps").stdout;
    let processes = String::from_utf8_lossy(&processes).into_owned();
    assert!(!processes.contains(&data), "{processes}");
}

#[test]
fn three_nodes_with_routes() {
    check("routes");
}

#[test]
fn three_nodes_with_vxlan() {
    check("vxlan");
}
