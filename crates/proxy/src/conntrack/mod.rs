//! Ends UDP flows that the kernel would keep sending to where the rules no longer point.
//! Told by `run` after each transaction; works through `flow_table`, in a task of its own.
//! TCP is left alone: a connection ends when its endpoint does. The newest word about a frontend counts.

mod flow_table;
mod limits;

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

pub use self::limits::ConntrackLimits;

use self::flow_table::FlowTable;
use crate::rules::{Family, Frontend, Target};

/// Where flows through each frontend may go on going, sorted.
type AllowedTargets = HashMap<Frontend, Arc<[Target]>>;

/// Cheap to clone; every clone sees the same.
#[derive(Clone, Default)]
pub struct Conntrack(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Never more than there are frontends, however far behind the task is.
    waiting: Mutex<AllowedTargets>,
    changed: Notify,
}

impl Conntrack {
    /// Flows through these frontends that go elsewhere will be ended. Waits for nothing.
    pub fn keep_only(&self, allowed: impl IntoIterator<Item = (Frontend, Arc<[Target]>)>) {
        self.0.waiting.lock().extend(allowed);
        self.0.changed.notify_one();
    }

    /// Never returns.
    pub async fn run(self) {
        loop {
            self.0.changed.notified().await;
            let allowed = std::mem::take(&mut *self.0.waiting.lock());
            if let Err(error) = self.end_others(&allowed).await {
                tracing::warn!(%error, "failed to end stale UDP flows; clients may stick to endpoints that are gone");
            }
        }
    }

    async fn end_others(&self, allowed: &AllowedTargets) -> std::io::Result<()> {
        let is_stale = |frontend: &Frontend, answers: &Target| {
            allowed.get(frontend).is_some_and(|targets| targets.binary_search(answers).is_err())
        };
        for family in Family::ALL {
            if !allowed.keys().any(|frontend| Family::of_ip(frontend.ip) == family) {
                continue;
            }
            let mut table = FlowTable::open()?;
            let mut stale = table.list(family, is_stale).await?;
            {
                // What has changed again meanwhile may have fresh flows that only the next round knows to be right.
                let newer = self.0.waiting.lock();
                stale.retain(|flow| !newer.contains_key(&flow.frontend));
            }
            table.end(family, &stale).await?;
            tracing::debug!(?family, ended = stale.len(), "ended stale UDP flows");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Protocol;

    #[test]
    fn the_newest_word_about_a_frontend_counts() {
        let target = |last: u8| Target { ip: [10, 244, 0, last].into(), port: 53 };
        let frontend = Frontend { ip: [10, 96, 0, 10].into(), protocol: Protocol::Udp, port: 53 };
        let conntrack = Conntrack::default();
        for last in [2, 3] {
            conntrack.keep_only([(frontend, Arc::from([target(last)]))]);
        }
        assert_eq!(*conntrack.0.waiting.lock(), AllowedTargets::from([(frontend, Arc::from([target(3)]))]));
    }
}
