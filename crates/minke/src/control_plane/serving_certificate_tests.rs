//! A kubelet's serving certificate from request to signature, with the real API server, approver and signer.
//! The decision itself is tested beside the approver, in `controllers`.

use std::{sync::Arc, time::Duration};

use api::cluster_ranges::ClusterRanges;
use apiserver::ApiServer;
use client::InformerFactory;
use env::Env;
use k8s_openapi::{
    ByteString,
    api::{certificates::v1::CertificateSigningRequest, core::v1::Node},
};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::{
        authorities::Authority,
        pki::{Pki, signed_by},
    },
    control_plane::server,
};

const NODES: &str = "system:nodes";

fn reserved() -> controllers::ReservedNames {
    let range = |text: &str| vec![text.parse().unwrap()];
    controllers::ReservedNames {
        server_names: ["kubernetes", "kubernetes.default"].map(str::to_string).to_vec(),
        server_addresses: vec!["192.0.2.250".parse().unwrap()],
        cluster: ClusterRanges { pods: range("10.244.0.0/16"), services: range("10.96.0.0/12") },
        domain: "cluster.local".into(),
        boot_id: "server".into(),
    }
}

fn pem(common_name: &str, names: &[&str]) -> String {
    let mut params = CertificateParams::new(names.iter().map(|n| n.to_string()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name.push(DnType::OrganizationName, NODES);
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

/// With the real API server, approver and signer: what a node gets is by an authority that is believed about kubelets
/// alone, and what it claims of others stays unsigned.
#[tokio::test]
async fn requests_of_nodes_are_signed_by_the_authority_of_kubelets() {
    const TEST_TIMEOUT: Duration = Duration::from_secs(120);
    let (env, shutdown) = (Env::real(), CancellationToken::new());
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), env.clone()).unwrap();
    let store = Arc::new(store::MemoryStore::new(env.clone()));
    let config = apiserver::Config::in_process(pki.service_account_key().unwrap());
    let api = ApiServer::new(config, store, env.clone()).await.unwrap();
    let admin = in_process::client(&api, "admin", &[server::MASTERS]);
    let mut controllers = server::controllers_config(&pki, &[], &[]).unwrap();
    controllers.controllers = ["certificatesigningrequest-signing-controller", "kubelet-serving-approving-controller"]
        .map(str::to_string)
        .to_vec();
    controllers.kubelet_serving_names_reserved = Some(reserved());
    let accounts = api.clone();
    controllers.service_account_clients =
        Some(Arc::new(move |account| in_process::service_account_client(&accounts, account)));
    let manager = in_process::client(&api, "system:kube-controller-manager", &[]);
    let informers = InformerFactory::new(manager.clone(), env.clone(), shutdown.clone());
    env.spawn(controllers::run(controllers, manager, informers, env.clone(), shutdown.clone()));

    let kubelet = in_process::client(&api, "system:node:a", &[NODES]);
    let addresses = ["192.0.2.1", "10.96.0.1"].map(|a| json!({ "type": "InternalIP", "address": a }));
    let own: Node =
        serde_json::from_value(json!({ "metadata": { "name": "a" }, "status": { "addresses": addresses } })).unwrap();
    kubelet.api::<Node>().create(&own).await.unwrap();
    let ask = async |name: &str, hosts: &[&str]| {
        let mut request = CertificateSigningRequest::default();
        request.metadata.name = Some(name.into());
        request.spec.request = ByteString(pem("system:node:a", hosts).into_bytes());
        request.spec.signer_name = "kubernetes.io/kubelet-serving".into();
        request.spec.usages = Some(["digital signature", "server auth"].map(str::to_string).to_vec());
        kubelet.api::<CertificateSigningRequest>().create(&request).await.unwrap();
    };
    // The refused one first: when the other is signed, both were looked at.
    ask("greedy", &["192.0.2.1", "10.96.0.1"]).await;
    ask("modest", &["192.0.2.1"]).await;
    let requests = admin.api::<CertificateSigningRequest>();
    let signed = env::timeout(TEST_TIMEOUT, async {
        loop {
            let status = requests.get("modest").await.unwrap().status.unwrap_or_default();
            if let Some(certificate) = status.certificate {
                return certificate.0;
            }
            env::sleep(Duration::from_millis(20)).await;
        }
    });
    let signed = signed.await.expect("the node's own names are signed for");
    let der = client::certificates(&signed).unwrap().remove(0);
    assert!(signed_by(&der, &pki.authority_pem(Authority::KubeletServing).unwrap()));
    assert!(!signed_by(&der, pki.ca_pem()), "nobody takes it for the API server's");
    let greedy = requests.get("greedy").await.unwrap().status.unwrap_or_default();
    assert!(greedy.certificate.is_none() && greedy.conditions.unwrap_or_default().is_empty());
    shutdown.cancel();
}
