//! How a start is told: steps with their times, as a progress display or as lines for the process that waits.
//! Written by `server` and `agent`; shown by `up`.
//! Colour and spinners only on a terminal.

use std::{
    ffi::OsStr,
    io::{IsTerminal, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::Arc,
    time::Duration,
};

use env::Env;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

/// Set for a process whose stdout another one reads until it is ready.
pub const SUPERVISED: &str = "MINKE_SUPERVISED";

/// Where systemd is told of a service of `Type=notify` that it has started.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

fn notify(socket: &OsStr) -> std::io::Result<()> {
    let name = socket.as_bytes();
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(drop)
}

/// The foreground process tells its steps to the waiting one in this form, one per line on stdout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Step { milliseconds: u64, text: String },
    Failed(String),
    Ready,
}

impl Line {
    pub fn encode(&self) -> String {
        match self {
            Line::Step { milliseconds, text } => format!("step {milliseconds} {text}"),
            Line::Failed(text) => format!("failed {}", text.replace('\n', " ")),
            Line::Ready => "ready".to_string(),
        }
    }

    pub fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "step" => {
                let (milliseconds, text) = rest.split_once(' ')?;
                Some(Line::Step { milliseconds: milliseconds.parse().ok()?, text: text.to_string() })
            }
            "failed" => Some(Line::Failed(rest.to_string())),
            "ready" => Some(Line::Ready),
            _ => None,
        }
    }
}

/// Where a starting process tells its steps. Times count from when it was made.
#[derive(Clone)]
pub struct Reporter(Arc<Inner>);

struct Inner {
    env: Env,
    started: Duration,
    supervised: bool,
    done: Mutex<bool>,
}

impl Reporter {
    pub fn new(env: Env) -> Self {
        let started = env.monotonic();
        let supervised = std::env::var_os(SUPERVISED).is_some();
        Self(Arc::new(Inner { env, started, supervised, done: Mutex::new(false) }))
    }

    pub fn step(&self, text: &str) {
        let milliseconds = (self.0.env.monotonic() - self.0.started).as_millis() as u64;
        tracing::info!(milliseconds, "{text}");
        self.tell(Line::Step { milliseconds, text: text.to_string() });
    }

    pub fn failed(&self, text: &str) {
        self.tell(Line::Failed(text.to_string()));
    }

    pub fn ready(&self) {
        self.tell(Line::Ready);
        if let Some(socket) = std::env::var_os(NOTIFY_SOCKET)
            && let Err(error) = notify(&socket)
        {
            tracing::warn!(%error, "failed to tell systemd that the start is over");
        }
        // The reader goes away now: nothing may be written to it any more.
        *self.0.done.lock() = true;
    }

    fn tell(&self, line: Line) {
        let done = self.0.done.lock();
        if self.0.supervised && !*done {
            let mut stdout = std::io::stdout().lock();
            if writeln!(stdout, "{}", line.encode()).and_then(|()| stdout.flush()).is_err() {
                tracing::warn!("the process that waited for us is gone");
            }
        }
    }
}

/// What the waiting process shows.
pub struct Display {
    spinner: Option<ProgressBar>,
}

impl Display {
    pub fn new(waiting_for: &str) -> Self {
        let spinner = std::io::stderr().is_terminal().then(|| {
            let spinner = ProgressBar::new_spinner();
            spinner.set_style(
                ProgressStyle::with_template("{spinner:.cyan} {msg} {elapsed:.dim}").expect("valid template"),
            );
            spinner.enable_steady_tick(Duration::from_millis(80));
            spinner
        });
        let display = Self { spinner };
        display.waiting(waiting_for);
        display
    }

    pub fn waiting(&self, text: &str) {
        if let Some(spinner) = &self.spinner {
            spinner.set_message(text.to_string());
        }
    }

    pub fn step(&self, milliseconds: u64, text: &str) {
        let line = format!("{text:<44} {:>6.2} s", milliseconds as f64 / 1000.0);
        match &self.spinner {
            Some(spinner) => spinner.suspend(|| println!("\x1b[32m✓\x1b[0m {line}")),
            None => println!("✓ {line}"),
        }
    }

    pub fn finish(self) {
        if let Some(spinner) = self.spinner {
            spinner.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_is_told_at_either_kind_of_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("minke-notify-{}", std::process::id());
        let named = UnixDatagram::bind(&path).unwrap();
        let abstract_ = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, address) in [(named, path.into_os_string()), (abstract_, format!("@{name}").into())] {
            notify(&address).unwrap();
            let mut heard = [0; 32];
            let length = socket.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1");
        }
    }

    #[test]
    fn lines_survive_the_pipe() {
        for line in [
            Line::Step { milliseconds: 412, text: "API server ready on port 6443".into() },
            Line::Failed("can't listen on 0.0.0.0:6443".into()),
            Line::Ready,
        ] {
            assert_eq!(Line::parse(&line.encode()), Some(line));
        }
        assert_eq!(Line::parse("something else"), None);
    }
}
