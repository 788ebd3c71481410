//! `-v=6` and higher: every request and answer on standard error, in klog's manner.
//! Called by `rest` around each request.
//! Never shows a credential.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};

use super::{Body, Transport};
use crate::output::Output;

pub struct RequestLog<'a> {
    verbosity: i64,
    verb: String,
    path: String,
    url: String,
    output: &'a Output,
    env: &'a env::Env,
    start: std::time::Duration,
}

/// `I1118 02:51:20.000000   12345 round_trippers.go:527] …`
pub fn line(env: &env::Env, output: &Output, place: &str, text: &str) {
    severe('I', env, output, place, text);
}

/// A warning (`W`) is logged whatever `-v` says.
pub fn warning(env: &env::Env, output: &Output, place: &str, text: &str) {
    severe('W', env, output, place, text);
}

/// An error (`E`) likewise.
pub fn error(env: &env::Env, output: &Output, place: &str, text: &str) {
    severe('E', env, output, place, text);
}

fn severe(severity: char, env: &env::Env, output: &Output, place: &str, text: &str) {
    let now = env.now().to_zoned(jiff::tz::TimeZone::system());
    let process = std::process::id();
    output.warn(&format!("{severity}{} {process:7} {place}] {text}", now.strftime("%m%d %H:%M:%S%.6f")));
}

/// klog's form of a value: quoted in one line, as it is in several.
fn value(text: &str) -> String {
    match text.contains('\n') {
        true => format!("<\n\t{}\n >", text.strip_suffix('\n').unwrap_or(text).replace('\n', "\n\t")),
        false => format!("{text:?}"),
    }
}

/// The name as Go writes it, the value without what proves who asks.
fn shown((name, text): (&http::HeaderName, &http::HeaderValue)) -> String {
    let text = String::from_utf8_lossy(text.as_bytes()).into_owned();
    let text = match name == header::AUTHORIZATION {
        true => match text.split_once(' ') {
            Some((scheme, _)) if ["bearer", "basic", "negotiate"].contains(&scheme.to_lowercase().as_str()) => {
                format!("{scheme} <masked>")
            }
            _ => "<masked>".to_string(),
        },
        false => text,
    };
    format!("{}: {text}", canonical(name.as_str()))
}

fn headers(map: &HeaderMap) -> String {
    let mut lines: Vec<String> = map.iter().map(|header| shown(header) + "\n").collect();
    lines.sort();
    value(&lines.concat())
}

/// Where upstream's client logs the bodies of a request.
fn place(verb: &str, path: &str) -> &'static str {
    let parts: Vec<&str> = path.split('?').next().unwrap_or_default().trim_matches('/').split('/').collect();
    // Behind the group and version, without a namespace.
    let inside = match parts.as_slice() {
        ["api"] => return "discovery_client.go:255",
        ["apis"] => return "discovery_client.go:318",
        ["api", _] | ["apis", _, _] => return "discovery_client.go:413",
        ["api", _, inside @ ..] | ["apis", _, _, inside @ ..] => inside,
        _ => return "raw.go:84",
    };
    let named = match inside {
        ["namespaces", _, inside @ ..] if !inside.is_empty() => inside.len() > 1,
        inside => inside.len() > 1,
    };
    match verb {
        "GET" if named => "helper.go:105",
        "GET" => "helper.go:113",
        "POST" => "helper.go:246",
        "PATCH" => "helper.go:269",
        "PUT" => "helper.go:319",
        _ => "helper.go:202",
    }
}

fn canonical(name: &str) -> String {
    let capital = |part: &str| {
        let mut letters = part.chars();
        letters.next().map(|c| c.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
    };
    name.split('-').map(capital).collect::<Vec<_>>().join("-")
}

impl<'a> RequestLog<'a> {
    pub fn begin(
        verbosity: i64,
        transport: &dyn Transport,
        request: &Request<Bytes>,
        output: &'a Output,
        env: &'a env::Env,
    ) -> Self {
        let log = Self {
            verbosity,
            verb: request.method().to_string(),
            path: request.uri().to_string(),
            url: format!("{}{}", transport.server(), request.uri()),
            output,
            env,
            start: env.monotonic(),
        };
        log.body("Request Body", request.body());
        if verbosity < 7 {
            return log;
        }
        let mut sent = request.headers().clone();
        for (name, value) in transport.headers() {
            sent.append(name.clone(), value.clone());
        }
        let said = match verbosity {
            7 | 8 => format!("verb={:?} url={:?} headers={}", log.verb, log.url, headers(&sent)),
            _ => format!("curlCommand={}", value(&(curl(&log.verb, &log.url, &sent) + "\n"))),
        };
        line(env, output, "round_trippers.go:527", &format!("\"Request\" {said}"));
        log
    }

    pub fn end(&self, response: Option<&Response<Body>>) {
        if self.verbosity < 6 {
            return;
        }
        let status = response.map(|r| {
            let reason = r.status().canonical_reason().unwrap_or_default();
            format!("{} {reason}", r.status().as_u16())
        });
        let mut said = "\"Response\"".to_string();
        if self.verbosity == 6 || self.verbosity >= 9 {
            said.push_str(&format!(" verb={:?} url={:?}", self.verb, self.url));
        }
        said.push_str(&format!(" status={:?}", status.unwrap_or_default()));
        if self.verbosity >= 8 {
            let none = HeaderMap::new();
            said.push_str(&format!(" headers={}", headers(response.map_or(&none, |r| r.headers()))));
        }
        let took = self.env.monotonic().saturating_sub(self.start);
        said.push_str(&format!(" milliseconds={}", took.as_millis()));
        line(self.env, self.output, "round_trippers.go:632", &said);
    }

    /// Cut at 1 KiB, at 10 KiB for 9, whole beyond. Bytes that are no text are shown as `hexdump` does.
    pub fn body(&self, title: &str, bytes: &[u8]) {
        let limit = match self.verbosity {
            ..8 => return,
            8 => 1024,
            9 => 10240,
            _ => usize::MAX,
        };
        let mut text = match bytes.iter().any(|byte| *byte < b'\n') {
            true => hex_dump(bytes),
            false => String::from_utf8_lossy(bytes).into_owned(),
        };
        if text.len() > limit {
            let mut end = limit;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            let left = text.len() - end;
            text.truncate(end);
            text.push_str(&format!(" [truncated {left} chars]"));
        }
        line(self.env, self.output, place(&self.verb, &self.path), &format!("{title:?} body={}", value(&text)));
    }
}

fn curl(verb: &str, url: &str, map: &HeaderMap) -> String {
    let mut parts: Vec<String> = map.iter().map(|header| format!(" -H {:?}", shown(header))).collect();
    parts.sort();
    format!("curl -v -X{verb} {} '{url}'", parts.concat())
}

/// Sixteen bytes in a line: where they are, what they are, and the letters among them.
fn hex_dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (row, chunk) in bytes.chunks(16).enumerate() {
        text.push_str(&format!("{:08x} ", row * 16));
        for at in 0..16 {
            text.push_str(if at % 8 == 0 { " " } else { "" });
            text.push_str(&chunk.get(at).map_or_else(|| "   ".to_string(), |byte| format!("{byte:02x} ")));
        }
        let letter = |byte: &u8| if (32..127).contains(byte) { char::from(*byte) } else { '.' };
        text.push_str(&format!(" |{}|\n", chunk.iter().map(letter).collect::<String>()));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use serde_json::json;

    use crate::{
        fake::{FakeServer, Memory},
        output::Output,
        rest::Rest,
    };

    /// Lines of standard error without times, process and milliseconds.
    fn logged(verbosity: i64) -> String {
        let server = FakeServer::default().on("GET /api/v1/namespaces/default/pods/a", 200, json!({"kind": "Pod"}));
        let errors = Memory::default();
        let output = Output::to(std::io::sink(), errors.clone());
        let rest = Rest::new(Rc::new(server), output, verbosity, None, env::Env::real());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(rest.get("/api/v1/namespaces/default/pods/a").value()).expect("an answer");
        let errors = errors.text();
        let plain = |line: &str| match line.split_once("] ") {
            Some((head, rest)) if head.starts_with('I') => {
                format!("{}] {rest}", head.rsplit(' ').next().unwrap_or_default())
            }
            _ => line.to_string(),
        };
        let without_time = |line: String| match line.split_once("milliseconds=") {
            Some((head, _)) => format!("{head}milliseconds=N"),
            None => line,
        };
        errors.lines().map(|line| without_time(plain(line)) + "\n").collect()
    }

    #[test]
    fn shows_requests_as_client_go_does() {
        let check = |verbosity: i64, wanted: &str| assert_eq!(logged(verbosity), wanted, "-v={verbosity}");
        const URL: &str = "https://fake.test/api/v1/namespaces/default/pods/a";
        check(5, "");
        check(
            6,
            &format!(
                "round_trippers.go:632] \"Response\" verb=\"GET\" url=\"{URL}\" status=\"200 OK\" milliseconds=N\n"
            ),
        );
        let request = format!(
            "round_trippers.go:527] \"Request\" verb=\"GET\" url=\"{URL}\" headers=<\n\tAccept: application/json, */*\n\tAuthorization: Bearer <masked>\n >\n"
        );
        check(7, &format!("{request}round_trippers.go:632] \"Response\" status=\"200 OK\" milliseconds=N\n"));
        check(
            8,
            &format!(
                "helper.go:105] \"Request Body\" body=\"\"\n{request}round_trippers.go:632] \"Response\" status=\"200 OK\" headers=\"\" milliseconds=N\nhelper.go:105] \"Response Body\" body=\"{{\\\"kind\\\":\\\"Pod\\\"}}\"\n"
            ),
        );
        check(
            9,
            &format!(
                "helper.go:105] \"Request Body\" body=\"\"\nround_trippers.go:527] \"Request\" curlCommand=<\n\tcurl -v -XGET  -H \"Accept: application/json, */*\" -H \"Authorization: Bearer <masked>\" '{URL}'\n >\nround_trippers.go:632] \"Response\" verb=\"GET\" url=\"{URL}\" status=\"200 OK\" headers=\"\" milliseconds=N\nhelper.go:105] \"Response Body\" body=\"{{\\\"kind\\\":\\\"Pod\\\"}}\"\n"
            ),
        );
    }

    #[test]
    fn bodies_that_are_no_text_are_dumped() {
        assert_eq!(
            super::hex_dump(b"k8s\0\n"),
            "00000000  6b 38 73 00 0a                                    |k8s..|\n"
        );
    }
}
