//! Sockets to the kernel's netfilter: one that waits with the async runtime, and one request that blocks its thread.
//! Used by `cni` and `proxy`; what goes over them is `message`'s.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, recv, send, socket,
    },
};
use tokio::io::unix::AsyncFd;

use crate::message::{
    NETFILTER_HEADER_BYTES, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, acknowledged, messages, netfilter_header,
    put_message,
};

/// The kernel's dumps come in datagrams of at most half of this.
const DATAGRAM_BYTES_MAX: usize = 1 << 16;

/// In the network namespace of the calling thread. `groups` is the bit mask of the notifications it gets.
pub fn open(groups: u32) -> std::io::Result<AsyncFd<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    // Deprecated because a type may lie about its descriptor; an OwnedFd does not, and this way needs no unsafe.
    #[allow(deprecated)]
    let socket = AsyncFd::new(socket)?;
    Ok(socket)
}

/// Requests to the kernel and its answers, without blocking.
pub struct NetfilterSocket {
    socket: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
    sequence: u32,
}

impl NetfilterSocket {
    /// In the network namespace of the calling thread.
    pub fn open() -> std::io::Result<Self> {
        Ok(Self { socket: open(0)?, buffer: vec![0; DATAGRAM_BYTES_MAX], sequence: 0 })
    }

    /// The port id that notifications of this socket's changes carry.
    pub fn port_id(&self) -> std::io::Result<u32> {
        Ok(getsockname::<NetlinkAddr>(self.socket.as_raw_fd())?.pid())
    }

    /// The sequence number of the next message; answers to it carry the same.
    pub fn next_sequence(&mut self) -> u32 {
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

/// Sends one message and hands the attributes of each answer to `each`; blocks until the kernel has said all. `flags`
/// has to ask for a dump or for an acknowledgement, or there is no end to wait for.
pub fn request(
    kind: u16,
    flags: u16,
    family: u8,
    attributes: &[(u16, &[u8])],
    mut each: impl FnMut(&[u8]),
) -> std::io::Result<()> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)?;
    let mut text = Vec::new();
    put_message(&mut text, kind, NLM_F_REQUEST | flags, 0, netfilter_header(family, 0), attributes);
    send(socket.as_raw_fd(), &text, MsgFlags::empty())?;
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        if let Some(end) = read(&buffer[..length], &mut each) {
            return end;
        }
    }
}

/// The outcome if this was the last part of the answer. What can't be read is an outcome too: nothing would follow it.
fn read(datagram: &[u8], each: &mut impl FnMut(&[u8])) -> Option<std::io::Result<()>> {
    let mut answers = messages(datagram);
    for answer in answers.by_ref() {
        match answer.kind {
            NLMSG_DONE | NLMSG_ERROR => return Some(acknowledged(answer.body)),
            _ => each(answer.body.get(NETFILTER_HEADER_BYTES..).unwrap_or_default()),
        }
    }
    (!answers.unread().is_empty()).then(|| Err(Errno::EBADMSG.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::attributes;

    #[test]
    fn an_answer_is_read_and_a_broken_one_ends_the_request() {
        let mut bytes = Vec::new();
        put_message(&mut bytes, 7, 0, 0, netfilter_header(2, 0), &[(0x8001, b"abcde"), (2, b"")]);
        let mut found = Vec::new();
        assert!(read(&bytes, &mut |body| found.extend(attributes(body).map(|(k, v)| (k, v.to_vec())))).is_none());
        assert_eq!(found, [(1, b"abcde".to_vec()), (2, vec![])]);
        for length in [0, 3, 15, 200] {
            bytes[0] = length;
            let end = read(&bytes, &mut |_| panic!("{length}")).unwrap();
            assert_eq!(end.unwrap_err().raw_os_error(), Some(Errno::EBADMSG as i32));
        }
    }
}
