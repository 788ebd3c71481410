//! Stock client libraries over TLS, doing every verb on every kind: kube-rs, and the Python client from PyPI.

use std::{path::PathBuf, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Client, Config, Discovery,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    discovery::{Scope, verbs},
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};

use crate::{
    listening::{Listening, start},
    minimal,
};

fn client(server: &Listening) -> Client {
    // Other tests of this program may have chosen it already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut config = Config::new(server.url().parse().unwrap());
    let ca = std::fs::read(server.path("ca.pem")).unwrap();
    config.root_cert = Some(vec![CertificateDer::from_pem_slice(&ca).unwrap().to_vec()]);
    config.auth_info.client_certificate = Some(server.path("admin.pem").display().to_string());
    config.auth_info.client_key = Some(server.path("admin-key.pem").display().to_string());
    Client::try_from(config).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_does_every_verb_on_every_kind() {
    let server = start().await;
    let client = client(&server);
    let discovery = Discovery::new(client.clone()).run().await.unwrap();
    let mut kinds = 0;
    for group in discovery.groups() {
        for version in group.versions().filter(|v| !v.contains("beta")) {
            for (resource, capabilities) in group.versioned_resources(version) {
                let can = |verb: &str| capabilities.supports_operation(verb);
                if !can(verbs::CREATE) || !can(verbs::GET) {
                    continue;
                }
                kinds += 1;
                let api: Api<DynamicObject> = match capabilities.scope {
                    Scope::Namespaced => Api::namespaced_with(client.clone(), "default", &resource),
                    Scope::Cluster => Api::all_with(client.clone(), &resource),
                };
                let (name, mut object) = minimal::object(&resource.group, &resource.plural, 1).unwrap();
                object["apiVersion"] = resource.api_version.as_str().into();
                object["kind"] = resource.kind.as_str().into();
                object["metadata"] = json!({ "name": name, "labels": { "every": "kind" } });
                all_verbs(&api, &name, object, can(verbs::DELETE_COLLECTION)).await;
            }
        }
    }
    assert!(kinds >= 57, "only {kinds} kinds");
}

async fn all_verbs(api: &Api<DynamicObject>, name: &str, object: Value, many: bool) {
    let at = |what: &str| format!("{what} {} {name}", object["kind"]);
    let new: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    api.create(&PostParams::default(), &new).await.unwrap_or_else(|e| panic!("{}: {e}", at("create")));
    let list = api.list(&ListParams::default().labels("every=kind")).await.unwrap();
    assert!(list.items.iter().any(|o| o.metadata.name.as_deref() == Some(name)), "{}", at("list"));
    let mut events = api.watch(&WatchParams::default().labels("every=kind"), "0").await.unwrap().boxed();
    let event = env::timeout(Duration::from_secs(60), events.next()).await.expect("an event in time");
    assert!(matches!(event, Some(Ok(WatchEvent::Added(_)))), "{}: {event:?}", at("watch"));
    for patch in [
        Patch::Merge(json!({ "metadata": { "annotations": { "merge": "yes" } } })),
        Patch::Strategic(json!({ "metadata": { "annotations": { "strategic": "yes" } } })),
    ] {
        api.patch(name, &PatchParams::default(), &patch).await.unwrap_or_else(|e| panic!("{}: {e}", at("patch")));
    }
    let apply = json!({ "apiVersion": object["apiVersion"], "kind": object["kind"],
        "metadata": { "name": name, "annotations": { "applied": "yes" } } });
    let params = PatchParams::apply("kube-rs").force();
    let applied =
        api.patch(name, &params, &Patch::Apply(apply)).await.unwrap_or_else(|e| panic!("{}: {e}", at("apply")));
    assert!(applied.metadata.annotations.unwrap_or_default().len() >= 3, "{}", at("apply"));
    // Controllers in the server may write in between; then the newest is taken again.
    for attempt in 0..10 {
        let mut found = api.get(name).await.unwrap_or_else(|e| panic!("{}: {e}", at("get")));
        found.metadata.annotations.get_or_insert_default().insert("updated".into(), "yes".into());
        match api.replace(name, &PostParams::default(), &found).await {
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < 9 => continue,
            result => {
                result.unwrap_or_else(|e| panic!("{}: {e}", at("update")));
                break;
            }
        }
    }
    let now = DeleteParams::default().grace_period(0);
    match many {
        true => drop(api.delete_collection(&now, &ListParams::default().labels("every=kind")).await.unwrap()),
        false => drop(api.delete(name, &now).await.unwrap()),
    }
    let left = api.get_opt(name).await.unwrap();
    assert!(left.is_none_or(|o| o.metadata.deletion_timestamp.is_some()), "{}", at("delete"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_does_every_verb_on_every_kind() {
    let python = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/e2e-venv/bin/python"));
    if !python.exists() {
        return println!("skipped: the Python client is not installed; tools/install test brings it");
    }
    let server = start().await;
    let objects = server.path("objects.json");
    std::fs::write(&objects, Value::Array(minimal::all(1)).to_string()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/every_kind.py");
    let mut command = tokio::process::Command::new(python);
    command.arg(script).arg(server.url()).args(["ca.pem", "admin.pem", "admin-key.pem"].map(|f| server.path(f)));
    let output = command.arg(objects).output().await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}
