//! Trust anchors and certificates in pods' volumes, behind their feature gates, with a signer of the test's own.

use std::time::{Duration, UNIX_EPOCH};

use api::pem;
use base64::{Engine, prelude::BASE64_STANDARD};
use e2e::{BUSYBOX, Cluster, Kubectl, Options, eventually};
use env::Env;
use jiff::{SignedDuration, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData, SubjectPublicKeyInfo};
use serde_json::{Value, json};

const GATES: &str = "ClusterTrustBundle=true,ClusterTrustBundleProjection=true,PodCertificateRequest=true";

/// Signs the request of this pod; gives the leaf.
fn sign(kubectl: &Kubectl, issuer: &Issuer<'_, KeyPair>, root: &str) -> String {
    let request = eventually("the kubelet asks for a certificate", || {
        let list = kubectl.json(&["get", "podcertificaterequests"]);
        list["items"].get(0).cloned().ok_or(list)
    });
    let spec = &request["spec"];
    assert_eq!((&spec["podName"], &spec["nodeName"]), (&json!("shown"), &json!("node-1")), "{spec}");
    let key = BASE64_STANDARD.decode(spec["pkixPublicKey"].as_str().expect("a key")).expect("base 64");
    let key = SubjectPublicKeyInfo::from_der(&key).expect("a public key");
    let now = Timestamp::from_second(Env::real().now().as_second()).expect("a time");
    let at = |minutes: i64| now + SignedDuration::from_mins(minutes);
    let date = |minutes: i64| (UNIX_EPOCH + Duration::from_secs(at(minutes).as_second() as u64)).into();
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (date(0), date(120));
    let leaf = params.signed_by(&key, issuer).expect("signed").pem();
    let time = |minutes: i64| at(minutes).to_string();
    let condition =
        json!({ "type": "Issued", "status": "True", "reason": "Signed", "message": "", "lastTransitionTime": time(0) });
    let status = json!({ "status": {
        "conditions": [condition], "certificateChain": format!("{leaf}{root}"),
        "notBefore": time(0), "notAfter": time(120), "beginRefreshAt": time(60),
    } });
    let name = request["metadata"]["name"].as_str().expect("a name");
    let resource = format!("podcertificaterequest/{name}");
    kubectl.run(&["patch", &resource, "--subresource=status", "--type=merge", "-p", &status.to_string()]);
    leaf
}

#[test]
fn pods_are_shown_anchors_and_certificates() {
    let flags = ["--feature-gates", GATES, "--runtime-config", "certificates.k8s.io/v1beta1=true"];
    let cluster = Cluster::start(Options { extra: flags.map(String::from).to_vec() });
    cluster.import_busybox();
    let kubectl = cluster.kubectl();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let root = params.self_signed(&key).expect("a root").pem();
    let issuer = Issuer::new(params, key);
    let bundle = json!({ "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
        "metadata": { "name": "example.com:x:roots" }, "spec": { "signerName": "example.com/x", "trustBundle": root } });
    kubectl.apply(&bundle.to_string());
    eventually("the API server's own bundle is published", || {
        let names = kubectl.try_run(&["get", "clustertrustbundles", "-o", "name"], "");
        if names.stdout.contains("kubernetes.io:kube-apiserver-serving:") { Ok(()) } else { Err(names) }
    });
    let sources = json!([
        { "clusterTrustBundle": { "signerName": "example.com/x", "labelSelector": {}, "path": "roots.pem" } },
        { "podCertificate": { "signerName": "example.com/x", "keyType": "ECDSAP384", "credentialBundlePath": "credential.pem" } },
    ]);
    let container = json!({
        "name": "c", "image": BUSYBOX, "command": ["sleep", "1000"],
        "volumeMounts": [{ "name": "certificates", "mountPath": "/certificates" }],
    });
    let pod: Value = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "shown" }, "spec": {
        "terminationGracePeriodSeconds": 0, "containers": [container],
        "volumes": [{ "name": "certificates", "projected": { "sources": sources } }],
    } });
    kubectl.has_account();
    kubectl.apply(&pod.to_string());
    let leaf = sign(&kubectl, &issuer, &root);
    kubectl.run(&["wait", "--for=condition=Ready", "pod/shown", "--timeout=180s"]);
    let read = |file: &str| kubectl.run(&["exec", "shown", "--", "cat", &format!("/certificates/{file}")]);
    assert_eq!(pem::blocks(&read("roots.pem")), pem::blocks(&root));
    let credential = read("credential.pem");
    let blocks = pem::blocks(&credential);
    let labels: Vec<&str> = blocks.iter().map(|block| block.label.as_str()).collect();
    assert_eq!(labels, ["PRIVATE KEY", "CERTIFICATE", "CERTIFICATE"]);
    assert_eq!(blocks[1..2], pem::blocks(&leaf)[..]);
    let key = KeyPair::from_pem(&pem::encode("PRIVATE KEY", &blocks[0].content)).expect("a private key");
    let list = kubectl.json(&["get", "podcertificaterequests"]);
    let asked = list["items"][0]["spec"]["pkixPublicKey"].as_str().unwrap_or_default().to_string();
    assert_eq!(BASE64_STANDARD.encode(key.subject_public_key_info()), asked);
    // A new anchor is shown without a restart.
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let second = params.self_signed(&KeyPair::generate().expect("a key")).expect("a root").pem();
    let patch = json!({ "spec": { "trustBundle": format!("{root}{second}") } }).to_string();
    kubectl.run(&["patch", "clustertrustbundle", "example.com:x:roots", "--type=merge", "-p", &patch]);
    eventually("both anchors are shown", || {
        let shown = pem::blocks(&read("roots.pem")).len();
        if shown == 2 { Ok(()) } else { Err(shown) }
    });
}
