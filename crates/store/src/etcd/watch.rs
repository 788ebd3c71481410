//! One watch that goes on across reconnects and restarts of etcd, from the revision after the last one delivered.
//! It hears of all keys, also of those outside its range: every one of them makes a revision, and who waits for that one
//! would otherwise wait until etcd tells of its progress, once in ten minutes.
//! Made by `EtcdStore::watch`.
//! Invariant: delivers every revision once, whole and in order, or ends with an error (test: `watch_loses_nothing` of
//! the contract, `a_watch_survives_kill_and_restart`). etcd splits a revision over several answers only for a watch
//! that asks for fragments; this one does not.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use env::{Backoff, Env};
use etcd_client::{Client, WatchOptions, WatchResponse};

use super::{
    MESSAGE_BYTES, REQUEST_TIMEOUT,
    convert::{self, revision_of},
    endpoints::Endpoints,
    key_space::KeyReader,
};
use crate::{Event, Revision, StoreError, WatchItem, WatchStream};

/// After this long without etcd the stream ends.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const RECONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

struct Follower {
    endpoints: Arc<Endpoints>,
    /// The server that this watch uses, and whether it still is in use.
    used: tokio::sync::watch::Receiver<usize>,
    env: Env,
    reader: KeyReader,
    range: (String, String),
    /// The first revision not delivered yet.
    next: Revision,
    stream: Option<etcd_client::WatchStream>,
    ready: VecDeque<WatchItem>,
    /// Since when (monotonic) nothing good was heard, and how long to wait before the next attempt.
    lost: Option<(Duration, Backoff)>,
    ended: bool,
}

pub(super) async fn follow(
    endpoints: Arc<Endpoints>,
    env: Env,
    reader: KeyReader,
    range: (String, String),
    from: Revision,
) -> Result<WatchStream, StoreError> {
    let ready = VecDeque::new();
    let used = endpoints.subscribe();
    let (next, stream, lost, ended) = (from, None, None, false);
    let mut follower = Follower { endpoints, used, env, reader, range, next, stream, ready, lost, ended };
    follower.connect().await?;
    Ok(Box::pin(futures::stream::unfold(follower, |mut follower| async move {
        if follower.ended {
            return None;
        }
        let item = follower.next_item().await;
        follower.ended = item.is_err();
        Some((item, follower))
    })))
}

/// The oldest revision that etcd can read. To be asked after it refused one: etcd tells only a watch.
pub(super) async fn oldest_revision(client: &Client, env: &Env) -> Result<Revision, StoreError> {
    let ask = async {
        let options = WatchOptions::new().with_start_revision(1);
        let mut stream = client.watch_client().watch("\0", Some(options)).await?;
        while let Some(answer) = stream.message().await? {
            if answer.canceled() {
                return Ok(answer.compact_revision().max(0) as u64);
            }
        }
        Err(etcd_client::Error::WatchError("etcd ended a watch".into()))
    };
    match env.timeout(REQUEST_TIMEOUT, ask).await {
        Some(answer) => answer.map_err(|error| convert::error(&error)),
        None => Err(StoreError::Unavailable("etcd did not say which revisions it has".into())),
    }
}

impl Follower {
    async fn connect(&mut self) -> Result<(), StoreError> {
        let options = WatchOptions::new()
            .with_from_key()
            .with_start_revision(self.next as i64)
            .with_prev_key()
            .with_progress_notify();
        let place = *self.used.borrow_and_update();
        let mut client = self.endpoints.client().watch_client().max_decoding_message_size(MESSAGE_BYTES);
        let limit = self.endpoints.connect_timeout();
        let stream = match self.env.timeout(limit, client.watch("\0", Some(options))).await {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => {
                self.endpoints.leave(place);
                return Err(convert::error(&error));
            }
            None => {
                self.endpoints.leave(place);
                return Err(StoreError::Unavailable("etcd did not answer a watch".into()));
            }
        };
        self.stream = Some(stream);
        Ok(())
    }

    async fn next_item(&mut self) -> Result<WatchItem, StoreError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(item);
            }
            let answer = match self.stream.as_mut() {
                Some(stream) => tokio::select! {
                    answer = stream.message() => answer,
                    Ok(()) = self.used.changed() => {
                        self.reconnect("its server does not answer".into()).await?;
                        continue;
                    }
                },
                None => Ok(None),
            };
            match answer {
                Ok(Some(answer)) if answer.canceled() => {
                    if answer.compact_revision() > 0 {
                        let oldest = answer.compact_revision() as u64;
                        return Err(StoreError::Compacted { requested: self.next, oldest });
                    }
                    self.reconnect(format!("etcd cancelled the watch: {}", answer.cancel_reason())).await?;
                }
                Ok(Some(answer)) => {
                    // Only what comes after the first answer shows that the watch works.
                    self.lost = self.lost.filter(|_| answer.created());
                    self.take_in(&answer);
                }
                Ok(None) => self.reconnect("etcd ended the watch".into()).await?,
                Err(error) => self.reconnect(error.to_string()).await?,
            }
        }
    }

    fn take_in(&mut self, answer: &WatchResponse) {
        let mut revisions: Vec<Vec<Event>> = Vec::new();
        let (start, end) = (self.range.0.as_bytes(), self.range.1.as_bytes());
        let inside = |event: &&etcd_client::Event| event.kv().is_some_and(|kv| (start..end).contains(&kv.key()));
        for event in answer.events().iter().filter(inside).filter_map(|event| convert::event(&self.reader, event)) {
            // What was delivered before a reconnect may come again.
            if event.revision < self.next {
                continue;
            }
            match revisions.last_mut() {
                Some(together) if together[0].revision == event.revision => together.push(event),
                _ => revisions.push(vec![event]),
            }
        }
        if let Some(last) = revisions.last() {
            self.next = last[0].revision + 1;
        }
        self.ready.extend(revisions.into_iter().map(WatchItem::Events));
        let newest = answer.events().iter().filter_map(|event| Some(event.kv()?.mod_revision() as u64)).max();
        if let Some(newest) = newest.filter(|newest| *newest >= self.next) {
            self.next = newest + 1;
            self.ready.push_back(WatchItem::Progress(newest));
        }
        let reached = revision_of(answer.header());
        // A new watch is up to date only if it began after the newest revision; a later answer without events says
        // that it is.
        if answer.events().is_empty() && (!answer.created() || self.next > reached) {
            self.ready.push_back(WatchItem::Progress(reached));
        }
    }

    async fn reconnect(&mut self, reason: String) -> Result<(), StoreError> {
        tracing::debug!(reason, next = self.next, "watch lost etcd, reconnecting");
        self.stream = None;
        let mut error = StoreError::Unavailable(reason);
        let (since, mut backoff) = self.lost.unwrap_or((self.env.monotonic(), RECONNECT_BACKOFF));
        while self.env.monotonic() - since < RECONNECT_TIMEOUT {
            self.env.sleep(backoff.next_delay().mul_f64(0.5 + self.env.random_fraction())).await;
            self.lost = Some((since, backoff));
            match self.connect().await {
                Ok(()) => return Ok(()),
                Err(failed) => error = failed,
            }
        }
        Err(error)
    }
}
