//! Services and names, with real packets.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use e2e::eventually;

use crate::{kubectl, services::node_address, web};

fn get(address: &str) -> Result<String, String> {
    let run = || -> std::io::Result<String> {
        let address = address.parse().map_err(std::io::Error::other)?;
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    run().map_err(|e| e.to_string())
}

#[test]
fn a_service_is_reached_from_the_host_and_by_name_from_a_pod() {
    let ns = kubectl().namespace("service");
    ns.apply(&web("web", 2));
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    let address = ns.run(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    assert!(address.starts_with("10.19."), "{address}");
    let answer = eventually("the Service answers", || get(&format!("{address}:80")));
    assert!(answer.contains("web-"), "{answer}");

    ns.run(&["run", "asker", "--image", e2e::BUSYBOX, "--restart=Never", "--", "sleep", "1000"]);
    ns.run(&["wait", "--for=condition=Ready", "pod/asker", "--timeout=180s"]);
    for name in ["web".to_string(), format!("web.{}.svc.cluster.local", ns.name)] {
        eventually(&format!("{name} answers"), || {
            let answer = ns.try_run(&["exec", "asker", "--", "wget", "-qO-", &format!("http://{name}/")], "");
            if answer.ok && answer.stdout.contains("web-") { Ok(()) } else { Err(answer) }
        });
    }
    let token = "cat /var/run/secrets/kubernetes.io/serviceaccount/token";
    let answer = ns.run(&["exec", "asker", "--", "sh", "-c", token]);
    assert_eq!(answer.split('.').count(), 3, "a token");
    ns.run(&["delete", "pod", "asker", "--grace-period=0", "--force"]);
}

#[test]
fn a_node_port_is_reached_on_the_node() {
    let ns = kubectl().namespace("nodeport");
    ns.apply(&web("web", 1));
    ns.run(&["patch", "service", "web", "-p", r#"{"spec":{"type":"NodePort"}}"#]);
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    let port = ns.run(&["get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"]);
    let node = node_address(&ns);
    let answer = eventually("the node port answers", || get(&format!("{node}:{port}")));
    assert!(answer.contains("web-"), "{answer}");
}
