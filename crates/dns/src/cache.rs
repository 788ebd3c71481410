//! Remembers upstream's answers for as long as they say, and not longer than a limit.
//! Used by `forward`.
//! Invariant: never more than `capacity` entries; the oldest goes first (test: `answers_age_and_leave`).

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{Name, RData, RecordType},
};

/// What distinguishes two questions: the last is whether DNSSEC records were asked for.
pub type Key = (Name, RecordType, bool);

pub struct Cache {
    entries: HashMap<Key, Entry>,
    order: VecDeque<(Key, Duration)>,
    capacity: usize,
    longest: Duration,
}

struct Entry {
    message: Message,
    stored: Duration,
    expires: Duration,
    hits: u32,
    is_refreshing: bool,
}

/// An answer that was asked for this often is asked for again before it ends.
const POPULAR_HITS: u32 = 2;
/// The part of its life that is left then.
const REFRESH_DIVISOR: u32 = 10;

impl Cache {
    pub fn new(capacity: usize, longest: Duration) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), capacity, longest }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
    }

    /// The answer with what is left of its time.
    pub fn get(&self, key: &Key, now: Duration) -> Option<Message> {
        let entry = self.entries.get(key).filter(|entry| now < entry.expires)?;
        let age = u32::try_from((now - entry.stored).as_secs()).unwrap_or(u32::MAX);
        let mut message = entry.message.clone();
        for record in message.answers.iter_mut().chain(&mut message.authorities).chain(&mut message.additionals) {
            record.ttl = record.ttl.saturating_sub(age);
        }
        Some(message)
    }

    /// Counts a use of an answer; whether it is popular, about to end, and nobody was told so before.
    pub fn begin_refresh(&mut self, key: &Key, now: Duration) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        entry.hits = entry.hits.saturating_add(1);
        let ends = entry.expires.saturating_sub(now) <= (entry.expires - entry.stored) / REFRESH_DIVISOR;
        let begins = ends && entry.hits > POPULAR_HITS && !entry.is_refreshing;
        entry.is_refreshing |= begins;
        begins
    }

    pub fn put(&mut self, key: Key, message: &Message, now: Duration) {
        let Some(seconds) = lifetime(message) else { return };
        let expires = now + Duration::from_secs(u64::from(seconds)).min(self.longest);
        if expires <= now || self.capacity == 0 {
            return;
        }
        while self.order.len() >= self.capacity {
            let Some((oldest, stored)) = self.order.pop_front() else { break };
            // A key that was stored again has a younger place in the queue.
            if self.entries.get(&oldest).is_some_and(|entry| entry.stored == stored) {
                self.entries.remove(&oldest);
            }
        }
        self.order.push_back((key.clone(), now));
        self.entries
            .insert(key, Entry { message: message.clone(), stored: now, expires, hits: 0, is_refreshing: false });
    }
}

/// How long an answer may be repeated; a negative one by its SOA. Failures are not remembered.
fn lifetime(message: &Message) -> Option<u32> {
    let code = message.metadata.response_code;
    if message.metadata.truncation || !matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) {
        return None;
    }
    if code == ResponseCode::NoError && !message.answers.is_empty() {
        return message.answers.iter().map(|record| record.ttl).min();
    }
    message.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use hickory_proto::{op::OpCode, rr::Record};

    use super::*;

    fn key(name: &str) -> Key {
        (Name::from_ascii(name).unwrap(), RecordType::A, false)
    }

    fn answer(ttl: u32) -> Message {
        let mut message = Message::response(1, OpCode::Query);
        let data = RData::A("192.0.2.1".parse().unwrap());
        message.add_answer(Record::from_rdata(Name::from_ascii("a.").unwrap(), ttl, data));
        message
    }

    #[test]
    fn answers_age_and_leave() {
        let second = Duration::from_secs;
        let mut cache = Cache::new(2, second(30));
        cache.put(key("a."), &answer(10), second(0));
        assert_eq!(cache.get(&key("a."), second(4)).unwrap().answers[0].ttl, 6);
        assert!(cache.get(&key("a."), second(10)).is_none());
        cache.put(key("b."), &answer(3600), second(0));
        assert!(cache.get(&key("b."), second(30)).is_none(), "longer than the limit");
        cache.put(key("c."), &answer(0), second(0));
        assert!(cache.get(&key("c."), second(0)).is_none(), "a TTL of zero is not kept");
        cache.put(key("d."), &answer(9), second(1));
        assert!(cache.get(&key("a."), second(1)).is_none(), "the oldest made room");
        assert!(cache.get(&key("d."), second(1)).is_some());
        let failure = Message::error_msg(1, OpCode::Query, ResponseCode::ServFail);
        cache.put(key("e."), &failure, second(1));
        assert!(cache.get(&key("e."), second(1)).is_none());
    }

    #[test]
    fn popular_answers_are_refreshed_once_before_they_end() {
        let second = Duration::from_secs;
        let mut cache = Cache::new(2, second(3600));
        cache.put(key("a."), &answer(100), second(0));
        assert!(!cache.begin_refresh(&key("a."), second(95)), "asked for once");
        assert!(!cache.begin_refresh(&key("a."), second(95)));
        assert!(!cache.begin_refresh(&key("a."), second(50)), "not about to end");
        assert!(cache.begin_refresh(&key("a."), second(90)));
        assert!(!cache.begin_refresh(&key("a."), second(91)), "is under way");
        assert!(!cache.begin_refresh(&key("b."), second(0)));
    }
}
