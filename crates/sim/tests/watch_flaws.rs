//! The watch checker finds what it is there for: each way in which a server could break what it promises to watchers, one
//! of them as ours once did (all changes of a transaction under one revision, of which a resumed watch told the first).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use api::{ApiError, Object, Resource, WatchEvent, WatchKind};
use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, ListParams, ObjectList, Transport, WatchStream};
use futures::{StreamExt, stream};
use http::{Request, Response};
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota};
use serde_json::json;
use sim::{
    Bootstrapped, Faults, Simulation, Topology,
    checkers::watches::Selection,
    clients::watch_client::{CurrentView, WatchClient},
};

/// What is wrong with a server, from the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A watch that resumes within a transaction goes on after it.
    TransactionsOfOneRevision,
    EventTwice,
    EventLost,
    EventsSwapped,
    BookmarkTooHigh,
    BookmarkTooLow,
    ListTooShort,
}

struct FlawedTransport {
    inner: Arc<dyn Transport>,
    flaw: Flaw,
}

/// The events of a watch from `from`, as a server with this flaw tells them. One event in eight has the flaw.
fn flawed(events: Vec<WatchEvent>, flaw: Flaw, told: &mut u64) -> VecDeque<WatchEvent> {
    let mut shown = VecDeque::new();
    for event in events {
        *told += 1;
        let chosen = told.is_multiple_of(8) && event.kind != WatchKind::Bookmark;
        match flaw {
            Flaw::EventLost if chosen => {}
            Flaw::EventTwice if chosen => shown.extend([event.clone(), event]),
            Flaw::BookmarkTooHigh if chosen => shown.extend([bookmark(&event, 0), event]),
            Flaw::BookmarkTooLow if chosen => shown.extend([event.clone(), bookmark(&event, 1)]),
            Flaw::EventsSwapped if chosen => shown.push_front(event),
            _ => shown.push_back(event),
        }
    }
    shown
}

/// A bookmark so far before the event's own revision.
fn bookmark(event: &WatchEvent, before: u64) -> WatchEvent {
    let revision = (event.object.meta.resource_version - before).to_string();
    let object = json!({ "kind": "ResourceQuota", "apiVersion": "v1", "metadata": { "resourceVersion": revision } });
    WatchEvent { kind: WatchKind::Bookmark, object: Arc::new(Object::from_value(&object).unwrap()) }
}

#[async_trait]
impl Transport for FlawedTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        self.inner.send(request).await
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<ObjectList, ApiError> {
        let mut list = self.inner.list(resource, namespace, params).await?;
        if self.flaw == Flaw::ListTooShort {
            list.objects.pop();
        }
        Ok(list)
    }

    async fn watch(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<WatchStream, ApiError> {
        let events = self.inner.watch(resource, namespace, params, resource_version).await?;
        let (flaw, mut next, mut told) = (self.flaw, resource_version.parse::<u64>().unwrap_or(0) + 1, 0);
        let resumed = events.filter(move |event| {
            // The rest of the transaction that the client has seen a part of has the revisions that follow.
            let revision = event.as_ref().map_or(0, |event| event.object.meta.resource_version);
            let lost = flaw == Flaw::TransactionsOfOneRevision && revision == next;
            next = if lost { next + 1 } else { 0 };
            std::future::ready(!lost)
        });
        // Events that are there at once can change places.
        let together = resumed.ready_chunks(16).flat_map(move |chunk| {
            let (events, errors): (Vec<_>, Vec<_>) = chunk.into_iter().partition(Result::is_ok);
            let events = flawed(events.into_iter().flatten().collect(), flaw, &mut told);
            stream::iter(events.into_iter().map(Ok).chain(errors).collect::<Vec<_>>())
        });
        Ok(together.boxed())
    }
}

/// What the checker says about eight clients that watch two quotas while pods come and go.
async fn play(flaw: Flaw, bootstrapped: &Bootstrapped) -> Vec<String> {
    let simulation = Simulation::start(1, Topology::single(1), bootstrapped).await;
    let (env, admin) = (simulation.env.clone(), simulation.admin.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": "d" } })).unwrap();
    admin.api::<Namespace>().create(&namespace).await.unwrap();
    for name in ["a", "b"] {
        let quota = json!({ "metadata": { "name": name }, "spec": { "hard": { "pods": "1000" } } });
        admin.namespaced::<ResourceQuota>("d").create(&serde_json::from_value(quota).unwrap()).await.unwrap();
    }
    env.sleep(Duration::from_secs(10)).await;
    simulation.network.injector.set(Faults { watch_broken: 0.1, ..Faults::default() });
    for number in 0..8 {
        let inner = simulation.viewer(&format!("viewer-{number}"), &env).transport().clone();
        let watcher = WatchClient {
            client: Client::new(FlawedTransport { inner, flaw }),
            env: env.clone(),
            oracle: simulation.oracle.clone(),
            resource: api::kinds::find("", "v1", "resourcequotas").unwrap().clone(),
            selection: Selection { namespace: Some("d".into()), ..Selection::default() },
            view: CurrentView::default(),
        };
        env.spawn(watcher.run());
    }
    for number in 0..60 {
        let pod = json!({ "metadata": { "name": format!("p{number}") }, "spec": {
            "containers": [{ "name": "c", "image": "good:0" }] } });
        admin.namespaced::<Pod>("d").create(&serde_json::from_value(pod).unwrap()).await.unwrap();
        env.sleep(Duration::from_secs(2)).await;
    }
    simulation.oracle.take_violations().into_iter().map(|violation| violation.0).collect()
}

#[test]
fn every_flaw_of_a_watch_is_found() {
    let bootstrapped = Bootstrapped::make();
    let check = |flaw: Flaw, said: Option<&str>| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let found = runtime.enable_time().start_paused(true).build().unwrap().block_on(play(flaw, &bootstrapped));
        match said {
            Some(said) => assert!(found.iter().any(|text| text.contains(said)), "{flaw:?}: {found:#?}"),
            None => assert_eq!(found, Vec::<String>::new(), "{flaw:?}"),
        }
    };
    check(Flaw::None, None);
    check(Flaw::TransactionsOfOneRevision, Some("comes next"));
    check(Flaw::EventTwice, Some("was told already"));
    check(Flaw::EventLost, Some("comes next"));
    check(Flaw::EventsSwapped, Some("comes next"));
    check(Flaw::BookmarkTooHigh, Some("passes over"));
    check(Flaw::BookmarkTooLow, Some("goes back"));
    check(Flaw::ListTooShort, Some("were there"));
}
