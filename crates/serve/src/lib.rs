//! How every listener of ours accepts connections and what it bears with: `slots` cap them, `accept` is the one accept
//! loop, `http` speaks TLS (`tls_options`) and HTTP over them, `deadlines` ends those that only wait.
//! Used by the API server, the kubelet, the component ports, health and metrics ports, and DNS over TCP.
//! Invariant: no connection is held without a slot (type: `accept` gives one with each), and none waits for its peer
//! without a deadline, except while an answer that has no end (a watch, `logs -f`, an upgraded connection) is under way
//! (test: `http_tests.rs`).

mod accept;
mod activity;
mod deadlines;
mod forward_write;
mod framing_guard;
mod http;
mod limits;
mod replayed_stream;
mod slots;
mod tls_options;

pub use accept::{Accept, accept};
pub use activity::{Answer, TrackedStream};
pub use http::{Finite, Handler, Peer, offering_http, serve_http, serve_https};
pub use limits::Limits;
pub use replayed_stream::ReplayedStream;
pub use slots::{Slot, Slots};
pub use tls_options::{TlsOptions, is_cipher_suite};
