//! Pages for whoever looks into a node: its configuration, what its runtime runs, the machine's log files.
//! Part of `server`.
//! No path and no link leads out of the log directories: pods may have them mounted, and put links there.

use std::{
    fs::{File, Metadata},
    io::SeekFrom,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

use api::ApiError;
use bytes::Bytes;
use env::Env;
use futures::TryStreamExt;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::{
    Body, BoxError, View, byte_ranges, empty, json_answer,
    ranges::{self, Answer},
    text,
};
use crate::{config::Config, configuration::live, files::safe_open};

/// What a file begins with tells whether it is text.
const SNIFFED_BYTES: usize = 512;

pub fn pod_list(pods: &[impl Serialize]) -> Response<Body> {
    json_answer(&json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods }))
}

pub fn configz(config: &Config) -> Response<Body> {
    let mut response = json_answer(&json!({ "kubeletconfig": live::effective_configuration(config) }));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

pub async fn running_pods(view: &dyn View) -> Result<Response<Body>, ApiError> {
    Ok(pod_list(&view.running_pods().await?))
}

/// A file below the log directory, or the names of what is in a directory.
pub async fn machine_logs(
    config: &Config,
    env: &Env,
    path: &str,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    if !config.system_log_handler {
        return Err(ApiError::new(api::Reason::MethodNotAllowed, "logs endpoint is disabled."));
    }
    let place = place(&config.log_dir, path)?;
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => ApiError::new(api::Reason::NotFound, "404 page not found"),
        std::io::ErrorKind::PermissionDenied => ApiError::new(api::Reason::Forbidden, "403 Forbidden"),
        _ => ApiError::internal("500 Internal Server Error"),
    };
    let roots = [config.log_dir.clone(), config.pod_logs_dir()];
    let found = env::spawn_blocking(move || Found::at(&place, &roots)).await;
    let found = found.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(failed)?;
    let about = &found.about;
    if about.is_dir() && !path.ends_with('/') {
        // Links in the listing are relative.
        let last = path.rsplit('/').next().unwrap_or_default();
        return redirect(&format!("{last}/"));
    }
    // The beginning of time means that nobody knows.
    let modified = Some(about.mtime()).filter(|seconds| *seconds != 0);
    if about.is_dir() {
        let mut response = match ranges::is_known(headers, modified) {
            true => status(StatusCode::NOT_MODIFIED),
            false => listing(found.names),
        };
        dated(&mut response, modified);
        return Ok(response);
    }
    if path.ends_with('/') {
        let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        return redirect(&format!("../{last}"));
    }
    let Some(opened) = found.file else { return Err(ApiError::new(api::Reason::Forbidden, "403 Forbidden")) };
    file(env, &found.place, opened.into(), headers, modified).await.map_err(failed)
}

/// What is at a path, opened.
struct Found {
    place: PathBuf,
    about: Metadata,
    /// Of a plain file.
    file: Option<File>,
    /// In a directory.
    names: Vec<String>,
}

impl Found {
    /// Links are followed inside the log directories only: those that collectors read lead from one to another.
    fn at(place: &Path, roots: &[PathBuf]) -> std::io::Result<Self> {
        let place = place.canonicalize()?;
        let inside = |root: &PathBuf| root.canonicalize().is_ok_and(|root| place.starts_with(root));
        if !roots.iter().any(inside) {
            return Err(std::io::ErrorKind::PermissionDenied.into());
        }
        // From here on nothing is followed any more.
        let about = place.symlink_metadata()?;
        let mut names = Vec::new();
        if about.is_dir() {
            let directory = safe_open::directory(&place)?;
            for name in safe_open::names(&directory)? {
                let name = name?;
                let is_directory = safe_open::stat(&directory, &name).is_ok_and(|stat| safe_open::is_directory(&stat));
                names.push(format!("{}{}", name.to_string_lossy(), if is_directory { "/" } else { "" }));
            }
            names.sort();
        }
        let file = about.is_file().then(|| safe_open::file(&place)).transpose()?;
        Ok(Self { place, about, file, names })
    }
}

fn status(code: StatusCode) -> Response<Body> {
    let mut response = Response::new(empty());
    *response.status_mut() = code;
    response
}

/// Says when it was last modified.
fn dated(response: &mut Response<Body>, modified: Option<i64>) {
    let text = modified.and_then(ranges::format_time).and_then(|text| HeaderValue::from_str(&text).ok());
    if let Some(text) = text {
        response.headers_mut().insert(header::LAST_MODIFIED, text);
    }
}

fn place(directory: &Path, path: &str) -> Result<PathBuf, ApiError> {
    let rest = path.trim_start_matches('/').strip_prefix("logs").unwrap_or_default();
    let decoded = percent_encoding::percent_decode_str(rest).decode_utf8_lossy();
    if decoded.contains('\0') {
        return Err(ApiError::bad_request("invalid URL path"));
    }
    let mut place = directory.to_path_buf();
    let mut depth = 0;
    for part in Path::new(decoded.as_ref()).components() {
        match part {
            Component::Normal(name) => {
                place.push(name);
                depth += 1;
            }
            Component::ParentDir if depth > 0 => {
                place.pop();
                depth -= 1;
            }
            _ => {}
        }
    }
    Ok(place)
}

fn redirect(to: &str) -> Result<Response<Body>, ApiError> {
    let mut response = status(StatusCode::MOVED_PERMANENTLY);
    let to = HeaderValue::from_str(to).map_err(|_| ApiError::bad_request("invalid URL path"))?;
    response.headers_mut().insert(header::LOCATION, to);
    Ok(response)
}

fn listing(names: Vec<String>) -> Response<Body> {
    let mut page = String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for name in names {
        page += &format!("<a href=\"{}\">{}</a>\n", reference(&name), escaped(&name));
    }
    page += "</pre>\n";
    let mut response = text(page);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

/// A name as a relative reference: one with a colon must not be taken for a scheme.
fn reference(name: &str) -> String {
    const KEPT: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~')
        .remove(b'/')
        .remove(b':')
        .remove(b'$')
        .remove(b'+')
        .remove(b',')
        .remove(b'=')
        .remove(b'@');
    let encoded = percent_encoding::utf8_percent_encode(name, KEPT).to_string();
    if name.contains(':') { format!("./{encoded}") } else { encoded }
}

fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '&' => "&amp;".into(),
        '<' => "&lt;".into(),
        '>' => "&gt;".into(),
        '"' => "&#34;".into(),
        '\'' => "&#39;".into(),
        other => other.to_string(),
    };
    text.chars().map(escape).collect()
}

async fn file(
    env: &Env,
    place: &Path,
    mut file: tokio::fs::File,
    headers: &HeaderMap,
    modified: Option<i64>,
) -> std::io::Result<Response<Body>> {
    // As much as there is now: a log that grows meanwhile would never end.
    let length = file.metadata().await?.len();
    let mut first = vec![0; SNIFFED_BYTES];
    let read = file.read(&mut first).await?;
    let kind = content_type(place, &first[..read]);
    let (code, part) = match ranges::decide(headers, modified, length) {
        Answer::Whole => (StatusCode::OK, 0..length),
        Answer::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
        Answer::Parts(parts) => {
            let mut response = byte_ranges::response(env, file, parts, kind, length);
            dated(&mut response, modified);
            return Ok(response);
        }
        Answer::Unsatisfiable { beyond } => return Ok(unsatisfiable(beyond, length)),
        answer => {
            let known = answer == Answer::NotModified;
            let mut response = status(if known { StatusCode::NOT_MODIFIED } else { StatusCode::PRECONDITION_FAILED });
            dated(&mut response, modified);
            return Ok(response);
        }
    };
    file.seek(SeekFrom::Start(part.start)).await?;
    let frames = ReaderStream::new(file.take(part.end - part.start));
    let frames = frames.map_ok(|bytes: Bytes| Frame::data(bytes)).map_err(BoxError::from);
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    *response.status_mut() = code;
    dated(&mut response, modified);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, (part.end - part.start).into());
    if code == StatusCode::PARTIAL_CONTENT {
        let range = byte_ranges::content_range(&part, length);
        headers.extend(HeaderValue::from_str(&range).ok().map(|range| (header::CONTENT_RANGE, range)));
    }
    Ok(response)
}

fn unsatisfiable(beyond: bool, length: u64) -> Response<Body> {
    let why = if beyond { "invalid range: failed to overlap\n" } else { "invalid range\n" };
    let mut response = text(why.into());
    *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if beyond {
        let range = HeaderValue::from_str(&format!("bytes */{length}"));
        headers.extend(range.ok().map(|range| (header::CONTENT_RANGE, range)));
    }
    response
}

fn content_type(place: &Path, first: &[u8]) -> &'static str {
    let binary = |byte: &u8| matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    match place.extension().and_then(|ending| ending.to_str()) {
        Some("gz") => "application/gzip",
        Some("json") => "application/json",
        _ if first.iter().any(binary) => "application/octet-stream",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parts_of_log_files_are_sent_once() {
        let logs = tempfile::tempdir().unwrap();
        let file = logs.path().join("a.log");
        std::fs::write(&file, "0123456789").unwrap();
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(784_111_777);
        for path in [logs.path(), &file] {
            std::fs::File::open(path).unwrap().set_modified(at).unwrap();
        }
        let config = Config { log_dir: logs.path().into(), ..Config::default() };
        let time = "Sun, 06 Nov 1994 08:49:37 GMT";
        let check = async |path: &str,
                           ask: Option<(header::HeaderName, &str)>,
                           code: u16,
                           told: [&str; 4],
                           sent: &str| {
            let headers: HeaderMap =
                ask.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect();
            let response = machine_logs(&config, &Env::real(), path, &headers).await.unwrap();
            let of = |name| response.headers().get(name).map_or("", |v: &HeaderValue| v.to_str().unwrap());
            let names = [header::LAST_MODIFIED, header::ACCEPT_RANGES, header::CONTENT_LENGTH, header::CONTENT_RANGE];
            assert_eq!((response.status().as_u16(), names.map(of)), (code, told), "{path} {ask:?}");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert!(String::from_utf8_lossy(&body).contains(sent) && body.is_empty() == sent.is_empty(), "{body:?}");
        };
        check("/logs/a.log", None, 200, [time, "bytes", "10", ""], "0123456789").await;
        let range = |text| Some((header::RANGE, text));
        check("/logs/a.log", range("bytes=2-4"), 206, [time, "bytes", "3", "bytes 2-4/10"], "234").await;
        check("/logs/a.log", range("bytes=-2"), 206, [time, "bytes", "2", "bytes 8-9/10"], "89").await;
        let parts = [time, "bytes", "262", ""];
        for sent in ["\r\nContent-Range: bytes 0-1/10\r\n", "\r\n\r\n01\r\n--", "\r\n\r\n89\r\n--"] {
            check("/logs/a.log", range("bytes=0-1,-2"), 206, parts, sent).await;
        }
        check("/logs/a.log", range("bytes=10-"), 416, ["", "", "", "bytes */10"], "invalid range: failed to overlap\n")
            .await;
        check("/logs/a.log", range("bytes=4-2"), 416, [""; 4], "invalid range\n").await;
        for path in ["/logs/a.log", "/logs/"] {
            check(path, Some((header::IF_MODIFIED_SINCE, time)), 304, [time, "", "", ""], "").await;
        }
        check("/logs/", None, 200, [time, "", "", ""], "a.log").await;
        let earlier = Some((header::IF_UNMODIFIED_SINCE, "Sun, 06 Nov 1994 08:49:36 GMT"));
        check("/logs/a.log", earlier, 412, [time, "", "", ""], "").await;
    }

    #[tokio::test]
    async fn log_files_are_listed_and_read() {
        let top = tempfile::tempdir().unwrap();
        std::fs::write(top.path().join("secret"), "no").unwrap();
        let logs = top.path().join("log");
        std::fs::create_dir_all(logs.join("pods")).unwrap();
        std::fs::write(logs.join("a.log"), "one\n").unwrap();
        std::fs::write(logs.join("a<b"), [0, 1]).unwrap();
        std::fs::write(logs.join("pods/c:d"), "three").unwrap();
        std::fs::create_dir(logs.join("links")).unwrap();
        for (target, link) in [(logs.join("pods/c:d"), "inside.log"), (top.path().join("secret"), "outside.log")] {
            std::os::unix::fs::symlink(target, logs.join("links").join(link)).unwrap();
        }
        nix::unistd::mkfifo(&logs.join("links/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut config = Config { log_dir: logs, ..Config::default() };
        let ask = async |config: &Config, path: &str| match machine_logs(config, &Env::real(), path, &HeaderMap::new())
            .await
        {
            Ok(response) => {
                let of = |name| response.headers().get(name).map_or("", |v: &HeaderValue| v.to_str().unwrap());
                let head =
                    format!("{} {}{}", response.status().as_u16(), of(header::CONTENT_TYPE), of(header::LOCATION));
                let body = response.into_body().collect().await.unwrap().to_bytes();
                (head, String::from_utf8_lossy(&body).into_owned())
            }
            Err(error) => (error.code.to_string(), error.message.clone()),
        };
        let head = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n";
        let plain = "200 text/plain; charset=utf-8";
        for (path, expected, body) in [
            (
                "/logs/",
                "200 text/html; charset=utf-8",
                &*format!(
                    "{head}<a href=\"a.log\">a.log</a>\n<a href=\"a%3Cb\">a&lt;b</a>\n<a href=\"links/\">links/</a>\n<a href=\"pods/\">pods/</a>\n</pre>\n"
                ),
            ),
            ("/logs/pods/", "200 text/html; charset=utf-8", &format!("{head}<a href=\"./c:d\">c:d</a>\n</pre>\n")),
            ("/logs/a.log", plain, "one\n"),
            ("/logs/pods/c%3Ad", plain, "three"),
            ("/logs/a%3cb", "200 application/octet-stream", "\0\u{1}"),
            ("/logs/links/inside.log", plain, "three"),
            ("/logs/links/outside.log", "403", "403 Forbidden"),
            ("/logs/links/pipe", "403", "403 Forbidden"),
            ("/logs/pods", "301 pods/", ""),
            ("/logs/a.log/", "301 ../a.log", ""),
            ("/logs/none", "404", "404 page not found"),
            ("/logs/../secret", "404", "404 page not found"),
            ("/logs/%2e%2e/secret", "404", "404 page not found"),
            ("/logs/pods/..%2f..%2f../a.log", plain, "one\n"),
        ] {
            let found = ask(&config, path).await;
            assert_eq!((found.0.as_str(), found.1.as_str()), (expected, body), "{path}");
        }
        config.system_log_handler = false;
        let found = ask(&config, "/logs/").await;
        assert_eq!((found.0.as_str(), found.1.as_str()), ("405", "logs endpoint is disabled."));
    }
}
