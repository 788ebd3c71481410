//! The bytes of the log: frames with a length and a checksum, holding a change of one key or the head of a group.
//! Written by `log`, read by `replay` and one at a time by `segment`; `backup` uses the same frames.
//! A record's head has a checksum of its own: when the value is damaged, whose it was and of which revision is still sure.
//! Invariant: pure encoding; whatever bytes it is given, it answers and does not panic (test:
//! `frames_survive_a_round_trip_and_every_flipped_bit_is_found`).

use bytes::{Bytes, BytesMut};

use crate::Revision;

/// Length and checksum before every body.
pub(crate) const FRAME_HEAD_BYTES: usize = 8;
/// A body longer than this is damage, not data.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 20;

const KIND_GROUP: u8 = 1;
/// Records of older versions, whose heads have no checksum.
const KIND_PLAIN_PUT: u8 = 2;
const KIND_PLAIN_DELETE: u8 = 3;
const KIND_PLAIN_MOVED: u8 = 4;
const KIND_PUT: u8 = 5;
const KIND_DELETE: u8 = 6;
const KIND_MOVED: u8 = 7;

const GROUP_BODY_BYTES: usize = 1 + 8 + 8 + 8 + 4 + 4;
pub(crate) const GROUP_FRAME_BYTES: usize = FRAME_HEAD_BYTES + GROUP_BODY_BYTES;
const PLAIN_HEAD_BYTES: usize = 1 + 8 + 8 + 8 + 4;
/// As `PLAIN_HEAD_BYTES`, then the value's length and the checksum of the head with the key.
const RECORD_HEAD_BYTES: usize = PLAIN_HEAD_BYTES + 4 + 4;

/// Opens everything that was made durable by one sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupHead {
    /// Counts groups over all segments.
    pub sequence: u64,
    /// Reached after this group.
    pub revision: Revision,
    /// History before this is forgotten.
    pub floor: Revision,
    /// Segments before this one are not needed.
    pub oldest_segment: u32,
    /// Bytes of the group's records, after this head.
    pub length: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    pub kind: Kind,
    pub revision: Revision,
    pub created: Revision,
    pub expires_ms: u64,
    pub key: String,
    pub value: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Delete,
    /// A put repeated so that the segment of the original can go.
    Moved,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Group(GroupHead),
    Key(KeyRecord),
}

impl GroupHead {
    pub fn encode(&self, out: &mut BytesMut) {
        frame(out, |out| {
            out.extend_from_slice(&[KIND_GROUP]);
            out.extend_from_slice(&self.sequence.to_le_bytes());
            out.extend_from_slice(&self.revision.to_le_bytes());
            out.extend_from_slice(&self.floor.to_le_bytes());
            out.extend_from_slice(&self.oldest_segment.to_le_bytes());
            out.extend_from_slice(&self.length.to_le_bytes());
        });
    }
}

/// What a record is made of, borrowed, so that encoding copies the value once.
pub(crate) struct KeyParts<'a> {
    pub kind: Kind,
    pub revision: Revision,
    pub created: Revision,
    pub expires_ms: u64,
    pub key: &'a str,
    pub value: &'a [u8],
}

impl KeyParts<'_> {
    pub fn encode(&self, out: &mut BytesMut) {
        let kind = match self.kind {
            Kind::Put => KIND_PUT,
            Kind::Delete => KIND_DELETE,
            Kind::Moved => KIND_MOVED,
        };
        frame(out, |out| {
            out.extend_from_slice(&[kind]);
            out.extend_from_slice(&self.revision.to_le_bytes());
            out.extend_from_slice(&self.created.to_le_bytes());
            out.extend_from_slice(&self.expires_ms.to_le_bytes());
            out.extend_from_slice(&(self.key.len() as u32).to_le_bytes());
            out.extend_from_slice(&(self.value.len() as u32).to_le_bytes());
            let head = out.len() + 4 - RECORD_HEAD_BYTES;
            let checksum = head_checksum(&out[head..], self.key.as_bytes());
            out.extend_from_slice(&checksum.to_le_bytes());
            out.extend_from_slice(self.key.as_bytes());
            out.extend_from_slice(self.value);
        });
    }
}

fn head_checksum(head: &[u8], key: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(key);
    hasher.finalize() ^ 0x6865_6164
}

impl KeyRecord {
    pub fn parts(&self) -> KeyParts<'_> {
        KeyParts {
            kind: self.kind,
            revision: self.revision,
            created: self.created,
            expires_ms: self.expires_ms,
            key: &self.key,
            value: &self.value,
        }
    }
}

fn frame(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
    body(out);
    let length = (out.len() - start - FRAME_HEAD_BYTES) as u32;
    let checksum = checksum(&out[start + FRAME_HEAD_BYTES..], length);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// Covers the length too, so that zeroes are not a valid frame.
fn checksum(body: &[u8], length: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_le_bytes());
    hasher.update(body);
    hasher.finalize() ^ 0x6d69_6e6b
}

/// Body length and checksum, if the length is possible.
pub(crate) fn frame_head(head: &[u8]) -> Option<(usize, u32)> {
    let length = u32_at(head, 0)? as usize;
    (1..=BODY_BYTES_MAX).contains(&length).then_some((length, u32_at(head, 4)?))
}

/// `None` when the body does not match its checksum or means nothing.
pub(crate) fn decode(expected: u32, body: &Bytes) -> Option<Frame> {
    if checksum(body, body.len() as u32) != expected {
        return None;
    }
    let tag = *body.first()?;
    if tag == KIND_GROUP {
        return (body.len() == GROUP_BODY_BYTES).then_some(Frame::Group(GroupHead {
            sequence: u64_at(body, 1)?,
            revision: u64_at(body, 9)?,
            floor: u64_at(body, 17)?,
            oldest_segment: u32_at(body, 25)?,
            length: u32_at(body, 29)?,
        }));
    }
    let (kind, head) = match tag {
        KIND_PUT => (Kind::Put, RECORD_HEAD_BYTES),
        KIND_DELETE => (Kind::Delete, RECORD_HEAD_BYTES),
        KIND_MOVED => (Kind::Moved, RECORD_HEAD_BYTES),
        KIND_PLAIN_PUT => (Kind::Put, PLAIN_HEAD_BYTES),
        KIND_PLAIN_DELETE => (Kind::Delete, PLAIN_HEAD_BYTES),
        KIND_PLAIN_MOVED => (Kind::Moved, PLAIN_HEAD_BYTES),
        _ => return None,
    };
    let key_end = head.checked_add(u32_at(body, 25)? as usize)?;
    let key = std::str::from_utf8(body.get(head..key_end)?).ok()?.to_string();
    Some(Frame::Key(KeyRecord {
        kind,
        revision: u64_at(body, 1)?,
        created: u64_at(body, 9)?,
        expires_ms: u64_at(body, 17)?,
        key,
        value: body.slice(key_end..),
    }))
}

/// Decodes a whole frame, as `segment` reads it back.
pub(crate) fn decode_frame(frame: &Bytes) -> Option<Frame> {
    let (length, checksum) = frame_head(frame)?;
    (frame.len() == FRAME_HEAD_BYTES + length).then(|| decode(checksum, &frame.slice(FRAME_HEAD_BYTES..)))?
}

/// The head of a group at `at`, if there is an intact one.
pub(crate) fn group_at(bytes: &Bytes, at: usize) -> Option<GroupHead> {
    let frame = bytes.get(at..at.checked_add(GROUP_FRAME_BYTES)?)?;
    if frame[..4] != (GROUP_BODY_BYTES as u32).to_le_bytes() {
        return None;
    }
    match decode_frame(&bytes.slice_ref(frame))? {
        Frame::Group(head) => Some(head),
        Frame::Key(_) => None,
    }
}

/// Where the first intact group head with a sequence number above `after` begins, from `from` on.
pub(crate) fn find_group(bytes: &Bytes, from: usize, after: u64) -> Option<usize> {
    (from..bytes.len()).find(|at| group_at(bytes, *at).is_some_and(|head| head.sequence > after))
}

/// What is found where a record should be.
pub(crate) enum Scanned {
    Intact(KeyRecord),
    /// Whose record it was and of which revision, if that is sure; the value is empty.
    Damaged(Option<KeyRecord>),
}

/// The record at `at`, or what can be said of it, and where the next one begins.
pub(crate) fn scan(bytes: &Bytes, at: usize, end: usize) -> (Scanned, usize) {
    if let Some((record, next)) = intact_at(bytes, at, end) {
        return (Scanned::Intact(record), next);
    }
    if let Some((record, next)) = head_at(bytes, at, end) {
        return (Scanned::Damaged(Some(record)), next);
    }
    let next = (at + 1..end).find(|at| head_at(bytes, *at, end).is_some() || intact_at(bytes, *at, end).is_some());
    (Scanned::Damaged(None), next.unwrap_or(end))
}

fn intact_at(bytes: &Bytes, at: usize, end: usize) -> Option<(KeyRecord, usize)> {
    let (length, expected) = frame_head(bytes.get(at..at.checked_add(FRAME_HEAD_BYTES)?)?)?;
    let next = at + FRAME_HEAD_BYTES + length;
    let is_record = bytes.get(at + FRAME_HEAD_BYTES).is_some_and(|tag| (KIND_PLAIN_PUT..=KIND_MOVED).contains(tag));
    match (is_record && next <= end).then(|| decode(expected, &bytes.slice(at + FRAME_HEAD_BYTES..next)))?? {
        Frame::Key(record) => Some((record, next)),
        Frame::Group(_) => None,
    }
}

/// As `intact_at`, where the value is damaged and the head is not.
fn head_at(bytes: &Bytes, at: usize, end: usize) -> Option<(KeyRecord, usize)> {
    let body = bytes.get(at.checked_add(FRAME_HEAD_BYTES)?..end.min(bytes.len()))?;
    let kind = match *body.first()? {
        KIND_PUT => Kind::Put,
        KIND_DELETE => Kind::Delete,
        KIND_MOVED => Kind::Moved,
        _ => return None,
    };
    let head = body.get(..RECORD_HEAD_BYTES)?;
    let (key_length, value_length) = (u32_at(head, 25)? as usize, u32_at(head, 29)? as usize);
    let key = body.get(RECORD_HEAD_BYTES..RECORD_HEAD_BYTES.checked_add(key_length)?)?;
    if head_checksum(&head[..RECORD_HEAD_BYTES - 4], key) != u32_at(head, RECORD_HEAD_BYTES - 4)? {
        return None;
    }
    let next = at.checked_add(FRAME_HEAD_BYTES + RECORD_HEAD_BYTES + key_length)?.checked_add(value_length)?;
    let record = KeyRecord {
        kind,
        revision: u64_at(head, 1)?,
        created: u64_at(head, 9)?,
        expires_ms: u64_at(head, 17)?,
        key: std::str::from_utf8(key).ok()?.to_string(),
        value: Bytes::new(),
    };
    (next <= end).then_some((record, next))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> KeyRecord {
        KeyRecord {
            kind: Kind::Put,
            revision: 7,
            created: 3,
            expires_ms: 9,
            key: "/registry/pods/a".into(),
            value: Bytes::from_static(b"value"),
        }
    }

    #[test]
    fn frames_survive_a_round_trip_and_every_flipped_bit_is_found() {
        let group = GroupHead { sequence: 1, revision: 2, floor: 3, oldest_segment: 4, length: 5 };
        let mut out = BytesMut::new();
        record().parts().encode(&mut out);
        let first = out.split().freeze();
        group.encode(&mut out);
        let second = out.freeze();
        for (bytes, want) in [(first, Frame::Key(record())), (second, Frame::Group(group))] {
            assert_eq!(decode_frame(&bytes), Some(want));
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode_frame(&damaged.into()), None, "bit {bit}");
            }
            for length in 0..bytes.len() {
                assert_eq!(decode_frame(&bytes.slice(..length)), None, "length {length}");
            }
        }
        assert_eq!(decode_frame(&Bytes::from_static(&[0; 64])), None);
    }

    #[test]
    fn a_group_is_found_between_rubbish() {
        let mut out = BytesMut::from(&b"rubbish"[..]);
        GroupHead { sequence: 9, revision: 0, floor: 0, oldest_segment: 0, length: 0 }.encode(&mut out);
        let bytes = out.freeze();
        assert_eq!(find_group(&bytes, 0, 8), Some(7));
        assert_eq!(find_group(&bytes, 0, 9), None, "only newer groups count");
        assert_eq!(find_group(&bytes.slice(..bytes.len() - 1), 0, 8), None);
    }

    #[test]
    fn a_damaged_record_tells_whose_it_was_and_hides_no_other() {
        let mut out = BytesMut::new();
        let mut starts = Vec::new();
        for n in 0..3 {
            starts.push(out.len());
            KeyRecord { revision: n, value: vec![7; 300].into(), ..record() }.parts().encode(&mut out);
        }
        let (sound, end) = (out.freeze(), |bytes: &Bytes| bytes.len());
        let head = FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + RECORD_HEAD_BYTES + record().key.len();
        for byte in starts[1]..starts[2] {
            let mut bytes = sound.to_vec();
            bytes[byte] ^= 0x10;
            let bytes = Bytes::from(bytes);
            let (mut at, mut found) = (0, Vec::new());
            while at < end(&bytes) {
                let (scanned, next) = scan(&bytes, at, end(&bytes));
                found.push(match scanned {
                    Scanned::Intact(record) => format!("{}", record.revision),
                    Scanned::Damaged(Some(record)) => format!("damaged {} {}", record.key, record.revision),
                    Scanned::Damaged(None) => "damaged".to_string(),
                });
                at = next;
            }
            let in_head = head.contains(&(byte - starts[1]));
            let damaged = if in_head { "damaged" } else { "damaged /registry/pods/a 1" };
            assert_eq!(found, ["0", damaged, "2"], "byte {byte}");
        }
    }

    #[test]
    fn records_of_older_versions_are_read() {
        let mut out = BytesMut::new();
        frame(&mut out, |out| {
            out.extend_from_slice(&[KIND_PLAIN_PUT]);
            for number in [7u64, 3, 9] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.extend_from_slice(&(record().key.len() as u32).to_le_bytes());
            out.extend_from_slice(record().key.as_bytes());
            out.extend_from_slice(b"value");
        });
        assert_eq!(decode_frame(&out.freeze()), Some(Frame::Key(record())));
    }
}
