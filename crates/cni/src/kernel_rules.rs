//! Asks the kernel which rules a table has, without `nft`: a hundredth of the time.
//! Used by `nft` to see whether a table is as it was written.
//! Invariant: only reads.

use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

const FAMILY_INET: u8 = 1;
const GET_RULE: u16 = 10 << 8 | 7;
const NEW_RULE: u16 = 10 << 8 | 6;
/// The ends of an answer: an error, and "that was all".
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
const LIST: u16 = 0x301;
const HEADER: usize = 16;

/// Each rule of an `inet` table in the kernel's own form, comments in it as they are. None if there is no such table.
pub fn list(table: &str) -> nix::Result<Vec<Vec<u8>>> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)?;
    send(socket.as_raw_fd(), &question(table), MsgFlags::empty())?;
    let mut rules = Vec::new();
    let mut buffer = vec![0; 1 << 15];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        if read(&buffer[..length], &mut rules) {
            return Ok(rules);
        }
    }
}

fn question(table: &str) -> Vec<u8> {
    let mut body = vec![FAMILY_INET, 0, 0, 0];
    // Attribute 1 of a rule is its table.
    body.extend(((4 + table.len() + 1) as u16).to_ne_bytes());
    body.extend(1_u16.to_ne_bytes());
    body.extend(table.as_bytes());
    body.push(0);
    body.resize(body.len().next_multiple_of(4), 0);
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(GET_RULE.to_ne_bytes());
    message.extend(LIST.to_ne_bytes());
    // A sequence number and a sender that the kernel only repeats.
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Takes the rules out of a part of the answer; whether it was the last part.
fn read(mut bytes: &[u8], rules: &mut Vec<Vec<u8>>) -> bool {
    while let Some(header) = bytes.get(..HEADER) {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let Some(message) = bytes.get(..length).filter(|_| length >= HEADER) else { return true };
        match u16::from_ne_bytes([header[4], header[5]]) {
            NEW_RULE => rules.push(message[HEADER..].to_vec()),
            DONE | ERROR => return true,
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}
