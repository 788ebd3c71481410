//! The bytes of the log: frames with a length and a checksum, holding a change of one key or the head of a group.
//! Written by `log`, read by `replay` and one at a time by `segment`; `backup` uses the same frames.
//! Invariant: pure encoding; whatever bytes it is given, it answers, it never panics.

use bytes::{Bytes, BytesMut};

use crate::Revision;

/// Length and checksum before every body.
pub(crate) const FRAME_HEAD: usize = 8;
/// A body longer than this is damage, not data.
pub(crate) const MAX_BODY: usize = 64 << 20;

const KIND_GROUP: u8 = 1;
const KIND_PUT: u8 = 2;
const KIND_DELETE: u8 = 3;
const KIND_MOVED: u8 = 4;

const GROUP_BODY: usize = 1 + 8 + 8 + 8 + 4 + 4;
pub(crate) const GROUP_FRAME: usize = FRAME_HEAD + GROUP_BODY;
const RECORD_HEAD: usize = 1 + 8 + 8 + 8 + 4;

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
            out.extend_from_slice(self.key.as_bytes());
            out.extend_from_slice(self.value);
        });
    }
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
    out.extend_from_slice(&[0; FRAME_HEAD]);
    body(out);
    let length = (out.len() - start - FRAME_HEAD) as u32;
    let checksum = checksum(&out[start + FRAME_HEAD..], length);
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
    (1..=MAX_BODY).contains(&length).then_some((length, u32_at(head, 4)?))
}

/// `None` when the body does not match its checksum or means nothing.
pub(crate) fn decode(expected: u32, body: &Bytes) -> Option<Frame> {
    if checksum(body, body.len() as u32) != expected {
        return None;
    }
    let tag = *body.first()?;
    if tag == KIND_GROUP {
        return (body.len() == GROUP_BODY).then_some(Frame::Group(GroupHead {
            sequence: u64_at(body, 1)?,
            revision: u64_at(body, 9)?,
            floor: u64_at(body, 17)?,
            oldest_segment: u32_at(body, 25)?,
            length: u32_at(body, 29)?,
        }));
    }
    let kind = match tag {
        KIND_PUT => Kind::Put,
        KIND_DELETE => Kind::Delete,
        KIND_MOVED => Kind::Moved,
        _ => return None,
    };
    let key_end = RECORD_HEAD.checked_add(u32_at(body, 25)? as usize)?;
    let key = std::str::from_utf8(body.get(RECORD_HEAD..key_end)?).ok()?.to_string();
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
    (frame.len() == FRAME_HEAD + length).then(|| decode(checksum, &frame.slice(FRAME_HEAD..)))?
}

/// Whether an intact group head with a sequence number above `after` begins anywhere in `bytes`.
pub(crate) fn finds_group(bytes: &Bytes, after: u64) -> bool {
    let head = (GROUP_BODY as u32).to_le_bytes();
    (0..bytes.len().saturating_sub(GROUP_FRAME - 1)).filter(|at| bytes[*at..*at + 4] == head).any(|at| {
        matches!(decode_frame(&bytes.slice(at..at + GROUP_FRAME)), Some(Frame::Group(group)) if group.sequence > after)
    })
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
        assert!(finds_group(&bytes, 8));
        assert!(!finds_group(&bytes, 9), "only newer groups count");
        assert!(!finds_group(&bytes.slice(..bytes.len() - 1), 8));
    }
}
