//! The terminal of the person: raw while a session lasts, its size, and given back afterwards.
//! Used by `exec`, `attach`, `run` and `debug`.
//! Given back by a guard, so also when the session fails.

use std::{
    io::{self, IsTerminal},
    os::fd::AsFd,
    pin::Pin,
};

use nix::sys::termios::{self, SetArg, Termios};
use tokio::io::AsyncRead;

/// A raw terminal until dropped.
pub struct RawMode(Termios);

impl RawMode {
    /// `None` if standard input is no terminal.
    pub fn enter() -> Option<Self> {
        if !io::stdin().is_terminal() {
            return None;
        }
        let before = termios::tcgetattr(io::stdin().as_fd()).ok()?;
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &self.0);
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
