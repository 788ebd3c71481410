//! Backends that are full or slow: a blocking one has every event before its request goes on, a batching one counts what it
//! loses.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::{audit::Recorded, harness::*, outside};

const RULES: &str = "omitStages: [RequestReceived]\nrules:\n- {level: None, users: ['system:apiserver']}\n\
    - {level: Metadata, resources: [{group: '', resources: [configmaps]}]}\n";

/// A webhook that answers nobody before it is opened.
struct Gate {
    open: watch::Sender<bool>,
    events: Arc<AtomicUsize>,
    asked: Arc<Notify>,
    kubeconfig: String,
}

impl Gate {
    async fn start() -> Self {
        let (open, opened) = watch::channel(false);
        let (events, asked): (Arc<AtomicUsize>, Arc<Notify>) = Default::default();
        let (counted, told) = (events.clone(), asked.clone());
        let handler: outside::Handler = Arc::new(move |request| {
            let (mut opened, counted) = (opened.clone(), counted.clone());
            told.notify_one();
            async move {
                let _ = opened.wait_for(|open| *open).await;
                let list: Value = serde_json::from_slice(request.body()).unwrap();
                counted.fetch_add(list["items"].as_array().unwrap().len(), Ordering::SeqCst);
                outside::json_response(200, &json!({}))
            }
            .boxed()
        });
        let (port, ca) = outside::serve("localhost", None, handler).await;
        let cluster = json!({ "server": format!("https://127.0.0.1:{port}/"), "certificate-authority-data": BASE64_STANDARD.encode(ca) });
        let kubeconfig = json!({
            "clusters": [{ "name": "c", "cluster": cluster }], "contexts": [{ "name": "c", "context": { "cluster": "c" } }],
            "current-context": "c",
        });
        Self { open, events, asked, kubeconfig: kubeconfig.to_string() }
    }

    fn configure(&self, mode: &'static str) -> impl FnOnce(&mut apiserver::Config, &Path) {
        let text = self.kubeconfig.clone();
        move |config, folder| {
            let path = folder.join("webhook.yaml");
            std::fs::write(&path, text).unwrap();
            let webhook = &mut config.audit.webhook;
            webhook.config_file = Some(path);
            webhook.initial_backoff = Duration::from_millis(10);
            webhook.batch.mode = mode.into();
            (webhook.batch.buffer_size, webhook.batch.max_size) = (10, 1);
            (webhook.batch.max_wait, webhook.batch.throttle) = (Duration::from_millis(1), false);
        }
    }
}

async fn lost(s: &Server) -> usize {
    let page = s.get("/metrics").await;
    let text = String::from_utf8_lossy(&page.bytes).into_owned();
    let line = text.lines().find(|line| line.starts_with("apiserver_audit_error_total{plugin=\"buffered\"}"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_buffer_counts_what_it_loses_and_keeps_nobody_waiting() {
    const REQUESTS: usize = 200;
    let gate = Gate::start().await;
    let r = Recorded::start(RULES, gate.configure("batch")).await;
    let one = async |n: usize| r.server.create_config_map(&format!("c-{n}")).await.expect(201);
    futures::stream::iter(0..REQUESTS).map(one).buffer_unordered(16).count().await;
    assert_eq!(gate.events.load(Ordering::SeqCst), 0);
    let dropped = lost(&r.server).await;
    assert!(dropped > 0, "{REQUESTS} are more than the buffer and what is under way");
    gate.open.send(true).unwrap();
    let all = async {
        while gate.events.load(Ordering::SeqCst) + dropped < REQUESTS {
            env::sleep(Duration::from_millis(10)).await;
        }
    };
    env::timeout(Duration::from_secs(120), all).await.expect("what was not lost arrives");
    assert_eq!(gate.events.load(Ordering::SeqCst) + dropped, REQUESTS);
    // The log beside it blocks, and has them all.
    assert_eq!(r.events().iter().filter(|e| e["verb"] == "create").count(), REQUESTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_webhook_has_the_event_before_the_answer_goes_out() {
    let gate = Gate::start().await;
    let r = Recorded::start(RULES, gate.configure("blocking")).await;
    let mut request = std::pin::pin!(r.server.create_config_map("a"));
    let asked = async {
        tokio::select! {
            answer = &mut request => panic!("answered {} before its event was taken", answer.code),
            () = gate.asked.notified() => {}
        }
    };
    env::timeout(Duration::from_secs(120), asked).await.expect("the webhook is asked");
    assert!((&mut request).now_or_never().is_none(), "the answer waits");
    gate.open.send(true).unwrap();
    request.await.expect(201);
    assert_eq!(gate.events.load(Ordering::SeqCst), 1);
}
