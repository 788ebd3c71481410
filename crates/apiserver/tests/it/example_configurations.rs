//! Configuration files as upstream's documents and tests have them: whatever kube-apiserver starts with, this server does.
//! Run by hand with `MINKE_EXAMPLES=DIRECTORY`: nothing of another project is in this repository.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use apiserver::{ApiServer, Config, config::Oidc};
use env::Env;
use rcgen::KeyPair;
use store::MemoryStore;

/// What lies where examples say that it does.
const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: k\n  cluster:\n    \
     server: https://127.0.0.1:1\n    insecure-skip-tls-verify: true\ncontexts:\n- name: c\n  context: {cluster: k}\n";
const EVENT_LIMITS: &str = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits:\n\
     - {type: Server, qps: 10, burst: 50}\n";
const NODE_SELECTORS: &str = "podNodeSelectorPluginConfig:\n  clusterDefaultNodeSelector: a=b\n";

/// The document with its placeholders filled in, in a directory of its own.
fn prepare(example: &Path, folder: &Path) -> PathBuf {
    let kubeconfig = folder.join("kubeconfig");
    fs::write(&kubeconfig, KUBECONFIG).unwrap();
    fs::write(folder.join("eventconfig.yaml"), EVENT_LIMITS).unwrap();
    fs::write(folder.join("podnodeselector.yaml"), NODE_SELECTORS).unwrap();
    let policy = format!("imagePolicy:\n  kubeConfigFile: {}\n  allowTTL: 50\n", kubeconfig.display());
    fs::write(folder.join("imagepolicyconfig.yaml"), policy).unwrap();
    let ca = rcgen::generate_simple_self_signed(Vec::new()).unwrap().cert.pem();
    let text: Vec<String> = fs::read_to_string(example)
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with("cat <<") && *line != "EOF" && !line.starts_with("..."))
        .map(|line| match line.split_once("kubeConfigFile:").filter(|(before, _)| !before.contains('#')) {
            Some((before, _)) => format!("{before}kubeConfigFile: {}", kubeconfig.display()),
            None => line
                .replace("<value is the content of file /path/to/ca.pem>", &format!("{ca:?}"))
                .replace("<PEM encoded CA certificates>", &ca.replace('\n', "\n      "))
                .replace("<BASE 64 ENCODED SECRET>", "c2VjcmV0IGlzIHNlY3VyZSwgb3IgaXMgaXQ/MTIzNDU="),
        })
        .collect();
    let file = folder.join("example.yaml");
    fs::write(&file, text.join("\n")).unwrap();
    file
}

async fn refusal(example: &Path) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = prepare(example, folder.path());
    let mut config = Config::in_process(KeyPair::generate().unwrap().serialize_pem());
    let name = example.file_name().unwrap().to_string_lossy().into_owned();
    let kind = name.split('-').find(|word| word.ends_with("Configuration") || *word == "Policy").unwrap_or_default();
    match kind {
        "EncryptionConfiguration" => {
            let providers = apiserver::config::EncryptionProviders { file, automatic_reload: false };
            config.encryption_providers = Some(providers);
        }
        "AuthenticationConfiguration" => config.authentication.oidc = Some(Oidc::File(file)),
        "AuthorizationConfiguration" => config.authorization.config_file = Some(file),
        "AdmissionConfiguration" => config.admission_control_config_file = Some(file),
        "Policy" => config.audit.policy_file = Some(file),
        other => return Some(format!("{name}: {other:?} is no kind of a configuration")),
    }
    let env = Env::real();
    let started = ApiServer::new(config, Arc::new(MemoryStore::new(env.clone())), env).await;
    started.err().map(|error| format!("{name}: {error}"))
}

#[tokio::test]
#[ignore = "wants examples: MINKE_EXAMPLES"]
async fn examples_are_accepted() {
    let folder = std::env::var("MINKE_EXAMPLES").expect("MINKE_EXAMPLES");
    let mut examples: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    examples.sort();
    let mut refused = Vec::new();
    for example in &examples {
        refused.extend(refusal(example).await);
    }
    println!("{} examples", examples.len());
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
