//! What happens on one HTTP connection, as far as its deadlines need to know: `TrackedStream` is its stream, `Answer` a body
//! that is being sent on it.
//! Written by hyper's polling, read by `deadlines`.
//! Nothing here waits or locks: atomics only.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use env::Env;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::slots::Slot;

pub(crate) struct Activity {
    env: Env,
    /// Requests that have begun and whose answers are not yet handed over to their last byte.
    requests: AtomicUsize,
    /// Of these, answers that have an end and are being sent: all they wait for is the client.
    sending: AtomicUsize,
    any_request: AtomicBool,
    /// In nanoseconds of `Env::monotonic`: when the last request ended, or the connection began.
    quiet_since: AtomicU64,
    /// The same, of the first byte after that; 0: none yet.
    head_since: AtomicU64,
    bytes_written: AtomicU64,
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// For the first request, or the rest of one's head.
    ForHead { since: Duration },
    /// For the next request.
    ForRequest { since: Duration },
    /// For the client to take what it asked for.
    ForReader,
    /// For the server, or for an answer that has no end.
    No,
}

impl Activity {
    pub fn new(env: Env) -> Arc<Self> {
        let began = nanoseconds(&env);
        Arc::new(Self {
            env,
            requests: AtomicUsize::new(0),
            sending: AtomicUsize::new(0),
            any_request: AtomicBool::new(false),
            quiet_since: AtomicU64::new(began),
            head_since: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        })
    }

    pub fn begin(self: &Arc<Self>) -> Request {
        self.requests.fetch_add(1, Relaxed);
        self.any_request.store(true, Relaxed);
        self.head_since.store(0, Relaxed);
        Request { activity: self.clone(), sending: false }
    }

    /// `multiplexed`: other frames than requests may come at any time and begin nothing.
    pub fn waiting(&self, multiplexed: bool) -> Waiting {
        let requests = self.requests.load(Relaxed);
        if requests > 0 {
            return if self.sending.load(Relaxed) == requests { Waiting::ForReader } else { Waiting::No };
        }
        let quiet_since = Duration::from_nanos(self.quiet_since.load(Relaxed));
        match self.head_since.load(Relaxed) {
            _ if !self.any_request.load(Relaxed) => Waiting::ForHead { since: quiet_since },
            head if head > 0 && !multiplexed => Waiting::ForHead { since: Duration::from_nanos(head) },
            _ => Waiting::ForRequest { since: quiet_since },
        }
    }

    pub fn bytes_written(&self) -> u64 {
        self.bytes_written.load(Relaxed)
    }

    fn read(&self) {
        if self.requests.load(Relaxed) == 0 && self.head_since.load(Relaxed) == 0 {
            self.head_since.store(nanoseconds(&self.env), Relaxed);
        }
    }

    fn wrote(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.bytes_written.fetch_add(*bytes as u64, Relaxed);
        }
    }
}

fn nanoseconds(env: &Env) -> u64 {
    env.monotonic().as_nanos() as u64
}

/// A request that is under way.
pub(crate) struct Request {
    activity: Arc<Activity>,
    sending: bool,
}

impl Request {
    /// The body of its answer, which ends it. `finite`: it has an end, even if nobody knows where.
    pub fn answer<B: Body>(mut self, body: B, finite: bool) -> Answer<B> {
        if finite || body.size_hint().exact().is_some() {
            self.sending = true;
            self.activity.sending.fetch_add(1, Relaxed);
        }
        Answer { body, _request: self }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let activity = &self.activity;
        if self.sending {
            activity.sending.fetch_sub(1, Relaxed);
        }
        // Before the count: whoever sees no requests sees since when.
        activity.quiet_since.store(nanoseconds(&activity.env), Relaxed);
        activity.requests.fetch_sub(1, Relaxed);
    }
}

pin_project! {
    /// A body whose request is under way for as long as it lives.
    pub struct Answer<B> {
        #[pin]
        body: B,
        _request: Request,
    }
}

impl<B: Body> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pin_project! {
    /// A connection that holds its slot and tells what passes.
    pub struct TrackedStream<S> {
        #[pin]
        stream: S,
        activity: Arc<Activity>,
        _slot: Slot,
    }
}

impl<S> TrackedStream<S> {
    pub(crate) fn new(stream: S, activity: Arc<Activity>, slot: Slot) -> Self {
        Self { stream, activity, _slot: slot }
    }
}

impl<S: AsyncRead> AsyncRead for TrackedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let before = buf.filled().len();
        let read = this.stream.poll_read(cx, buf);
        if buf.filled().len() > before {
            this.activity.read();
        }
        read
    }
}

impl<S: AsyncWrite> AsyncWrite for TrackedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        let written = this.stream.poll_write(cx, buf);
        this.activity.wrote(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let written = this.stream.poll_write_vectored(cx, bufs);
        this.activity.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_shutdown(cx)
    }
}
