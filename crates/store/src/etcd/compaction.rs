//! Forgets history older than one interval, once per interval however many API servers share the etcd.
//! Spawned by `EtcdStore::connect`. The servers agree through one key, in upstream's way, so mixed clusters agree too.
//! Invariant: history stays for at least one interval (test: `history_is_forgotten_once_for_all_servers`).

use std::{sync::Arc, time::Duration};

use env::Env;
use etcd_client::{Client, Compare, CompareOp, Error, Txn, TxnOp, TxnOpResponse};

use super::{convert::revision_of, endpoints::Endpoints};
use crate::Revision;

pub(super) const INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Its version counts compactions; its value is the revision at the last one.
const KEY: &str = "compact_rev_key";

/// What the last round left.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct CompactionRound {
    version: i64,
    revision: Revision,
}

pub(super) async fn run(endpoints: Arc<Endpoints>, env: Env, interval: Duration) {
    let mut last = CompactionRound::default();
    loop {
        env.sleep(interval).await;
        match compact(&endpoints.client(), last).await {
            Ok(next) => last = next,
            Err(error) => tracing::warn!(%error, "failed to compact etcd, trying again later"),
        }
    }
}

/// If no other server was here since `last`, compacts to the revision of `last`.
async fn compact(client: &Client, last: CompactionRound) -> Result<CompactionRound, Error> {
    let mut kv = client.kv_client();
    let turn = Txn::new()
        .when([Compare::version(KEY, CompareOp::Equal, last.version)])
        .and_then([TxnOp::put(KEY, last.revision.to_string(), None)])
        .or_else([TxnOp::get(KEY, None)]);
    let answer = kv.txn(turn).await?;
    let revision = revision_of(answer.header());
    if !answer.succeeded() {
        let version = answer.op_responses().iter().find_map(|response| match response {
            TxnOpResponse::Get(found) => found.kvs().first().map(etcd_client::KeyValue::version),
            _ => None,
        });
        return Ok(CompactionRound { version: version.unwrap_or(0), revision });
    }
    if last.revision > 0 {
        let compacted = kv.compact(last.revision as i64, None).await;
        // Someone else may have compacted further.
        let already = |error: &Error| matches!(error, Error::GRpcStatus(s) if s.message().contains("compacted"));
        if let Err(error) = compacted
            && !already(&error)
        {
            return Err(error);
        }
    }
    Ok(CompactionRound { version: last.version + 1, revision })
}
