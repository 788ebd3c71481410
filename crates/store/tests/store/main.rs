//! The store contract on every backend, and what each backend must do beyond it.
//! Needs the `etcd` binary; says how to install it if it is missing.

mod crash;
mod damage;
mod etcd_change_over;
mod etcd_members;
mod etcd_restart;
mod etcd_server;
mod etcd_tls;
mod upkeep;

use std::sync::Arc;

use env::Env;
use store::{
    EmbeddedStore, MemoryStore,
    contract::{self, Fixture},
};

async fn memory() -> Fixture {
    Fixture { store: Arc::new(MemoryStore::new(Env::real())), keep: Box::new(()) }
}

async fn embedded() -> Fixture {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = EmbeddedStore::open(directory.path(), Env::real()).expect("an empty store");
    Fixture { store: Arc::new(store), keep: Box::new(directory) }
}

async fn etcd() -> Fixture {
    let server = etcd_server::EtcdServer::start().await;
    Fixture { store: Arc::new(server.connect("").await), keep: Box::new(server) }
}

async fn etcd_with_prefix() -> Fixture {
    let server = etcd_server::EtcdServer::start().await;
    Fixture { store: Arc::new(server.connect("/minke").await), keep: Box::new(server) }
}

contract::run_all!(on_memory => memory);
contract::run_all!(on_embedded => embedded);
contract::run_all!(on_etcd => etcd);
contract::run_all!(on_etcd_with_prefix => etcd_with_prefix);
