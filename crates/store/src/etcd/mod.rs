//! A store in an etcd cluster, for more than one API server.
//! `endpoints` changes over between several servers, `watch` follows changes across reconnects, `lease` gives keys a time to live, `key_space` says where keys lie,
//! `compaction` forgets, `convert` maps what etcd says.
//! It keeps no data of its own; every answer is etcd's.

mod compaction;
mod convert;
mod endpoints;
mod key_space;
mod lease;
mod watch;

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use env::Env;
use etcd_client::{
    Certificate, Client, CompareOp, ConnectOptions, GetOptions, Identity, PutOptions, TlsOptions, Txn, TxnOp,
};

use crate::{
    Operation, Outcome, Range, RangeResult, Record, Revision, Store, StoreError, Transaction, WatchStream,
    mvcc::group::last_per_key,
};
use convert::{Refusal, refusal, revision_of};
use endpoints::{Effect, Endpoints};
use futures::future::BoxFuture;
pub use key_space::KeySpace;
use lease::Leases;

/// A request that takes longer has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Where another server would answer.
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(1);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// An unlimited range comes as one message.
const MESSAGE_BYTES: usize = 1 << 30;

/// PEM texts for talking to etcd over TLS.
#[derive(Clone, Default)]
pub struct EtcdTls {
    /// Who may have signed etcd's certificate.
    pub ca: Vec<u8>,
    /// Our own certificate and key, when etcd asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in etcd's certificate, when it is not the one in the endpoint.
    pub server_name: Option<String>,
}

pub struct EtcdStore {
    endpoints: Arc<Endpoints>,
    keys: KeySpace,
    env: Env,
    leases: Leases,
    compaction: tokio::task::JoinHandle<()>,
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.compaction.abort();
    }
}

impl EtcdStore {
    /// Several clusters can share one etcd if each has its own part of the keys.
    pub fn connect<'a>(
        endpoints: &'a [String],
        keys: impl Into<KeySpace>,
        tls: Option<EtcdTls>,
        env: Env,
    ) -> BoxFuture<'a, Result<Self, StoreError>> {
        Box::pin(Self::connect_keeping(compaction::INTERVAL, endpoints, keys.into(), tls, env))
    }

    /// As `connect`, with history kept for `history_age` (at most twice that).
    pub async fn connect_keeping(
        history_age: Duration,
        endpoints: &[String],
        keys: impl Into<KeySpace>,
        tls: Option<EtcdTls>,
        env: Env,
    ) -> Result<Self, StoreError> {
        let keys = keys.into();
        let mut options = ConnectOptions::new()
            .with_connect_timeout(if endpoints.len() > 1 { CONNECT_TIMEOUT_OF_SEVERAL } else { CONNECT_TIMEOUT })
            .with_keep_alive(KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT)
            .with_require_leader(true);
        if let Some(tls) = tls {
            options = options.with_tls(tls_options(tls));
        }
        let failed = |reason: String| {
            StoreError::Unavailable(format!("failed to connect to etcd at {}: {reason}", endpoints.join(",")))
        };
        let mut clients = Vec::new();
        for endpoint in endpoints {
            let connected = Client::connect([endpoint], Some(options.clone())).await;
            clients.push(connected.map_err(|e| failed(e.to_string()))?);
        }
        if clients.is_empty() {
            return Err(failed("none is given".into()));
        }
        let endpoints = Arc::new(Endpoints::new(clients, env.clone()));
        let leases = Leases::new(env.clone());
        let compaction = env.spawn(compaction::run(endpoints.clone(), env.clone(), history_age));
        let store = Self { endpoints, keys, env, leases, compaction };
        // Connecting is lazy: ask something, so that a wrong endpoint is told here and not by the first request.
        store.revision().await.map_err(|e| failed(e.to_string()))?;
        Ok(store)
    }

    fn key(&self, key: &str) -> String {
        self.keys.full(key).into_owned()
    }

    async fn get_range(&self, key: &str, options: GetOptions) -> Result<etcd_client::GetResponse, StoreError> {
        let requested = key.to_string();
        let get = |client: Client| {
            let mut client = client.kv_client().max_decoding_message_size(MESSAGE_BYTES);
            let (requested, options) = (requested.clone(), options.clone());
            async move { client.get(requested, Some(options)).await }
        };
        self.endpoints.call(Effect::Read, get).await
    }

    /// Fills in what etcd does not say: which revisions there are.
    async fn explain(&self, error: StoreError, requested: Revision) -> StoreError {
        match refusal(&error) {
            Some(Refusal::Compacted) => match watch::oldest_revision(&self.endpoints.client(), &self.env).await {
                Ok(oldest) => StoreError::Compacted { requested, oldest },
                Err(error) => error,
            },
            Some(Refusal::Future) => match self.revision().await {
                Ok(newest) => StoreError::Future { requested, newest },
                Err(error) => error,
            },
            None => error,
        }
    }

    /// Fails unless `revision` can still be read.
    async fn check_readable(&self, revision: Revision) -> Result<(), StoreError> {
        let options = GetOptions::new().with_revision(revision as i64).with_count_only();
        match self.get_range("\0", options).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.explain(error, revision).await),
        }
    }

    async fn build(&self, transaction: &Transaction) -> Result<Txn, StoreError> {
        let compare = |c: &crate::Compare| {
            etcd_client::Compare::mod_revision(self.key(&c.key), CompareOp::Equal, c.mod_revision as i64)
        };
        let mut operations = Vec::with_capacity(transaction.operations.len());
        for operation in last_per_key(transaction.operations.clone()) {
            operations.push(match operation {
                Operation::Put { key, value, ttl_seconds } => {
                    let options = match ttl_seconds {
                        Some(ttl) => {
                            // One lease too many ends by itself.
                            let grant = |client: Client| {
                                let grant = |ttl| async move {
                                    client.lease_client().grant(ttl, None).await.map(|lease| lease.id())
                                };
                                self.leases.for_ttl(ttl, grant)
                            };
                            Some(PutOptions::new().with_lease(self.endpoints.call(Effect::Read, grant).await?))
                        }
                        None => None,
                    };
                    TxnOp::put(self.key(&key), value.to_vec(), options)
                }
                Operation::Delete { key } => TxnOp::delete(self.key(&key), None),
            });
        }
        let reads: Vec<TxnOp> = transaction.compare.iter().map(|c| TxnOp::get(self.key(&c.key), None)).collect();
        let compares: Vec<_> = transaction.compare.iter().map(compare).collect();
        Ok(Txn::new().when(compares).and_then(operations).or_else(reads))
    }
}

fn tls_options(tls: EtcdTls) -> TlsOptions {
    let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(tls.ca));
    if let Some((certificate, key)) = tls.identity {
        options = options.identity(Identity::from_pem(certificate, key));
    }
    match tls.server_name {
        Some(name) => options.domain_name(name),
        None => options,
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn is_shared(&self) -> bool {
        true
    }

    fn stored_key<'k>(&self, key: &'k str) -> Cow<'k, str> {
        self.keys.shown(key)
    }

    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        let mut answer = self.get_range(&self.key(key), GetOptions::new()).await?;
        Ok(answer.take_kvs().into_iter().next().map(|kv| convert::record(&self.keys.reader(key), kv)))
    }

    async fn range(&self, range: Range) -> Result<RangeResult, StoreError> {
        let requested = range.revision.unwrap_or(0);
        if range.start >= range.end {
            if requested != 0 {
                self.check_readable(requested).await?;
            }
            return Ok(RangeResult { revision: self.revision().await?, ..RangeResult::default() });
        }
        let options = GetOptions::new()
            .with_range(self.key(&range.end))
            .with_limit(range.limit as i64)
            .with_revision(requested as i64);
        let mut answer = match self.get_range(&self.key(&range.start), options).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.explain(error, requested).await),
        };
        let current = revision_of(answer.header());
        let total = answer.count() as u64;
        let reader = self.keys.reader(&range.start);
        let records: Vec<Record> = answer.take_kvs().into_iter().map(|kv| convert::record(&reader, kv)).collect();
        Ok(RangeResult {
            remaining: total.saturating_sub(records.len() as u64),
            records,
            revision: if requested == 0 { current } else { requested },
        })
    }

    async fn count(&self, start: &str, end: &str) -> Result<u64, StoreError> {
        if start >= end {
            return Ok(0);
        }
        let options = GetOptions::new().with_range(self.key(end)).with_count_only();
        Ok(self.get_range(&self.key(start), options).await?.count() as u64)
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let mut retried = false;
        loop {
            let built = self.build(&transaction).await?;
            let write = |client: Client| {
                let mut client = client.kv_client().max_decoding_message_size(MESSAGE_BYTES);
                let built = built.clone();
                async move { client.txn(built).await }
            };
            let answer = match self.endpoints.call(Effect::Write, write).await {
                Ok(answer) => answer,
                // The shared lease ended meanwhile: take a new one, once.
                Err(error) if !retried && convert::is_lease_gone(&error) => {
                    self.leases.forget();
                    retried = true;
                    continue;
                }
                Err(error) => return Err(convert::too_large(error, &transaction)),
            };
            let revision = revision_of(answer.header());
            if answer.succeeded() {
                return Ok(Outcome::Done { first: revision, revision });
            }
            let compared = answer.op_responses().into_iter().zip(&transaction.compare);
            let current = compared.map(|(response, compare)| match response {
                etcd_client::TxnOpResponse::Get(mut read) => {
                    let reader = self.keys.reader(&compare.key);
                    read.take_kvs().into_iter().next().map(|kv| convert::record(&reader, kv))
                }
                _ => None,
            });
            return Ok(Outcome::Conflict { current: current.collect(), revision });
        }
    }

    async fn watch(&self, start: &str, end: &str, from: Revision) -> Result<WatchStream, StoreError> {
        let current = self.revision().await?;
        let from = if from == 0 { current + 1 } else { from };
        if from <= current {
            self.check_readable(from).await?;
        }
        if start >= end {
            return Ok(Box::pin(futures::stream::pending()));
        }
        let range = (self.key(start), self.key(end));
        watch::follow(self.endpoints.clone(), self.env.clone(), self.keys.reader(start), range, from).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        let answer = self.get_range("\0", GetOptions::new().with_count_only()).await?;
        Ok(revision_of(answer.header()))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let compact = |client: Client| async move { client.kv_client().compact(revision as i64, None).await };
        // Once more does no harm.
        match self.endpoints.call(Effect::Read, compact).await {
            Ok(_) => Ok(()),
            Err(error) => match self.explain(error, revision).await {
                // Compacted to just there already.
                StoreError::Compacted { requested, oldest } if requested == oldest => Ok(()),
                error => Err(error),
            },
        }
    }

    async fn size_bytes(&self) -> Result<u64, StoreError> {
        let status = |client: Client| async move { client.maintenance_client().status().await };
        Ok(self.endpoints.call(Effect::Read, status).await?.db_size() as u64)
    }

    async fn deadlines(&self, start: &str, end: &str) -> Result<Vec<(String, u64)>, StoreError> {
        if start >= end {
            return Ok(Vec::new());
        }
        let options = GetOptions::new().with_range(self.key(end)).with_keys_only();
        let answer = self.get_range(&self.key(start), options).await?;
        let reader = self.keys.reader(start);
        let mut ends: HashMap<i64, u64> = HashMap::new();
        let mut deadlines = Vec::new();
        for kv in answer.kvs().iter().filter(|kv| kv.lease() != 0) {
            let at = match ends.get(&kv.lease()) {
                Some(at) => *at,
                None => {
                    let lease = kv.lease();
                    let ask = |client: Client| async move { client.lease_client().time_to_live(lease, None).await };
                    let left = self.endpoints.call(Effect::Read, ask).await?.ttl();
                    let at = self.env.now().as_millisecond().max(0) as u64 + left.max(0) as u64 * 1000;
                    ends.insert(lease, at);
                    at
                }
            };
            deadlines.push((reader.key(kv.key()), at));
        }
        Ok(deadlines)
    }
}
