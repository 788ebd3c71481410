//! Lists in pages: of one moment while that is known, of the present once it is forgotten.
//! `reads` has what pages have in common with other lists.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use env::Env;
use futures::StreamExt;
use serde_json::{Value, json};
use store::{MemoryStore, Store};

use crate::harness::{Server, names, server, server_on};

const TEMPLATES: &str = "/api/v1/namespaces/default/podtemplates";
const COUNT: usize = 400;

fn name(i: usize) -> String {
    format!("template-{i:04}")
}

fn template(name: &str) -> Value {
    let pod = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    json!({ "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "name": name }, "template": pod })
}

async fn make_many(s: &Server) {
    let make = |i| async move { s.post(TEMPLATES, template(&name(i))).await.expect(201) };
    futures::stream::iter(0..COUNT).map(make).buffer_unordered(20).collect::<Vec<_>>().await;
}

/// Reads from page to page until the last; every page goes on where the one before ended, with as many left as it says
/// and all of one moment.
async fn read_on(s: &Server, mut page: Value, mut found: usize, limit: usize) {
    let version = page["metadata"]["resourceVersion"].clone();
    loop {
        let listed = names(&page);
        assert!(listed.len() <= limit, "{listed:?}");
        assert_eq!(listed, (found..found + listed.len()).map(name).collect::<Vec<_>>());
        found += listed.len();
        assert_eq!(page["metadata"]["resourceVersion"], version);
        let Some(token) = page["metadata"]["continue"].as_str() else { break };
        assert_eq!(page["metadata"]["remainingItemCount"].as_u64(), Some((COUNT - found) as u64));
        page = s.get(&format!("{TEMPLATES}?limit={limit}&continue={token}")).await.expect(200);
    }
    assert!(page["metadata"]["remainingItemCount"].is_null(), "{}", page["metadata"]);
    assert_eq!(found, COUNT);
}

/// A list reads the past from the store, where keys of all namespaces lie in one row.
#[tokio::test]
async fn a_token_leads_nowhere_but_into_its_own_list() {
    let s = server().await;
    let secrets = |namespace: &str| format!("/api/v1/namespaces/{namespace}/secrets");
    for namespace in ["aaa", "mmm", "zzz"] {
        s.post("/api/v1/namespaces", json!({ "metadata": { "name": namespace } })).await.expect(201);
        s.post(&secrets(namespace), json!({ "metadata": { "name": "own" } })).await.expect(201);
    }
    let listed = s.get(&secrets("mmm")).await.expect(200);
    let revision: i64 = listed["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    // From now on the cache is no longer what it was then.
    s.post(&secrets("mmm"), json!({ "metadata": { "name": "later" } })).await.expect(201);
    let ask = async |path: String, revision: i64, start: &str| {
        let token = json!({ "v": "meta.k8s.io/v1", "rv": revision, "start": start }).to_string();
        s.get(&format!("{path}?continue={}", BASE64_URL_SAFE_NO_PAD.encode(token))).await
    };
    for start in
        ["aaa/", "aaa/own", "zzz/own", "\0", "a", "own", "z", "./own", "..", "../aaa/own", "/", "//own", "own/"]
    {
        for revision in [revision, -1] {
            let answer = ask(secrets("mmm"), revision, start).await;
            if answer.code == 200 {
                let found = names(&answer.value);
                let strangers = answer.value["items"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|item| item["metadata"]["namespace"] != "mmm");
                assert_eq!(strangers.count(), 0, "{start:?} at {revision}: {found:?}");
            } else {
                answer.refused(400, "BadRequest", "continue key is not valid");
            }
        }
    }
    assert_eq!(names(&ask(secrets("mmm"), revision, "a").await.expect(200)), ["own"]);
    ask(secrets("mmm"), revision, "aaa/own").await.refused(400, "BadRequest", "continue key is not valid: aaa/own");
    let all = ask("/api/v1/secrets".into(), revision, "mmm/own").await.expect(200);
    assert_eq!(names(&all), ["own", "own"], "of all namespaces from there on");
    ask("/api/v1/secrets".into(), revision, "../secrets").await.refused(400, "BadRequest", "continue key is not valid");
}

#[tokio::test]
async fn pages_add_up_to_the_whole() {
    let s = server().await;
    make_many(&s).await;
    for limit in [17, 100, COUNT - 1] {
        let first = s.get(&format!("{TEMPLATES}?limit={limit}")).await.expect(200);
        assert_eq!(names(&first).len(), limit);
        read_on(&s, first, 0, limit).await;
    }
    for query in ["", &format!("?limit={}", COUNT + 1)] {
        let whole = s.get(&format!("{TEMPLATES}{query}")).await.expect(200);
        assert_eq!(names(&whole).len(), COUNT);
        assert!(whole["metadata"]["continue"].is_null());
    }
}

#[tokio::test]
async fn pages_of_a_forgotten_moment_go_on_with_the_present() {
    let env = Env::real();
    let store = Arc::new(MemoryStore::new(env.clone()));
    let s = server_on(store.clone(), env, |_| {}).await;
    make_many(&s).await;
    let limit = COUNT / 10;
    let first = s.get(&format!("{TEMPLATES}?limit={limit}")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = format!("{TEMPLATES}?limit={limit}&continue={token}");
    read_on(&s, s.get(&second).await.expect(200), limit, limit).await;
    // Others write, none of it templates, and the store forgets.
    s.create_config_map("a").await.expect(201);
    let now = store.revision().await.unwrap();
    store.compact(now).await.unwrap();
    let expired = s.get(&second).await;
    let token = expired.value["metadata"]["continue"].as_str().unwrap_or_default().to_string();
    expired.refused(410, "Expired", "The provided continue parameter is too old to display a consistent list result");
    let resumed = s.get(&format!("{TEMPLATES}?limit={limit}&continue={token}")).await.expect(200);
    assert_ne!(resumed["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert_eq!(names(&resumed).len(), limit);
    read_on(&s, resumed, limit, limit).await;
}
