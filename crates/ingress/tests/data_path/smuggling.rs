//! Requests that two readers could understand in two ways, in both versions of HTTP, headers that break out, heads without
//! end, and clients that take for ever.

use std::time::Duration;

use ingress::{ProxyConfig, RouteSettings};
use serve::Limits;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{Front, OK, Scripted, TEST_TIMEOUT, backend};

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";

#[tokio::test]
async fn what_can_be_read_in_two_ways_is_refused_or_ends_its_connection() {
    let server = Scripted::start(OK).await;
    let front = Front::to(backend(&[server.address]), RouteSettings::default()).await;
    let check = async |name: &str, head: &str, body: &str, statuses: &[&str]| {
        let request = format!("POST / HTTP/1.1\r\n{head}\r\n{body}{SMUGGLED}");
        let answer = front.raw(request.as_bytes()).await;
        let status = answer.get(9..12).unwrap_or_default();
        assert!(statuses.contains(&status), "{name}: {answer:?}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{name}: {answer:?}");
        assert!(!server.seen().contains("smuggled"), "{name}: {}", server.seen());
    };
    let both = "Host: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n";
    check("CL.TE", both, "0\r\n\r\n", &["400"]).await;
    let reversed = "Host: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 90\r\n";
    check("TE.CL", reversed, "0\r\n\r\n", &["400"]).await;
    assert_eq!(server.seen(), "");

    for (name, head) in [
        ("two lengths", "Host: h\r\nContent-Length: 4\r\nContent-Length: 5\r\n"),
        ("a list of lengths", "Host: h\r\nContent-Length: 4, 5\r\n"),
        ("a signed length", "Host: h\r\nContent-Length: +4\r\n"),
        ("a hexadecimal length", "Host: h\r\nContent-Length: 0x4\r\n"),
        ("another coding", "Host: h\r\nTransfer-Encoding: xchunked\r\n"),
        ("chunked not last", "Host: h\r\nTransfer-Encoding: chunked, identity\r\n"),
        ("chunked and more", "Host: h\r\nTransfer-Encoding: gzip, chunked\r\n"),
        ("chunked twice", "Host: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        ("a hidden coding", "Host: h\r\nTransfer-Encoding: \x0bchunked\r\n"),
        ("a space before the colon", "Host: h\r\nTransfer-Encoding : chunked\r\n"),
        ("a folded line", "Host: h\r\nX-A: b\r\n Transfer-Encoding: chunked\r\n"),
        ("a NUL", "Host: h\r\nX-A: b\0c\r\n"),
        ("a lone CR", "Host: h\r\nX-A: b\rX-B: c\r\n"),
        ("two hosts", "Host: h\r\nHost: i\r\n"),
        ("no host", "X-A: b\r\n"),
        ("a host with a path", "Host: h/i\r\n"),
    ] {
        check(name, head, "0\r\n\r\n", &["400"]).await;
    }
    for (name, body) in [
        ("no number", "zz\r\nabc\r\n0\r\n\r\n"),
        ("a signed number", "+3\r\nabc\r\n0\r\n\r\n"),
        ("too short", "2\r\nabc\r\n0\r\n\r\n"),
        ("too large a number", "fffffffffffffffff\r\nabc\r\n0\r\n\r\n"),
        ("a lone LF", "3\nabc\r\n0\r\n\r\n"),
    ] {
        check(name, "Host: h\r\nTransfer-Encoding: chunked\r\n", body, &["400", "200"]).await;
    }
}

#[tokio::test]
async fn heads_without_end_are_refused() {
    let server = Scripted::start(OK).await;
    let front = Front::to(backend(&[server.address]), RouteSettings::default()).await;
    let large = format!("GET / HTTP/1.1\r\nHost: h\r\nX-A: {}\r\n\r\n", "a".repeat(256 << 10));
    let answer = front.raw(large.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let many = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X-A: b\r\n".repeat(200));
    let answer = front.raw(many.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(server.seen(), "");
}

/// Frames of HTTP/2 by hand: what no client library would send.
mod http2_frames {
    pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;

    pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// Literal fields without an index, so that nothing is changed on the way.
    pub fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
    }
}

#[tokio::test]
async fn what_http2_can_say_and_http1_must_not_hear_goes_nowhere() {
    use http2_frames::{END_HEADERS, END_STREAM, PREFACE, fields, frame};

    let server = Scripted::start(OK).await;
    let front = Front::to(backend(&[server.address]), RouteSettings::default()).await;
    // What comes back first about the request: an answer, a reset, or the end.
    let ask = async |extra: &[(&str, &str)], body: &str| {
        let mut all = vec![(":method", "POST"), (":scheme", "http"), (":authority", "h"), (":path", "/")];
        for (name, value) in extra.iter().filter(|(name, _)| name.starts_with(':')) {
            all.retain(|(held, _)| held != name);
            all.push((name, value));
        }
        all.extend(extra.iter().filter(|(name, _)| !name.starts_with(':')));
        let mut stream = TcpStream::connect(front.address).await.unwrap();
        let request = [
            PREFACE,
            &frame(4, 0, 0, &[]),
            &frame(1, END_HEADERS, 1, &fields(&all)),
            &frame(0, END_STREAM, 1, body.as_bytes()),
        ];
        _ = stream.write_all(&request.concat()).await;
        let read = async {
            loop {
                let mut head = [0; 9];
                if stream.read_exact(&mut head).await.is_err() {
                    return "closed";
                }
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                let mut payload = vec![0; length];
                if stream.read_exact(&mut payload).await.is_err() {
                    return "closed";
                }
                match (head[3], payload.first()) {
                    // The index of `:status: 200` in the static table.
                    (1, Some(0x88)) => return "200",
                    (1, _) => return "another status",
                    (3, _) => return "reset",
                    (7, _) => return "goaway",
                    _ => {}
                }
            }
        };
        env::timeout(TEST_TIMEOUT, read).await.expect("an answer")
    };
    assert_eq!(ask(&[("content-length", "2")], "ok").await, "200");
    assert!(server.seen().contains("POST / HTTP/1.1"), "{}", server.seen());
    let injected = format!("x\r\n\r\n{SMUGGLED}");
    let line = "/ HTTP/1.1\r\nHost: h\r\n\r\nGET /smuggled";
    for (name, extra, body) in [
        ("a coding", &[("transfer-encoding", "chunked")][..], format!("0\r\n\r\n{SMUGGLED}")),
        ("a length that is too small", &[("content-length", "0")], SMUGGLED.to_string()),
        ("a length that is too large", &[("content-length", "400")], SMUGGLED.to_string()),
        ("two lengths", &[("content-length", "0"), ("content-length", "36")], SMUGGLED.to_string()),
        ("a line break in a value", &[("x-a", injected.as_str())], String::new()),
        ("a line break in a name", &[("x-a: b\r\nx-c", "d")], String::new()),
        ("a line break in the path", &[(":path", line)], String::new()),
        ("a space in the path", &[(":path", "/smuggled HTTP/1.1")], String::new()),
        ("a line break in the host", &[(":authority", "h\r\nX-A: smuggled")], String::new()),
        ("a method of two words", &[(":method", "GET /smuggled HTTP/1.1")], String::new()),
        ("connection fields", &[("connection", "upgrade"), ("upgrade", "h2c")], SMUGGLED.to_string()),
        ("an upper case name", &[("X-A", "b")], String::new()),
    ] {
        let answer = ask(extra, &body).await;
        assert_ne!(answer, "200", "{name}");
        let seen = server.seen();
        // What is a body stays one.
        assert_eq!(
            seen.matches(" HTTP/1.1\r\n").count(),
            seen.matches("POST / HTTP/1.1\r\n").count(),
            "{name}: {seen}"
        );
        assert!(!seen.contains("X-A: smuggled") && !seen.contains("/smuggled"), "{name}: {seen}");
    }
}

#[tokio::test]
async fn slow_clients_are_cut_off_and_hold_nobody_up() {
    const SLOW: usize = 60;
    let server = Scripted::start(OK).await;
    let limits =
        Limits { header_timeout: Duration::from_millis(500), connections_per_peer: SLOW + 20, ..Limits::INGRESS };
    let config = ProxyConfig { request_silence_max: Duration::from_millis(500), ..ProxyConfig::default() };
    let front = Front::start(config, limits).await;
    front.set(&[("", "/", Some(backend(&[server.address])))], RouteSettings::default());
    let mut slow = Vec::new();
    for number in 0..SLOW {
        let address = front.address;
        slow.push(env::spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let begun = ["GET / HTTP/1.1\r\nHost: h\r\n", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n"];
            _ = stream.write_all(begun[number % 2].as_bytes()).await;
            // A head that grows for ever is cut off all the same; a body that says nothing more is, too.
            let (mut reader, mut writer) = stream.into_split();
            let dribble = async {
                while number % 2 == 0 && writer.write_all(b"X-A: b\r\n").await.is_ok() {
                    env::sleep(Duration::from_millis(50)).await;
                }
                std::future::pending::<()>().await;
            };
            let ended = async {
                let mut answer = Vec::new();
                _ = reader.read_to_end(&mut answer).await;
                String::from_utf8_lossy(&answer).into_owned()
            };
            tokio::select! {
                answer = ended => answer,
                () = dribble => unreachable!("it waits for ever"),
            }
        }));
    }
    assert!(front.get("h", "/").await.starts_with("HTTP/1.1 200 "), "others are served");
    for (number, one) in slow.into_iter().enumerate() {
        let answer = env::timeout(TEST_TIMEOUT, one).await.expect("the connection is closed").unwrap();
        // This backend does not wait for a body.
        assert!(number % 2 == 1 || !answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert!(front.get("h", "/").await.starts_with("HTTP/1.1 200 "));
}
