//! One line of the access log, gathered while its request is served.
//! Made by `proxy`, written by `access_log` when the answer's body is dropped.
//! Invariant: what a client sends can't end a line or begin another (test: `a_line_stays_one_line`).

use std::{fmt::Write, net::SocketAddr, sync::Arc, time::Duration};

use env::Env;
use http::{HeaderValue, Method, Uri, Version};

use crate::access_log::AccessLog;

pub struct LogEntry {
    pub log: AccessLog,
    pub env: Env,
    pub began: Duration,
    pub client: Option<SocketAddr>,
    pub method: Method,
    pub uri: Uri,
    pub version: Version,
    pub host: String,
    pub referer: Option<HeaderValue>,
    pub user_agent: Option<HeaderValue>,
    pub status: u16,
    pub bytes: u64,
    pub route: Option<Arc<str>>,
    pub endpoint: Option<SocketAddr>,
}

impl LogEntry {
    fn line(&self) -> String {
        let mut line = String::with_capacity(256);
        match self.client {
            Some(client) => _ = write!(line, "{}", client.ip().to_canonical()),
            None => line.push('-'),
        }
        _ = write!(line, " - - [{}] \"{} ", self.env.now().strftime("%d/%b/%Y:%H:%M:%S %z"), self.method);
        quote(&mut line, self.uri.path_and_query().map_or("", |path| path.as_str()).as_bytes());
        _ = write!(line, " {:?}\" {} {} \"", self.version, self.status, self.bytes);
        quote(&mut line, self.referer.as_ref().map_or(b"-", HeaderValue::as_bytes));
        line.push_str("\" \"");
        quote(&mut line, self.user_agent.as_ref().map_or(b"-", HeaderValue::as_bytes));
        line.push_str("\" \"");
        quote(&mut line, self.host.as_bytes());
        _ = write!(line, "\" {}", self.route.as_deref().unwrap_or("-"));
        match self.endpoint {
            Some(endpoint) => _ = write!(line, " {endpoint}"),
            None => line.push_str(" -"),
        }
        let took = self.env.monotonic().saturating_sub(self.began);
        _ = writeln!(line, " {:.3}", took.as_secs_f64());
        line
    }
}

/// Quotes and everything that is not plain text, as `\xNN`.
fn quote(line: &mut String, text: &[u8]) {
    for byte in text {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => _ = write!(line, "\\x{byte:02X}"),
            _ => line.push(*byte as char),
        }
    }
}

impl Drop for LogEntry {
    fn drop(&mut self) {
        self.log.line(self.line());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line() {
        let mut line = String::new();
        quote(&mut line, b"a\" \\\xe9\tb\n1.2.3.4 - -");
        assert_eq!(line, r"a\x22 \x5C\xE9\x09b\x0A1.2.3.4 - -");
    }
}
