//! The kernel's netfilter messages: a socket for them, how to put them together and how to take them apart.
//! Used by `monitor`, `conntrack_netlink` and `element_netlink`.
//! Invariant: whatever the bytes are, reading them ends and stays inside them.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, recv, send, socket,
    },
};
use tokio::io::unix::AsyncFd;

/// The header of every message; that of netfilter's follows it.
pub const HEADER: usize = 16;
pub const NETFILTER_HEADER: usize = 4;

/// An error, or the acknowledgement that there was none.
pub const ERROR: u16 = 2;
pub const REQUEST: u16 = 1;
pub const ACKNOWLEDGE: u16 = 4;
/// Of an attribute that holds attributes.
pub const NESTED: u16 = 0x8000;

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

/// Questions to the kernel and its answers.
pub struct Conversation {
    socket: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Conversation {
    /// With the network namespace of the calling thread.
    pub fn open() -> std::io::Result<Self> {
        Ok(Self { socket: open(0)?, buffer: vec![0; 1 << 16], sequence: 0 })
    }

    /// Under which others hear of what is done here.
    pub fn port_id(&self) -> std::io::Result<u32> {
        Ok(getsockname::<NetlinkAddr>(self.socket.as_raw_fd())?.pid())
    }

    /// A number for the next message; answers carry it.
    pub fn number(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    pub fn send(&self, request: &[u8]) -> std::io::Result<()> {
        // The kernel reads it before this returns; there is nothing to wait for.
        send(self.socket.as_raw_fd(), request, MsgFlags::empty())?;
        Ok(())
    }

    /// The next datagram of answers.
    pub async fn receive(&mut self) -> std::io::Result<&[u8]> {
        loop {
            let mut ready = self.socket.readable().await?;
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(length) => return Ok(&self.buffer[..length]),
                Err(Errno::EAGAIN) => ready.clear_ready(),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// What an error, an acknowledgement or the end of a list says.
pub fn code(body: &[u8]) -> std::io::Result<()> {
    match body.first_chunk().copied().map(i32::from_ne_bytes) {
        Some(code) if code < 0 => Err(std::io::Error::from_raw_os_error(-code)),
        _ => Ok(()),
    }
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

/// Netfilter's own header: the family, a version that is always 0, and what a batch is for.
pub fn netfilter_header(family: u8, resource: u16) -> [u8; NETFILTER_HEADER] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// Writes one message of netfilter's behind the others.
pub fn put_message(
    text: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    header: [u8; NETFILTER_HEADER],
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
        let read: Vec<Message> = messages(&bytes).collect();
        assert_eq!(read.iter().map(|m| (m.kind, m.sequence)).collect::<Vec<_>>(), [(7, 3), (8, 4)]);
        let held: Vec<_> = attributes(&read[0].body[NETFILTER_HEADER..]).collect();
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
            assert_eq!(messages(&bytes).count(), 0, "{length}");
        }
        for broken in [&[0, 0, 1, 0][..], &[3, 0, 1, 0], &[9, 0, 1, 0, 0, 0, 0, 0], &[4]] {
            assert_eq!(attributes(broken).count(), 0, "{broken:?}");
        }
    }
}
