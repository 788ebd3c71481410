//! A second API server on the data of the first.

use std::sync::Arc;

use apiserver::{ApiServer, Config};
use env::Env;
use store::MemoryStore;

#[tokio::test]
async fn a_restarted_server_finds_its_own_service() {
    let env = Env::real();
    let store = Arc::new(MemoryStore::new(env.clone()));
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    for _ in 0..2 {
        let server = ApiServer::new(Config::in_process(key.clone()), store.clone(), env.clone()).await;
        assert!(server.unwrap().ready());
    }
}
