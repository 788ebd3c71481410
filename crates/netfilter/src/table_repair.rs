//! When a whole table is written anew: at the start, after a refused change, and when somebody else changed it.
//! Kept by `proxy` and `network_policy`, which write the table; fed by `NftMonitor`.

use std::{io, time::Duration};

use env::{Backoff, Env};

use crate::{NftError, NftEvent, NftMonitor};

const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// What a notification asks for.
#[derive(Debug, PartialEq, Eq)]
enum Suspicion {
    /// Nothing, or what is due already.
    None,
    /// Notifications were lost: the table is to be looked for, and `changed` called if it is not there.
    Lost,
    /// Somebody else changed the table: `changed` is to be called.
    Changed,
}

pub struct TableRepair {
    retry_at: Option<Duration>,
    full_needed: bool,
    full_finished: Option<Duration>,
    watching: bool,
    backoff: Backoff,
}

impl Default for TableRepair {
    fn default() -> Self {
        Self { retry_at: None, full_needed: true, full_finished: None, watching: true, backoff: RETRY_BACKOFF }
    }
}

impl TableRepair {
    pub fn is_full_needed(&self) -> bool {
        self.full_needed
    }

    /// Whether notifications can still be read.
    pub fn is_watching(&self) -> bool {
        self.watching
    }

    /// A change was refused: what the kernel has is not known any more.
    pub fn require_full(&mut self) {
        self.full_needed = true;
    }

    /// Until the next try; `None`: now.
    pub fn retry_in(&self, now: Duration) -> Option<Duration> {
        self.retry_at.map(|at| at.saturating_sub(now))
    }

    pub fn retry_now(&mut self) {
        self.retry_at = None;
    }

    /// Writes the whole table, and notes what came of it. `find` looks whether the table is there.
    pub async fn write(
        &mut self,
        monitor: &mut NftMonitor,
        write: impl Future<Output = Result<(), NftError>>,
        find: impl Future<Output = io::Result<()>>,
        env: &Env,
    ) -> Result<(), NftError> {
        let written = match monitor.suspended_during(write).await {
            // Nobody listened: who took it away again in the meantime went unheard.
            Ok(()) => find.await.map_err(|error| NftError::Refused(error.to_string())),
            refused => refused,
        };
        match &written {
            Ok(()) => self.written(env.monotonic()),
            Err(_) => self.failed(env.monotonic()),
        }
        written
    }

    /// Whether a notification makes it necessary to write the whole table, which is noted. `find` looks whether the table is
    /// there, and is asked only when notifications were lost.
    pub async fn is_needed_after(
        &mut self,
        event: io::Result<NftEvent>,
        find: impl Future<Output = io::Result<()>>,
        env: &Env,
    ) -> io::Result<bool> {
        let needed = match self.suspect(event)? {
            Suspicion::None => false,
            Suspicion::Lost => find.await.is_err(),
            Suspicion::Changed => true,
        };
        if needed {
            self.changed(env.monotonic());
        }
        Ok(needed)
    }

    /// The whole table could not be written.
    pub fn failed(&mut self, now: Duration) {
        self.retry_at = Some(now + self.backoff.next_delay());
    }

    /// The whole table is in the kernel.
    pub fn written(&mut self, now: Duration) {
        (self.full_needed, self.full_finished) = (false, Some(now));
    }

    fn suspect(&mut self, event: io::Result<NftEvent>) -> io::Result<Suspicion> {
        // One flush comes as many messages; the repair is already due.
        if self.full_needed && self.retry_at.is_some() {
            return Ok(Suspicion::None);
        }
        match event {
            Ok(NftEvent::Deletion) => Ok(Suspicion::Changed),
            Ok(NftEvent::Overrun) => Ok(Suspicion::Lost),
            Err(error) => {
                self.watching = false;
                Err(error)
            }
        }
    }

    /// Two agents with the same table name would fight for ever; not at full speed.
    fn changed(&mut self, now: Duration) {
        self.full_needed = true;
        match self.full_finished {
            Some(at) if now.saturating_sub(at) < self.backoff.coming_delay() => {
                self.retry_at = Some(now + self.backoff.next_delay());
            }
            _ => self.backoff.reset(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_table_that_is_fought_over_is_written_ever_more_slowly() {
        let mut repair = TableRepair::default();
        assert!(repair.is_full_needed(), "nothing is there at the start");
        repair.written(SECOND);
        assert!(!repair.is_full_needed());
        let mut now = SECOND;
        let mut waits = vec![];
        for _ in 0..3 {
            assert_eq!(repair.suspect(Ok(NftEvent::Deletion)).unwrap(), Suspicion::Changed);
            repair.changed(now);
            assert_eq!(repair.suspect(Ok(NftEvent::Deletion)).unwrap(), Suspicion::None, "it is due already");
            let wait = repair.retry_in(now).unwrap();
            waits.push(wait);
            now += wait;
            repair.retry_now();
            repair.written(now);
        }
        assert!(waits.is_sorted_by(|a, b| a < b), "{waits:?}");
        // Left in peace for long, it is repaired at once.
        now += 100 * SECOND;
        assert_eq!(repair.suspect(Ok(NftEvent::Overrun)).unwrap(), Suspicion::Lost);
        repair.changed(now);
        assert_eq!((repair.is_full_needed(), repair.retry_in(now)), (true, None));
    }

    #[tokio::test]
    async fn a_table_that_is_there_after_lost_notifications_is_left_alone() {
        let (env, mut repair) = (Env::real(), TableRepair::default());
        repair.written(env.monotonic());
        let mut overrun = async |found| {
            let needed = repair.is_needed_after(Ok(NftEvent::Overrun), async { found }, &env).await.unwrap();
            (needed, repair.is_full_needed())
        };
        assert_eq!(overrun(Ok(())).await, (false, false));
        assert_eq!(overrun(Err(io::Error::other("no such table"))).await, (true, true));
    }

    #[test]
    fn what_can_not_be_heard_is_not_waited_for() {
        let mut repair = TableRepair::default();
        repair.written(SECOND);
        assert!(repair.suspect(Err(io::Error::other("gone"))).is_err());
        assert!(!repair.is_watching() && !repair.is_full_needed());
        repair.require_full();
        repair.failed(SECOND);
        assert_eq!(repair.retry_in(SECOND), Some(Duration::from_millis(500)));
    }
}
