// The program of the demo image: an HTTP server that says which pod answered.
// Compiled by build.rs with plain rustc into a static binary.
use std::{
    ffi::c_int,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
};

unsafe extern "C" {
    fn signal(signal: c_int, handler: extern "C" fn(c_int)) -> usize;
    fn _exit(code: c_int) -> !;
}

/// As process 1 we get no default handling: without this a pod would use up its grace period.
extern "C" fn stop(_: c_int) {
    // SAFETY: _exit is safe in a signal handler.
    unsafe { _exit(0) }
}

fn main() -> std::io::Result<()> {
    // SAFETY: the handler only calls _exit.
    unsafe {
        signal(15, stop);
        signal(2, stop);
    }
    let port = std::env::var("PORT").unwrap_or_else(|_| "8080".into());
    // Dual stack where the kernel has IPv6, IPv4 elsewhere.
    let listener =
        TcpListener::bind(format!("[::]:{port}")).or_else(|_| TcpListener::bind(format!("0.0.0.0:{port}")))?;
    let name = std::fs::read_to_string("/etc/hostname").unwrap_or_default().trim().to_string();
    println!("{name} listens on port {port}");
    for connection in listener.incoming().flatten() {
        let name = name.clone();
        std::thread::spawn(move || answer(connection, &name));
    }
    Ok(())
}

fn answer(mut connection: TcpStream, name: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(connection.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    println!("{request}");
    let body = format!("hello from {name}\n");
    write!(connection, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}
