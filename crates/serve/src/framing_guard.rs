//! Refuses requests whose end two readers could see in two places: those with both a length and a transfer coding.
//! Put between the socket and hyper by `http` where `Limits::strict_framing` says so; hyper by itself drops the length.
//! Invariant: nothing but such a head is changed (test: `only_a_head_with_both_is_spoilt`). It is spoilt on its way, so that
//! hyper answers 400 and closes. Where the guard can't follow any more it steps aside.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Longer lines are nothing that the guard has to understand.
const LINE_BYTES_MAX: usize = 128;

#[derive(Debug, PartialEq, Eq)]
enum State {
    Head,
    Body(u64),
    ChunkSize,
    /// With the line's end behind it.
    Chunk(u64),
    Trailers,
    Aside,
}

/// Follows one connection.
pub struct FramingGuard {
    state: State,
    /// The beginning of the line that is being read.
    line: Vec<u8>,
    is_request_line: bool,
    length: Option<u64>,
    is_chunked: bool,
    upgrades: bool,
}

impl FramingGuard {
    pub fn new() -> Self {
        Self {
            state: State::Head,
            line: Vec::new(),
            is_request_line: true,
            length: None,
            is_chunked: false,
            upgrades: false,
        }
    }

    /// Looks at what has come, and spoils it where it has to.
    pub fn watch(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.state {
                State::Aside => return,
                State::Body(left) | State::Chunk(left) => {
                    let passed = (*left).min((bytes.len() - at) as u64);
                    *left -= passed;
                    at += passed as usize;
                    if *left == 0 {
                        let is_body = matches!(self.state, State::Body(_));
                        self.state = if is_body { State::Head } else { State::ChunkSize };
                    }
                }
                State::Head | State::ChunkSize | State::Trailers => {
                    let rest = &bytes[at..];
                    let end = rest.iter().position(|byte| *byte == b'\n');
                    let part = &rest[..end.unwrap_or(rest.len())];
                    let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
                    self.line.extend_from_slice(&part[..part.len().min(room)]);
                    at += part.len();
                    if end.is_some() {
                        if !self.line_ends() {
                            // No line may have it.
                            bytes[at] = 0;
                            self.state = State::Aside;
                            return;
                        }
                        at += 1;
                    }
                }
            }
        }
    }

    /// False for the line that makes its head one with both.
    fn line_ends(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        match self.state {
            State::Head if line.is_empty() => self.head_ends(),
            State::Head if self.is_request_line => self.is_request_line = false,
            State::Head => return self.header(line),
            State::ChunkSize => {
                let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
                let size = std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
                self.state = match size {
                    Some(0) => State::Trailers,
                    Some(size) => size.checked_add(2).map_or(State::Aside, State::Chunk),
                    None => State::Aside,
                };
            }
            State::Trailers if line.is_empty() => self.state = State::Head,
            State::Trailers | State::Body(_) | State::Chunk(_) | State::Aside => {}
        }
        true
    }

    fn header(&mut self, line: &[u8]) -> bool {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return true };
        let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            // One that can't be read is hyper's to refuse.
            self.length = Some(length.unwrap_or(u64::MAX));
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.upgrades = true;
        }
        !(self.length.is_some() && self.is_chunked)
    }

    fn head_ends(&mut self) {
        // Empty lines in front of a request are no head.
        if self.is_request_line {
            return;
        }
        let length = self.length.take();
        self.state = match (length, self.is_chunked) {
            _ if self.upgrades => State::Aside,
            (_, true) => State::ChunkSize,
            (Some(length @ 1..), false) => State::Body(length),
            _ => State::Head,
        };
        (self.is_request_line, self.is_chunked, self.upgrades) = (true, false, false);
    }
}

/// A stream that may have a guard.
pub struct GuardedStream<S> {
    pub stream: S,
    pub guard: Option<FramingGuard>,
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if let Some(guard) = &mut this.guard {
            guard.watch(&mut buffer.filled_mut()[before..]);
        }
        polled
    }
}

crate::forward_write::forward_write!(impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S>);

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";

    #[test]
    fn only_a_head_with_both_is_spoilt() {
        let reversed = "POST / HTTP/1.1\r\nTRANSFER-ENCODING:chunked\r\nA: b\r\ncontent-length : 4\r\n\r\n";
        let body = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{BOTH}", BOTH.len());
        let chunk = format!(
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x};x=y\r\n{BOTH}\r\n0\r\nT: v\r\n\r\n",
            BOTH.len()
        );
        let second = |first: &str| format!("{first}{BOTH}");
        for (sent, is_spoilt) in [
            (BOTH, true),
            (reversed, true),
            ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", false),
            (&body, false),
            (&chunk, false),
            (&second("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), true),
            (&second("\r\n\r\n"), true),
            (&second(&body), true),
            (&second(&chunk), true),
            ("GET / HTTP/1.1\r\nX-Content-Length: 1\r\nTransfer-Encodings: x\r\n\r\n", false),
            (&second("GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"), false),
        ] {
            // In one piece, byte by byte, and in between.
            for size in [sent.len(), 1, 7] {
                let (mut guard, mut bytes) = (FramingGuard::new(), sent.as_bytes().to_vec());
                for part in bytes.chunks_mut(size) {
                    guard.watch(part);
                }
                assert_eq!(bytes != sent.as_bytes(), is_spoilt, "{sent:?} by {size}");
            }
        }
    }
}
