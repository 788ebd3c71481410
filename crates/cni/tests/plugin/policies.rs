//! A pod's network is there when the node's NetworkPolicies cover it, and not before.
//! Part of the plugin's tests; the enforcement is a socket of the test's own.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
};

use serde_json::{Value, json};

use crate::node::Node;

#[test]
fn a_pod_waits_for_its_policies() {
    let node = Node::new("policy");
    node.pod("a");
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("policy.sock");
    let mut conf = node.conf(json!([]));
    conf["policySocket"] = json!(socket);
    let add = || {
        let mut command = node.command("ADD", "a");
        command.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=d;K8S_POD_NAME=web;K8S_POD_UID=u");
        node.finish(command, &conf)
    };
    let refused = add().unwrap_err().to_string();
    assert!(refused.contains("failed to reach the enforcement of NetworkPolicies"), "{refused}");
    assert!(node.allocated().is_empty(), "nothing is left");

    let listener = UnixListener::bind(&socket).unwrap();
    let answers = std::thread::spawn(move || {
        for answer in ["", "covered\n"] {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let claim: Value = serde_json::from_str(&line).unwrap();
            let named = ["namespace", "name", "uid"].map(|field| claim[field].as_str().unwrap_or_default());
            assert_eq!(named, ["d", "web", "u"]);
            assert_eq!(claim["ips"].as_array().map(Vec::len), Some(2), "{claim}");
            (&stream).write_all(answer.as_bytes()).unwrap();
        }
    });
    let refused = add().unwrap_err().to_string();
    assert!(refused.contains("NetworkPolicies do not cover the pod"), "{refused}");
    assert_eq!(add().unwrap()["ips"].as_array().map(Vec::len), Some(2));
    answers.join().unwrap();
    // Who names no pod is none of them.
    node.pod("b");
    node.call("ADD", "b", &conf).unwrap();
}
