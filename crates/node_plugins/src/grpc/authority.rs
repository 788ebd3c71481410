//! Takes requests whose `:authority` is the path of the socket, as Go's clients send it (`%2Fvar%2Flib%2F…`): no authority of a
//! URI may be so, and every such request would be refused as malformed. Nobody here asks for the authority, so each becomes
//! `localhost`.
//! Used by `service` for what it reads. Only frames with headers are looked at; what can't be read goes on as it came.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
/// The largest frame that a client may send before it is allowed more, which no server of ours does.
const FRAME_BYTES_MAX: usize = 16_384;
const READ_BYTES: usize = 4096;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The place of `:authority` in the table that both sides know from the beginning.
const AUTHORITY: usize = 1;
const LOCALHOST: &[u8] = b"\x09localhost";

/// What has come in and is not read yet, and how much of it goes on unseen.
struct Rewriter {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    unseen: usize,
}

impl Rewriter {
    fn new() -> Self {
        Self { incoming: Vec::new(), outgoing: Vec::new(), unseen: PREFACE_BYTES }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
        while let Some(count) = self.step() {
            self.incoming.drain(..count);
        }
    }

    /// How many bytes are done with, unless more must come first.
    fn step(&mut self) -> Option<usize> {
        if self.unseen > 0 {
            let count = self.unseen.min(self.incoming.len());
            self.outgoing.extend_from_slice(&self.incoming[..count]);
            self.unseen -= count;
            return (count > 0).then_some(count);
        }
        let header = self.incoming.get(..FRAME_HEADER_BYTES)?;
        let length = usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
        if header[3] != HEADERS || length > FRAME_BYTES_MAX {
            self.unseen = FRAME_HEADER_BYTES + length;
            return Some(0);
        }
        let end = FRAME_HEADER_BYTES + length;
        let frame = self.incoming.get(..end)?;
        match rewritten(frame[4], &frame[FRAME_HEADER_BYTES..]) {
            Some(payload) => {
                let length = (payload.len() as u32).to_be_bytes();
                self.outgoing.extend_from_slice(&length[1..]);
                self.outgoing.extend_from_slice(&frame[3..FRAME_HEADER_BYTES]);
                self.outgoing.extend_from_slice(&payload);
            }
            None => self.outgoing.extend_from_slice(frame),
        }
        Some(end)
    }
}

/// The payload of a frame with headers and another authority. `None` where it has none, or can't be read.
fn rewritten(flags: u8, payload: &[u8]) -> Option<Vec<u8>> {
    let mut at = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    loop {
        let first = *payload.get(at)?;
        // A field by its place in the table, or a change of the table's size: nothing follows.
        let prefix = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let (index, mut next) = integer(payload, at, prefix)?;
        if matches!(first, 0x80..) || (0x20..0x40).contains(&first) {
            at = next;
            continue;
        }
        if index == 0 {
            next = after_text(payload, next)?;
        }
        let end = after_text(payload, next)?;
        if index == AUTHORITY {
            return Some([&payload[..next], LOCALHOST, &payload[end..]].concat());
        }
        at = end;
    }
}

/// A number whose first bits share a byte with something else, and where it ends.
fn integer(bytes: &[u8], at: usize, prefix: u32) -> Option<(usize, usize)> {
    let most = (1usize << prefix) - 1;
    let mut value = usize::from(*bytes.get(at)?) & most;
    let mut next = at + 1;
    if value < most {
        return Some((value, next));
    }
    for shift in [0, 7, 14] {
        let byte = *bytes.get(next)?;
        next += 1;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, next));
        }
    }
    None
}

fn after_text(bytes: &[u8], at: usize) -> Option<usize> {
    let (length, start) = integer(bytes, at, 7)?;
    let end = start + length;
    (end <= bytes.len()).then_some(end)
}

pub struct AnyAuthority<S> {
    stream: S,
    rewriter: Rewriter,
}

impl<S> AnyAuthority<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, rewriter: Rewriter::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnyAuthority<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.rewriter.outgoing.is_empty() {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            std::task::ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.rewriter.take(read.filled());
        }
        let count = into.remaining().min(self.rewriter.outgoing.len());
        into.put_slice(&self.rewriter.outgoing[..count]);
        self.rewriter.outgoing.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnyAuthority<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// However the bytes are cut.
    fn check(frames: &[Vec<u8>], expected: &[Vec<u8>]) {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let (sent, expected) = ([preface.clone()].iter().chain(frames).flatten().copied().collect::<Vec<_>>(), {
            [preface].iter().chain(expected).flatten().copied().collect::<Vec<_>>()
        });
        for cut in 1..=sent.len() {
            let mut rewriter = Rewriter::new();
            sent.chunks(cut).for_each(|part| rewriter.take(part));
            assert_eq!(rewriter.outgoing, expected, "in parts of {cut}");
        }
    }

    #[test]
    fn the_path_of_a_socket_is_no_authority() {
        let path = b"%2Fvar%2Flib%2Fkubelet.sock";
        let text = |text: &[u8]| [&[text.len() as u8], text].concat();
        // POST, http, a literal path, the authority, a field with a name of its own.
        let headers = |authority: &[u8]| {
            [
                &[0x83, 0x86, 0x44][..],
                &text(b"/v1beta1.Registration/Register"),
                authority,
                &[0x40],
                &text(b"te"),
                &text(b"x"),
            ]
            .concat()
        };
        let sent = headers(&[&[0x41][..], &text(path)].concat());
        let local = headers(&[&[0x41][..], &text(b"localhost")].concat());
        let padded = |headers: &[u8]| [&[2, 0, 0, 0, 0, 9][..], headers, &[0, 0]].concat();
        let data = frame(0, 0, &[0x41; 300]);
        let settings = frame(4, 0, &[]);
        check(
            &[
                settings.clone(),
                frame(HEADERS, 4, &sent),
                data.clone(),
                frame(HEADERS, 4 | PADDED | PRIORITY, &padded(&sent)),
            ],
            &[settings, frame(HEADERS, 4, &local), data, frame(HEADERS, 4 | PADDED | PRIORITY, &padded(&local))],
        );
        // By its place in the table; torn.
        for payload in [&[0x83, 0x86, 0xbe][..], &[0x41, 0x7f], &[0x41, 0xff, 0xff, 0xff, 0xff, 0xff], &[]] {
            check(&[frame(HEADERS, 4, payload)], &[frame(HEADERS, 4, payload)]);
        }
    }
}
