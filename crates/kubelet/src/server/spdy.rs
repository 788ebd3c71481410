//! The client side of SPDY/3.1, as far as container runtimes speak it: streams with headers, data, half-close.
//! Used by `websocket` to reach a runtime's streaming server on behalf of WebSocket clients.
//! Frames beyond the limits end the connection; nothing is buffered without bound.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, FlushCompress};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const VERSION: u16 = 0x8003;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const FLAG_FIN: u8 = 1;
/// A frame's length is 24 bits; runtimes send at most 32 KiB of data in one.
const FRAME_BYTES_MAX: usize = 1 << 20;
const DATA_BYTES_MAX: usize = 32 << 10;

pub type StreamId = u32;

#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    Data {
        stream: StreamId,
        bytes: Bytes,
        fin: bool,
    },
    Reply {
        stream: StreamId,
        fin: bool,
    },
    Reset {
        stream: StreamId,
    },
    Ping {
        id: u32,
    },
    GoAway,
    /// Something that asks nothing of us.
    Other,
}

/// The words that both sides' compressors start from, as the protocol's specification lists them.
pub fn dictionary() -> Vec<u8> {
    const NAMES: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language \
        accept-ranges age allow authorization cache-control connection content-base content-encoding content-language \
        content-length content-location content-md5 content-range content-type date etag expect expires from host \
        if-match if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma \
        proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade \
        user-agent vary via warning www-authenticate method get status";
    const MORE: [&str; 8] = ["200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin"];
    const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
        203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized\
        403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
        Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
        chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,\
        text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
    let mut bytes = Vec::new();
    for name in NAMES.split_whitespace().chain(MORE) {
        bytes.put_u32(name.len() as u32);
        bytes.put_slice(name.as_bytes());
    }
    bytes.put_slice(TAIL.as_bytes());
    bytes
}

/// Writes frames. The compressor's state spans the whole connection.
pub struct Writer<W> {
    output: W,
    compressor: Compress,
    next: StreamId,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub fn new(output: W) -> io::Result<Self> {
        let mut compressor = Compress::new(Compression::default(), true);
        compressor.set_dictionary(&dictionary()).map_err(io::Error::other)?;
        Ok(Self { output, compressor, next: 1 })
    }

    /// Opens a stream with these headers and returns its id.
    pub async fn open(&mut self, headers: &[(&str, &str)]) -> io::Result<StreamId> {
        let id = self.next;
        self.next += 2;
        let block = self.compress(headers)?;
        let mut frame = control(SYN_STREAM, 0, 10 + block.len());
        frame.put_u32(id);
        frame.put_u32(0);
        frame.put_u16(0);
        frame.put_slice(&block);
        self.output.write_all(&frame).await?;
        Ok(id)
    }

    pub async fn data(&mut self, stream: StreamId, bytes: &[u8], fin: bool) -> io::Result<()> {
        let mut chunks = bytes.chunks(DATA_BYTES_MAX).peekable();
        if chunks.peek().is_none() {
            return self.frame(stream, &[], fin).await;
        }
        while let Some(chunk) = chunks.next() {
            self.frame(stream, chunk, fin && chunks.peek().is_none()).await?;
        }
        Ok(())
    }

    async fn frame(&mut self, stream: StreamId, bytes: &[u8], fin: bool) -> io::Result<()> {
        let mut frame = BytesMut::with_capacity(8 + bytes.len());
        frame.put_u32(stream);
        frame.put_u32((u32::from(if fin { FLAG_FIN } else { 0 }) << 24) | bytes.len() as u32);
        frame.put_slice(bytes);
        self.output.write_all(&frame).await
    }

    pub async fn pong(&mut self, id: u32) -> io::Result<()> {
        let mut frame = control(PING, 0, 4);
        frame.put_u32(id);
        self.output.write_all(&frame).await
    }

    pub async fn close(&mut self) -> io::Result<()> {
        let mut frame = control(GOAWAY, 0, 8);
        frame.put_u64(0);
        self.output.write_all(&frame).await?;
        self.output.shutdown().await
    }

    fn compress(&mut self, headers: &[(&str, &str)]) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        plain.put_u32(headers.len() as u32);
        for (name, value) in headers {
            plain.put_u32(name.len() as u32);
            plain.put_slice(name.to_lowercase().as_bytes());
            plain.put_u32(value.len() as u32);
            plain.put_slice(value.as_bytes());
        }
        let mut block = Vec::with_capacity(plain.len() * 2 + 64);
        self.compressor.compress_vec(&plain, &mut block, FlushCompress::Sync).map_err(io::Error::other)?;
        Ok(block)
    }
}

fn control(kind: u16, flags: u8, length: usize) -> BytesMut {
    let mut frame = BytesMut::with_capacity(8 + length);
    frame.put_u16(VERSION);
    frame.put_u16(kind);
    frame.put_u32((u32::from(flags) << 24) | length as u32);
    frame
}

/// Reads frames. Headers of replies are decompressed and dropped: nobody here asks for them.
pub struct Reader<R> {
    input: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// `buffered` is what was read beyond the upgrade's answer.
    pub fn new(input: R, buffered: BytesMut) -> Self {
        Self { input, buffer: buffered }
    }

    /// `None` at the end of the connection. Safe to cancel: a partial frame stays in the buffer.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.parse()? {
                return Ok(Some(frame));
            }
            if self.input.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn parse(&mut self) -> io::Result<Option<Frame>> {
        if self.buffer.len() < 8 {
            return Ok(None);
        }
        let mut head = &self.buffer[..8];
        let (first, second) = (head.get_u32(), head.get_u32());
        let (flags, length) = ((second >> 24) as u8, (second & 0xff_ffff) as usize);
        if length > FRAME_BYTES_MAX {
            return Err(io::Error::other(format!("a SPDY frame of {length} bytes is too large")));
        }
        if self.buffer.len() < 8 + length {
            return Ok(None);
        }
        self.buffer.advance(8);
        let mut payload = self.buffer.split_to(length).freeze();
        let fin = flags & FLAG_FIN != 0;
        if first & 0x8000_0000 == 0 {
            return Ok(Some(Frame::Data { stream: first, bytes: payload, fin }));
        }
        let number = |payload: &mut Bytes| if payload.len() >= 4 { payload.get_u32() } else { 0 };
        Ok(Some(match (first & 0xffff) as u16 {
            SYN_REPLY | HEADERS => Frame::Reply { stream: number(&mut payload), fin },
            RST_STREAM => Frame::Reset { stream: number(&mut payload) },
            PING => Frame::Ping { id: number(&mut payload) },
            GOAWAY => Frame::GoAway,
            _ => Frame::Other,
        }))
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Decompress, FlushDecompress, Status};

    use super::*;

    /// Decompresses a header block, as a server would.
    fn decompress(decompressor: &mut Decompress, block: &[u8]) -> io::Result<Vec<(String, String)>> {
        let mut plain = Vec::with_capacity(4096);
        let before = decompressor.total_in();
        let mut rest = block;
        loop {
            match decompressor.decompress_vec(rest, &mut plain, FlushDecompress::Sync) {
                Ok(Status::Ok | Status::StreamEnd | Status::BufError) => break,
                Err(error) if error.needs_dictionary().is_some() => {
                    decompressor.set_dictionary(&dictionary()).map_err(io::Error::other)?;
                    rest = &block[(decompressor.total_in() - before) as usize..];
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        let mut plain = Bytes::from(plain);
        let text = |plain: &mut Bytes| -> io::Result<String> {
            let broken = || io::Error::other("a SPDY header block is broken");
            let length = if plain.len() >= 4 { plain.get_u32() as usize } else { return Err(broken()) };
            if plain.len() < length {
                return Err(broken());
            }
            Ok(String::from_utf8_lossy(&plain.split_to(length)).into_owned())
        };
        let count = if plain.len() >= 4 { plain.get_u32() } else { 0 };
        (0..count).map(|_| Ok((text(&mut plain)?, text(&mut plain)?))).collect()
    }

    #[test]
    fn the_dictionary_is_the_specifications() {
        // The checksum that every SPDY/3 zlib stream carries for it.
        let mut checksum = (1u32, 0u32);
        for byte in dictionary() {
            checksum.0 = (checksum.0 + u32::from(byte)) % 65521;
            checksum.1 = (checksum.1 + checksum.0) % 65521;
        }
        assert_eq!(dictionary().len(), 1423);
        assert_eq!((checksum.1 << 16) | checksum.0, 0xe3c6_a7c2);
    }

    #[tokio::test]
    async fn streams_open_and_data_comes_back() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let mut writer = Writer::new(client).unwrap();
        let first = writer.open(&[("streamType", "error")]).await.unwrap();
        let second = writer.open(&[("streamType", "stdin")]).await.unwrap();
        assert_eq!((first, second), (1, 3));
        writer.data(second, b"hello", true).await.unwrap();
        drop(writer);
        let mut bytes = Vec::new();
        let mut server = server;
        server.read_to_end(&mut bytes).await.unwrap();
        // Both header blocks come out of one decompressor, as on a real connection.
        let mut decompressor = Decompress::new(true);
        let mut at = 0;
        for (id, kind) in [(1, "error"), (3, "stdin")] {
            let length = u32::from_be_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize & 0xff_ffff;
            assert_eq!(u32::from_be_bytes(bytes[at + 8..at + 12].try_into().unwrap()), id);
            let headers = decompress(&mut decompressor, &bytes[at + 18..at + 8 + length]).unwrap();
            assert_eq!(headers, [("streamtype".to_string(), kind.to_string())]);
            at += 8 + length;
        }
        let mut reader = Reader::new(&bytes[at..], BytesMut::new());
        let data = Frame::Data { stream: 3, bytes: Bytes::from_static(b"hello"), fin: true };
        assert_eq!(reader.next().await.unwrap(), Some(data));
        assert_eq!(reader.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_huge_frame_is_refused() {
        let bytes = [0, 0, 0, 1, 0, 0xff, 0xff, 0xff];
        assert!(Reader::new(&bytes[..], BytesMut::new()).next().await.is_err());
    }
}
