//! Several parts of a file in one answer (`multipart/byteranges`).
//! Used by `pages`, which knows which parts.
//! Nothing is read before it is sent, and no part twice at once.

use std::{collections::VecDeque, io::SeekFrom, ops::Range};

use bytes::Bytes;
use env::Env;
use futures::{StreamExt, TryStreamExt, stream};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};

use super::{Body, BoxError};

const CHUNK_BYTES: u64 = 64 << 10;

/// What goes over the wire, in its order.
enum Piece {
    Text(Bytes),
    Part(Range<u64>),
}

pub fn content_range(part: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", part.start, part.end.saturating_sub(1))
}

pub fn response(env: &Env, file: File, parts: Vec<Range<u64>>, content_type: &str, length: u64) -> Response<Body> {
    // In no file, as nobody can know it before.
    let boundary = format!("{:016x}{:016x}", env.random_u64(), env.random_u64());
    let mut pieces = VecDeque::new();
    for (number, part) in parts.into_iter().enumerate() {
        let before = if number == 0 { "" } else { "\r\n" };
        let range = content_range(&part, length);
        let head = format!("{before}--{boundary}\r\nContent-Range: {range}\r\nContent-Type: {content_type}\r\n\r\n");
        pieces.extend([Piece::Text(head.into()), Piece::Part(part)]);
    }
    pieces.push_back(Piece::Text(format!("\r\n--{boundary}--\r\n").into()));
    let bytes = pieces.iter().map(|piece| match piece {
        Piece::Text(text) => text.len() as u64,
        Piece::Part(part) => part.end - part.start,
    });
    let size: u64 = bytes.sum();
    let frames = stream::try_unfold((file, pieces), next).map_ok(Frame::data).map_err(BoxError::from);
    let mut response = Response::new(StreamBody::new(frames.boxed()).boxed_unsync());
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let headers = response.headers_mut();
    let kind = HeaderValue::from_str(&format!("multipart/byteranges; boundary={boundary}"));
    headers.extend(kind.ok().map(|kind| (header::CONTENT_TYPE, kind)));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, size.into());
    response
}

type Rest = (File, VecDeque<Piece>);

async fn next((mut file, mut pieces): Rest) -> std::io::Result<Option<(Bytes, Rest)>> {
    let bytes = match pieces.pop_front() {
        None => return Ok(None),
        Some(Piece::Text(text)) => text,
        Some(Piece::Part(part)) => {
            let end = part.end.min(part.start + CHUNK_BYTES);
            file.seek(SeekFrom::Start(part.start)).await?;
            let mut chunk = vec![0; (end - part.start) as usize];
            file.read_exact(&mut chunk).await?;
            if end < part.end {
                pieces.push_front(Piece::Part(end..part.end));
            }
            chunk.into()
        }
    };
    Ok(Some((bytes, (file, pieces))))
}
