//! `minke up --nodes 3`: pods reach each other across nodes, a cable is cut and healed, a node stopped and started.

use std::process::Command;

use e2e::{BUSYBOX, Cluster, Kubectl, Options, eventually, minke};

fn node(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = Command::new(minke()).arg("node").args(arguments).arg("--data-dir").arg(&cluster.data).output();
    let output = output.expect("minke node");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The pods of the DaemonSet: node, name, address.
fn pods(kubectl: &Kubectl) -> Vec<[String; 3]> {
    let format = "jsonpath={range .items[*]}{.spec.nodeName} {.metadata.name} {.status.podIP}{\"\\n\"}{end}";
    let listed = kubectl.run(&["get", "pods", "-l", "app=each", "-o", format]);
    let words = |line: &str| line.split(' ').map(str::to_string).collect::<Vec<_>>().try_into().expect("three words");
    listed.lines().map(words).collect()
}

fn reaches(kubectl: &Kubectl, from: &str, address: &str) -> bool {
    let url = format!("http://{address}:8080/hostname");
    kubectl.try_run(&["exec", from, "--", "wget", "-q", "-T", "2", "-O", "-", &url], "").ok
}

fn check(network: &str) {
    let cluster =
        Cluster::prepare(Options { extra: ["--nodes", "3", "--pod-network", network].map(str::to_string).to_vec() });
    let up = cluster.up();
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    let daemon_set = format!(
        r#"{{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{{"name":"each"}},"spec":{{
        "selector":{{"matchLabels":{{"app":"each"}}}},"template":{{"metadata":{{"labels":{{"app":"each"}}}},
        "spec":{{"terminationGracePeriodSeconds":0,"containers":[{{"name":"c","image":"{BUSYBOX}",
        "command":["httpd","-f","-p","8080","-h","/etc"]}}]}}}}}}}}"#
    );
    assert!(kubectl.try_run(&["apply", "-f", "-"], &daemon_set).ok);
    kubectl.run(&["rollout", "status", "daemonset/each", "--timeout=60s"]);
    let found = pods(&kubectl);
    assert_eq!(found.len(), 3, "{found:?}");
    for [_, from, _] in &found {
        for [_, _, address] in &found {
            // The servers have no readiness probe: the first request may come before they listen.
            eventually(&format!("{network}: {from} reaches {address} of {found:?}"), || {
                if reaches(&kubectl, from, address) { Ok(()) } else { Err("no answer") }
            });
        }
    }

    let of = |node: &str| found.iter().find(|[on, ..]| on == node).expect("a pod on every node").clone();
    let ([_, here, _], [_, _, there]) = (of("node-1"), of("node-1-3"));
    node(&cluster, &["cut", "node-1-3"]);
    assert!(!reaches(&kubectl, &here, &there), "a cut node can't be reached");
    node(&cluster, &["heal", "node-1-3"]);
    eventually("the healed node is reached", || if reaches(&kubectl, &here, &there) { Ok(()) } else { Err(()) });

    node(&cluster, &["stop", "node-1-2"]);
    assert!(node(&cluster, &["ls"]).lines().any(|l| l.starts_with("node-1-2") && l.contains("stopped")));
    node(&cluster, &["start", "node-1-2"]);
    let [_, _, again] = of("node-1-2");
    eventually("the pod of the started node answers", || {
        let address = pods(&kubectl).into_iter().find(|[on, ..]| on == "node-1-2").map(|[_, _, a]| a);
        match address.filter(|a| reaches(&kubectl, &here, a)) {
            Some(_) => Ok(()),
            None => Err(again.clone()),
        }
    });
    assert!(cluster.down(true).status.success());
    let data = cluster.data.display().to_string();
    let processes = Command::new("ps").args(["-eo", "pid,args"]).output().expect("ps").stdout;
    let processes = String::from_utf8_lossy(&processes).into_owned();
    assert!(!processes.contains(&data), "{processes}");
}

#[test]
fn nodes_on_one_machine_with_routes_and_with_vxlan() {
    check("routes");
    check("vxlan");
}
