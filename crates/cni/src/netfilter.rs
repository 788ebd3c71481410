//! Questions to the kernel's netfilter, and how to take its answers apart.
//! Used by `kernel_rules` and `flows`.
//! Invariant: whatever the bytes are, reading them ends and stays inside them.

use std::os::fd::AsRawFd;

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket},
};

/// Flags of a question for everything of a kind, and of an order.
pub const LIST: u16 = 0x301;
pub const ORDER: u16 = 0x5;
/// Marks an attribute that holds others.
pub const NESTED: u16 = 0x8000;

/// The ends of an answer: how it went, and "that was all".
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;
/// Netfilter's own header, between that and the attributes.
const NETFILTER_HEADER: usize = 4;

/// Sends one message and hands the attributes of each that comes back to `each`.
pub fn ask(
    kind: u16,
    flags: u16,
    family: u8,
    attributes: &[(u16, &[u8])],
    mut each: impl FnMut(&[u8]),
) -> nix::Result<()> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)?;
    send(socket.as_raw_fd(), &message(kind, flags, family, attributes), MsgFlags::empty())?;
    let mut buffer = vec![0; 1 << 15];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        if let Some(end) = read(&buffer[..length], &mut each) {
            return end;
        }
    }
}

fn message(kind: u16, flags: u16, family: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut text = vec![0; 4];
    text.extend(kind.to_ne_bytes());
    text.extend(flags.to_ne_bytes());
    // A sequence number and a sender that the kernel only repeats.
    text.extend([0; 8]);
    text.extend([family, 0, 0, 0]);
    for (kind, value) in attributes {
        text.extend(((4 + value.len()) as u16).to_ne_bytes());
        text.extend(kind.to_ne_bytes());
        text.extend_from_slice(value);
        text.resize(text.len().next_multiple_of(4), 0);
    }
    let length = (text.len() as u32).to_ne_bytes();
    text[..4].copy_from_slice(&length);
    text
}

/// Something if this was the last part of the answer.
fn read(mut bytes: &[u8], each: &mut impl FnMut(&[u8])) -> Option<nix::Result<()>> {
    while let Some(header) = bytes.get(..HEADER) {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let Some(body) = bytes.get(HEADER..length) else { return Some(Err(Errno::EBADMSG)) };
        match u16::from_ne_bytes([header[4], header[5]]) {
            DONE | ERROR => {
                let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                return Some(if code < 0 { Err(Errno::from_raw(-code)) } else { Ok(()) });
            }
            _ => each(body.get(NETFILTER_HEADER..).unwrap_or_default()),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

/// The attributes of a message, or of another attribute.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([header[2], header[3]]) & 0x3fff, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_broken_bytes_end_it() {
        let mut bytes = message(7, LIST, 2, &[(NESTED | 1, b"abcde"), (2, b"")]);
        let mut found = Vec::new();
        assert!(read(&bytes, &mut |body| found.extend(attributes(body).map(|(k, v)| (k, v.to_vec())))).is_none());
        assert_eq!(found, [(1, b"abcde".to_vec()), (2, vec![])]);
        for length in [0, 3, 15, 200] {
            bytes[0] = length;
            assert_eq!(read(&bytes, &mut |_| panic!("{length}")), Some(Err(Errno::EBADMSG)));
        }
        for broken in [&[0, 0, 1, 0][..], &[3, 0, 1, 0], &[9, 0, 1, 0, 0, 0, 0, 0], &[4]] {
            assert_eq!(attributes(broken).count(), 0, "{broken:?}");
        }
    }
}
