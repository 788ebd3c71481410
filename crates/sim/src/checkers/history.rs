//! What clients sent about a few objects and what they were told, in one order, per object.
//! Filled by the clients of a workload; judged by `linearizability`.
//! No answer counts as known unless it says for certain whether the request was carried out.

use std::collections::BTreeMap;

use api::ApiError;

use super::{
    Violation,
    linearizability::{self, Answer, Call, Request, Value, Verdict},
};

#[derive(Default)]
pub struct History {
    /// The next place in the order.
    clock: u64,
    /// Where this history begins, and what there was then.
    since: u64,
    start: BTreeMap<String, Value>,
    values: Value,
    calls: BTreeMap<String, Vec<Call>>,
    /// Which version each value made, as far as anybody was told.
    versions: BTreeMap<String, BTreeMap<Value, u64>>,
    found: Vec<Violation>,
}

/// A request that was sent and not answered yet.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    at: u64,
    request: Request,
}

/// What a refusal says about a request, where it says that nothing was carried out.
pub fn refusal(error: &ApiError) -> Answer {
    match error.code {
        404 => Answer::NotFound,
        409 if error.reason == api::Reason::AlreadyExists => Answer::AlreadyExists,
        409 => Answer::Conflict,
        _ => Answer::Unknown,
    }
}

impl History {
    /// A value that no other write has.
    pub fn next_value(&mut self) -> Value {
        self.values += 1;
        self.values
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn send(&mut self, request: Request) -> Sent {
        Sent { at: self.tick(), request }
    }

    /// `version` is that of the object the answer showed: of the value found, or of the one written.
    pub fn answer(&mut self, key: &str, sent: Sent, answer: Answer, version: Option<u64>) {
        let answered = self.tick();
        // Of what was sent before a restore nobody knows in which of the two worlds it was carried out.
        let (answer, version) = if sent.at <= self.since { (Answer::Unknown, None) } else { (answer, version) };
        let call = Call { sent: sent.at, answered, request: sent.request, answer };
        self.calls.entry(key.to_string()).or_default().push(call);
        let value = match (call.request, answer) {
            (_, Answer::Found(value)) => value,
            (Request::Create(value) | Request::Update(value, _), Answer::Done) => value,
            _ => return,
        };
        let Some(version) = version else { return };
        let known = *self.versions.entry(key.to_string()).or_default().entry(value).or_insert(version);
        if known != version {
            let text = format!("{key}: the write of value {value} has the versions {known} and {version}");
            self.found.push(Violation(text));
        }
    }

    /// Another world begins with these values, as after a restore; what was told of the old one no longer counts.
    pub fn restore(&mut self, start: BTreeMap<String, Value>) {
        (self.calls, self.versions) = Default::default();
        (self.start, self.since) = (start, self.clock);
    }

    pub fn calls(&self) -> usize {
        self.calls.values().map(Vec::len).sum()
    }

    /// Judges every object.
    pub fn violations(&mut self) -> Vec<Violation> {
        let mut found = std::mem::take(&mut self.found);
        for (key, calls) in &self.calls {
            if let Verdict::Impossible(stuck) = linearizability::check(self.start.get(key).copied(), calls) {
                found.push(Violation(format!("{key}: no order of all requests explains these answers: {stuck:?}")));
            }
            let versions = self.versions.get(key);
            let version = |call: &Call| match (call.request, call.answer) {
                (Request::Create(value) | Request::Update(value, _), Answer::Done) => versions?.get(&value).copied(),
                _ => None,
            };
            // Those that were answered before this one was sent had lower versions.
            let mut by_answer: Vec<(u64, u64)> = calls.iter().filter_map(|c| Some((c.answered, version(c)?))).collect();
            by_answer.sort_unstable();
            for (sent, own) in calls.iter().filter_map(|c| Some((c.sent, version(c)?))) {
                let before = by_answer.iter().take_while(|(answered, _)| *answered < sent).map(|(_, v)| *v).max();
                if let Some(before) = before.filter(|before| *before >= own) {
                    found.push(Violation(format!("{key}: version {own} was made after version {before}")));
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_grow_and_belong_to_one_value() {
        let mut history = History::default();
        let (a, b) = (history.next_value(), history.next_value());
        let sent = history.send(Request::Create(a));
        history.answer("x", sent, Answer::Done, Some(5));
        let sent = history.send(Request::Update(b, Some(a)));
        history.answer("x", sent, Answer::Done, Some(6));
        assert_eq!(history.violations(), []);
        let sent = history.send(Request::Get);
        history.answer("x", sent, Answer::Found(b), Some(7));
        assert_eq!(history.violations().len(), 1);
        let c = history.next_value();
        let sent = history.send(Request::Update(c, None));
        history.answer("x", sent, Answer::Done, Some(4));
        assert_eq!(history.violations().len(), 1);
    }

    #[test]
    fn a_restore_begins_another_history() {
        let mut history = History::default();
        let (a, b) = (history.next_value(), history.next_value());
        let create = history.send(Request::Create(a));
        history.answer("x", create, Answer::Done, Some(5));
        let late = history.send(Request::Update(b, None));
        history.restore([("x".to_string(), a)].into());
        let get = history.send(Request::Get);
        history.answer("x", get, Answer::Found(a), Some(1005));
        history.answer("x", late, Answer::Done, Some(6));
        let get = history.send(Request::Get);
        history.answer("x", get, Answer::Found(b), Some(1006));
        assert_eq!(history.violations(), []);
        let get = history.send(Request::Get);
        history.answer("x", get, Answer::NotFound, None);
        assert_eq!(history.violations().len(), 1);
    }
}
