//! Notices when somebody else deletes from our tables, by the kernel's own notifications.
//! Read by whoever wrote the tables and writes them anew.
//! It only listens.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv, setsockopt, sockopt},
};
use tokio::io::unix::AsyncFd;

use crate::{
    message::{NETFILTER_HEADER_BYTES, attributes, messages},
    nft_command::Nft,
    nftables::{NFNLGRP_NFTABLES, NFTA_TABLE, is_deletion},
    socket::open,
};

/// A large change reports each of its elements here.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

pub struct NftMonitor {
    socket: Option<AsyncFd<OwnedFd>>,
    tables: Vec<String>,
    nft: Nft,
    buffer: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NftEvent {
    /// Somebody else deleted something of ours.
    Deletion,
    /// More happened than the socket could hold: look for yourself.
    Overrun,
}

impl NftMonitor {
    pub fn open(table: &str, nft: Nft) -> std::io::Result<Self> {
        Self::listen(vec![table.to_owned()], nft)
    }

    /// For tables that others write: every deletion is worth a look.
    pub fn open_all(tables: &[String]) -> std::io::Result<Self> {
        Self::listen(tables.to_vec(), Nft::default())
    }

    fn listen(tables: Vec<String>, nft: Nft) -> std::io::Result<Self> {
        Ok(Self { socket: Some(socket()?), tables, nft, buffer: vec![0; 1 << 16] })
    }

    /// Does not listen during `work`: while anybody does, the kernel keeps a notification of each element until the
    /// transaction is over, and that costs more than to write them.
    pub async fn suspended_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        self.socket = None;
        let done = work.await;
        // If that fails, whoever waits for the next thing is told.
        self.socket = socket().ok();
        done
    }

    /// Waits for the next thing worth a look.
    pub async fn next(&mut self) -> std::io::Result<NftEvent> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(socket()?),
        };
        loop {
            let mut ready = socket.readable().await?;
            match recv(socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(length) => {
                    let foreign = deletions(&self.buffer[..length], &self.tables).any(|id| !self.nft.is_ours(id));
                    if foreign {
                        return Ok(NftEvent::Deletion);
                    }
                }
                Err(Errno::EAGAIN) => ready.clear_ready(),
                Err(Errno::ENOBUFS) => return Ok(NftEvent::Overrun),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Forgets what is waiting: it happened before the look that follows.
    pub fn drain(&mut self) {
        let Some(socket) = &self.socket else { return };
        while let Ok(1..) | Err(Errno::ENOBUFS | Errno::EINTR) =
            recv(socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty())
        {}
    }
}

fn socket() -> std::io::Result<AsyncFd<OwnedFd>> {
    let socket = open(1 << (NFNLGRP_NFTABLES - 1))?;
    let _ = setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES);
    Ok(socket)
}

/// The senders of deletions in `tables`.
fn deletions<'a>(bytes: &'a [u8], tables: &'a [String]) -> impl Iterator<Item = u32> + 'a {
    let deletions = messages(bytes).filter(|message| is_deletion(message.kind));
    let ours = |table: &[u8]| tables.iter().any(|own| own.as_bytes() == table);
    deletions.filter(move |message| table_of(message.body).is_some_and(ours)).map(|message| message.sender)
}

fn table_of(body: &[u8]) -> Option<&[u8]> {
    let name = attributes(body.get(NETFILTER_HEADER_BYTES..)?).find(|(kind, _)| *kind == NFTA_TABLE)?.1;
    Some(name.strip_suffix(&[0]).unwrap_or(name))
}
