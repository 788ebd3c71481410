//! The wire: UDP and TCP, EDNS, truncation; answers from the zone at once, the rest through `forward`.
//! Started by `run`; the zone is shared with it.
//! Invariant: the zone's lock is never held across an await (clippy: `await_holding_lock`).

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use env::Env;
use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RData, Record, RecordType, rdata::CNAME},
};
use parking_lot::RwLock;
use serve::Slots;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};
use tokio_util::sync::CancellationToken;

use crate::{
    dns_metrics::{DURATION, REQUEST_SIZE, REQUESTS, RESPONSE_SIZE, RESPONSES, ROOT, SERVER, code_name, type_name},
    forward::{Forwarder, UDP_PAYLOAD_BYTES},
    index::Zone,
    zone::Answer,
};

const TCP_CONNECTIONS_MAX: usize = 256;
/// A pod asks a few things at once at most.
const TCP_CONNECTIONS_PER_PEER_MAX: usize = 64;
/// Questions over UDP that wait for upstream; beyond them the answer is SERVFAIL at once.
const FORWARDED_MAX: usize = 1000;
/// Of these, by one pod.
const FORWARDED_PER_PEER_MAX: usize = 250;
const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// ExternalName may point at ExternalName; not for ever.
const ALIAS_CHAIN_MAX: usize = 8;
/// As CoreDNS' plugin of that name has it.
const HOST_TTL_SECONDS: u32 = 3600;
/// Of an alias that stands for a search: as long as Services' names are remembered.
const SEARCH_TTL_SECONDS: u32 = 5;
/// In bytes: a name that was there before, and nothing in it.
const RECORD_BYTES_MIN: usize = 12;

pub struct Server {
    pub(crate) shared: Arc<Shared>,
    sockets: Vec<(Arc<UdpSocket>, TcpListener)>,
}

pub(crate) struct Shared {
    env: Env,
    zone: Arc<RwLock<Zone>>,
    pub(crate) forwarder: Arc<Forwarder>,
    tcp_slots: Slots,
    forwarded_slots: Slots,
    turn: AtomicUsize,
    /// The cluster's domain.
    origin: Name,
    zone_name: String,
}

impl Server {
    /// Takes the addresses, each for UDP and TCP. Port 0 takes any free one.
    pub async fn bind(
        addresses: &[SocketAddr],
        zone: Arc<RwLock<Zone>>,
        forwarder: Forwarder,
        env: Env,
    ) -> std::io::Result<Self> {
        let mut sockets = Vec::new();
        for address in addresses {
            let tcp = TcpListener::bind(address).await?;
            let udp = UdpSocket::bind(tcp.local_addr()?).await?;
            sockets.push((Arc::new(udp), tcp));
        }
        Ok(Self { shared: Arc::new(Shared::new(zone, forwarder, env)), sockets })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|(udp, _)| udp.local_addr().ok()).collect()
    }

    pub async fn serve(self, shutdown: CancellationToken) {
        for (udp, tcp) in self.sockets {
            let env = self.shared.env.clone();
            let (shared, stop) = (self.shared.clone(), shutdown.clone());
            env.spawn(async move { stop.run_until_cancelled(serve_udp(shared, udp)).await });
            let (shared, stop) = (self.shared.clone(), shutdown.clone());
            env.spawn(async move { stop.run_until_cancelled(serve_tcp(shared, tcp)).await });
        }
        shutdown.cancelled().await;
    }
}

async fn serve_udp(shared: Arc<Shared>, socket: Arc<UdpSocket>) {
    let mut buffer = vec![0; 4096];
    loop {
        // An error here is about a client that went away; the socket stays.
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        let asked = shared.asked("udp", from, length);
        match shared.begin(&buffer[..length]) {
            QueryProgress::Nothing => {}
            QueryProgress::Done { response, limit } => {
                let _ = socket.send_to(&shared.counted(&asked, response, limit), from).await;
            }
            QueryProgress::Ask(mut pending) => {
                let Some(slot) = shared.forwarded_slots.take(Some(from.ip())) else {
                    pending.response.metadata.response_code = ResponseCode::ServFail;
                    let _ = socket.send_to(&shared.counted(&asked, pending.response, pending.limit), from).await;
                    continue;
                };
                let (shared, socket) = (shared.clone(), socket.clone());
                shared.env.clone().spawn(async move {
                    let limit = pending.limit;
                    let response = shared.finish(*pending).await;
                    let _ = socket.send_to(&shared.counted(&asked, response, limit), from).await;
                    drop(slot);
                });
            }
        }
    }
}

async fn serve_tcp(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let (stream, from, slot) = serve::accept(&listener, &shared.tcp_slots, &shared.env).await;
        let Some(from) = from else { continue };
        let shared = shared.clone();
        shared.env.clone().spawn(async move {
            converse(&shared, stream, from).await;
            drop(slot);
        });
    }
}

async fn converse(shared: &Shared, mut stream: TcpStream, from: SocketAddr) {
    loop {
        let question = async {
            let length = stream.read_u16().await?;
            let mut bytes = vec![0; usize::from(length)];
            stream.read_exact(&mut bytes).await?;
            Ok::<_, std::io::Error>(bytes)
        };
        let Some(Ok(bytes)) = shared.env.timeout(TCP_IDLE_TIMEOUT, question).await else { return };
        let asked = shared.asked("tcp", from, bytes.len());
        let response = match shared.begin(&bytes) {
            QueryProgress::Nothing => return,
            QueryProgress::Done { response, .. } => response,
            QueryProgress::Ask(pending) => shared.finish(*pending).await,
        };
        let bytes = shared.counted(&asked, response, usize::from(u16::MAX));
        let length = (bytes.len() as u16).to_be_bytes();
        let answer = [&length[..], &bytes].concat();
        let Some(Ok(())) = shared.env.timeout(TCP_IDLE_TIMEOUT, stream.write_all(&answer)).await else { return };
    }
}

/// How far a question got without waiting.
pub(crate) enum QueryProgress {
    /// Not a question at all.
    Nothing,
    Done {
        response: Message,
        limit: usize,
    },
    Ask(Box<Pending>),
}

/// An answer that still needs upstream's records of `query`.
pub(crate) struct Pending {
    pub(crate) response: Message,
    query: Query,
    /// What was asked for in the place of the name in the question.
    rewritten: Option<Query>,
    /// Whether it was found on the search path: `response` has nothing but an alias to it.
    is_searched: bool,
    dnssec: bool,
    pub(crate) limit: usize,
}

/// A question that is being answered, as far as it is counted.
struct CountedQuery {
    began: Duration,
    protocol: &'static str,
    family: &'static str,
    bytes: usize,
}

impl Shared {
    pub(crate) fn new(zone: Arc<RwLock<Zone>>, forwarder: Forwarder, env: Env) -> Self {
        let origin = zone.read().origin.clone();
        Self {
            env,
            zone,
            forwarder: Arc::new(forwarder),
            tcp_slots: Slots::new(TCP_CONNECTIONS_MAX, TCP_CONNECTIONS_PER_PEER_MAX),
            forwarded_slots: Slots::new(FORWARDED_MAX, FORWARDED_PER_PEER_MAX),
            turn: AtomicUsize::new(0),
            zone_name: origin.to_string(),
            origin,
        }
    }

    fn asked(&self, protocol: &'static str, from: SocketAddr, bytes: usize) -> CountedQuery {
        // A socket of both families shows the old one as part of the new one.
        let family = if from.ip().to_canonical().is_ipv4() { "1" } else { "2" };
        CountedQuery { began: self.env.monotonic(), protocol, family, bytes }
    }

    /// The bytes of an answer, counted.
    fn counted(&self, asked: &CountedQuery, response: Message, limit: usize) -> Vec<u8> {
        let metrics = self.forwarder.metrics();
        let query = response.queries.first();
        let zone = match query {
            Some(query) if self.origin.zone_of(query.name()) => self.zone_name.as_str(),
            _ => ROOT,
        };
        let kind = query.map_or("other", |query| type_name(query.query_type()));
        metrics.count(&REQUESTS, &[SERVER, zone, "", asked.protocol, asked.family, kind]);
        metrics.count(&RESPONSES, &[SERVER, zone, "", code_name(response.metadata.response_code), ""]);
        let took = (self.env.monotonic() - asked.began).as_secs_f64();
        metrics.observe(&DURATION, &[SERVER, zone, ""], took);
        metrics.observe(&REQUEST_SIZE, &[SERVER, zone, "", asked.protocol], asked.bytes as f64);
        let bytes = encode(response, limit);
        metrics.observe(&RESPONSE_SIZE, &[SERVER, zone, "", asked.protocol], bytes.len() as f64);
        bytes
    }

    pub(crate) fn begin(&self, bytes: &[u8]) -> QueryProgress {
        let request = match Message::from_vec(bytes) {
            Ok(request) if request.metadata.message_type == MessageType::Query => request,
            Ok(_) => return QueryProgress::Nothing,
            Err(_) if bytes.len() >= 12 && bytes[2] & 0x80 == 0 => {
                let id = u16::from_be_bytes([bytes[0], bytes[1]]);
                let response = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
                return QueryProgress::Done { response, limit: 512 };
            }
            Err(_) => return QueryProgress::Nothing,
        };
        let mut response = Message::response(request.metadata.id, request.metadata.op_code);
        response.metadata.recursion_desired = request.metadata.recursion_desired;
        response.metadata.recursion_available = true;
        response.add_queries(request.queries.iter().cloned());
        let mut limit = 512;
        let mut dnssec = false;
        if let Some(asked) = &request.edns {
            limit = usize::from(asked.max_payload().clamp(512, UDP_PAYLOAD_BYTES));
            dnssec = asked.flags().dnssec_ok;
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_PAYLOAD_BYTES);
            if asked.version() > 0 {
                response.set_edns(edns);
                response.metadata.response_code = ResponseCode::BADVERS;
                return QueryProgress::Done { response, limit };
            }
            response.set_edns(edns);
        }
        let refuse = |mut response: Message, code| {
            response.metadata.response_code = code;
            QueryProgress::Done { response, limit }
        };
        if request.metadata.op_code != OpCode::Query {
            return refuse(response, ResponseCode::NotImp);
        }
        let [query] = request.queries.as_slice() else { return refuse(response, ResponseCode::FormErr) };
        if !matches!(query.query_class(), DNSClass::IN | DNSClass::ANY) {
            return refuse(response, ResponseCode::Refused);
        }
        let customization = self.forwarder.customization().load();
        if let Some(addresses) = customization.host(query.name()) {
            add_host(&mut response, query, addresses);
            return QueryProgress::Done { response, limit };
        }
        let rewritten = customization.rewrite(query.name()).map(|name| Query::query(name, query.query_type()));
        let asked = rewritten.as_ref().unwrap_or(query);
        match self.answer_locally(&mut response, asked) {
            None => {
                if customization.autopath()
                    && rewritten.is_none()
                    && response.metadata.response_code == ResponseCode::NXDomain
                    && let Some((found, query)) = self.look_further(&response, query)
                {
                    return match query {
                        None => QueryProgress::Done { response: found, limit },
                        Some(query) => {
                            let pending =
                                Pending { response: found, query, rewritten, is_searched: true, dnssec, limit };
                            QueryProgress::Ask(Box::new(pending))
                        }
                    };
                }
                rename(&mut response, rewritten.as_ref());
                QueryProgress::Done { response, limit }
            }
            Some(query) => {
                let pending = Pending { response, query, rewritten, is_searched: false, dnssec, limit };
                QueryProgress::Ask(Box::new(pending))
            }
        }
    }

    /// Fills in what the zone knows; returns what upstream has to be asked for the rest.
    fn answer_locally(&self, response: &mut Message, query: &Query) -> Option<Query> {
        let mut name: Name = query.name().clone();
        let zone = self.zone.read();
        for _ in 0..ALIAS_CHAIN_MAX {
            match zone.answer(&name, query.query_type()) {
                Answer::NotOurs => return Some(Query::query(name, query.query_type())),
                Answer::Records { mut answers, additionals } => {
                    let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                    let length = answers.len();
                    answers.rotate_left(turn % length.max(1));
                    response.answers.extend(answers);
                    response.additionals.extend(additionals);
                    response.metadata.authoritative = true;
                    return None;
                }
                Answer::NoData(soa) => {
                    response.add_authority(soa);
                    response.metadata.authoritative = true;
                    return None;
                }
                Answer::NxDomain(soa) => {
                    response.add_authority(soa);
                    response.metadata.authoritative = true;
                    response.metadata.response_code = ResponseCode::NXDomain;
                    return None;
                }
                Answer::Alias { record, target } => {
                    response.add_answer(record);
                    response.metadata.authoritative = true;
                    if query.query_type() == RecordType::CNAME {
                        return None;
                    }
                    name = target;
                }
            }
        }
        response.metadata.response_code = ResponseCode::ServFail;
        None
    }

    /// What a pod would ask for next, as its name is not in its own namespace: the answer in the first domain of its search
    /// path that has one, under an alias; with what others have to be asked for where none has. `None` for other names.
    fn look_further(&self, nowhere: &Message, query: &Query) -> Option<(Message, Option<Query>)> {
        if !matches!(query.query_type(), RecordType::A | RecordType::AAAA) {
            return None;
        }
        let services = Name::from_ascii("svc").ok()?.append_domain(&self.origin).ok()?;
        let labels: Vec<&[u8]> = query.name().iter().collect();
        // What the pod asked for, its namespace, and the domain of Services.
        let own = labels.len().checked_sub(usize::from(services.num_labels()) + 1).filter(|own| *own > 0)?;
        if !services.zone_of(query.name()) {
            return None;
        }
        for domain in [&services, &self.origin, &Name::root()] {
            let name = Name::from_labels(labels[..own].iter().copied().chain(domain.iter())).ok()?;
            let alias = RData::CNAME(CNAME(name.clone()));
            let mut found = nowhere.clone();
            found.authorities.clear();
            found.metadata.response_code = ResponseCode::NoError;
            found.add_answer(Record::from_rdata(query.name().clone(), SEARCH_TTL_SECONDS, alias));
            let others = self.answer_locally(&mut found, &Query::query(name, query.query_type()));
            if others.is_some() || found.metadata.response_code == ResponseCode::NoError {
                return Some((found, others));
            }
        }
        None
    }

    async fn finish(&self, pending: Pending) -> Message {
        let Pending { mut response, query, rewritten, is_searched, dnssec, .. } = pending;
        match self.forwarder.ask(&query, dnssec).await {
            Ok(answer) => {
                response.metadata.response_code = answer.metadata.response_code;
                response.metadata.authentic_data = answer.metadata.authentic_data;
                if is_searched && answer.metadata.response_code == ResponseCode::NXDomain {
                    // Nowhere on the search path: an alias to nothing would end the client's own search.
                    response.answers.clear();
                }
                response.answers.extend(answer.answers.into_iter().filter(|record| !own_alias(record, &query)));
                response.authorities.extend(answer.authorities);
                response.additionals.extend(answer.additionals);
            }
            Err(error) => {
                tracing::debug!(name = %query.name(), %error, "failed to forward a question");
                if is_searched {
                    response.answers.clear();
                }
                // The alias itself is known even when its target is not.
                if response.answers.is_empty() {
                    response.metadata.response_code = ResponseCode::ServFail;
                }
            }
        }
        rename(&mut response, rewritten.as_ref());
        response
    }
}

/// The addresses of the question's family.
fn add_host(response: &mut Message, query: &Query, addresses: &[IpAddr]) {
    for address in addresses {
        let data = match (address, query.query_type()) {
            (IpAddr::V4(ip), RecordType::A) => RData::A((*ip).into()),
            (IpAddr::V6(ip), RecordType::AAAA) => RData::AAAA((*ip).into()),
            _ => continue,
        };
        response.add_answer(Record::from_rdata(query.name().clone(), HOST_TTL_SECONDS, data));
    }
    response.metadata.authoritative = true;
}

/// Who asks gets records of the name that it asked for.
fn rename(response: &mut Message, rewritten: Option<&Query>) {
    let (Some(rewritten), Some(asked)) = (rewritten, response.queries.first().map(|query| query.name().clone())) else {
        return;
    };
    for record in response.answers.iter_mut().filter(|record| record.name == *rewritten.name()) {
        record.name = asked.clone();
    }
}

/// A CNAME to itself would send resolvers in circles.
fn own_alias(record: &Record, query: &Query) -> bool {
    matches!(&record.data, RData::CNAME(target) if target.0 == *query.name() && record.name == *query.name())
}

/// Within `limit`: as many answers as fit, and the flag that there are more. Who can't ask over TCP has those at least.
pub(crate) fn encode(mut response: Message, limit: usize) -> Vec<u8> {
    let whole = response.to_vec().unwrap_or_default();
    if !whole.is_empty() && whole.len() <= limit {
        return whole;
    }
    // Additional records are a courtesy.
    response.additionals.clear();
    if let Ok(bytes) = response.to_vec()
        && bytes.len() <= limit
    {
        return bytes;
    }
    let mut cut = response.truncate();
    let mut best = cut.to_vec().unwrap_or_default();
    let (mut fitting, mut beyond) = (0, response.answers.len().min(limit / RECORD_BYTES_MIN) + 1);
    while beyond - fitting > 1 {
        let middle = (fitting + beyond) / 2;
        cut.answers = response.answers[..middle].to_vec();
        match cut.to_vec() {
            Ok(bytes) if bytes.len() <= limit => (fitting, best) = (middle, bytes),
            _ => beyond = middle,
        }
    }
    best
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
