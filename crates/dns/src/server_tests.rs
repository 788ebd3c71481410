//! Clients that only hold connections, more questions than one pod may have under way, and what a ConfigMap changes.

use tokio::net::TcpStream;

use super::*;
use crate::{PodRecords, Upstreams, customization::Customization};

/// Of simulated time; what is not over by then never is.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

async fn start(upstreams: &[SocketAddr]) -> (SocketAddr, Arc<Shared>) {
    let env = Env::real();
    let zone = Arc::new(RwLock::new(Zone::new("cluster.local", 5, PodRecords::Insecure).unwrap()));
    let forwarder = Forwarder::new(env.clone(), Upstreams::fixed(upstreams), Duration::from_secs(30));
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], zone, forwarder, env).await.unwrap();
    let (address, shared) = (server.addresses()[0], server.shared.clone());
    env::spawn(server.serve(CancellationToken::new()));
    (address, shared)
}

async fn closes(stream: &mut TcpStream) {
    let ended = env::timeout(FOR_EVER, stream.read(&mut [0])).await.expect("the server closes it");
    assert_eq!(ended.unwrap_or(0), 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_question_is_closed() {
    let (address, _shared) = start(&[]).await;
    for begun in [&b""[..], b"\x00", b"\x00\x20half"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(begun).await.unwrap();
        closes(&mut stream).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_pod_has_so_many_connections() {
    let (address, shared) = start(&[]).await;
    let slots = &shared.tcp_slots;
    let held: Vec<_> = (0..TCP_CONNECTIONS_PER_PEER_MAX).map(|_| slots.take(Some(address.ip())).unwrap()).collect();
    closes(&mut TcpStream::connect(address).await.unwrap()).await;
    assert!(slots.take(Some("10.0.0.1".parse().unwrap())).is_some(), "others still have room");
    drop(held);
}

#[tokio::test]
async fn one_pod_has_so_many_forwarded_questions() {
    // An upstream that never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (address, shared) = start(&[silent.local_addr().unwrap()]).await;
    let slots = &shared.forwarded_slots;
    let _held: Vec<_> = (0..FORWARDED_PER_PEER_MAX).map(|_| slots.take(Some(address.ip())).unwrap()).collect();
    let mut question = Message::new(7, MessageType::Query, OpCode::Query);
    question.add_query(Query::query(Name::from_ascii("example.com.").unwrap(), RecordType::A));
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.send_to(&question.to_vec().unwrap(), address).await.unwrap();
    let mut buffer = [0; 512];
    let answered = env::timeout(Duration::from_secs(120), client.recv(&mut buffer));
    let length = answered.await.expect("an answer at once").unwrap();
    let answer = Message::from_vec(&buffer[..length]).unwrap();
    assert_eq!((answer.metadata.id, answer.metadata.response_code), (7, ResponseCode::ServFail));
    let asked = silent.try_recv(&mut buffer);
    assert!(asked.is_err(), "nobody was asked");
}

/// Asks over UDP and shows code and answers.
async fn ask(address: SocketAddr, name: &str) -> String {
    let mut question = Message::new(7, MessageType::Query, OpCode::Query);
    question.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.send_to(&question.to_vec().unwrap(), address).await.unwrap();
    let mut buffer = [0; 512];
    let answered = env::timeout(Duration::from_secs(120), client.recv(&mut buffer));
    let length = answered.await.expect("an answer").unwrap();
    let answer = Message::from_vec(&buffer[..length]).unwrap();
    let records = answer.answers.iter().map(|record| format!(" {}={}", record.name, record.data));
    records.fold(code_name(answer.metadata.response_code).to_string(), |all, record| all + &record)
}

#[tokio::test]
async fn a_config_map_names_other_servers_hosts_and_names() {
    // Whatever it is asked for is at one address.
    let stub = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let server = stub.clone();
    env::spawn(async move {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = server.recv_from(&mut buffer).await {
            let question = Message::from_vec(&buffer[..length]).unwrap();
            let mut answer = Message::response(question.metadata.id, OpCode::Query);
            let query = question.queries[0].clone();
            let data = RData::A("192.0.2.7".parse().unwrap());
            answer.add_answer(Record::from_rdata(query.name().clone(), 60, data));
            answer.add_query(query);
            server.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
        }
    });
    let (address, shared) = start(&[]).await;
    assert_eq!(ask(address, "db.acme.local.").await, "SERVFAIL");
    let stubs = format!("{{\"acme.local\": [\"{}\"]}}", stub.local_addr().unwrap());
    let data = [
        ("stubDomains", stubs.as_str()),
        ("hosts", "192.0.2.1 one.test\nfd00::1 one.test"),
        ("rewrite", "name old.test db.acme.local\nname gone.test gone.default.svc.cluster.local"),
    ];
    let data = data.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let (customization, problems) = Customization::parse(&data);
    assert!(problems.is_empty(), "{problems:?}");
    shared.forwarder.customize(customization);
    for (name, expected) in [
        ("db.acme.local.", "NOERROR db.acme.local.=192.0.2.7"),
        ("one.test.", "NOERROR one.test.=192.0.2.1"),
        ("old.test.", "NOERROR old.test.=192.0.2.7"),
        ("gone.test.", "NXDOMAIN"),
        ("other.test.", "SERVFAIL"),
    ] {
        assert_eq!(ask(address, name).await, expected, "{name}");
    }
    shared.forwarder.customize(Customization::default());
    assert_eq!(ask(address, "db.acme.local.").await, "SERVFAIL", "what was remembered is forgotten");
}

/// As pods with `ndots: 5` ask: the names of their search path one after the other.
#[tokio::test]
async fn a_search_path_is_looked_through_where_the_config_map_says_so() {
    let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (address, shared) = start(&[upstream.local_addr().unwrap()]).await;
    env::spawn(async move {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = upstream.recv_from(&mut buffer).await {
            let question = Message::from_vec(&buffer[..length]).unwrap();
            let name = question.queries[0].name().clone();
            let mut answer = Message::response(question.metadata.id, OpCode::Query);
            answer.add_queries(question.queries.iter().cloned());
            match name.to_string().as_str() {
                "www.example.com." => {
                    let data = RData::A("192.0.2.7".parse().unwrap());
                    answer.add_answer(Record::from_rdata(name, 60, data));
                }
                _ => answer.metadata.response_code = ResponseCode::NXDomain,
            }
            upstream.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
        }
    });
    let asked = "www.example.com.d.svc.cluster.local.";
    let before = ask(address, asked).await;
    assert_eq!(before, "NXDOMAIN");
    let config_map = |value: &str| Customization::parse(&[("autopath".into(), value.into())].into());
    assert_eq!(config_map("perhaps").1.len(), 1);
    let (customization, problems) = config_map("true");
    assert!(problems.is_empty());
    shared.forwarder.customize(customization);
    let found = ask(address, asked).await;
    assert_eq!(found, format!("NOERROR {asked}=www.example.com. www.example.com.=192.0.2.7"));
    for nowhere in ["no.example.com.d.svc.cluster.local.", "d.svc.cluster.local.", "www.example.com.cluster.local."] {
        assert!(!ask(address, nowhere).await.contains('='), "{nowhere}");
    }
}
