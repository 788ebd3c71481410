//! Notices when somebody else deletes from our tables, by the kernel's own notifications.
//! Read by `run`, which then writes the table anew.
//! Invariant: only listens.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket, sockopt,
    },
};
use tokio::io::unix::AsyncFd;

use crate::nft::Nft;

const NFTABLES_GROUP: u32 = 7;
const NFTABLES_SUBSYSTEM: u16 = 10;
/// Deleted tables, chains, rules, sets and elements. Flushing is deleting.
const DELETIONS: [u16; 5] = [2, 5, 8, 11, 14];

pub struct Monitor {
    socket: AsyncFd<OwnedFd>,
    tables: Vec<String>,
    nft: Nft,
    buffer: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// Somebody else deleted something of ours.
    Deletion,
    /// More happened than the socket could hold: look for yourself.
    Overrun,
}

impl Monitor {
    pub fn open(table: &str, nft: Nft) -> std::io::Result<Self> {
        Self::listen(vec![table.to_owned()], nft)
    }

    /// For tables that others write: every deletion is worth a look.
    pub fn open_all(tables: &[String]) -> std::io::Result<Self> {
        Self::listen(tables.to_vec(), Nft::default())
    }

    fn listen(tables: Vec<String>, nft: Nft) -> std::io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkNetFilter,
        )?;
        // Our own first transaction reports each of its elements here.
        let _ = setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20));
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 1 << (NFTABLES_GROUP - 1)))?;
        // Deprecated because a type may lie about its descriptor; an OwnedFd does not, and this way needs no unsafe.
        #[allow(deprecated)]
        let socket = AsyncFd::new(socket)?;
        Ok(Self { socket, tables, nft, buffer: vec![0; 1 << 16] })
    }

    /// Waits for the next thing worth a look.
    pub async fn next(&mut self) -> std::io::Result<Sighting> {
        loop {
            let mut ready = self.socket.readable().await?;
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(length) => {
                    let foreign = deletions(&self.buffer[..length], &self.tables).any(|id| !self.nft.is_ours(id));
                    if foreign {
                        return Ok(Sighting::Deletion);
                    }
                }
                Err(Errno::EAGAIN) => ready.clear_ready(),
                Err(Errno::ENOBUFS) => return Ok(Sighting::Overrun),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Forgets what is waiting: it happened before a full write of the table.
    pub fn drain(&mut self) {
        while let Ok(1..) | Err(Errno::ENOBUFS | Errno::EINTR) =
            recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty())
        {}
    }
}

/// The senders (port ids, which for `nft` are process ids) of deletions in `tables`.
fn deletions<'a>(mut bytes: &'a [u8], tables: &'a [String]) -> impl Iterator<Item = u32> + 'a {
    std::iter::from_fn(move || {
        while bytes.len() >= 16 {
            let length = u32::from_ne_bytes(bytes[..4].try_into().ok()?) as usize;
            if length < 16 || length > bytes.len() {
                return None;
            }
            let message = &bytes[..length];
            bytes = &bytes[((length + 3) & !3).min(bytes.len())..];
            let kind = u16::from_ne_bytes([message[4], message[5]]);
            let sender = u32::from_ne_bytes(message[12..16].try_into().ok()?);
            let deletion = kind >> 8 == NFTABLES_SUBSYSTEM && DELETIONS.contains(&(kind & 0xff));
            let ours = |table: &[u8]| tables.iter().any(|own| own.as_bytes() == table);
            if deletion && table_of(message).is_some_and(ours) {
                return Some(sender);
            }
        }
        None
    })
}

/// Attribute 1 is the table's name in all of these messages; it follows the two headers.
fn table_of(message: &[u8]) -> Option<&[u8]> {
    let mut attributes = message.get(20..)?;
    while attributes.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([attributes[0], attributes[1]]));
        let kind = u16::from_ne_bytes([attributes[2], attributes[3]]) & 0x3fff;
        let value = attributes.get(4..length)?;
        if kind == 1 {
            return Some(value.strip_suffix(&[0]).unwrap_or(value));
        }
        attributes = attributes.get((length + 3) & !3..)?;
    }
    None
}
