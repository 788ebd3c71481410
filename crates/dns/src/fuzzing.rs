//! Entries for `crates/fuzz` into what reads bytes of clients and name servers; nothing else calls them.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use env::Env;
use hickory_proto::op::Message;
use parking_lot::RwLock;

use crate::{
    Forwarder, PodRecords, Upstreams, Zone,
    server::{QueryProgress, Shared, encode},
};

fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().expect("a constant time"), 0);
        let mut zone = Zone::new("cluster.local", 5, PodRecords::Insecure).expect("a constant domain");
        let service = serde_json::json!({ "metadata": {}, "spec": { "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
            "ports": [{ "name": "dns", "port": 53, "protocol": "UDP" }] } });
        zone.apply_service("kube-system/kube-dns", &serde_json::from_value(service).expect("a constant Service"));
        let alias = serde_json::json!({ "metadata": {}, "spec": { "type": "ExternalName", "externalName": "example.com" } });
        zone.apply_service("default/alias", &serde_json::from_value(alias).expect("a constant Service"));
        let forwarder = Forwarder::new(env.clone(), Upstreams::fixed(&[]), Duration::from_secs(30));
        Shared::new(Arc::new(RwLock::new(zone)), forwarder, env)
    })
}

/// A question of a client: the answer fits, and can be read.
pub fn message(bytes: &[u8]) {
    let (response, limit) = match shared().begin(bytes) {
        QueryProgress::Nothing => return,
        QueryProgress::Done { response, limit } => (response, limit),
        QueryProgress::Ask(pending) => (pending.response, pending.limit),
    };
    let id = response.metadata.id;
    let written = encode(response, limit);
    assert!(written.len() <= limit, "{} bytes of {limit}", written.len());
    if !written.is_empty() {
        assert_eq!(Message::from_vec(&written).expect("our own answer").metadata.id, id);
    }
}
