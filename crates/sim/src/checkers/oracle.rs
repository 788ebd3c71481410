//! What all checkers of a run share: the commit log of the store in use, the cluster as committed, and what was found.
//! Made by `Simulation`; clients and transports report to it, `runner` reads the verdict.
//! A restore begins a new epoch with a log of its own; what a client was told belongs to one epoch or is not judged.

use std::{sync::Arc, time::Duration};

use env::Env;
use futures::StreamExt;
use parking_lot::Mutex;
use store::{Range, Record, Revision, Store, WatchItem};

use super::{
    Violation,
    commit_log::CommitLog,
    invariants::World,
    leadership::{self, Candidate},
};

/// The life of one store: until a backup is restored in its place.
#[derive(Clone)]
pub struct Epoch {
    pub number: u64,
    pub log: Arc<Mutex<CommitLog>>,
    began: Duration,
}

pub struct Oracle {
    env: Env,
    epoch: Mutex<Epoch>,
    pub world: Mutex<World>,
    found: Mutex<Vec<Violation>>,
}

/// Everything in a store, with its revision.
pub async fn snapshot(store: &dyn Store) -> (Vec<Record>, Revision) {
    let everything = Range { start: "/".into(), end: store::prefix_end("/"), limit: 0, revision: None };
    let found = store.range(everything).await.expect("the store is in memory");
    (found.records, found.revision)
}

async fn log_of(store: &dyn Store) -> (Vec<Record>, Arc<Mutex<CommitLog>>) {
    let (records, revision) = snapshot(store).await;
    let changes = store.watch("/", &store::prefix_end("/"), revision + 1).await.expect("the store is in memory");
    let log = CommitLog::new(&records, revision, changes);
    (records, Arc::new(Mutex::new(log)))
}

impl Oracle {
    pub async fn new(env: &Env, store: &dyn Store) -> Arc<Self> {
        let (records, log) = log_of(store).await;
        let epoch = Epoch { number: 0, log, began: Duration::ZERO };
        let world = World::new(env.monotonic(), env.now(), &records);
        let oracle = Arc::new(Self {
            env: env.clone(),
            epoch: Mutex::new(epoch),
            world: Mutex::new(world),
            found: Mutex::default(),
        });
        oracle.follow(store).await;
        oracle
    }

    /// Shows the world every change in the order of commits.
    async fn follow(self: &Arc<Self>, store: &dyn Store) {
        let mut changes = store.watch("/", &store::prefix_end("/"), 0).await.expect("the store is in memory");
        let (oracle, epoch) = (self.clone(), self.epoch().number);
        self.env.spawn(async move {
            while let Some(item) = changes.next().await {
                // Another store took the place of this one.
                if oracle.epoch().number != epoch {
                    return;
                }
                let WatchItem::Events(events) = item.expect("the watcher keeps up") else { continue };
                // Read now and then, so that it never falls behind.
                oracle.epoch().log.lock().revision();
                let mut world = oracle.world.lock();
                for event in events {
                    world.apply(oracle.env.monotonic(), oracle.env.now(), &event);
                }
            }
        });
    }

    /// From now on `store` is the one in use, whose content others have not seen coming.
    pub async fn begin_epoch(self: &Arc<Self>, store: &dyn Store) {
        let (records, log) = log_of(store).await;
        let (at, wall) = (self.env.monotonic(), self.env.now());
        {
            let mut epoch = self.epoch.lock();
            *epoch = Epoch { number: epoch.number + 1, log, began: at };
            let mut world = self.world.lock();
            let changes = world.changes;
            self.found.lock().append(&mut world.take_violations());
            *world = World::new(at, wall, &records);
            world.changes = changes;
            world.disturb_everything(at);
        }
        self.follow(store).await;
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch.lock().clone()
    }

    /// Components may still act on what they saw before a restore.
    pub fn was_just_restored(&self) -> bool {
        let epoch = self.epoch();
        epoch.number > 0 && self.env.monotonic() - epoch.began < leadership::EXCUSED_AFTER_RESTORE
    }

    /// The network is cut somewhere, or back.
    pub fn disturb_everything(&self) {
        self.world.lock().disturb_everything(self.env.monotonic());
    }

    pub fn report(&self, violation: Violation) {
        self.found.lock().push(violation);
    }

    /// Called for each writing request of a candidate when it is sent.
    pub fn check_leader(&self, candidate: &Candidate, method: &str, path: &str) {
        let epoch = self.epoch();
        if !self.was_just_restored()
            && let Err(violation) = leadership::check(&epoch.log, candidate, method, path)
        {
            self.report(violation);
        }
    }

    pub fn take_violations(&self) -> Vec<Violation> {
        let mut found = std::mem::take(&mut *self.found.lock());
        found.append(&mut self.world.lock().take_violations());
        found
    }
}
