//! Flags of the controller manager: what it is told, and what it is told without any.

use clap::Parser;

use super::*;
use crate::flags::{Command, Flags};

fn parse(arguments: &[&str]) -> ControllerManager {
    let typed = ["minke", "controller-manager", "--kubeconfig", "/k"].iter().chain(arguments);
    let typed = upstream::arguments(typed.map(|word| word.to_string()).collect()).expect("flags of pflag's grammar");
    let flags = Flags::try_parse_from(typed).unwrap_or_else(|error| panic!("{error}"));
    let Command::ControllerManager(flags) = flags.command else { panic!("controller-manager") };
    *flags
}

#[test]
fn only_controllers_that_there_are_can_be_chosen() {
    let check = |words: &[&str]| known_controllers(&words.iter().map(|w| w.to_string()).collect::<Vec<_>>());
    assert_eq!(check(&["*", "-job-controller"]).unwrap(), ["*", "-job-controller"]);
    assert!(check(&["deployment-controller"]).is_ok());
    let error = check(&["*", "-jobs"]).unwrap_err().to_string();
    assert_eq!(error, "\"-jobs\" is not in the list of known controllers");
    let kubeadm = check(&["*", "bootstrapsigner", "tokencleaner", "-nodeipam"]).unwrap();
    assert_eq!(kubeadm, ["*", "bootstrap-signer-controller", "token-cleaner-controller", "-node-ipam-controller"]);
    assert_eq!(check(&["*", "-route"]).unwrap(), ["*"]);
    assert!(check(&["device-taint-eviction-controller"]).unwrap_err().to_string().contains("is not built"));
    for (alias, name) in ALIASES {
        assert!(controllers::names().any(|one| one == *name), "{alias}: {name}");
    }
    for (flag, name) in CONCURRENCY {
        assert!(controllers::names().any(|one| one == *name), "{flag}: {name}");
    }
}

/// A controller manager in somebody else's cluster signs nothing and says of no authority that it is the cluster's.
#[tokio::test]
async fn without_an_authority_there_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let flags = parse(&["--data-dir", data.to_str().unwrap()]);
    assert!(flags.pki(&env::Env::real()).unwrap().is_none());
    assert!(!data.join("pki").exists(), "none is made either");
    let config = flags.config(None).unwrap();
    assert!(config.root_ca_pem.is_none() && config.certificate_authority.is_none());
    assert!(config.kubelet_serving_authority.is_none() && config.signer_authorities.is_empty());
    assert!(config.service_account_key_pem.is_none() && config.cluster_cidrs.is_empty());

    let pki = Pki::open(directory.path(), env::Env::real()).unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let key = pki.service_account_key().unwrap();
    let given = [
        format!("--root-ca-file={}", file("ca.crt")),
        format!("--cluster-signing-cert-file={}", file("ca.crt")),
        format!("--cluster-signing-key-file={}", file("ca.key")),
        format!("--service-account-private-key-file={}", file("sa.key")),
        "--allocate-node-cidrs=true".to_string(),
        "--cluster-cidr=10.1.0.0/16".to_string(),
        "--node_cidr_mask_size=26".to_string(),
        "--concurrent-deployment-syncs".to_string(),
        "9".to_string(),
        "--node-monitor-grace-period=40s".to_string(),
    ];
    let config = parse(&given.iter().map(String::as_str).collect::<Vec<_>>()).config(None).unwrap();
    assert_eq!(config.root_ca_pem.as_deref(), Some(pki.ca_pem()));
    assert_eq!((config.service_account_key_pem, config.signer_authorities.len()), (Some(key), 4));
    assert_eq!((config.node_cidr_mask_size_ipv4, config.workers["deployment-controller"]), (26, 9));
    assert_eq!(config.cluster_cidrs, ["10.1.0.0/16".parse().unwrap()]);
    assert_eq!(config.node_monitor_grace_period, Duration::from_secs(40));

    let refused = |arguments: &[&str], expected: &str| {
        let error = parse(arguments).config(None).map(drop).expect_err("an error");
        assert!(format!("{error:#}").contains(expected), "{error:#}");
    };
    refused(&["--cluster-signing-cert-file=/x"], "must be given together");
    refused(&["--cloud-provider=aws"], "--cloud-provider=aws is not supported: there are no cloud providers");
    refused(&["--node-eviction-rate=0.2"], "--node-eviction-rate=0.2 is not supported");
    refused(&["--root-ca-file=/nonexistent"], "failed to read /nonexistent");
    parse(&["--cloud-provider=", "--node-eviction-rate=0.10", "--kube-api-qps=20"]).config(None).unwrap();
}
