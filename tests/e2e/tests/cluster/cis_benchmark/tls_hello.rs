//! Which versions and ciphers of TLS a server goes on with, by the first message of a handshake.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use super::facts::that;

pub const TLS_1_1: [u8; 2] = [3, 2];
pub const TLS_1_2: [u8; 2] = [3, 3];
/// ECDHE with AES-GCM and ChaCha20, for both kinds of keys.
pub const STRONG: &[u16] = &[0xc02b, 0xc02c, 0xcca9, 0xc02f, 0xc030, 0xcca8];
/// RSA key exchange, CBC, 3DES, RC4, NULL.
pub const WEAK: &[u16] =
    &[0x002f, 0x0035, 0x003c, 0x009c, 0xc009, 0xc00a, 0xc013, 0xc014, 0x000a, 0xc008, 0x0005, 0x0002];

pub fn tls(address: SocketAddr) -> Result<(), String> {
    that(hello(address, TLS_1_2, STRONG)?, "TLS 1.2 with strong ciphers is refused")?;
    that(!hello(address, TLS_1_2, WEAK)?, "weak ciphers are accepted")?;
    that(!hello(address, TLS_1_1, &[STRONG, WEAK].concat())?, "TLS 1.1 is accepted")
}

/// Whether a server goes on after such a hello. Its answer is a handshake record then, else an alert.
pub fn hello(address: SocketAddr, version: [u8; 2], suites: &[u16]) -> Result<bool, String> {
    const ALERT: u8 = 21;
    const HANDSHAKE: u8 = 22;
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let suites: Vec<u8> = suites.iter().flat_map(|suite| suite.to_be_bytes()).collect();
    let extension = |kind: u16, body: &[u8]| [&kind.to_be_bytes()[..], &sized(body)].concat();
    let groups = extension(10, &sized(&[0, 0x17, 0, 0x18, 0, 0x1d]));
    let points = extension(11, &[1, 0]);
    let signatures = extension(13, &sized(&[4, 3, 5, 3, 8, 4, 4, 1, 5, 1, 2, 3, 2, 1]));
    let mut body = [&version[..], &[7; 32], &[0], &sized(&suites), &[1, 0]].concat();
    body.extend(sized(&[groups, points, signatures].concat()));
    let message = [&[1, 0][..], &sized(&body)].concat();
    let record = [&[HANDSHAKE, 3, 1][..], &sized(&message)].concat();
    let exchange = || -> std::io::Result<u8> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(&record)?;
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        Ok(kind[0])
    };
    match exchange().map_err(|error| format!("{address}: {error}"))? {
        HANDSHAKE => Ok(true),
        ALERT => Ok(false),
        other => Err(format!("{address} answered with a record of type {other}")),
    }
}
