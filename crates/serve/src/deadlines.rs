//! Drives one HTTP connection and ends it when its client only keeps it open.
//! Called by `http`; looks at `activity` when a deadline may have passed, never in between.
//! Invariant: a connection with an endless answer under way is not ended here (test:
//! `who_only_waits_is_ended_and_who_is_served_is_not`).

use std::{pin::Pin, time::Duration};

use env::Env;
use tokio_util::sync::CancellationToken;

use crate::{
    Limits,
    activity::{Activity, Waiting},
    limits::STALL_BYTES,
};

/// What to do with a connection, and when to look again.
#[derive(Debug, PartialEq, Eq)]
enum DeadlineAction {
    Look(Duration),
    /// Let it finish what it does; no more requests.
    Drain,
    Cut(&'static str),
}

/// Judges one connection over time.
struct DeadlineCheck<'a> {
    limits: &'a Limits,
    multiplexed: bool,
    draining: bool,
    /// Since when, and at how many bytes written, its client was last seen to read.
    reading: Option<(Duration, u64)>,
}

impl DeadlineCheck<'_> {
    fn judge(&mut self, waiting: Waiting, bytes_written: u64, now: Duration) -> DeadlineAction {
        let limits = self.limits;
        match waiting {
            Waiting::No => {
                self.reading = None;
                DeadlineAction::Look(now + self.shortest())
            }
            Waiting::ForReader => self.reader(bytes_written, now),
            _ if self.draining => self.reader(bytes_written, now),
            Waiting::ForHead { since } => {
                self.until(since + limits.header_timeout, now, DeadlineAction::Cut("no request came"))
            }
            Waiting::ForRequest { since } => self.until(since + limits.idle_timeout, now, DeadlineAction::Drain),
        }
    }

    fn until(&mut self, deadline: Duration, now: Duration, then: DeadlineAction) -> DeadlineAction {
        self.reading = None;
        if now < deadline { DeadlineAction::Look(deadline.min(now + self.shortest())) } else { then }
    }

    /// The earliest that anything can be overdue which has not yet begun.
    fn shortest(&self) -> Duration {
        self.limits.header_timeout.min(self.limits.idle_timeout).min(self.limits.stall_timeout)
    }

    fn reader(&mut self, bytes_written: u64, now: Duration) -> DeadlineAction {
        let (since, before) = *self.reading.get_or_insert((now, bytes_written));
        if bytes_written >= before + STALL_BYTES {
            self.reading = Some((now, bytes_written));
            return DeadlineAction::Look(now + self.limits.stall_timeout);
        }
        match now < since + self.limits.stall_timeout {
            true => DeadlineAction::Look(since + self.limits.stall_timeout),
            false => DeadlineAction::Cut("its client does not read"),
        }
    }
}

/// Polls `connection` to its end, or to the end of our patience. `drain` asks it to take no more requests.
pub(crate) async fn drive<C, E>(
    mut connection: Pin<&mut C>,
    drain: impl Fn(Pin<&mut C>),
    multiplexed: bool,
    activity: &Activity,
    limits: &Limits,
    env: &Env,
    stop: &CancellationToken,
) where
    C: Future<Output = Result<(), E>>,
    E: std::fmt::Display,
{
    let mut judge = DeadlineCheck { limits, multiplexed, draining: false, reading: None };
    let mut look = std::pin::pin!(env.sleep(judge.shortest()));
    let mut stopped = std::pin::pin!(stop.cancelled());
    loop {
        tokio::select! {
            biased;
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended badly");
                }
                return;
            }
            () = &mut stopped, if !judge.draining => {
                judge.draining = true;
                drain(connection.as_mut());
            }
            () = &mut look => {
                let now = env.monotonic();
                match judge.judge(activity.waiting(judge.multiplexed), activity.bytes_written(), now) {
                    DeadlineAction::Look(at) => look.set(env.sleep(at - now)),
                    DeadlineAction::Drain => {
                        judge.draining = true;
                        drain(connection.as_mut());
                        look.set(env.sleep(limits.stall_timeout));
                    }
                    DeadlineAction::Cut(reason) => return tracing::debug!(reason, "closing a connection"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn who_only_waits_is_ended_and_who_is_served_is_not() {
        let limits = &Limits::COMPONENT;
        let check = |waiting, now, expected: DeadlineAction| {
            let mut judge = DeadlineCheck { limits, multiplexed: false, draining: false, reading: None };
            assert_eq!(judge.judge(waiting, 0, seconds(now)), expected, "{waiting:?} at {now}");
        };
        check(Waiting::ForHead { since: seconds(100) }, 131, DeadlineAction::Look(seconds(132)));
        check(Waiting::ForHead { since: seconds(100) }, 132, DeadlineAction::Cut("no request came"));
        check(Waiting::ForRequest { since: seconds(100) }, 189, DeadlineAction::Look(seconds(190)));
        check(Waiting::ForRequest { since: seconds(100) }, 190, DeadlineAction::Drain);
        check(Waiting::No, 100_000, DeadlineAction::Look(seconds(100_032)));
    }

    #[test]
    fn a_reader_must_read() {
        let limits = &Limits::COMPONENT;
        let mut judge = DeadlineCheck { limits, multiplexed: false, draining: false, reading: None };
        assert_eq!(judge.judge(Waiting::ForReader, 0, seconds(0)), DeadlineAction::Look(seconds(60)));
        assert_eq!(judge.judge(Waiting::ForReader, STALL_BYTES, seconds(60)), DeadlineAction::Look(seconds(120)));
        // Something else came in between: the time before does not count.
        assert_eq!(judge.judge(Waiting::No, STALL_BYTES, seconds(119)), DeadlineAction::Look(seconds(151)));
        assert_eq!(judge.judge(Waiting::ForReader, STALL_BYTES, seconds(151)), DeadlineAction::Look(seconds(211)));
        let slow = judge.judge(Waiting::ForReader, 2 * STALL_BYTES - 1, seconds(211));
        assert_eq!(slow, DeadlineAction::Cut("its client does not read"));
        // Once it is asked to end, an idle connection has no longer either.
        judge.draining = true;
        judge.reading = None;
        let idle = Waiting::ForRequest { since: seconds(211) };
        assert_eq!(judge.judge(idle, 0, seconds(300)), DeadlineAction::Look(seconds(360)));
        assert_eq!(judge.judge(idle, 0, seconds(360)), DeadlineAction::Cut("its client does not read"));
    }
}
