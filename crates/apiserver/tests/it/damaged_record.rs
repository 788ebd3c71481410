//! A record that rotted on disk comes back from the cache of the server that runs on it.

use std::sync::Arc;

use env::Env;
use serde_json::json;
use store::{EmbeddedStore, Store};

use crate::harness::server_on;

#[tokio::test]
async fn a_running_server_repairs_its_store_from_its_cache() {
    let env = Env::real();
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(directory.path(), env.clone()).unwrap());
    let s = server_on(store.clone(), env, |_| {}).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    s.post(maps, json!({ "metadata": { "name": "damaged" } })).await.expect(201);
    s.get(&format!("{maps}/damaged")).await.expect(200);
    let path = directory.path().join("00000001.log");
    let mut bytes = std::fs::read(&path).unwrap();
    let name = bytes.windows(16).rposition(|window| window == b"\"name\":\"damaged\"").unwrap();
    bytes[name + 10] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let record = store.get("/registry/configmaps/default/damaged").await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&record.value).contains("\"name\":\"damaged\""));
}
