//! A program under a pseudo-terminal, as if a person sat before it.
//! Used by the tests of interactive commands.
//! The terminal outlives the program, so that its state can be looked at afterwards.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use nix::{
    pty::{Winsize, openpty},
    sys::termios::{LocalFlags, tcgetattr},
};

use crate::eventually;

const COLUMNS: u16 = 100;
const ROWS: u16 = 30;

pub struct Terminal {
    child: Child,
    keys: File,
    /// Kept open: without it the terminal would be gone with the program.
    screen: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts the command with the terminal as its own, so that keys become signals.
    pub fn start(command: &Command) -> Self {
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).expect("a pseudo-terminal");
        let end = || Stdio::from(pair.slave.try_clone().expect("a descriptor"));
        // Of util-linux: the terminal of standard input becomes the controlling one.
        let mut wrapped = Command::new("setsid");
        wrapped.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        let child = wrapped.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn();
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let keys = File::from(pair.master);
        let (mut reader, into) = (keys.try_clone().expect("a descriptor"), shown.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                into.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
            }
        });
        Self { child: child.expect("setsid is missing: apt-get install util-linux"), keys, screen: pair.slave, shown }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything that was printed so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    #[track_caller]
    pub fn shows(&self, text: &str) {
        eventually(&format!("{text:?} is shown"), || {
            let all = self.text();
            if all.contains(text) { Ok(()) } else { Err(all) }
        });
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Whether it shows what is typed and waits for whole lines, as a shell wants it.
    pub fn is_cooked(&self) -> bool {
        let state = tcgetattr(self.screen.as_fd()).expect("the terminal's state");
        state.local_flags.contains(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG)
    }

    #[track_caller]
    pub fn becomes_raw(&self) {
        eventually("the terminal is raw", || if self.is_cooked() { Err(self.text()) } else { Ok(()) });
    }

    /// How the program ended.
    #[track_caller]
    pub fn end(&mut self) -> ExitStatus {
        eventually("the program ends", || match self.child.try_wait().expect("a child of ours") {
            Some(status) => Ok(status),
            None => Err(self.text()),
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Ended already, if the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
