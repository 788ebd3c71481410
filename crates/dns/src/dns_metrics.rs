//! What the DNS server counts, under CoreDNS's names, and the port that shows it.
//! Counted by `server` and `forward`.
//! Names that were asked for are no labels: anybody could make up any number of them.

use std::net::SocketAddr;

use env::Env;
use hickory_proto::{op::ResponseCode, rr::RecordType};
use metrics::{Family, Metrics, http};

/// From a quarter of a millisecond, each twice the one before.
const BUCKETS: &[f64] = &[
    0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192,
];

pub static REQUESTS: Family = Family::counter(
    "coredns_dns_requests_total",
    &["server", "zone", "view", "proto", "family", "type"],
    "Questions, by zone, protocol, family and type.",
);
pub static RESPONSES: Family = Family::counter(
    "coredns_dns_responses_total",
    &["server", "zone", "view", "rcode", "plugin"],
    "Answers, by zone and code.",
);
pub static DURATION: Family = Family::histogram(
    "coredns_dns_request_duration_seconds",
    &["server", "zone", "view"],
    BUCKETS,
    "How long questions took, by zone.",
);
/// As CoreDNS has them: messages up to 64 KiB.
const SIZE_BUCKETS: &[f64] = &[0., 100., 200., 300., 400., 511., 1023., 2047., 4095., 8291., 16e3, 32e3, 48e3, 64e3];

pub static REQUEST_SIZE: Family = Family::histogram(
    "coredns_dns_request_size_bytes",
    &["server", "zone", "view", "proto"],
    SIZE_BUCKETS,
    "How large questions were, by zone and protocol.",
);
pub static RESPONSE_SIZE: Family = Family::histogram(
    "coredns_dns_response_size_bytes",
    &["server", "zone", "view", "proto"],
    SIZE_BUCKETS,
    "How large answers were, by zone and protocol.",
);
pub static CACHE_REQUESTS: Family = Family::counter(
    "coredns_cache_requests_total",
    &["server", "zones", "view"],
    "Questions for others, in memory or not.",
);
pub static CACHE_PREFETCH: Family = Family::counter(
    "coredns_cache_prefetch_total",
    &["server", "zones", "view"],
    "Answers that were asked for again before they ended.",
);
pub static CACHE_HITS: Family = Family::counter(
    "coredns_cache_hits_total",
    &["server", "type", "zones", "view"],
    "Questions for others that were answered from memory.",
);
pub static CACHE_MISSES: Family = Family::counter(
    "coredns_cache_misses_total",
    &["server", "zones", "view"],
    "Questions for others that were not in memory.",
);
pub static CACHE_ENTRIES: Family =
    Family::gauge("coredns_cache_entries", &["server", "type", "zones", "view"], "Answers of others in memory.");
pub static FORWARD_DURATION: Family = Family::histogram(
    "coredns_proxy_request_duration_seconds",
    &["proxy_name", "to", "rcode"],
    BUCKETS,
    "How long others took to answer.",
);
pub static FORWARD_REJECTED: Family = Family::counter(
    "coredns_forward_max_concurrent_rejects_total",
    &[],
    "Questions that were refused because too many were under way.",
);

pub const SERVER: &str = "dns://:53";
/// The zone of everything that is not ours.
pub const ROOT: &str = ".";

pub fn code_name(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        _ => "OTHER",
    }
}

/// The types that CoreDNS tells apart.
pub fn type_name(kind: RecordType) -> &'static str {
    match kind {
        RecordType::A => "A",
        RecordType::AAAA => "AAAA",
        RecordType::MX => "MX",
        RecordType::SOA => "SOA",
        RecordType::CNAME => "CNAME",
        RecordType::PTR => "PTR",
        RecordType::TXT => "TXT",
        RecordType::NS => "NS",
        RecordType::SRV => "SRV",
        RecordType::DS => "DS",
        RecordType::DNSKEY => "DNSKEY",
        RecordType::NSEC => "NSEC",
        RecordType::NSEC3 => "NSEC3",
        RecordType::ANY => "ANY",
        RecordType::HTTPS => "HTTPS",
        _ => "other",
    }
}

/// Serves until it is dropped; a port in use is taken when it is free.
pub async fn serve(address: SocketAddr, metrics: Metrics, env: Env) {
    let refused = |error: &std::io::Error| {
        tracing::warn!(%address, %error, "failed to serve DNS metrics: choose another --dns-metrics-port");
    };
    http::serve_metrics(&env, address, metrics, &[], refused).await;
}
