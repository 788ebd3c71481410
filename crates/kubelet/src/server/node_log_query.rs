//! `/logs/?query=…`: logs of the machine's services, from its journal or from their files.
//! Part of the node's server, where the configuration and the gate NodeLogQuery let it.
//! Nothing of a request reaches a shell, and no file outside the log directories is read.

use std::{path::PathBuf, process::Stdio, time::Duration};

use api::{ApiError, Reason};
use bytes::Bytes;
use env::Env;
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use tokio::{
    io::AsyncReadExt,
    process::{Child, ChildStdout, Command},
};

use super::{Body, BoxError, pages};
use crate::config::Config;

const JOURNAL: &str = "journalctl";
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(30);
const SERVICES_MAX: usize = 4;
const SERVICE_LENGTH_MAX: usize = 256;
const TAIL_LINES_MAX: i64 = 100_000;
const CHUNK_BYTES: usize = 16 << 10;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeLogQuery {
    services: Vec<String>,
    files: Vec<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    tail_lines: Option<i64>,
    boot: Option<i64>,
    pattern: Option<String>,
}

impl NodeLogQuery {
    /// `None` when nothing of the kind is asked for; else what is wrong with it.
    pub fn parse(query: &[(String, String)]) -> Result<Option<Self>, String> {
        let mut errors = Vec::new();
        let mut parsed = Self::default();
        let queries: Vec<&String> = query.iter().filter(|(name, _)| name == "query").map(|(_, value)| value).collect();
        for text in &queries {
            if text.contains(['/', '\\']) {
                parsed.files.push(text.to_string());
            } else if !text.trim().is_empty() {
                parsed.services.push(text.to_string());
            }
        }
        if !queries.is_empty() && parsed.files.is_empty() && parsed.services.is_empty() {
            errors.push(format!("query: Invalid value: {queries:?}: may not be empty"));
        }
        let value = |name: &str| query.iter().find(|(n, v)| n == name && !v.is_empty()).map(|(_, v)| v.as_str());
        let mut time = |name: &str| match value(name).map(str::parse::<Timestamp>).transpose() {
            Ok(time) => time,
            Err(_) => {
                let text = value(name).unwrap_or_default();
                errors.push(format!("{name}: Invalid value: {text:?}: invalid time format"));
                None
            }
        };
        (parsed.since, parsed.until) = (time("sinceTime"), time("untilTime"));
        let mut number = |name: &str| match value(name).map(str::parse::<i64>).transpose() {
            Ok(number) => number,
            Err(error) => {
                let text = value(name).unwrap_or_default();
                errors.push(format!("{name}: Invalid value: {text:?}: {error}"));
                None
            }
        };
        (parsed.boot, parsed.tail_lines) = (number("boot"), number("tailLines"));
        parsed.pattern = value("pattern").map(str::to_string);
        match errors.as_slice() {
            [] => Ok(Some(parsed).filter(|parsed| *parsed != Self::default())),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }

    fn has_options(&self) -> bool {
        let bare = Self { services: vec![], files: vec![], ..self.clone() };
        bare != Self::default()
    }

    pub fn validate(&self) -> Result<(), String> {
        let word = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        for service in &self.services {
            let wrong = |why: &str| Err(format!("query: Invalid value: {service:?}: {why}"));
            if service.len() > SERVICE_LENGTH_MAX {
                return wrong("length must be less than 100");
            }
            if !service.chars().all(word) {
                return wrong("input contains unsupported characters");
            }
        }
        if self.services.len() > SERVICES_MAX {
            return Err(format!("query: Too many: {}: must have at most {SERVICES_MAX} items", self.services.len()));
        }
        let files = &self.files;
        match (files.len(), self.services.is_empty()) {
            (0, true) => return Err("query: Required value: cannot be empty with options".into()),
            (1.., false) => {
                let value = format!("{files:?}, {:?}", self.services);
                return Err(format!("query: Invalid value: {value:?}: cannot specify a file and service"));
            }
            (2.., _) => return Err(format!("query: Invalid value: {files:?}: cannot specify more than one file")),
            (1, _) if self.has_options() => {
                return Err(format!("query: Invalid value: {files:?}: cannot specify file with options"));
            }
            _ => {}
        }
        if self.since.zip(self.until).is_some_and(|(since, until)| since > until) {
            return Err("untilTime: Invalid value: must be after `sinceTime`".into());
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            return Err(format!("boot: Invalid value: {boot}: must be less than 1"));
        }
        if let Some(lines) = self.tail_lines.filter(|lines| !(0..=TAIL_LINES_MAX).contains(lines)) {
            return Err(format!(
                "tailLines: Invalid value: {lines}: must be between 0 and {TAIL_LINES_MAX}, inclusive"
            ));
        }
        Ok(())
    }

    fn journal_arguments(&self, services: &[String]) -> Vec<String> {
        let time = |time: Timestamp| time.strftime("%Y-%m-%d %H:%M:%S.%f").to_string();
        let mut list: Vec<String> = ["--utc", "--no-pager", "--output=short-precise"].map(String::from).to_vec();
        list.extend(self.since.map(|since| format!("--since={}", time(since))));
        list.extend(self.until.map(|until| format!("--until={}", time(until))));
        if let Some(lines) = self.tail_lines {
            list.extend(["--pager-end".into(), format!("--lines={lines}")]);
        }
        list.extend(services.iter().map(|service| format!("--unit={service}")));
        list.extend(self.pattern.iter().map(|pattern| format!("--grep={pattern}")));
        if let Some(boot) = self.boot {
            list.extend(["--boot".into(), boot.to_string()]);
        }
        list
    }
}

/// Answers a query that was found valid; `path` is what follows `/logs`.
pub async fn answer(
    config: &Config,
    env: &Env,
    query: &NodeLogQuery,
    path: &str,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let refused = |message: String| ApiError::new(Reason::NotAcceptable, message);
    if !matches!(path.trim_start_matches("/logs"), "" | "/") {
        return Err(refused("path not allowed in query mode".into()));
    }
    query.validate().map_err(refused)?;
    if let [file] = query.files.as_slice() {
        let file = file.replace('\\', "/");
        return pages::machine_logs(config, env, &format!("/logs/{}", file.trim_start_matches('/')), headers).await;
    }
    let units = units(env).await;
    let in_journal = |service: &&String| units.lines().any(|unit| unit.contains(&format!("{service}.service")));
    let (native, in_files): (Vec<String>, Vec<String>) =
        query.services.iter().cloned().partition(|service| in_journal(&service));
    let journal = match native.is_empty() {
        true => stream::empty().boxed(),
        false => journal(env, &query.journal_arguments(&native)),
    };
    let mut all: FrameStream = journal.map(|bytes| Ok(Frame::data(bytes))).boxed();
    if query.has_options() && !in_files.is_empty() {
        all = all
            .chain(said(format!(
                "\noptions present and query resolved to log files for {in_files:?}\ntry without specifying options\n"
            )))
            .boxed();
    } else {
        for service in &in_files {
            all = all.chain(file_log(config, env, service).await).boxed();
        }
    }
    let mut response = Response::new(StreamBody::new(all).boxed_unsync());
    let kind = HeaderValue::from_static("text/plain;charset=UTF-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// All units that have ever written to the journal.
async fn units(env: &Env) -> String {
    let mut command = Command::new(JOURNAL);
    command.args(["--field", "_SYSTEMD_UNIT"]).stdin(Stdio::null()).kill_on_drop(true);
    match env.timeout(JOURNAL_TIMEOUT, command.output()).await {
        Some(Ok(output)) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => String::new(),
    }
}

fn journal(env: &Env, arguments: &[String]) -> stream::BoxStream<'static, Bytes> {
    let mut command = Command::new(JOURNAL);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let spawned = command.spawn().ok().and_then(|mut child| child.stdout.take().map(|stdout| (child, stdout)));
    match spawned {
        Some((child, stdout)) => chunks(env.clone(), child, stdout).boxed(),
        None => stream::iter([Bytes::from_static(b"\nerror: journal output not available\n")]).boxed(),
    }
}

/// What a program prints until it ends, or its time does.
fn chunks(env: Env, child: Child, stdout: ChildStdout) -> impl Stream<Item = Bytes> + Send {
    let end = env.monotonic() + JOURNAL_TIMEOUT;
    stream::unfold((env, child, stdout), move |(env, child, mut stdout)| async move {
        let mut chunk = vec![0; CHUNK_BYTES];
        let left = end.saturating_sub(env.monotonic());
        match env.timeout(left, stdout.read(&mut chunk)).await {
            Some(Ok(length)) if length > 0 => {
                chunk.truncate(length);
                Some((Bytes::from(chunk), (env, child, stdout)))
            }
            _ => None,
        }
    })
}

type FrameStream = stream::BoxStream<'static, Result<Frame<Bytes>, BoxError>>;

fn said(text: String) -> FrameStream {
    stream::iter([Ok(Frame::data(Bytes::from(text)))]).boxed()
}

/// Where services without a journal mostly write. A log may be larger than what is free of memory.
async fn file_log(config: &Config, env: &Env, service: &str) -> FrameStream {
    for name in [service.to_string(), format!("{service}.log"), format!("{service}/{service}.log")] {
        let path = PathBuf::from("/logs").join(&name);
        let found = pages::machine_logs(config, env, &path.to_string_lossy(), &HeaderMap::new()).await;
        if let Ok(response) = found
            && response.status().is_success()
        {
            return StreamExt::boxed(BodyStream::new(response.into_body()));
        }
    }
    said(format!("\nlog not found for {service}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let pair = |part: &str| part.split_once('=').map(|(name, value)| (name.to_string(), value.to_string()));
        text.split('&').filter_map(pair).collect()
    }

    #[test]
    fn queries_are_read_strictly() {
        let check = |text: &str, expected: Result<&str, &str>| {
            let found = NodeLogQuery::parse(&pairs(text));
            let found = found.and_then(|query| {
                let query = query.ok_or("none")?;
                query.validate().map(|()| query.journal_arguments(&query.services)[3..].join(" "))
            });
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{text}: {found}"),
                (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
            }
        };
        check("", Err("none"));
        check("query=kubelet", Ok("--unit=kubelet"));
        let all = "query=a&query=b&tailLines=5&pattern=err&boot=-1&sinceTime=2026-01-01T00:00:00Z";
        let since = "--since=2026-01-01 00:00:00.0";
        check(all, Ok(&format!("{since} --pager-end --lines=5 --unit=a --unit=b --grep=err --boot -1")));
        check("query=%20&query= ", Err("unsupported characters"));
        check("query= ", Err("may not be empty"));
        check("query=a;reboot", Err("input contains unsupported characters"));
        check("tailLines=5", Err("cannot be empty with options"));
        check("query=a&query=/b", Err("cannot specify a file and service"));
        check("query=/a&query=/b", Err("cannot specify more than one file"));
        check("query=/a&tailLines=1", Err("cannot specify file with options"));
        check("query=a&boot=1", Err("must be less than 1"));
        check("query=a&tailLines=x", Err("tailLines: Invalid value"));
        check("query=a&sinceTime=yesterday", Err("invalid time format"));
        let swapped = "query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z";
        check(swapped, Err("must be after `sinceTime`"));
        check("query=a&query=b&query=c&query=d&query=e", Err("must have at most 4 items"));
    }

    #[tokio::test]
    async fn services_without_a_journal_have_files() {
        let top = tempfile::tempdir().unwrap();
        std::fs::write(top.path().join("web-of-tests.log"), "one\ntwo\n").unwrap();
        let config = Config { log_dir: top.path().into(), ..Config::default() };
        let env = Env::real();
        let ask = async |text: &str, path: &str| {
            let query = NodeLogQuery::parse(&pairs(text)).unwrap().unwrap();
            match answer(&config, &env, &query, path, &HeaderMap::new()).await {
                Ok(response) => {
                    let body = response.into_body().collect().await.unwrap().to_bytes();
                    String::from_utf8_lossy(&body).into_owned()
                }
                Err(error) => error.message.clone(),
            }
        };
        assert_eq!(ask("query=web-of-tests", "/logs/").await, "one\ntwo\n");
        assert_eq!(ask("query=/web-of-tests.log", "/logs").await, "one\ntwo\n");
        assert_eq!(ask("query=none-of-tests", "/logs/").await, "\nlog not found for none-of-tests\n");
        assert!(ask("query=web-of-tests&tailLines=1", "/logs/").await.contains("try without specifying options"));
        assert_eq!(ask("query=a", "/logs/pods").await, "path not allowed in query mode");
    }
}
