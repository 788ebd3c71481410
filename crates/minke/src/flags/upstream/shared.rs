//! Rows that several of upstream's components have: logs, metrics, feature gates, the port and its callers, elections.
//! Part of the tables beside it.
//! What differs between components is not here.

use super::{
    Form::{Duration, Flag, Float, Gates, List, Map, Number, Text},
    Meaning::{Acts, Idle, Only},
    Row,
};

const UNBUFFERED: &str = "log lines are written as they come, to stderr";

pub const LOGS: &[Row] = &[
    ("log-flush-frequency", Duration, Idle(UNBUFFERED)),
    ("log-json-info-buffer-size", Text, Only(&["0"], UNBUFFERED)),
    ("log-json-split-stream", Flag, Only(&["false"], UNBUFFERED)),
    ("log-text-info-buffer-size", Text, Only(&["0"], UNBUFFERED)),
    ("log-text-split-stream", Flag, Only(&["false"], UNBUFFERED)),
    ("logging-format", Text, Acts),
    ("v", Number, Acts),
    ("vmodule", List, Only(&[""], "MINKE_LOG says how much of which part is logged")),
];

const METRICS_FIXED: &str = "every metric is shown with all its labels";

pub const METRICS: &[Row] = &[
    ("allow-metric-labels", Map, Only(&["", "[]"], METRICS_FIXED)),
    ("allow-metric-labels-manifest", Text, Only(&[""], METRICS_FIXED)),
    ("disabled-metrics", List, Only(&["", "[]"], METRICS_FIXED)),
    ("show-hidden-metrics-for-version", Text, Only(&[""], "no metric is hidden")),
];

const ONE_VERSION: &str = "components are of v1.35 and emulate no other";

pub const VERSIONS: &[Row] = &[
    ("emulated-version", List, Only(&["", "1.35", "kube=1.35"], ONE_VERSION)),
    ("feature-gates", Gates, Acts),
    ("min-compatibility-version", List, Only(&["", "1.34", "kube=1.34", "1.35", "kube=1.35"], ONE_VERSION)),
];

const NO_PROFILING: &str = "there is no profiling, so that it can't be reached either";

pub const PROFILING: &[Row] =
    &[("contention-profiling", Flag, Idle(NO_PROFILING)), ("profiling", Flag, Idle(NO_PROFILING))];

const LEASES: &str = "leaders are elected by Leases";

pub const LEADER_ELECTION: &[Row] = &[
    ("leader-elect", Flag, Acts),
    ("leader-elect-lease-duration", Duration, Acts),
    ("leader-elect-renew-deadline", Duration, Acts),
    ("leader-elect-resource-lock", Text, Only(&["leases"], LEASES)),
    ("leader-elect-resource-name", Text, Acts),
    ("leader-elect-resource-namespace", Text, Acts),
    ("leader-elect-retry-period", Duration, Acts),
];

const PUBLISHED: &str = "whom to believe about others is taken from the API server, which publishes it";
const ASKED_EACH_TIME: &str = "the API server is asked each time, and nothing is remembered";

/// The port of a controller manager or scheduler, and who may ask there.
pub const COMPONENT_PORT: &[Row] = &[
    ("authentication-kubeconfig", Text, Acts),
    ("authentication-skip-lookup", Flag, Only(&["false"], PUBLISHED)),
    ("authentication-token-webhook-cache-ttl", Duration, Idle(ASKED_EACH_TIME)),
    ("authentication-tolerate-lookup-failure", Flag, Only(&["true"], "the port answers health whoever can be asked")),
    ("authorization-always-allow-paths", List, Acts),
    ("authorization-kubeconfig", Text, Acts),
    ("authorization-webhook-cache-authorized-ttl", Duration, Idle(ASKED_EACH_TIME)),
    ("authorization-webhook-cache-unauthorized-ttl", Duration, Idle(ASKED_EACH_TIME)),
    ("bind-address", Text, Acts),
    ("cert-dir", Text, Only(&["", "/var/run/kubernetes"], "a certificate of its own making is kept in memory")),
    ("client-ca-file", Text, Acts),
    ("disable-http2-serving", Flag, Only(&["false"], "HTTP/2 is always offered")),
    ("http2-max-streams-per-connection", Number, Idle("the port has limits of its own")),
    ("permit-address-sharing", Flag, Idle("a port in use is taken when it is free")),
    ("permit-port-sharing", Flag, Only(&["false"], "a port has one listener")),
    ("requestheader-allowed-names", List, Idle(PUBLISHED)),
    ("requestheader-client-ca-file", Text, Idle(PUBLISHED)),
    ("requestheader-extra-headers-prefix", List, Idle(PUBLISHED)),
    ("requestheader-group-headers", List, Idle(PUBLISHED)),
    ("requestheader-uid-headers", List, Idle(PUBLISHED)),
    ("requestheader-username-headers", List, Idle(PUBLISHED)),
    ("secure-port", Number, Acts),
    ("tls-cert-file", Text, Acts),
    ("tls-cipher-suites", List, Acts),
    ("tls-min-version", Text, Acts),
    ("tls-private-key-file", Text, Acts),
    ("tls-sni-cert-key", Text, Only(&["", "[]"], "the port has one certificate")),
];

const UNLIMITED: &str = "requests are limited by the API server's flow control alone";

/// How a component reaches the API server.
pub const CLIENT_CONNECTION: &[Row] = &[
    ("kube-api-burst", Number, Idle(UNLIMITED)),
    ("kube-api-content-type", Text, Idle("requests are JSON, which every API server takes")),
    ("kube-api-qps", Float, Idle(UNLIMITED)),
    ("kubeconfig", Text, Acts),
    ("master", Text, Acts),
];
