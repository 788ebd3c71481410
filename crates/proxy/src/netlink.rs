//! The kernel's netfilter messages: a socket for them, and how to take them apart.
//! Used by `monitor` and `conntrack_netlink`.
//! Invariant: whatever the bytes are, reading them ends and stays inside them.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket};
use tokio::io::unix::AsyncFd;

/// The header of every message; that of netfilter's follows it.
pub const HEADER: usize = 16;
pub const NETFILTER_HEADER: usize = 4;

/// In the network namespace of the calling thread. `groups` are the notifications it gets.
pub fn open(groups: u32) -> std::io::Result<AsyncFd<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    // Deprecated because a type may lie about its descriptor; an OwnedFd does not, and this way needs no unsafe.
    #[allow(deprecated)]
    let socket = AsyncFd::new(socket)?;
    Ok(socket)
}

#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    pub kind: u16,
    pub sequence: u32,
    /// The port id of who caused it, which for `nft` is its process id.
    pub sender: u32,
    /// All after the header.
    pub body: &'a [u8],
}

pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header = bytes.get(..HEADER)?;
        let word = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let length = word(0)? as usize;
        let body = bytes.get(HEADER..length)?;
        let message =
            Message { kind: u16::from_ne_bytes([header[4], header[5]]), sequence: word(8)?, sender: word(12)?, body };
        bytes = bytes.get(padded(length)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes in a message after its netfilter header, or in another attribute.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(padded(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn padded(length: usize) -> usize {
    (length + 3) & !3
}

/// Writes one message of netfilter's behind the others.
pub fn put_message(text: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, family: u8, attributes: &[(u16, &[u8])]) {
    let start = text.len();
    text.extend([0; 4]);
    text.extend(kind.to_ne_bytes());
    text.extend(flags.to_ne_bytes());
    text.extend(sequence.to_ne_bytes());
    text.extend([0; 4]);
    text.extend([family, 0, 0, 0]);
    for (kind, value) in attributes {
        text.extend(((4 + value.len()) as u16).to_ne_bytes());
        text.extend(kind.to_ne_bytes());
        text.extend_from_slice(value);
        text.resize(padded(text.len() - start) + start, 0);
    }
    let length = (text.len() - start) as u32;
    text[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        put_message(&mut bytes, 7, 1, 3, 2, &[(0x8001, b"abcde"), (2, b"")]);
        put_message(&mut bytes, 8, 1, 4, 2, &[]);
        let read: Vec<Message> = messages(&bytes).collect();
        assert_eq!(read.iter().map(|m| (m.kind, m.sequence)).collect::<Vec<_>>(), [(7, 3), (8, 4)]);
        let held: Vec<_> = attributes(&read[0].body[NETFILTER_HEADER..]).collect();
        assert_eq!(held, [(1, b"abcde".as_slice()), (2, b"")]);
    }

    #[test]
    fn broken_bytes_end_it() {
        let mut bytes = Vec::new();
        put_message(&mut bytes, 7, 1, 3, 2, &[(1, b"abcd")]);
        for length in 0..bytes.len() {
            assert_eq!(messages(&bytes[..length]).count(), 0, "{length}");
        }
        for length in [0, 3, 15, 200] {
            bytes[0] = length;
            assert_eq!(messages(&bytes).count(), 0, "{length}");
        }
        for broken in [&[0, 0, 1, 0][..], &[3, 0, 1, 0], &[9, 0, 1, 0, 0, 0, 0, 0], &[4]] {
            assert_eq!(attributes(broken).count(), 0, "{broken:?}");
        }
    }
}
