//! Netlink messages and their attributes: how they are put together and taken apart.
//! Used by `socket`, `conntrack` and everything that speaks to netfilter.
//! Invariant: whatever the bytes are, reading them ends and stays inside them (test: `broken_bytes_end_it`).

/// The header of every message; that of netfilter's follows it.
const HEADER_BYTES: usize = 16;
pub const NETFILTER_HEADER_BYTES: usize = 4;

/// An error, or the acknowledgement that there was none.
pub const NLMSG_ERROR: u16 = 2;
/// The end of a dump.
pub const NLMSG_DONE: u16 = 3;
pub const NLM_F_REQUEST: u16 = 1;
pub const NLM_F_ACK: u16 = 4;
pub const NLM_F_DUMP: u16 = 0x300;
pub const NLM_F_CREATE: u16 = 0x400;
/// Of an attribute that holds attributes.
pub const NLA_F_NESTED: u16 = 0x8000;
/// What remains of an attribute's type without the two flags in it.
const NLA_TYPE_MASK: u16 = 0x3fff;

/// What the body of an error, an acknowledgement or the end of a dump says.
pub fn acknowledged(body: &[u8]) -> std::io::Result<()> {
    match body.first_chunk().copied().map(i32::from_ne_bytes) {
        Some(code) if code < 0 => Err(std::io::Error::from_raw_os_error(-code)),
        _ => Ok(()),
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// Its type: a subsystem of netfilter in the high byte, or one of netlink's own.
    pub kind: u16,
    pub sequence: u32,
    /// The port id of who caused it, which for `nft` is its process id.
    pub sender: u32,
    /// All after the header.
    pub body: &'a [u8],
}

/// The messages of one datagram.
pub fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages { rest: datagram }
}

pub struct Messages<'a> {
    rest: &'a [u8],
}

impl Messages<'_> {
    /// What could not be read as a message; empty after a datagram in order.
    pub fn unread(&self) -> &[u8] {
        self.rest
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let header = self.rest.get(..HEADER_BYTES)?;
        let word = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let length = word(0)? as usize;
        let body = self.rest.get(HEADER_BYTES..length)?;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let message = Message { kind, sequence: word(8)?, sender: word(12)?, body };
        self.rest = self.rest.get(padded(length)..).unwrap_or_default();
        Some(message)
    }
}

/// The attributes in a message after its netfilter header, or in another attribute.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & NLA_TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(padded(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn padded(length: usize) -> usize {
    (length + 3) & !3
}

/// Netfilter's own header: the family, a version that is always 0, and what a batch is for.
pub fn netfilter_header(family: u8, resource: u16) -> [u8; NETFILTER_HEADER_BYTES] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// Writes one message of netfilter's behind the others.
pub fn put_message(
    text: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    header: [u8; NETFILTER_HEADER_BYTES],
    attributes: &[(u16, &[u8])],
) {
    let start = text.len();
    text.extend([0; 4]);
    text.extend(kind.to_ne_bytes());
    text.extend(flags.to_ne_bytes());
    text.extend(sequence.to_ne_bytes());
    text.extend([0; 4]);
    text.extend(header);
    for (kind, value) in attributes {
        put_attribute(text, *kind, value);
    }
    let length = (text.len() - start) as u32;
    text[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// Behind whole messages and attributes only: their lengths keep it aligned.
pub fn put_attribute(text: &mut Vec<u8>, kind: u16, value: &[u8]) {
    text.extend(((4 + value.len()) as u16).to_ne_bytes());
    text.extend(kind.to_ne_bytes());
    text.extend_from_slice(value);
    text.resize(padded(text.len()), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        put_message(&mut bytes, 7, 1, 3, netfilter_header(2, 0), &[(0x8001, b"abcde"), (2, b"")]);
        put_message(&mut bytes, 8, 1, 4, netfilter_header(2, 0), &[]);
        let mut all = messages(&bytes);
        let read: Vec<Message> = all.by_ref().collect();
        assert!(all.unread().is_empty());
        assert_eq!(read.iter().map(|m| (m.kind, m.sequence)).collect::<Vec<_>>(), [(7, 3), (8, 4)]);
        let held: Vec<_> = attributes(&read[0].body[NETFILTER_HEADER_BYTES..]).collect();
        assert_eq!(held, [(1, b"abcde".as_slice()), (2, b"")]);
    }

    #[test]
    fn broken_bytes_end_it() {
        let mut bytes = Vec::new();
        put_message(&mut bytes, 7, 1, 3, netfilter_header(2, 0), &[(1, b"abcd")]);
        for length in 0..bytes.len() {
            assert_eq!(messages(&bytes[..length]).count(), 0, "{length}");
        }
        for length in [0, 3, 15, 200] {
            bytes[0] = length;
            let mut broken = messages(&bytes);
            assert!(broken.next().is_none(), "{length}");
            assert_eq!(broken.unread().len(), bytes.len(), "{length}");
        }
        for broken in [&[0, 0, 1, 0][..], &[3, 0, 1, 0], &[9, 0, 1, 0, 0, 0, 0, 0], &[4]] {
            assert_eq!(attributes(broken).count(), 0, "{broken:?}");
        }
    }
}
