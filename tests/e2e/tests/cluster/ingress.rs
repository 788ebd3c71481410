//! The built-in ingress with real packets: stock curl over HTTP and HTTPS to a Deployment, by Ingress and by Gateway.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use e2e::{Cluster, Namespace, eventually};

use crate::{kubectl, web};

/// The ports that the shared cluster's ingress has chosen.
fn ports() -> (u64, u64) {
    let text = std::fs::read_to_string(Cluster::shared().data.join("ports.json")).expect("the ports of the cluster");
    let ports: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let port = |flag: &str| ports[flag].as_u64().unwrap_or_else(|| panic!("{flag} in {text}"));
    (port("--ingress-http-port"), port("--ingress-https-port"))
}

/// A certificate for `host`, signed by itself.
fn certificate(directory: &Path, host: &str) {
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"])
        .args(["-subj", "/CN=ingress", "-addext", &format!("subjectAltName=DNS:{host}"), "-keyout"])
        .arg(directory.join("tls.key"))
        .arg("-out")
        .arg(directory.join("tls.crt"))
        .stderr(Stdio::null())
        .status();
    assert!(output.expect("openssl runs").success());
}

fn curl(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("curl").args(["-sS", "--max-time", "60"]).args(arguments).output().expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr))) }
}

#[track_caller]
fn becomes(arguments: &[&str], expected: &str) {
    eventually(&format!("curl {arguments:?} shows {expected:?}"), || match curl(arguments) {
        Ok(text) if text.starts_with(expected) => Ok(()),
        other => Err(other),
    });
}

fn ingress(name: &str, host: &str, path: &str, service: &str) -> String {
    format!(
        "---\n{{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {{name: {name}}}, spec: {{\
         tls: [{{hosts: [{host}], secretName: cert}}], rules: [{{host: {host}, http: {{paths: [\
         {{path: {path}, pathType: Prefix, backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}]}}}}]}}}}\n"
    )
}

fn events(ns: &Namespace, name: &str) -> String {
    let about = format!("involvedObject.name={name}");
    ns.run(&[
        "get",
        "events",
        "--field-selector",
        &about,
        "-o",
        "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}",
    ])
}

#[test]
fn an_ingress_leads_from_outside_to_a_deployment() {
    let ns = kubectl().namespace("ingress");
    let ((http, https), host) = (ports(), "web.ingress.test");
    let directory = tempfile::tempdir().expect("a temporary directory");
    certificate(directory.path(), host);
    ns.apply(&web("web", 1));
    ns.apply(&ingress("web", host, "/", "web"));
    let class = ns.run(&["get", "ingress", "web", "-o", "jsonpath={.spec.ingressClassName}"]);
    assert_eq!(class, "minke", "the default class");
    eventually("the missing Secret is told", || {
        let told = events(&ns, "web");
        if told.contains("MissingSecret: there is no Secret") { Ok(()) } else { Err(told) }
    });
    let (key, chain) = (directory.path().join("tls.key"), directory.path().join("tls.crt"));
    let (key, chain) = (key.display().to_string(), chain.display().to_string());
    ns.run(&["create", "secret", "tls", "cert", "--cert", &chain, "--key", &key]);
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);

    let to = format!("{host}:{https}:127.0.0.1");
    let url = format!("https://{host}:{https}/");
    becomes(&["--cacert", &chain, "--resolve", &to, &url], "web-");
    becomes(&["--cacert", &chain, "--resolve", &to, "--http1.1", &url], "web-");
    let version = ["--cacert", &chain, "--resolve", &to, "-o", "/dev/null", "-w", "%{http_version}", &url];
    becomes(&version, "2");
    let plain = format!("http://{host}:{http}/");
    becomes(&["--resolve", &format!("{host}:{http}:127.0.0.1"), &plain], "web-");
    let none = format!("http://127.0.0.1:{http}/");
    becomes(&["-H", "Host: nobody.test", "-o", "/dev/null", "-w", "%{http_code}", &none], "404");
    eventually("the status has the node's address", || {
        let ip = ns.run(&["get", "ingress", "web", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"]);
        let node =
            ns.run(&["get", "node", "e2e", "-o", "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}"]);
        if !ip.is_empty() && node.split(' ').any(|address| address == ip) { Ok(()) } else { Err((ip, node)) }
    });

    ns.apply(&ingress("late", host, "/", "other"));
    eventually("the younger Ingress is told", || {
        let told = events(&ns, "late");
        if told.contains("HostPathConflict: path / of web.ingress.test belongs to Ingress") {
            Ok(())
        } else {
            Err(told)
        }
    });
    becomes(&["--resolve", &format!("{host}:{http}:127.0.0.1"), &plain], "web-");
    ns.run(&["delete", "ingress", "web"]);
    let status = ["-H", "Host: web.ingress.test", "-o", "/dev/null", "-w", "%{http_code}", &none];
    becomes(&status, "503");
    ns.run(&["delete", "ingress", "late"]);
    becomes(&status, "404");
}

#[test]
fn a_gateway_leads_from_outside_to_a_deployment() {
    let ns = kubectl().namespace("gateway");
    let ((http, _), host) = (ports(), "web.gateway.test");
    ns.apply(&web("web", 1));
    eventually("the kinds are there", || {
        let class =
            ns.run(&["get", "gatewayclasses.gateway.networking.k8s.io", "minke", "--ignore-not-found", "-o", "name"]);
        if class.contains("minke") { Ok(()) } else { Err(class) }
    });
    ns.apply(
        "---\n{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g}, spec: {gatewayClassName: minke,\
         listeners: [{name: http, port: 80, protocol: HTTP, hostname: '*.gateway.test'}]}}\n\
         ---\n{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: web}, spec: {\
         parentRefs: [{name: g}], hostnames: [web.gateway.test], rules: [\
         {matches: [{path: {type: PathPrefix, value: /old}}], filters: [{type: RequestRedirect, requestRedirect: {\
         statusCode: 301, path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}}]},\
         {backendRefs: [{name: web, port: 80}], filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {\
         set: [{name: x-route, value: gateway}]}}]}]}}\n",
    );
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    ns.run(&["wait", "gateway/g", "--for=condition=Programmed", "--timeout=120s"]);
    let to = format!("{host}:{http}:127.0.0.1");
    let url = format!("http://{host}:{http}/");
    becomes(&["--resolve", &to, &url], "web-");
    let route = curl(&["--resolve", &to, "-o", "/dev/null", "-w", "%header{x-route}", &url]);
    assert_eq!(route.as_deref(), Ok("gateway"));
    let moved = format!("{url}old/a");
    becomes(
        &["--resolve", &to, "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", &moved],
        "301 http://web.gateway",
    );
    eventually("the listener counts its route, which is accepted", || {
        let attached = ns.run(&["get", "gateway", "g", "-o", "jsonpath={.status.listeners[0].attachedRoutes}"]);
        let accepted = "jsonpath={.status.parents[0].conditions[?(@.type=='Accepted')].status}";
        let accepted = ns.run(&["get", "httproute", "web", "-o", accepted]);
        if (attached.as_str(), accepted.as_str()) == ("1", "True") { Ok(()) } else { Err((attached, accepted)) }
    });
}
