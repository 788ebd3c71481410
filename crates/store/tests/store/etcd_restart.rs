//! Watches on etcd go on when etcd is killed and started again; two stores on one etcd see each other's writes.

use std::{collections::BTreeSet, time::Duration};

use futures::StreamExt;
use store::{
    Compare, Operation, Outcome, Store, StoreError, Transaction, WatchItem,
    contract::{next_events, put, under, write},
    prefix_end,
};

use crate::etcd_server::EtcdServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_survives_kill_and_restart() {
    let mut server = EtcdServer::start().await;
    let store = server.connect("").await;
    let from = store.revision().await.unwrap() + 1;
    let mut stream = store.watch("/w/", &prefix_end("/w/"), from).await.unwrap();
    let mut want = Vec::new();
    for round in 0..3 {
        for n in 0..20 {
            want.push((write(&store, vec![put("/w/a", &format!("{round}.{n}"))]).await, format!("{round}.{n}")));
        }
        // Read a part only, so that the rest has to come after the restart.
        server.kill();
        server.launch();
        let operations = vec![put("/w/a", &format!("{round}.after"))];
        let compare = vec![Compare { key: "/w/a".into(), mod_revision: want[want.len() - 1].0 }];
        let transaction = Transaction { compare, operations };
        let revision = loop {
            match store.transact(transaction.clone()).await {
                Ok(Outcome::Done { revision, .. }) => break revision,
                // The write came through and its answer did not; the value is compared below.
                Ok(Outcome::Conflict { current, .. }) => break current[0].as_ref().expect("the key").mod_revision,
                Err(_) => env::sleep(Duration::from_millis(50)).await,
            }
        };
        want.push((revision, format!("{round}.after")));
        while want.len() > 10 {
            let (revision, value) = want.remove(0);
            let events = next_events(&mut stream).await;
            let store::Change::Put { value: got, .. } = &events[0].change else { panic!("{events:?}") };
            assert_eq!((events[0].revision, &got[..]), (revision, value.as_bytes()));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_share_one_etcd_and_prefixes_keep_them_apart() {
    let server = EtcdServer::start().await;
    let (one, two, apart) = (server.connect("").await, server.connect("").await, server.connect("/apart").await);
    let mut stream = two.watch("/k/", &prefix_end("/k/"), 0).await.unwrap();
    let revision = write(&one, vec![put("/k/a", "from one")]).await;
    write(&apart, vec![put("/k/a", "from apart")]).await;
    let last = write(&two, vec![put("/k/b", "from two")]).await;
    let events = [next_events(&mut stream).await, next_events(&mut stream).await].concat();
    assert_eq!(events.iter().map(|e| e.revision).collect::<Vec<_>>(), [revision, last]);
    assert_eq!(&one.get("/k/b").await.unwrap().unwrap().value[..], b"from two");
    assert_eq!(&apart.get("/k/a").await.unwrap().unwrap().value[..], b"from apart");
    assert_eq!(one.count("/k/", &prefix_end("/k/")).await.unwrap(), 2);
}

/// A reader that wants everything up to a revision must learn of it, whoever made it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_outside_of_a_watch_are_heard_of_as_progress() {
    let server = EtcdServer::start().await;
    let (ours, theirs) = (server.connect("").await, server.connect("/theirs").await);
    let mut stream = ours.watch("/k/", &prefix_end("/k/"), 0).await.unwrap();
    let mut next = async || {
        let item = env::timeout(Duration::from_secs(120), stream.next()).await;
        item.expect("an item").expect("no end").unwrap()
    };
    for (store, key) in [(&ours, "/l/a"), (&ours, "/k/a"), (&theirs, "/k/a"), (&ours, "/l/b")] {
        let revision = write(store, vec![put(key, "1")]).await;
        loop {
            match next().await {
                WatchItem::Progress(reached) if reached < revision => {}
                item => {
                    let heard = matches!(&item, WatchItem::Events(events) if events[0].revision == revision);
                    let told = matches!(&item, WatchItem::Progress(reached) if *reached == revision);
                    let ours = key == "/k/a" && std::ptr::eq(store, &ours);
                    assert_eq!((heard, told), (ours, !ours), "{key}: {item:?}");
                    break;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_forgotten_once_for_all_servers() {
    let server = EtcdServer::start().await;
    let (age, endpoints) = (Duration::from_millis(500), [server.endpoint()]);
    let connect = || store::EtcdStore::connect_keeping(age, &endpoints, "", None, env::Env::real());
    let (one, _two) = (connect().await.unwrap(), connect().await.unwrap());
    let first = write(&one, vec![put("/h/a", "1")]).await;
    let end = env::instant_now() + Duration::from_secs(120);
    while env::instant_now() < end {
        env::sleep(age / 4).await;
        write(&one, vec![put("/h/a", "2")]).await;
        match one.range(under("/h/", 0, Some(first))).await {
            Ok(_) => {}
            Err(StoreError::Compacted { oldest, .. }) => {
                assert!(oldest > first);
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("nothing was forgotten");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named() {
    let endpoints = ["http://127.0.0.1:1".to_string()];
    let refused = store::EtcdStore::connect(&endpoints, "", None, env::Env::real()).await.err().unwrap().to_string();
    assert!(refused.contains("failed to connect to etcd at http://127.0.0.1:1"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_share_few_leases() {
    let server = EtcdServer::start().await;
    let store = server.connect("").await;
    for n in 0..50 {
        let value = "x".into();
        write(&store, vec![Operation::Put { key: format!("/events/{n}"), value, ttl_seconds: Some(3600) }]).await;
    }
    let deadlines = store.deadlines("/events/", &prefix_end("/events/")).await.unwrap();
    assert_eq!(deadlines.len(), 50);
    let distinct: BTreeSet<_> = deadlines.iter().map(|(_, at)| at / 5000).collect();
    assert!(distinct.len() <= 2, "{distinct:?}");
}
