//! Whether what clients were told of one object could have happened one request after the other: a search in the way
//! of Wing, Gong and Lowe over a register with compare-and-set.
//! Fed by `history`; pure. Used on simulated runs and on the real process under kill -9.
//! Every write has a value of its own, so that a value names the version of the object it made.

use std::collections::HashSet;

/// Steps of the search after which it gives up. What no search could decide is not a violation.
const SEARCH_STEPS_MAX: usize = 2_000_000;

/// Names one write.
pub type Value = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Get,
    Create(Value),
    /// With `Some`, only over the version that this value made.
    Update(Value, Option<Value>),
    Delete(Option<Value>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Of a read.
    Found(Value),
    /// Of a write: carried out.
    Done,
    NotFound,
    AlreadyExists,
    Conflict,
    /// Lost, or an error that leaves open what happened: the request may take effect at any later time, or never.
    Unknown,
}

/// A request of one client and what came of it. Times are places in one order of all sendings and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub sent: u64,
    pub answered: u64,
    pub request: Request,
    pub answer: Answer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    /// No order explains these; the calls that the longest attempt could not get past.
    Impossible(Vec<Call>),
    Undecided,
}

/// What the object is after `request` is carried out on `state` with this answer; `None` when it can't be.
fn apply(state: Option<Value>, request: Request, answer: Answer) -> Option<Option<Value>> {
    let matches = |expected: Option<Value>| expected.is_none_or(|expected| state == Some(expected));
    let same = |holds: bool| holds.then_some(state);
    match (request, answer) {
        (Request::Get, Answer::Found(value)) => same(state == Some(value)),
        (_, Answer::NotFound) => same(state.is_none()),
        (Request::Create(_), Answer::AlreadyExists) => same(state.is_some()),
        (Request::Update(_, Some(expected)) | Request::Delete(Some(expected)), Answer::Conflict) => {
            same(state.is_some() && state != Some(expected))
        }
        (Request::Create(value), Answer::Done | Answer::Unknown) => state.is_none().then_some(Some(value)),
        (Request::Update(value, expected), Answer::Done | Answer::Unknown) => {
            (state.is_some() && matches(expected)).then_some(Some(value))
        }
        (Request::Delete(expected), Answer::Done | Answer::Unknown) => {
            (state.is_some() && matches(expected)).then_some(None)
        }
        _ => None,
    }
}

/// Which calls were put in order already.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Taken(Vec<u64>);

impl Taken {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn with(&self, at: usize) -> Self {
        let mut more = self.clone();
        more.0[at / 64] |= 1 << (at % 64);
        more
    }
}

/// Judges the calls on one object that began as `start`.
pub fn check(start: Option<Value>, calls: &[Call]) -> Verdict {
    // A read without an answer tells nothing.
    let mut calls: Vec<Call> =
        calls.iter().copied().filter(|c| c.answer != Answer::Unknown || c.request != Request::Get).collect();
    for call in calls.iter_mut().filter(|c| c.answer == Answer::Unknown) {
        call.answered = u64::MAX;
    }
    calls.sort_by_key(|c| c.sent);
    let known = calls.iter().filter(|c| c.answer != Answer::Unknown).count();
    let mut stack = vec![(Taken::new(calls.len()), start, 0)];
    let (mut seen, mut furthest) = (HashSet::new(), (0, Taken::new(calls.len())));
    let mut steps = 0;
    while let Some((taken, state, answered)) = stack.pop() {
        if answered == known {
            return Verdict::Linearizable;
        }
        if answered > furthest.0 {
            furthest = (answered, taken.clone());
        }
        steps += 1;
        if steps > SEARCH_STEPS_MAX {
            return Verdict::Undecided;
        }
        let open = || calls.iter().enumerate().filter(|(at, _)| !taken.has(*at));
        // Whoever was sent after somebody's answer comes after them.
        let first_answer = open().map(|(_, c)| c.answered).min().unwrap_or(u64::MAX);
        let mut next: Vec<_> = open().take_while(|(_, c)| c.sent <= first_answer).collect();
        // The last is tried first: the earliest answered call, and those without an answer only for want of others.
        next.sort_by_key(|(_, c)| (c.answer != Answer::Unknown, std::cmp::Reverse(c.answered)));
        for (at, call) in next {
            let Some(now) = apply(state, call.request, call.answer) else { continue };
            let more = taken.with(at);
            if seen.insert((more.clone(), now)) {
                stack.push((more, now, answered + usize::from(call.answer != Answer::Unknown)));
            }
        }
    }
    let stuck = calls.iter().enumerate().filter(|(at, c)| !furthest.1.has(*at) && c.answer != Answer::Unknown);
    let until = stuck.clone().map(|(_, c)| c.answered).min().unwrap_or(u64::MAX);
    Verdict::Impossible(stuck.map(|(_, c)| *c).filter(|c| c.sent <= until).collect())
}

#[cfg(test)]
mod tests {
    use super::{Answer::*, Request::*, *};

    fn call(sent: u64, answered: u64, request: Request, answer: Answer) -> Call {
        Call { sent, answered, request, answer }
    }

    fn judge(calls: &[(u64, u64, Request, Answer)], possible: bool) {
        let calls: Vec<_> = calls.iter().map(|(s, a, r, w)| call(*s, *a, *r, *w)).collect();
        assert_eq!(check(None, &calls) == Verdict::Linearizable, possible, "{calls:?}");
    }

    #[test]
    fn one_after_the_other_is_read_as_written() {
        judge(
            &[(0, 1, Create(1), Done), (2, 3, Get, Found(1)), (4, 5, Delete(None), Done), (6, 7, Get, NotFound)],
            true,
        );
        judge(&[(0, 1, Create(1), Done), (2, 3, Get, NotFound)], false);
        judge(&[(0, 1, Create(1), Done), (2, 3, Update(2, None), Done), (4, 5, Get, Found(1))], false);
        judge(&[(0, 1, Get, Found(1))], false);
        judge(&[(0, 1, Create(1), Done), (2, 3, Create(2), Done)], false);
        judge(&[(0, 1, Create(1), AlreadyExists)], false);
    }

    #[test]
    fn what_overlaps_comes_in_either_order() {
        judge(&[(0, 9, Create(1), Done), (1, 2, Get, NotFound), (3, 4, Get, Found(1))], true);
        judge(&[(0, 9, Create(1), Done), (1, 2, Get, Found(1)), (3, 4, Get, NotFound)], false);
        judge(
            &[
                (0, 1, Create(1), Done),
                (2, 8, Update(2, None), Done),
                (3, 9, Update(3, None), Done),
                (10, 11, Get, Found(2)),
            ],
            true,
        );
    }

    #[test]
    fn of_two_updates_over_one_version_only_one_is_carried_out() {
        let base = (0, 1, Create(1), Done);
        judge(&[base, (2, 5, Update(2, Some(1)), Done), (3, 6, Update(3, Some(1)), Conflict)], true);
        judge(&[base, (2, 5, Update(2, Some(1)), Done), (3, 6, Update(3, Some(1)), Done)], false);
        judge(&[base, (2, 3, Update(2, Some(1)), Conflict)], false);
        judge(&[base, (2, 3, Delete(Some(1)), Done), (4, 5, Update(2, Some(1)), NotFound)], true);
    }

    #[test]
    fn a_lost_answer_leaves_open_whether_and_when() {
        judge(&[(0, 1, Create(1), Unknown), (2, 3, Get, NotFound), (4, 5, Get, Found(1))], true);
        judge(&[(0, 1, Create(1), Unknown), (2, 3, Get, NotFound)], true);
        judge(&[(0, 1, Create(1), Unknown), (2, 3, Get, Found(1)), (4, 5, Get, NotFound)], false);
        judge(&[(0, 1, Create(1), Done), (2, 3, Update(2, Some(1)), Unknown), (4, 5, Delete(Some(1)), Conflict)], true);
    }

    #[test]
    fn an_acknowledged_write_that_a_restart_forgets_is_found() {
        let history = [
            (0, 1, Create(1), Done),
            (2, 6, Update(2, None), Done),
            (3, 7, Get, Found(2)),
            (8, 9, Update(3, Some(1)), Done),
        ];
        judge(&history, false);
    }

    #[test]
    fn many_calls_at_once_are_judged_in_time() {
        let writes = (0..300u64).map(|n| match n % 3 {
            0 => call(n * 10, n * 10 + 35, Update(n + 1, None), if n % 30 == 0 { Unknown } else { Done }),
            1 => call(n * 10, n * 10 + 25, Update(n + 1, Some(u64::MAX)), Conflict),
            _ => call(n * 10, n * 10 + 5, Delete(Some(u64::MAX)), Conflict),
        });
        let writes: Vec<_> = writes.collect();
        assert_eq!(check(Some(1_000_000), &writes), Verdict::Linearizable);
    }
}
