//! The terminal of the person: raw while a session lasts, its size, and given back afterwards.
//! Used by `exec`, `attach`, `run` and `debug`; `output` gives it back when nobody reads on.
//! Given back by a guard, so also when the session fails, and by whoever ends the program.

use std::{
    io::{self, IsTerminal},
    os::fd::AsFd,
    pin::Pin,
    sync::{Mutex, PoisonError},
};

use nix::sys::termios::{self, SetArg, Termios};
use tokio::{
    io::AsyncRead,
    signal::unix::{Signal, SignalKind, signal},
};

/// How the terminal was before it became raw.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Signals that would end the program with the terminal raw. A pipe that nobody reads then is an error of writing.
const ENDINGS: [SignalKind; 5] =
    [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate(), SignalKind::pipe()];
/// A shell sees a program that a signal ended as this and the signal's number.
const SIGNALLED_EXIT: i32 = 128;

/// As it was before a session; nothing, if there is none.
pub fn give_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        let _ = termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &before);
    }
}

async fn give_back_at_the_end(mut signals: Vec<(SignalKind, Signal)>) {
    let ended = signals.iter_mut().map(|(kind, signal)| {
        Box::pin(async move {
            signal.recv().await;
            kind.as_raw_value()
        })
    });
    let (number, ..) = futures::future::select_all(ended).await;
    give_back();
    std::process::exit(SIGNALLED_EXIT + number);
}

/// A raw terminal until dropped.
pub struct RawMode(());

impl RawMode {
    /// `None` if standard input is no terminal.
    pub fn enter() -> Option<Self> {
        if !io::stdin().is_terminal() {
            return None;
        }
        let signals = ENDINGS.iter().map(|kind| Ok((*kind, signal(*kind)?))).collect::<io::Result<Vec<_>>>().ok()?;
        let before = termios::tcgetattr(io::stdin().as_fd()).ok()?;
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        // Goes on after the session: a signal that was once listened to does nothing by itself any more.
        env::spawn(give_back_at_the_end(signals));
        termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &raw).ok()?;
        Some(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        give_back();
    }
}

pub fn is_terminal() -> bool {
    io::stdin().is_terminal()
}

nix::ioctl_read_bad!(window_size, nix::libc::TIOCGWINSZ, nix::libc::winsize);

/// Columns and lines.
#[allow(unsafe_code)]
pub fn size() -> Option<(u16, u16)> {
    use std::os::fd::AsRawFd;
    let mut found = nix::libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open for the life of the process, and the struct is what the call fills.
    unsafe { window_size(io::stdout().as_raw_fd(), &raw mut found) }.ok()?;
    (found.ws_col > 0).then_some((found.ws_col, found.ws_row))
}

/// The size now and whenever it changes.
pub fn sizes() -> Option<tokio::sync::mpsc::Receiver<(u16, u16)>> {
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let mut changed = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change()).ok()?;
    sender.try_send(size()?).ok()?;
    env::spawn(async move {
        while changed.recv().await.is_some() {
            let Some(size) = size() else { return };
            if sender.send(size).await.is_err() {
                return;
            }
        }
    });
    Some(receiver)
}

pub fn stdin() -> Pin<Box<dyn AsyncRead>> {
    Box::pin(tokio::io::stdin())
}
