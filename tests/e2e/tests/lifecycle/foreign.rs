//! Parts of others in place of ours: a foreign network plugin, a foreign DNS. And both address families at once, or
//! IPv6 alone.

use std::{net::IpAddr, path::Path, process::Command};

use e2e::{BUSYBOX, Cluster, Kubectl, Options, eventually};

fn option(cluster: &Cluster, flag: &str) -> String {
    let position = cluster.arguments.iter().position(|a| a == flag).expect("the flag");
    cluster.arguments[position + 1].clone()
}

/// A pod of our own server, Ready; its addresses.
fn server(kubectl: &Kubectl, name: &str, port: u16) -> Vec<IpAddr> {
    kubectl.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: net
    image: {BUSYBOX}
    command: [net, serve, '{port}']
    readinessProbe: {{tcpSocket: {{port: {port}}}, periodSeconds: 1, timeoutSeconds: 30}}
"#
    ));
    kubectl.run(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"]);
    let ips = kubectl.run(&["get", "pod", name, "-o", "jsonpath={.status.podIPs[*].ip}"]);
    ips.split(' ').map(|ip| ip.parse().expect("an address")).collect()
}

#[track_caller]
fn answers(kubectl: &Kubectl, from: &str, how: &str, target: &str, expected: &str) {
    eventually(&format!("{how} {target} from {from}"), || {
        let output = kubectl.try_run(&["exec", from, "--", "net", how, target], "");
        if output.ok && output.stdout.starts_with(expected) { Ok(()) } else { Err((output.stdout, output.stderr)) }
    });
}

/// Who listens on port 53 in this machine's namespace, as `ss` prints it.
fn listeners() -> String {
    let output =
        Command::new("ss").args(["-H", "-l", "-n", "-t", "-u", "sport", "=", ":53"]).output().expect("ss runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_foreign_network_plugin() {
    let cluster = Cluster::prepare(Options { extra: vec!["--cni".into(), "none".into()] });
    let range = option(&cluster, "--pod-cidr").replace("0.0/16", "77.0/24");
    let bridge = Bridge::new("mkt");
    bridge.configure(&cluster.data, &range);
    let up = cluster.up();
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    let first = server(&kubectl, "first", 8080);
    let net: Vec<&str> = range.split('.').take(3).collect();
    assert!(first[0].to_string().starts_with(&net.join(".")), "{first:?} is from the foreign range {range}");
    server(&kubectl, "second", 8080);
    kubectl.run(&["expose", "pod", "first", "--port=80", "--target-port=8080"]);
    answers(&kubectl, "second", "get", &format!("{}:8080", first[0]), "first 8080");
    // Services and names are ours all the same.
    answers(&kubectl, "second", "get", "first.default.svc.cluster.local:80", "first 8080");
    answers(&kubectl, "second", "udp", &format!("{}:8080", first[0]), "first 8080");
}

/// A pod network that is not ours.
pub struct Bridge(String);

impl Bridge {
    pub fn new(prefix: &str) -> Self {
        Self(format!("{prefix}{}", std::process::id() % 100_000))
    }

    /// Makes it now, with this address.
    pub fn hold(&self, address: &str) {
        for arguments in [&["link", "add", &self.0, "type", "bridge"][..], &["addr", "add", address, "dev", &self.0]] {
            let done = Command::new("ip").args(arguments).output().expect("ip");
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
    }

    /// Debian's standard plugins, as somebody else would configure them.
    pub fn configure(&self, data: &Path, range: &str) {
        let directory = data.join("cni/net.d");
        std::fs::create_dir_all(&directory).expect("a directory");
        let conflist = format!(
            r#"{{"cniVersion": "0.4.0", "name": "foreign", "plugins": [
            {{"type": "bridge", "bridge": "{}", "isGateway": true, "ipMasq": false, "hairpinMode": true,
              "ipam": {{"type": "host-local", "dataDir": "{}", "ranges": [[{{"subnet": "{range}"}}]],
                        "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
            {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}"#,
            self.0,
            data.join("foreign").display()
        );
        std::fs::write(directory.join("10-foreign.conflist"), conflist).expect("written");
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // The plugin leaves it behind; it may never have been made.
        let _ = Command::new("ip").args(["link", "del", &self.0]).output();
    }
}

#[test]
fn a_foreign_dns() {
    let cluster = Cluster::start(Options { extra: vec!["--dns".into(), "none".into()] });
    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    let gateway = option(&cluster, "--pod-cidr").replace("0.0/16", "0.1:53");
    server(&kubectl, "asker", 8080);
    assert!(!listeners().contains(&gateway), "ours listens: {}", listeners());
    let said = kubectl.refused(&["-n", "kube-system", "get", "service", "kube-dns"], "");
    assert!(said.contains("NotFound"), "{said}");

    // Its place is free: whoever takes the Service gets the pods' questions.
    server(&kubectl, "coredns", 53);
    let address = option(&cluster, "--service-cidr").replace("0.0/16", "0.10");
    kubectl.apply(&format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: kube-dns, namespace: default}}
spec:
  clusterIP: {address}
  selector: {{app: coredns}}
  ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53}}]
"#
    ));
    let resolv = kubectl.run(&["exec", "asker", "--", "cat", "/etc/resolv.conf"]);
    assert!(resolv.contains(&format!("nameserver {address}\n")), "{resolv}");
    answers(&kubectl, "asker", "udp", &format!("{address}:53"), "coredns 53");
    answers(&kubectl, "asker", "get", &format!("{address}:53"), "coredns 53");
}

#[test]
fn both_families() {
    let cluster = Cluster::prepare(Options::default()).both_families().started();
    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    let ips = server(&kubectl, "web", 8080);
    assert!(ips.len() == 2 && ips[0].is_ipv4() && ips[1].is_ipv6(), "{ips:?}");
    server(&kubectl, "asker", 8080);
    kubectl.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: talk, port: 80, targetPort: 8080, protocol: UDP}]
"#,
    );
    let ips = kubectl.run(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[*]}"]);
    let service: Vec<&str> = ips.split(' ').collect();
    for how in ["get", "udp"] {
        answers(&kubectl, "asker", how, &format!("{}:80", service[0]), "web 8080");
        answers(&kubectl, "asker", how, &format!("[{}]:80", service[1]), "web 8080");
    }
    // Cluster DNS answers on both of its addresses, about both.
    let ips = kubectl.run(&["-n", "kube-system", "get", "service", "kube-dns", "-o", "jsonpath={.spec.clusterIPs[*]}"]);
    let servers: Vec<&str> = ips.split(' ').collect();
    assert_eq!(servers.len(), 2, "{servers:?}");
    let resolv = kubectl.run(&["exec", "asker", "--", "cat", "/etc/resolv.conf"]);
    for server in servers {
        assert!(resolv.contains(&format!("nameserver {server}\n")), "{resolv}");
        for (kind, expected) in [("A", service[0]), ("AAAA", service[1])] {
            for transport in ["+notcp", "+tcp"] {
                eventually(&format!("{kind} from {server} {transport}"), || {
                    let name = "web.default.svc.cluster.local";
                    let arguments = [&format!("@{server}"), transport, "+short", "+time=2", "+tries=1", kind, name];
                    let output = Command::new("dig").args(arguments).output().expect("dig runs");
                    let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
                    if said == expected { Ok(()) } else { Err(said) }
                });
            }
        }
    }
}

/// Pods, Services, cluster DNS, node ports and the API server are all reached over IPv6; nothing of the cluster has an
/// address of the other family.
#[test]
fn six_alone() {
    let extra = ["--nodes", "2"].map(str::to_string).to_vec();
    let cluster = Cluster::prepare(Options { extra }).six_alone().started();
    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    let on = |name: &str, node: &str| {
        kubectl.apply(&format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  containers:
  - name: net
    image: {BUSYBOX}
    command: [net, serve, '8080']
    readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1, timeoutSeconds: 30}}
    ports: [{{containerPort: 8080, hostPort: 19080}}]
"#
        ));
        kubectl.run(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"]);
    };
    on("web", "node-1-2");
    on("asker", "node-1");
    kubectl.run(&["expose", "pod", "web", "--type=NodePort", "--port=80", "--target-port=8080"]);
    let lists = [
        ("pods", "{.items[*].status.podIPs[*].ip}"),
        ("services", "{.items[*].spec.clusterIPs[*]}"),
        ("endpoints", "{.items[*].subsets[*].addresses[*].ip}"),
        ("endpointslices", "{.items[*].endpoints[*].addresses[*]}"),
        ("nodes", "{.items[*].status.addresses[?(@.type==\"InternalIP\")].address} {.items[*].spec.podCIDRs[*]}"),
    ];
    for (kind, path) in lists {
        let found = kubectl.run(&["get", kind, "-A", "-o", &format!("jsonpath={path}")]);
        let six = |word: &str| word.contains(':') && !word.contains('.');
        assert!(!found.trim().is_empty() && found.split_whitespace().all(six), "{kind}: {found}");
    }
    let pod = kubectl.run(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"]);
    answers(&kubectl, "asker", "udp", &format!("[{pod}]:8080"), "web 8080");
    answers(&kubectl, "asker", "get", "web.default.svc.cluster.local:80", "web 8080");
    let port = kubectl.run(&["get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"]);
    let format = "jsonpath={.items[*].status.addresses[?(@.type==\"InternalIP\")].address}";
    for node in kubectl.run(&["get", "nodes", "-o", format]).split_whitespace() {
        answers(&kubectl, "asker", "get", &format!("[{node}]:{port}"), "web 8080");
    }
    let there = kubectl.run(&["get", "pod", "web", "-o", "jsonpath={.status.hostIP}"]);
    answers(&kubectl, "asker", "get", &format!("[{there}]:19080"), "web 8080");
    // Through the API server to the other node's kubelet, and from a pod to the API server by its Service.
    kubectl.run(&["logs", "web"]);
    let through = kubectl.run(&["get", "--raw", "/api/v1/namespaces/default/services/web:80/proxy/"]);
    assert!(through.starts_with("web 8080"), "{through}");
    // It refuses plain text with a TLS alert.
    eventually("a pod gets to the API server by its name", || {
        let asked = kubectl.try_run(&["exec", "asker", "--", "net", "get", "kubernetes.default.svc:443"], "");
        if !asked.ok && asked.stderr.contains("answered \"\\u{15}") { Ok(()) } else { Err(asked) }
    });
}
