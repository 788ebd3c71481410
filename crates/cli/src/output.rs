//! Where a command prints: standard output and error, or a test's memory.
//! Given to every verb by `session`; the only place that writes to a terminal.
//! A reader that went away ends the program quietly, as it ends any other.

use std::{
    cell::{Cell, RefCell},
    io::{self, BufWriter, ErrorKind, IsTerminal, Write},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use tokio::io::AsyncWrite;

#[derive(Clone)]
pub struct Output(Rc<Streams>);

struct Streams {
    out: RefCell<Box<dyn Write>>,
    err: RefCell<Box<dyn Write>>,
    out_is_terminal: bool,
    is_standard: bool,
    bytes_written: Cell<u64>,
}

/// As a shell sees a program that a broken pipe ended.
const BROKEN_PIPE_EXIT: i32 = 141;

fn check(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() == ErrorKind::BrokenPipe
    {
        crate::terminal::give_back();
        std::process::exit(BROKEN_PIPE_EXIT);
    }
}

impl Output {
    pub fn standard() -> Self {
        Self(Rc::new(Streams {
            out: RefCell::new(Box::new(BufWriter::with_capacity(64 << 10, io::stdout()))),
            err: RefCell::new(Box::new(io::stderr())),
            out_is_terminal: io::stdout().is_terminal(),
            is_standard: true,
            bytes_written: Cell::new(0),
        }))
    }

    pub fn to(out: impl Write + 'static, err: impl Write + 'static) -> Self {
        Self(Rc::new(Streams {
            out: RefCell::new(Box::new(out)),
            err: RefCell::new(Box::new(err)),
            out_is_terminal: false,
            is_standard: false,
            bytes_written: Cell::new(0),
        }))
    }

    /// Of this process, not a test's memory.
    pub fn is_standard(&self) -> bool {
        self.0.is_standard
    }

    pub fn is_terminal(&self) -> bool {
        self.0.out_is_terminal
    }

    /// As it is.
    pub fn print(&self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// By `bytes` and `error_bytes`, which carry what others say.
    pub fn bytes_written(&self) -> u64 {
        self.0.bytes_written.get()
    }

    fn count(&self, bytes: &[u8]) {
        self.0.bytes_written.set(self.0.bytes_written.get() + bytes.len() as u64);
    }

    pub fn bytes(&self, bytes: &[u8]) {
        self.count(bytes);
        check(self.0.out.borrow_mut().write_all(bytes));
    }

    /// With a new line.
    pub fn line(&self, text: &str) {
        let mut out = self.0.out.borrow_mut();
        check(out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")));
    }

    /// A line to standard error, behind what was printed so far.
    pub fn warn(&self, text: &str) {
        self.flush();
        let mut err = self.0.err.borrow_mut();
        check(writeln!(err, "{text}"));
    }

    pub fn error_bytes(&self, bytes: &[u8]) {
        self.count(bytes);
        self.flush();
        check(self.0.err.borrow_mut().write_all(bytes));
    }

    pub fn flush(&self) {
        check(self.0.out.borrow_mut().flush());
        check(self.0.err.borrow_mut().flush());
    }
}

/// For streams that arrive piece by piece: each is seen at once.
impl AsyncWrite for Output {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.bytes(bytes);
        Output::flush(&self);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Output::flush(&self);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}
