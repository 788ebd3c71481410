//! A controller for tests: what a new one takes is this file and one row (`TABLE`).
//! Copies the label `echo` of a ConfigMap into its data.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use client::{Client, Informer, InformerFactory, Patch};
use env::Env;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    Config,
    common::{
        meta::{Object, labels},
        resources::Resources,
    },
    descriptors::{ControllerDescriptor, descriptor},
    runner::{Context, Controller, Outcome, Setup, run_table},
};

const TABLE: &[ControllerDescriptor] = &[descriptor("toy-controller", "toy-controller", "toy", 1, make)];

fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let maps = setup.informer::<ConfigMap>();
    setup.on(&maps, |change, queue| {
        let echo = change.new.as_ref().and_then(|map| labels(map.meta()).get("echo").cloned());
        assert_ne!(echo.as_deref(), Some("panic-at-once"), "as asked");
        queue.add(change.key.clone());
    });
    Arc::new(Toy { context: setup.context.clone(), maps })
}

struct Toy {
    context: Context,
    maps: Informer<ConfigMap>,
}

#[async_trait]
impl Controller for Toy {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(map) = self.maps.get(key) else { return Ok(None) };
        let Some(echo) = labels(map.meta()).get("echo") else { return Ok(None) };
        tracing::info!("echoing");
        assert_ne!(echo, "panic", "as asked");
        if map.data.as_ref().and_then(|data| data.get("echo")) != Some(echo) {
            let patch = Patch::Merge(json!({ "data": { "echo": echo } }));
            self.context.client.namespaced::<ConfigMap>(map.namespace()).patch(map.name(), &patch).await?;
        }
        Ok(None)
    }
}

/// Where the log lines of a test go.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn create(admin: &Client, name: &str, echo: &str) {
    let map = json!({ "metadata": { "name": name, "labels": { "echo": echo } } });
    let map: ConfigMap = serde_json::from_value(map).unwrap();
    admin.namespaced::<ConfigMap>("default").create(&map).await.unwrap();
}

/// One row is enough to be run, under an account of its own, with every line under the span of its key; a panic is one
/// key's failure; `--controllers` turns it off.
#[tokio::test(start_paused = true)]
async fn a_controller_is_one_file_and_one_row() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _logging = testkit::scoped_log(subscriber);
    for enabled in [true, false] {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let server = apiserver::ApiServer::new(apiserver::Config::in_process(key), store, env.clone()).await.unwrap();
        let admin = in_process::client(&server, "admin", &["system:masters"]);
        let binding: Value = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "toy" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
            "subjects": [{ "kind": "ServiceAccount", "namespace": "kube-system", "name": "toy-controller" }],
        });
        let binding = serde_json::from_value(binding).unwrap();
        let bindings = admin.namespaced::<k8s_openapi::api::rbac::v1::RoleBinding>("default");
        bindings.create(&binding).await.unwrap();

        let manager = in_process::client(&server, "system:kube-controller-manager", &[]);
        let shutdown = CancellationToken::new();
        let informers = InformerFactory::new(manager.clone(), env.clone(), shutdown.clone());
        let accounts = server.clone();
        let config = Config {
            controllers: if enabled { vec!["*".into()] } else { vec!["*".into(), "-toy-controller".into()] },
            service_account_clients: Some(Arc::new(move |name| in_process::service_account_client(&accounts, name))),
            ..Config::default()
        };
        let resources = Resources::new(&informers);
        let (config, client) = (Arc::new(config), manager);
        let context = Context { config, client, informers, env: env.clone(), shutdown: shutdown.clone(), resources };
        let running = env::spawn(run_table(TABLE, context));
        create(&admin, "worse", "panic-at-once").await;
        create(&admin, "bad", "panic").await;
        create(&admin, "good", "hello").await;
        env.sleep(Duration::from_secs(5)).await;
        let good = admin.namespaced::<ConfigMap>("default").get("good").await.unwrap();
        let echoed = good.data.unwrap_or_default().get("echo").cloned();
        assert_eq!(echoed.as_deref(), enabled.then_some("hello"));
        shutdown.cancel();
        running.await.unwrap();
    }
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let has = |key: &str, line: &str| {
        let span = format!("reconcile{{controller=\"toy-controller\" key=\"default/{key}\"}}");
        text.lines().any(|l| l.contains(&span) && l.contains(line))
    };
    assert!(has("good", "echoing"), "{text}");
    assert!(has("bad", "reconcile failed"), "{text}");
}
