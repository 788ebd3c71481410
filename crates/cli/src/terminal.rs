//! The terminal of the person: raw while a session lasts, its size, and given back afterwards.
//! Used by `exec`, `attach`, `run`, `debug`, `edit` and `minke top`; `output` gives it back when nobody reads on.
//! Given back by a guard, so also when the session fails, and by whoever ends the program.

use std::{
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    pin::Pin,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::sys::termios::{self, SetArg, Termios};
use tokio::{
    io::AsyncRead,
    signal::unix::{Signal, SignalKind, signal},
};

use crate::output::Output;

/// How the terminal was before it became raw.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
static ON_OTHER_SCREEN: AtomicBool = AtomicBool::new(false);

const ENTER_OTHER_SCREEN: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE_OTHER_SCREEN: &str = "\x1b[?25h\x1b[?1049l";

/// Signals that kubectl ends at with an exit code of its own while it waits or has the terminal.
const ENDINGS: [SignalKind; 4] =
    [SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit(), SignalKind::terminate()];
const INTERRUPTED_EXIT: i32 = 1;

/// As it was before a session; nothing, if there is none.
pub fn give_back() {
    if ON_OTHER_SCREEN.swap(false, Ordering::Relaxed) {
        let mut out = io::stdout();
        let _ = out.write_all(LEAVE_OTHER_SCREEN.as_bytes()).and_then(|()| out.flush());
    }
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        let _ = termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &before);
    }
}

fn end_at(kinds: &[SignalKind]) -> io::Result<()> {
    let mut signals = kinds.iter().map(|kind| signal(*kind)).collect::<io::Result<Vec<Signal>>>()?;
    env::spawn(async move {
        let received = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
        futures::future::select_all(received).await;
        give_back();
        std::process::exit(INTERRUPTED_EXIT);
    });
    Ok(())
}

/// From here on a signal ends the program as it ends kubectl: with an exit code, and the terminal given back.
/// Not so where the output is a test's: the program is not ours to end then.
pub fn end_at_signals(output: &Output) -> io::Result<()> {
    match output.is_standard() {
        true => listen(),
        false => Ok(()),
    }
}

/// Goes on for good: a signal that was once listened to does nothing by itself any more.
fn listen() -> io::Result<()> {
    static LISTENING: AtomicBool = AtomicBool::new(false);
    match LISTENING.swap(true, Ordering::Relaxed) {
        true => Ok(()),
        false => end_at(&ENDINGS),
    }
}

/// The terminal as it is now, given back when dropped.
pub struct Kept(());

impl Kept {
    /// `None` if standard input is no terminal.
    pub fn enter() -> Option<Self> {
        Self::changed(|_| {})
    }

    /// The same, raw until then.
    pub fn enter_raw() -> Option<Self> {
        Self::changed(termios::cfmakeraw)
    }

    fn changed(change: impl Fn(&mut Termios)) -> Option<Self> {
        if !io::stdin().is_terminal() {
            return None;
        }
        listen().ok()?;
        let before = termios::tcgetattr(io::stdin().as_fd()).ok()?;
        let mut wanted = before.clone();
        change(&mut wanted);
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &wanted).ok()?;
        Some(Self(()))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        give_back();
    }
}

/// The other screen of the terminal, until dropped. Ctrl-C is left to who draws on it.
pub struct OtherScreen(());

impl OtherScreen {
    pub fn enter(output: &Output) -> io::Result<Self> {
        end_at(&ENDINGS[1..])?;
        ON_OTHER_SCREEN.store(true, Ordering::Relaxed);
        output.print(ENTER_OTHER_SCREEN);
        Ok(Self(()))
    }
}

impl Drop for OtherScreen {
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
