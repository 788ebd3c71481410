//! What is logged, and how the lines look.
//! Started by `main` before anything else; `flags` and `kubelet_flags` show its flags.
//! Logs go to stderr and nowhere else; a JSON line is one object whatever the fields hold.

use std::{
    fmt,
    io::{self, IsTerminal},
    sync::OnceLock,
};

use clap::{Args, ValueEnum};
use env::Env;
use serde_json::{Map, Value, json};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    fmt::MakeWriter,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    reload,
    util::SubscriberInitExt,
};

use crate::log_rotation;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

#[derive(Debug, Clone, Args)]
pub struct Logging {
    /// How log lines look
    #[arg(
        long = "logging-format",
        visible_alias = "log-format",
        value_enum,
        value_name = "FORMAT",
        default_value = "text",
        global = true
    )]
    pub format: Format,
    /// How much is logged: 0 to 2 what operators need, 3 to 5 also every request and decision, more everything.
    /// Without it MINKE_LOG decides (`debug`, `kubelet=debug,info`, …)
    #[arg(short = 'v', long = "v", value_name = "LEVEL", global = true)]
    pub verbosity: Option<u8>,
}

/// Libraries whose details are of use only to who works on them.
const QUIET_LIBRARIES: &str = "hyper=info,hyper_util=info,h2=info,rustls=info,tower=info,tonic=info";

/// The log that was started: what it shows can be changed, and whether a flag said how much.
struct Started {
    filter: reload::Handle<EnvFilter, Registry>,
    verbosity_was_given: bool,
}

static STARTED: OnceLock<Started> = OnceLock::new();

/// From now on, whatever flag or environment said.
pub fn set_verbosity(verbosity: u8) -> io::Result<()> {
    let started = STARTED.get().ok_or_else(|| io::Error::other("nothing is logged"))?;
    let filter = Logging { format: Format::Text, verbosity: Some(verbosity) }.filter();
    started.filter.reload(filter).map_err(io::Error::other)
}

pub fn verbosity_was_given() -> bool {
    STARTED.get().is_some_and(|started| started.verbosity_was_given)
}

impl Logging {
    /// Upstream's numbers as levels: `V(4)` is where upstream's components log for debugging.
    fn filter(&self) -> EnvFilter {
        let environment = || std::env::var("MINKE_LOG").unwrap_or_else(|_| "info".into());
        EnvFilter::new(match self.verbosity {
            None => environment(),
            Some(0..=2) => "info".into(),
            Some(3..=5) => format!("debug,{QUIET_LIBRARIES}"),
            Some(_) => "trace".into(),
        })
    }

    pub fn start(&self) {
        let (filter, handle) = reload::Layer::new(self.filter());
        // Only a second start can fail, and that would change nothing.
        let _ = STARTED.set(Started { filter: handle, verbosity_was_given: self.verbosity.is_some() });
        let _ = match self.format {
            Format::Text => {
                let lines = tracing_subscriber::fmt::layer().with_writer(log_rotation::stderr);
                tracing_subscriber::registry().with(filter).with(lines.with_ansi(io::stderr().is_terminal())).try_init()
            }
            Format::Json => json_subscriber(filter, log_rotation::stderr).try_init(),
        };
    }
}

fn json_subscriber<W>(filter: impl Layer<Registry> + Send + Sync, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    tracing_subscriber::registry().with(filter).with(JsonLines { writer, env: Env::real() })
}

/// One JSON object per event, with the fields of the spans around it and the keys that upstream's JSON logs have.
struct JsonLines<W> {
    writer: W,
    env: Env,
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        let name = match field.name() {
            "message" => "msg",
            "error" => "err",
            other => other,
        };
        self.0.insert(name.to_string(), value);
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }
}

impl<S, W> Layer<S> for JsonLines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut line = Fields::default();
        line.0.insert("ts".into(), json!(self.env.now().as_millisecond()));
        line.0.insert("level".into(), metadata.level().as_str().to_lowercase().into());
        line.0.insert("v".into(), verbosity(metadata.level()).into());
        line.0.insert("logger".into(), metadata.target().into());
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<Fields>() {
                line.0.extend(fields.0.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
        }
        event.record(&mut line);
        let mut bytes = Value::Object(line.0).to_string().into_bytes();
        bytes.push(b'\n');
        // There is nowhere to tell that logs can't be written.
        let _ = io::Write::write_all(&mut self.writer.make_writer(), &bytes);
    }
}

/// The lowest `-v` that shows lines of this level.
fn verbosity(level: &Level) -> u8 {
    match *level {
        Level::ERROR | Level::WARN | Level::INFO => 0,
        Level::DEBUG => 3,
        Level::TRACE => 6,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver::{ApiServer, Config, body};
    use clap::{CommandFactory, Parser};
    use parking_lot::Mutex;

    use super::*;
    use crate::flags::Flags;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn parsed(&self) -> Vec<Value> {
            let text = String::from_utf8(self.0.lock().clone()).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
        }
    }

    #[test]
    fn json_lines_carry_the_fields_of_their_spans() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = json_subscriber(EnvFilter::new("info"), move || writer.clone());
        let _logging = testkit::scoped_log(subscriber);
        let span = tracing::info_span!("outer", key = "a\"b\n", user = tracing::field::Empty);
        let _inside = span.enter();
        span.record("user", "jane");
        tracing::warn!(error = %"it broke", count = 3, yes = true, "something happened");
        tracing::debug!("not shown");
        let lines = lines.parsed();
        assert_eq!(lines.len(), 1);
        let mut line = lines[0].clone();
        assert!(line["ts"].take().as_i64().is_some_and(|ts| ts > 1_700_000_000_000));
        let expected = json!({
            "ts": null, "level": "warn", "v": 0, "logger": line["logger"], "key": "a\"b\n", "user": "jane",
            "err": "it broke", "count": 3, "yes": true, "msg": "something happened",
        });
        assert_eq!(line, expected);
    }

    /// Whatever is logged while a request is handled can be found by what its client was told to call it.
    #[tokio::test]
    async fn lines_of_a_request_carry_its_audit_id() {
        let lines = Lines::default();
        let writer = lines.clone();
        let filter = Logging { format: Format::Json, verbosity: Some(4) }.filter();
        let subscriber = json_subscriber(filter, move || writer.clone());
        let _logging = testkit::scoped_log(subscriber);
        let env = Env::real();
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let server = ApiServer::new(Config::in_process(key), store, env).await.unwrap();
        let request = http::Request::get("/api/v1/nodes?limit=5").header("audit-id", "found-by-this");
        let response = server.handle(request.body(body::empty()).unwrap()).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["audit-id"]),
            (403, &"found-by-this".parse().unwrap())
        );
        let of_request: Vec<_> = lines.parsed().into_iter().filter(|l| l["audit_id"] == "found-by-this").collect();
        assert!(!of_request.is_empty());
        for line in of_request {
            let named = (&line["method"], &line["path"], &line["user"]);
            assert_eq!(named, (&json!("GET"), &json!("/api/v1/nodes"), &json!("system:anonymous")), "{line}");
        }
    }

    #[test]
    fn flags_stand_before_and_after_the_command() {
        let check = |arguments: &[&str], format: Format, verbosity: Option<u8>| {
            let flags = Flags::try_parse_from([&["minke"], arguments].concat()).unwrap();
            assert_eq!((flags.logging.format, flags.logging.verbosity), (format, verbosity), "{arguments:?}");
        };
        check(&["down"], Format::Text, None);
        check(&["--log-format", "json", "down"], Format::Json, None);
        check(&["down", "--logging-format=json", "-v4"], Format::Json, Some(4));
        check(&["kubelet", "--kubeconfig", "k", "--v=2", "--log-format=json"], Format::Json, Some(2));
        Flags::command().debug_assert();
    }

    #[test]
    fn verbosity_is_upstreams() {
        let shown = |verbosity| {
            let filter = Logging { format: Format::Text, verbosity: Some(verbosity) }.filter();
            filter.max_level_hint().unwrap().to_string()
        };
        assert_eq!([0, 2, 3, 5, 6, 10].map(shown), ["info", "info", "debug", "debug", "trace", "trace"]);
    }
}
