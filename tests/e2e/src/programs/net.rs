// A server and a client for network tests, in one static program of the test image.
// Compiled by build.rs with plain rustc. `net serve PORT…`: HTTP and UDP, says who answered and whom it saw, ends at
// once on SIGTERM. `net get HOST:PORT[/path]` and `net udp HOST:PORT`: one question, within five seconds. `net grpc PORT
// [FILE]`: a gRPC server of the health protocol that is healthy until the file is there.
use std::{
    ffi::c_int,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket},
    time::Duration,
};

unsafe extern "C" {
    fn signal(signal: c_int, handler: extern "C" fn(c_int)) -> usize;
    fn _exit(code: c_int) -> !;
}

extern "C" fn stop(_: c_int) {
    // SAFETY: _exit is safe in a signal handler.
    unsafe { _exit(0) }
}

const PATIENCE: Duration = Duration::from_secs(5);

fn main() {
    // SAFETY: the handler only calls _exit.
    unsafe {
        signal(15, stop);
        signal(2, stop);
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["serve", ports @ ..] => serve(ports),
        ["get", target] => get(target),
        ["udp", target] => udp(target),
        ["grpc", port] => grpc(port, None),
        ["grpc", port, file] => grpc(port, Some(*file)),
        _ => Err(std::io::Error::other("net serve PORT… | get HOST:PORT[/path] | udp HOST:PORT | grpc PORT [FILE]")),
    };
    if let Err(error) = result {
        eprintln!("{words:?}: {error}");
        std::process::exit(1);
    }
}

fn serve(ports: &[&str]) -> std::io::Result<()> {
    let name = std::fs::read_to_string("/etc/hostname").unwrap_or_default().trim().to_string();
    let mut last = None;
    for port in ports {
        let port: u16 = port.parse().map_err(std::io::Error::other)?;
        // Both families where the kernel has both.
        let tcp = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
        let udp = UdpSocket::bind(("::", port)).or_else(|_| UdpSocket::bind(("0.0.0.0", port)))?;
        let answer = format!("{name} {port}");
        let text = answer.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((_, from)) = udp.recv_from(&mut buffer) {
                let _ = udp.send_to(format!("{text} {}\n", from.ip().to_canonical()).as_bytes(), from);
            }
        });
        last = Some(std::thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                let answer = answer.clone();
                std::thread::spawn(move || respond(stream, &answer));
            }
        }));
    }
    println!("serving");
    if let Some(thread) = last {
        let _ = thread.join();
    }
    Ok(())
}

/// `/bytes/N` gives N zeros, everything else a line: name, port, whom we saw.
fn respond(mut stream: TcpStream, answer: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = request.split(' ').nth(1).unwrap_or("/");
    let wanted = path.strip_prefix("/bytes/").and_then(|n| n.parse::<u64>().ok());
    let line = format!("{answer} {}\n", stream.peer_addr()?.ip().to_canonical());
    let length = wanted.unwrap_or(line.len() as u64);
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    match wanted {
        None => stream.write_all(line.as_bytes()),
        Some(mut left) => {
            let block = vec![0; 1 << 20];
            while left > 0 {
                let now = left.min(block.len() as u64);
                stream.write_all(&block[..now as usize])?;
                left -= now;
            }
            Ok(())
        }
    }
}

fn resolve(target: &str) -> std::io::Result<SocketAddr> {
    target.to_socket_addrs()?.next().ok_or_else(|| std::io::Error::other("no address"))
}

fn get(target: &str) -> std::io::Result<()> {
    let (host, path) = target.split_once('/').unwrap_or((target, ""));
    let mut stream = TcpStream::connect_timeout(&resolve(host)?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // At once: a server that refuses the first bytes would cut off the rest, and what it says with it.
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::with_capacity(1 << 20, stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if !line.contains(" 200 ") {
        return Err(std::io::Error::other(format!("answered {line:?}")));
    }
    while line.trim_end() != "" {
        line.clear();
        reader.read_line(&mut line)?;
    }
    if path.starts_with("bytes/") {
        let began = std::time::Instant::now();
        let mut block = vec![0; 1 << 20];
        let mut total = 0;
        loop {
            match reader.read(&mut block)? {
                0 => break,
                length => total += length,
            }
        }
        println!("{total} {}", began.elapsed().as_secs_f64());
        return Ok(());
    }
    std::io::copy(&mut reader, &mut std::io::stdout()).map(drop)
}

/// gRPC over HTTP/2 without TLS: every call is taken for `grpc.health.v1.Health/Check` and answered by that file.
fn grpc(port: &str, illness: Option<&str>) -> std::io::Result<()> {
    let port: u16 = port.parse().map_err(std::io::Error::other)?;
    let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
    println!("serving");
    for stream in listener.incoming().flatten() {
        let illness = illness.map(std::path::PathBuf::from);
        std::thread::spawn(move || check_health(stream, || illness.as_ref().is_none_or(|file| !file.exists())));
    }
    Ok(())
}

fn check_health(mut stream: TcpStream, healthy: impl Fn() -> bool) -> std::io::Result<()> {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    const ACKNOWLEDGED: u8 = 1;
    fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &id.to_be_bytes(), payload].concat()
    }
    /// A field as it is, outside of every table.
    fn literal(name: &str, value: &str) -> Vec<u8> {
        [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    }
    let mut preface = [0; 24];
    stream.read_exact(&mut preface)?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[]))?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags, id) = (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload)?;
        match kind {
            SETTINGS if flags & ACKNOWLEDGED == 0 => stream.write_all(&frame(SETTINGS, ACKNOWLEDGED, 0, &[]))?,
            PING if flags & ACKNOWLEDGED == 0 => stream.write_all(&frame(PING, ACKNOWLEDGED, 0, &payload))?,
            // The question has ended.
            DATA | HEADERS if flags & END_STREAM != 0 => {
                // 0x88 is `:status: 200` in the table that everybody has.
                let begin = [&[0x88][..], &literal("content-type", "application/grpc")].concat();
                let message = [0, 0, 0, 0, 2, 8, if healthy() { 1 } else { 2 }];
                let end = literal("grpc-status", "0");
                stream.write_all(&frame(HEADERS, END_HEADERS, id, &begin))?;
                stream.write_all(&frame(DATA, 0, id, &message))?;
                stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, id, &end))?;
            }
            _ => {}
        }
    }
}

fn udp(target: &str) -> std::io::Result<()> {
    let target = resolve(target)?;
    let socket = UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.connect(target)?;
    let mut buffer = [0; 2048];
    for _ in 0..5 {
        // A packet may be lost.
        if let Ok(length) = socket.send(b"?").and_then(|_| socket.recv(&mut buffer)) {
            print!("{}", String::from_utf8_lossy(&buffer[..length]));
            return Ok(());
        }
    }
    Err(std::io::Error::other("no answer"))
}
