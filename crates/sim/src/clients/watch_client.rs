//! A client that lists and watches one selection as an informer does, but breaks off and resumes at random, also from
//! places it had passed long ago.
//! Shows everything to a `WatchView`; violations go to the `Oracle`.
//! Judges an answer only if question and answer fall into one epoch.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::{ApiError, Resource};
use client::{Client, ListParams, ObjectList, WatchStream};
use env::Env;
use futures::StreamExt;
use parking_lot::Mutex;

use crate::checkers::{
    Violation,
    oracle::{Epoch, Oracle},
    watches::{Selection, WatchView},
};

const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// How long one watch is followed at most.
const WATCH_SECONDS_MAX: u64 = 300;
/// Places that a client remembers to go back to.
const PLACES_MAX: usize = 4;

pub struct WatchClient {
    pub client: Client,
    pub env: Env,
    pub oracle: Arc<Oracle>,
    pub resource: Arc<Resource>,
    pub selection: Selection,
    pub view: CurrentView,
}

/// Where a client is now, for whoever asks at the end.
pub type CurrentView = Arc<Mutex<Option<WatchView>>>;

/// What clients have not been told after `period` that they had not been told before it. A client that is between two
/// watches does not know the newest.
pub async fn untold_for(period: Duration, env: &Env, views: &[CurrentView]) -> Vec<Violation> {
    let untold = || -> BTreeSet<String> {
        let untold = |view: &CurrentView| match &*view.lock() {
            Some(view) => view.untold().map(|violation| violation.0),
            None => Some("a client never got a list".to_string()),
        };
        views.iter().filter_map(untold).collect()
    };
    let before = untold();
    env.sleep(period).await;
    untold().intersection(&before).cloned().map(Violation).collect()
}

/// Why a watch is no longer followed.
enum WatchEnd {
    /// To be resumed.
    Broken,
    /// The place is too old: list again.
    Expired,
}

impl WatchClient {
    fn params(&self) -> ListParams {
        ListParams {
            label_selector: self.selection.label.as_ref().map(|(name, value)| format!("{name}={value}")),
            field_selector: self.selection.field.as_ref().map(|(name, value)| format!("{name}={value}")),
            ..ListParams::default()
        }
    }

    fn chance(&self, one_in: u64) -> bool {
        self.env.random_u64().is_multiple_of(one_in)
    }

    /// Whether to go on after an error. What a healthy client is never told is a violation.
    fn judge(&self, what: &str, error: &ApiError) {
        if !matches!(error.code, 410 | 429 | 500..600) {
            let text = format!("{what} of {} {:?} is refused: {error}", self.resource.plural, self.selection);
            self.oracle.report(Violation(text));
        }
    }

    pub async fn run(self) {
        let mut epoch = self.oracle.epoch();
        loop {
            let Some(view) = self.list(&mut epoch).await else {
                self.env.sleep(RETRY_PERIOD).await;
                continue;
            };
            *self.view.lock() = Some(view.clone());
            self.follow(view, &mut epoch).await;
        }
    }

    async fn list(&self, epoch: &mut Epoch) -> Option<WatchView> {
        *epoch = self.oracle.epoch();
        // Any version that the server has at hand will do, or the newest is asked for.
        let newest = self.chance(2);
        let params = ListParams { resource_version: (!newest).then(|| "0".to_string()), ..self.params() };
        let not_older_than = newest.then(|| epoch.log.lock().revision());
        let namespace = self.selection.namespace.as_deref();
        let listed = self.client.transport().list(&self.resource, namespace, &params).await;
        if self.oracle.epoch().number != epoch.number {
            return None;
        }
        let ObjectList { objects, resource_version } = listed.inspect_err(|error| self.judge("a list", error)).ok()?;
        let revision = resource_version.parse().unwrap_or(0);
        let plural = &self.resource.plural;
        let view = WatchView::list(&epoch.log, plural, &self.selection, &objects, revision, not_older_than);
        view.map_err(|violation| self.oracle.report(violation)).ok()
    }

    /// Watches on from `view`, again and again, until its place is too old.
    async fn follow(&self, mut view: WatchView, epoch: &mut Epoch) {
        let mut places = vec![view.clone()];
        loop {
            if self.chance(4) {
                view = places[(self.env.random_u64() % places.len() as u64) as usize].clone();
                *self.view.lock() = Some(view.clone());
            }
            let (namespace, params) = (self.selection.namespace.as_deref(), self.params());
            let from = view.revision.to_string();
            let now = self.oracle.epoch();
            let opened = self.client.transport().watch(&self.resource, namespace, &params, &from).await;
            if self.oracle.epoch().number != now.number {
                continue;
            }
            let end = match opened {
                Ok(events) => {
                    let resumed_after_restore = now.number != epoch.number;
                    self.read(events, &mut view, &mut places, resumed_after_restore).await
                }
                Err(error) => {
                    self.judge("a watch", &error);
                    if error.code == 410 { WatchEnd::Expired } else { WatchEnd::Broken }
                }
            };
            match end {
                WatchEnd::Expired => return,
                WatchEnd::Broken => {
                    self.env.sleep(Duration::from_millis(self.env.random_u64() % 3000)).await;
                }
            }
        }
    }

    /// Reads events for a while. After a restore nothing but the news of that may come.
    async fn read(
        &self,
        mut events: WatchStream,
        view: &mut WatchView,
        places: &mut Vec<WatchView>,
        resumed_after_restore: bool,
    ) -> WatchEnd {
        let until = self.env.monotonic() + Duration::from_secs(1 + self.env.random_u64() % WATCH_SECONDS_MAX);
        loop {
            let left = until.saturating_sub(self.env.monotonic());
            match self.env.timeout(left, events.next()).await {
                None | Some(None) => return WatchEnd::Broken,
                Some(Some(Err(error))) => {
                    self.judge("a watch", &error);
                    return if error.code == 410 { WatchEnd::Expired } else { WatchEnd::Broken };
                }
                Some(Some(Ok(event))) => {
                    if resumed_after_restore {
                        let text = format!("a watch of {} goes on over a restore", self.resource.plural);
                        self.oracle.report(Violation(text));
                    } else if let Err(violation) = view.see(&event) {
                        self.oracle.report(violation);
                        return WatchEnd::Expired;
                    }
                }
            }
            *self.view.lock() = Some(view.clone());
            if self.chance(16) {
                if places.len() == PLACES_MAX {
                    places.remove(0);
                }
                places.push(view.clone());
            }
        }
    }
}
