//! Faults between an informer and its server: broken watches, 410, duplicate lists. None may lose a change.

use std::{collections::BTreeMap, sync::Arc};

use ::api::{ApiError, Object, Resource, WatchEvent, WatchKind};
use async_trait::async_trait;
use bytes::Bytes;
use env::Env;
use futures::{StreamExt, stream};
use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{Client, InformerFactory, ListParams, ObjectList, Transport, WatchStream};

/// What the server does, call by call.
enum Answer {
    List(u64, Vec<Arc<Object>>),
    ListFails,
    /// Never an answer.
    ListHangs,
    WatchHangs,
    /// Events, then the stream breaks off with this error (or ends quietly).
    Watch(Vec<(WatchKind, Arc<Object>)>, Option<ApiError>),
    Hang,
}

struct Script {
    answers: Mutex<Vec<Answer>>,
    watched_from: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Transport for Script {
    async fn send(&self, _: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        Err(ApiError::internal("not scripted"))
    }

    async fn list(&self, _: &Resource, _: Option<&str>, _: &ListParams) -> Result<ObjectList, ApiError> {
        let answer = self.answers.lock().remove(0);
        match answer {
            Answer::List(version, objects) => Ok(ObjectList { objects, resource_version: version.to_string() }),
            Answer::ListFails => Err(ApiError::internal("down")),
            Answer::ListHangs => return std::future::pending().await,
            _ => panic!("a list was not expected"),
        }
    }

    async fn watch(&self, _: &Resource, _: Option<&str>, _: &ListParams, from: &str) -> Result<WatchStream, ApiError> {
        self.watched_from.lock().push(from.to_string());
        let answer = self.answers.lock().remove(0);
        match answer {
            Answer::WatchHangs => std::future::pending().await,
            Answer::Watch(events, end) => {
                let events = events.into_iter().map(|(kind, object)| Ok(WatchEvent { kind, object }));
                Ok(stream::iter(events.chain(end.map(Err))).boxed())
            }
            Answer::Hang => Ok(stream::pending().boxed()),
            _ => panic!("a watch was not expected"),
        }
    }
}

fn object(name: &str, version: u64) -> Arc<Object> {
    let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": name, "namespace": "d", "uid": name, "resourceVersion": version.to_string()}});
    Arc::new(Object::from_value(&value).unwrap())
}

async fn check(answers: Vec<Answer>, final_state: &[(&str, u64)], watched_from: &[&str]) {
    let from = Arc::new(Mutex::new(Vec::new()));
    let client = Client::new(Script { answers: Mutex::new(answers), watched_from: from.clone() });
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let factory = InformerFactory::new(client, env.clone(), CancellationToken::new());
    let informer = factory.informer::<ConfigMap>();
    let mut changes = informer.subscribe();
    informer.synced().await;
    env.sleep(std::time::Duration::from_secs(240)).await;
    let wanted: BTreeMap<String, u64> = final_state.iter().map(|(n, v)| (format!("d/{n}"), *v)).collect();
    let cached: BTreeMap<String, u64> =
        informer.objects().list().iter().map(|o| (o.key(), o.meta.resource_version)).collect();
    assert_eq!(cached, wanted, "the cache");
    // Replaying every change from nothing gives the same state: none was lost, each `old` was what came before.
    let mut replayed: BTreeMap<String, Arc<ConfigMap>> = BTreeMap::new();
    while let Some(change) = changes.try_next() {
        assert_eq!(replayed.get(&change.key).map(|o| &o.metadata), change.old.as_ref().map(|o| &o.metadata));
        match change.new {
            Some(new) => replayed.insert(change.key, new),
            None => replayed.remove(&change.key),
        };
    }
    assert_eq!(replayed.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>(), "the replay");
    assert_eq!(*from.lock(), watched_from);
}

#[tokio::test(start_paused = true)]
async fn a_broken_watch_resumes_where_it_was() {
    use WatchKind::*;
    let broken = Answer::Watch(vec![(Added, object("b", 6))], Some(ApiError::internal("reset")));
    let answers = vec![
        Answer::List(5, vec![object("a", 3)]),
        broken,
        Answer::Watch(vec![(Modified, object("a", 7))], None),
        Answer::Hang,
    ];
    check(answers, &[("a", 7), ("b", 6)], &["5", "6", "7"]).await;
}

#[tokio::test(start_paused = true)]
async fn gone_lists_again_and_finds_what_was_missed() {
    use WatchKind::*;
    let gone =
        Answer::Watch(vec![(Bookmark, object("", 9))], Some(ApiError::expired("too old resource version: 9 (20)")));
    let answers = vec![
        Answer::List(5, vec![object("a", 3), object("b", 4)]),
        gone,
        Answer::List(30, vec![object("b", 4), object("c", 25)]),
        Answer::Hang,
    ];
    check(answers, &[("b", 4), ("c", 25)], &["5", "30"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_down_is_tried_again() {
    let answers = vec![
        Answer::ListFails,
        Answer::ListFails,
        Answer::List(5, vec![object("a", 3)]),
        Answer::Watch(vec![(WatchKind::Deleted, object("a", 8))], Some(ApiError::internal("restart"))),
        Answer::Hang,
    ];
    check(answers, &[], &["5", "8"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_asked_again() {
    let answers = vec![
        Answer::ListHangs,
        Answer::List(5, vec![object("a", 3)]),
        Answer::WatchHangs,
        Answer::Watch(vec![(WatchKind::Added, object("b", 6))], None),
        Answer::Hang,
    ];
    check(answers, &[("a", 3), ("b", 6)], &["5", "5", "6"]).await;
}

/// A connection that died without a word: nothing arrives any more, not even bookmarks.
#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_resumed() {
    let from = Arc::new(Mutex::new(Vec::new()));
    let answers = vec![
        Answer::List(5, vec![object("a", 3)]),
        Answer::Hang,
        Answer::Watch(vec![(WatchKind::Modified, object("a", 7))], None),
        Answer::Hang,
    ];
    let client = Client::new(Script { answers: Mutex::new(answers), watched_from: from.clone() });
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let informer = InformerFactory::new(client, env.clone(), CancellationToken::new()).informer::<ConfigMap>();
    env.sleep(std::time::Duration::from_secs(310)).await;
    assert_eq!(informer.objects().get("d/a").unwrap().meta.resource_version, 7);
    assert_eq!(*from.lock(), ["5", "5", "7"]);
}

/// A server that was put back to an earlier state does not know our version yet.
#[tokio::test(start_paused = true)]
async fn a_restored_server_is_listed_again() {
    let ahead = ApiError::new(::api::Reason::Timeout, "Too large resource version: 50, current: 20");
    let answers = vec![
        Answer::List(50, vec![object("a", 40), object("b", 45)]),
        Answer::Watch(Vec::new(), Some(ahead)),
        Answer::List(20, vec![object("a", 15)]),
        Answer::Hang,
    ];
    check(answers, &[("a", 15)], &["50", "20"]).await;
}
