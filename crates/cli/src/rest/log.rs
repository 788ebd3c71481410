//! `-v=6` and higher: every request and answer on standard error, in klog's manner.
//! Called by `rest` around each request.
//! Never shows a credential.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};

use super::Body;
use crate::output::Output;

pub struct RequestLog<'a> {
    verbosity: i64,
    verb: String,
    url: String,
    output: &'a Output,
    env: &'a env::Env,
    start: std::time::Duration,
}

/// `I1118 02:51:20.000000   12345 round_trippers.go:527] …`
pub fn line(env: &env::Env, output: &Output, place: &str, text: &str) {
    let now = env.now().to_zoned(jiff::tz::TimeZone::system());
    let process = std::process::id();
    output.warn(&format!("I{} {process:7} {place}] {text}", now.strftime("%m%d %H:%M:%S%.6f")));
}

fn headers(map: &HeaderMap) -> String {
    let mut lines: Vec<String> = map
        .iter()
        .map(|(name, value)| {
            let shown = match name == header::AUTHORIZATION {
                true => {
                    let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
                    format!("{} <masked>", text.split(' ').next().unwrap_or_default())
                }
                false => String::from_utf8_lossy(value.as_bytes()).into_owned(),
            };
            format!("\t{}: {shown}\n", canonical(name.as_str()))
        })
        .collect();
    lines.sort();
    format!("<\n{} >", lines.concat())
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
        server: &str,
        request: &Request<Bytes>,
        output: &'a Output,
        env: &'a env::Env,
    ) -> Self {
        let log = Self {
            verbosity,
            verb: request.method().to_string(),
            url: format!("{server}{}", request.uri()),
            output,
            env,
            start: env.monotonic(),
        };
        if !request.body().is_empty() {
            body(verbosity, "Request Body", request.body(), output, env);
        }
        let said = match verbosity {
            ..7 => return log,
            7..9 => {
                format!("\"Request\" verb={:?} url={:?} headers={}", log.verb, log.url, headers(request.headers()))
            }
            _ => format!("\"Request\" curlCommand=<\n\t{}\n >", curl(&log.verb, &log.url, request.headers())),
        };
        line(env, output, "round_trippers.go:527", &said);
        log
    }

    pub fn end(self, response: Option<&Response<Body>>) {
        if self.verbosity < 6 {
            return;
        }
        let status = response.map(|r| {
            let reason = r.status().canonical_reason().unwrap_or_default();
            format!("{} {reason}", r.status().as_u16())
        });
        let status = status.unwrap_or_default();
        let mut said = "\"Response\"".to_string();
        if self.verbosity == 6 || self.verbosity >= 9 {
            said.push_str(&format!(" verb={:?} url={:?}", self.verb, self.url));
        }
        said.push_str(&format!(" status={status:?}"));
        if let (8.., Some(response)) = (self.verbosity, response) {
            said.push_str(&format!(" headers={}", headers(response.headers())));
        }
        let took = self.env.monotonic().saturating_sub(self.start);
        said.push_str(&format!(" milliseconds={}", took.as_millis()));
        line(self.env, self.output, "round_trippers.go:632", &said);
    }
}

fn curl(verb: &str, url: &str, map: &HeaderMap) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (name, value) in map.iter().filter(|(name, _)| *name != header::AUTHORIZATION) {
        parts.push(format!(
            " -H {:?}",
            format!("{}: {}", canonical(name.as_str()), String::from_utf8_lossy(value.as_bytes()))
        ));
    }
    parts.sort();
    format!("curl -v -X{verb} {} '{url}'", parts.concat())
}

/// Cut at 1 KiB, at 10 KiB for 9, whole beyond.
pub fn body(verbosity: i64, title: &str, bytes: &[u8], output: &Output, env: &env::Env) {
    let limit = match verbosity {
        ..8 => return,
        8 => 1024,
        9 => 10240,
        _ => usize::MAX,
    };
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    if text.len() > limit {
        let mut end = limit;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let left = text.len() - end;
        text.truncate(end);
        text.push_str(&format!(" [truncated {left} chars]"));
    }
    let shown = match text.contains('\n') {
        true => format!("<\n\t{}\n >", text.trim_end_matches('\n').replace('\n', "\n\t")),
        false => format!("{text:?}"),
    };
    line(env, output, "request.go:1411", &format!("{title:?} body={shown}"));
}
