//! Requests that two readers could understand in two ways, headers that break out, and heads without end.

use ingress::RouteSettings;

use crate::{Front, OK, Scripted, backend};

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
