//! Lists in pages: of one moment while that is known, of the present once it is forgotten.
//! `reads` has what pages have in common with other lists.

use std::sync::Arc;

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
