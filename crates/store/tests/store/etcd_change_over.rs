//! Two ways to one etcd, of which one falls silent: reads, writes and watches go on over the other.

use std::net::SocketAddr;

use env::Env;
use store::{EtcdStore, Store, prefix_end};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{
    etcd_members::{told_until, until_done, write_over},
    etcd_server::EtcdServer,
};

/// Its URL, and whether nothing gets through although connections stay.
async fn way_to(etcd: SocketAddr) -> (String, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (silent, told) = watch::channel(false);
    env::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut told = told.clone();
            env::spawn(async move {
                let mut server = TcpStream::connect(etcd).await.unwrap();
                tokio::select! {
                    biased;
                    _ = told.wait_for(|silent| *silent) => {}
                    _ = copy_bidirectional(&mut client, &mut server) => return,
                }
                // Closed once it is over.
                let _ = told.wait_for(|silent| !*silent).await;
            });
        }
    });
    (url, silent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_goes_on_over_another_way_and_no_event_is_lost_or_comes_twice() {
    let server = EtcdServer::start().await;
    let etcd = server.endpoint().trim_start_matches("http://").parse().unwrap();
    let ways = [way_to(etcd).await, way_to(etcd).await];
    let urls = ways.each_ref().map(|(url, _)| url.clone());
    let store = until_done(async || EtcdStore::connect(&urls, "", None, Env::real()).await).await;
    let mut stream = until_done(async || store.watch("/w/", &prefix_end("/w/"), 0).await).await;
    let (mut last, mut written) = (0, Vec::new());
    for (round, (_, silent)) in ways.iter().cycle().take(4).enumerate() {
        silent.send_replace(true);
        for n in 0..5 {
            let value = format!("{round}.{n}");
            last = write_over(&store, last, &value).await;
            written.push((last, value));
        }
        let found = until_done(async || store.get("/w/a").await).await.expect("the key");
        assert_eq!((found.mod_revision, &found.value[..]), (last, format!("{round}.4").as_bytes()));
        silent.send_replace(false);
    }
    assert_eq!(told_until(&mut stream, last).await, written);
}
