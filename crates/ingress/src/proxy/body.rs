//! Bodies on their way through: counted, watched for silence, never kept.
//! `RequestBody` goes to a backend, `ResponseBody` to a client.
//! Invariant: no more than one frame of a body is held (type: both hand on what they are given).

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use env::Env;
use futures::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{log_entry::LogEntry, upstream::UpstreamBody};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is larger than allowed")]
    TooLarge,
    #[error("nothing came for too long")]
    Silent,
    #[error("the body broke off: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the body was not copied to its end")]
    CopyEnded,
}

/// Notices that nothing moves. Costs nothing while frames are there when they are asked for.
pub struct SilenceTimer {
    env: Env,
    limit: Duration,
    last: Duration,
    timer: Option<BoxFuture<'static, ()>>,
}

impl SilenceTimer {
    pub fn new(env: Env, limit: Duration) -> Self {
        Self { env, limit, last: Duration::ZERO, timer: None }
    }

    fn moved(&mut self) {
        if self.timer.is_some() {
            self.last = self.env.monotonic();
        }
    }

    /// Called when there is nothing: true when that has lasted too long.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let timer = self.timer.get_or_insert_with(|| {
                self.last = self.env.monotonic();
                Box::pin(env::sleep(self.limit))
            });
            if timer.as_mut().poll(cx).is_pending() {
                return false;
            }
            let silent = self.env.monotonic().saturating_sub(self.last);
            if silent >= self.limit {
                return true;
            }
            self.timer = Some(Box::pin(env::sleep(self.limit - silent)));
        }
    }
}

/// How a request's body fares, for whoever waits for the answer.
#[derive(Debug, Default)]
pub struct Upload {
    pub too_large: AtomicBool,
    pub failed: AtomicBool,
    /// In milliseconds of `Env::monotonic`.
    last_milliseconds: AtomicU64,
}

impl Upload {
    pub fn last(&self) -> Duration {
        Duration::from_millis(self.last_milliseconds.load(Relaxed))
    }
}

/// A request's body on its way to a backend.
pub enum RequestBody {
    Empty,
    Streaming(Box<Streaming>),
    /// What another request's body has let through.
    Copied(Receiver<Copied>),
}

/// A part of a copy. One that ends without `End` has lost something.
pub enum Copied {
    Data(Bytes),
    End,
}

/// Frames that a copy may be behind; one that is slower ends.
const COPY_FRAMES_MAX: usize = 64;

pub struct Streaming {
    incoming: Incoming,
    bytes_left: Option<u64>,
    silence: SilenceTimer,
    upload: Arc<Upload>,
    copies: Vec<Sender<Copied>>,
}

impl RequestBody {
    pub fn new(incoming: Incoming, bytes_max: Option<u64>, silence: impl FnOnce() -> SilenceTimer) -> Self {
        match incoming.is_end_stream() {
            true => Self::Empty,
            false => Self::Streaming(Box::new(Streaming {
                incoming,
                bytes_left: bytes_max,
                silence: silence(),
                upload: Arc::default(),
                copies: Vec::new(),
            })),
        }
    }

    pub fn upload(&self) -> Option<Arc<Upload>> {
        match self {
            Self::Empty | Self::Copied(_) => None,
            Self::Streaming(streaming) => Some(streaming.upload.clone()),
        }
    }

    /// Another body that carries the same.
    pub fn copy(&mut self) -> Self {
        let Self::Streaming(streaming) = self else { return Self::Empty };
        let (sender, receiver) = channel(COPY_FRAMES_MAX);
        streaming.copies.push(sender);
        Self::Copied(receiver)
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }
}

impl Streaming {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) else {
            return match self.silence.is_over(cx) {
                true => Poll::Ready(Some(Err(BodyError::Silent))),
                false => Poll::Pending,
            };
        };
        self.silence.moved();
        self.upload.last_milliseconds.store(self.silence.env.monotonic().as_millis() as u64, Relaxed);
        let frame = match frame.transpose() {
            Ok(frame) => frame,
            Err(error) => return Poll::Ready(Some(Err(error.into()))),
        };
        if let (Some(left), Some(data)) = (&mut self.bytes_left, frame.as_ref().and_then(Frame::data_ref)) {
            match left.checked_sub(data.len() as u64) {
                Some(rest) => *left = rest,
                None => return Poll::Ready(Some(Err(BodyError::TooLarge))),
            }
        }
        if !self.copies.is_empty() {
            self.copy_frame(frame.as_ref());
        }
        Poll::Ready(frame.map(Ok))
    }

    fn copy_frame(&mut self, frame: Option<&Frame<Bytes>>) {
        let is_end = frame.is_none() || self.incoming.is_end_stream();
        let data = frame.and_then(Frame::data_ref);
        self.copies.retain(|copy| {
            let sent = data.is_none_or(|data| copy.try_send(Copied::Data(data.clone())).is_ok());
            sent && !(is_end && copy.try_send(Copied::End).is_ok())
        });
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let streaming = match &mut *self {
            Self::Empty => return Poll::Ready(None),
            Self::Streaming(streaming) => streaming,
            Self::Copied(copy) => {
                return copy.poll_recv(cx).map(|part| match part {
                    Some(Copied::Data(data)) => Some(Ok(Frame::data(data))),
                    Some(Copied::End) => None,
                    None => Some(Err(BodyError::CopyEnded)),
                });
            }
        };
        let polled = streaming.poll(cx);
        if let Poll::Ready(Some(Err(error))) = &polled {
            streaming.upload.too_large.store(matches!(error, BodyError::TooLarge), Relaxed);
            streaming.upload.failed.store(true, Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Copied(_) => false,
            Self::Streaming(streaming) => streaming.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Copied(_) => SizeHint::default(),
            Self::Streaming(streaming) => streaming.incoming.size_hint(),
        }
    }
}

/// An answer's body on its way to a client.
pub struct ResponseBody {
    source: Source,
    log: Option<Box<LogEntry>>,
}

enum Source {
    Text(Option<Bytes>),
    Http1(Box<UpstreamBody>, SilenceTimer),
    Http2(Incoming, SilenceTimer),
}

impl ResponseBody {
    pub fn empty() -> Self {
        Self { source: Source::Text(None), log: None }
    }

    pub fn text(text: impl Into<Bytes>) -> Self {
        Self { source: Source::Text(Some(text.into())), log: None }
    }

    pub fn http1(body: UpstreamBody, silence: SilenceTimer) -> Self {
        Self { source: Source::Http1(Box::new(body), silence), log: None }
    }

    pub fn http2(body: Incoming, silence: SilenceTimer) -> Self {
        Self { source: Source::Http2(body, silence), log: None }
    }

    /// Writes its line when the body has ended, one way or the other.
    pub fn logged(mut self, log: Option<Box<LogEntry>>) -> Self {
        self.log = log;
        self
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let (polled, silence) = match &mut this.source {
            Source::Text(text) => return Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Source::Http1(body, silence) => (body.poll_frame(cx), silence),
            Source::Http2(body, silence) => (Pin::new(body).poll_frame(cx), silence),
        };
        let Poll::Ready(frame) = polled else {
            return match silence.is_over(cx) {
                true => Poll::Ready(Some(Err(BodyError::Silent.into()))),
                false => Poll::Pending,
            };
        };
        silence.moved();
        if let (Some(log), Some(Ok(frame))) = (&mut this.log, &frame) {
            log.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Text(text) => text.is_none(),
            Source::Http1(body, _) => body.is_end_stream(),
            Source::Http2(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Source::Http1(body, _) => body.size_hint(),
            Source::Http2(body, _) => body.size_hint(),
        }
    }
}
