//! What a listener bears with. One value per kind of listener; upstream's numbers where it has them.
//! Read by `slots`, `deadlines` and `http`.
//! Invariant: nothing here changes while a listener serves (type: limits are copied into it).

use std::time::Duration;

/// Upstream has none of its own and relies on the system; no client needs longer to shake hands.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A request line and its headers, as upstream's `ReadHeaderTimeout`. The first request has as long from the start.
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// Between requests, as upstream's `IdleTimeout`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// For `STALL_BYTES` of an answer that has an end.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Clients of Kubernetes ping as often.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Long enough for a client on a machine that swaps.
const PING_TIMEOUT: Duration = Duration::from_secs(45);
/// `--http2-max-streams-per-connection` of upstream's components.
const STREAMS_PER_CONNECTION_MAX: u32 = 1000;

/// What a reader takes at least in `STALL_TIMEOUT`; less is as good as nothing.
pub const STALL_BYTES: u64 = 4096;
/// Label selectors are long at times; upstream takes as much.
pub const HEADER_BYTES_MAX: u32 = 1 << 20;
/// Streams that a client has opened and reset before anybody looked at them (CVE-2023-44487).
pub const RESET_STREAMS_PENDING_MAX: usize = 20;
/// Streams that the server had to reset for the client's errors (CVE-2025-8671); the connection ends after them.
pub const ERROR_RESET_STREAMS_MAX: usize = 100;

#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections in all; beyond them new ones are closed at once.
    pub connections: usize,
    /// Of these, from one address (of IPv6: from one /64).
    pub connections_per_peer: usize,
    pub handshake_timeout: Duration,
    pub header_timeout: Duration,
    pub idle_timeout: Duration,
    pub stall_timeout: Duration,
    pub ping_interval: Duration,
    pub ping_timeout: Duration,
    pub streams_per_connection: u32,
    /// Of a request's headers together.
    pub header_bytes: u32,
    /// Whether clients without TLS may begin in HTTP/2, as gRPC does.
    pub prior_knowledge_http2: bool,
    /// For requests under way when the listener stops.
    pub drain_timeout: Duration,
}

impl Limits {
    const fn new(connections: usize, connections_per_peer: usize, drain_timeout: Duration) -> Self {
        Self {
            connections,
            connections_per_peer,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            header_timeout: HEADER_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            stall_timeout: STALL_TIMEOUT,
            ping_interval: PING_INTERVAL,
            ping_timeout: PING_TIMEOUT,
            streams_per_connection: STREAMS_PER_CONNECTION_MAX,
            header_bytes: HEADER_BYTES_MAX,
            prior_knowledge_http2: false,
            drain_timeout,
        }
    }

    /// Thousands of nodes with a few connections each; many clients may share one address behind a load balancer.
    pub const API_SERVER: Self = Self::new(10_000, 2_500, Duration::from_secs(5));
    /// Each `logs -f`, `exec` and `port-forward` is a connection of the API server's.
    pub const KUBELET: Self = Self::new(2_000, 1_000, Duration::ZERO);
    /// The way in from outside: anybody, through few addresses of load balancers at times. Headers as nginx takes them.
    pub const INGRESS: Self = Self {
        header_bytes: 64 << 10,
        streams_per_connection: 128,
        prior_knowledge_http2: true,
        ..Self::new(20_000, 10_000, Duration::from_secs(10))
    };
    /// Health and metrics: a few scrapers and probes.
    pub const COMPONENT: Self = Self::new(256, 64, Duration::ZERO);
}
