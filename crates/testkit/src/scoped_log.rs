//! A subscriber for one test, beside tests that log nowhere.
//! Used by the tests that read log lines.

use tracing::{
    Dispatch, Subscriber,
    dispatcher::{DefaultGuard, set_default},
    subscriber::NoSubscriber,
};

/// While it lives, this thread's lines go to the subscriber.
pub struct ScopedLog {
    _guard: DefaultGuard,
    _second: Dispatch,
}

/// While there is one dispatcher only, tracing asks the thread that comes first to a line whether anybody wants it, and
/// keeps the answer for all: a thread of another test says no. With a second one it asks the dispatchers themselves.
pub fn scoped_log(subscriber: impl Subscriber + Send + Sync + 'static) -> ScopedLog {
    let dispatch = Dispatch::new(subscriber);
    let second = Dispatch::new(NoSubscriber::default());
    ScopedLog { _guard: set_default(&dispatch), _second: second }
}
