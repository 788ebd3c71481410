//! `kubectl port-forward`: local ports that lead to ports of a pod.
//! A row of `verbs::ROOT`.
//! Each connection has a WebSocket of its own; an error from the pod ends the command, as it does kubectl.

use std::{net::IpAddr, rc::Rc, time::Duration};

use bytes::{BufMut, BytesMut};
use futures::{SinkExt, StreamExt, stream::FuturesUnordered};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_tungstenite::tungstenite::Message;

use super::{
    channels,
    containers::{object, pod_of},
};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, duration, list_of},
    resource::{Info, metadata},
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    list_of("address", "localhost", "Addresses to listen on"),
    duration("pod-running-timeout", "1m0s", "How long to wait for a pod"),
];

pub static COMMAND: Command = Command {
    name: "port-forward",
    aliases: &[],
    usage: "TYPE/NAME [options] [LOCAL_PORT:]REMOTE_PORT [...[LOCAL_PORT_N:]REMOTE_PORT_N]",
    about: "Forward one or more local ports to a pod",
    flags: &[FLAGS],
    commands: &[],
    run: run!(port_forward),
};

const DATA: u8 = 0;
const READ_BYTES_MAX: usize = 32 << 10;
const HALF_CLOSED_IDLE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    local: u16,
    remote: u16,
}

/// In Go's words, where it is none.
fn number(which: &str, text: &str) -> Result<u16> {
    text.parse::<u16>().map_err(|_| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let why = if digits { "value out of range" } else { "invalid syntax" };
        Failure::message(format!("error parsing {which} port '{text}': strconv.ParseUint: parsing {text:?}: {why}"))
    })
}

/// `5000`, `8888:5000`, `:5000`, with names of ports as remote ones.
fn ports(text: &str, named: impl Fn(&str) -> Result<u16>) -> Result<Ports> {
    let parts: Vec<&str> = text.split(':').collect();
    let (local, remote) = match parts.as_slice() {
        [one] => (*one, *one),
        [local, remote] => (*local, *remote),
        _ => return Err(Failure::message(format!("invalid port format '{text}'"))),
    };
    let by_number = remote.parse::<i64>().is_ok();
    let named = if by_number { None } else { Some(named(remote)?) };
    let local_number = match (local, named) {
        ("", _) => 0,
        (same, Some(named)) if same == remote => named,
        (other, _) => number("local", other)?,
    };
    let remote_number = named.map_or_else(|| number("remote", remote), Ok)?;
    if remote_number == 0 {
        return Err(Failure::message("remote port must be > 0"));
    }
    Ok(Ports { local: local_number, remote: remote_number })
}

fn named_port(pod: &Value, name: &str) -> Option<u16> {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let mut all = containers.flat_map(|c| c["ports"].as_array().into_iter().flatten());
    all.find(|p| p["name"] == name).and_then(|p| p["containerPort"].as_u64()).map(|p| p as u16)
}

/// A port of a Service as the port of the pod behind it.
fn through_service(service: &Value, pod: &Value, text: &str) -> Result<String> {
    let (local, remote) = match text.split_once(':') {
        Some((local, remote)) => (Some(local), remote),
        None => (None, text),
    };
    let listed = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let found = listed
        .iter()
        .find(|p| p["name"] == remote || p["port"].as_u64().map(|n| n.to_string()).as_deref() == Some(remote));
    let Some(port) = found else {
        return Err(Failure::message(format!(
            "Service {} does not have a service port {remote}",
            metadata(service, "name")
        )));
    };
    let target = match (&port["targetPort"], service["spec"]["clusterIP"] == "None") {
        (_, true) => port["port"].as_u64().map(|n| n as u16),
        (Value::Number(n), _) => n.as_u64().map(|n| n as u16),
        (Value::String(name), _) => named_port(pod, name),
        _ => port["port"].as_u64().map(|n| n as u16),
    };
    let target = target.ok_or_else(|| {
        Failure::message(format!(
            "Pod {} does not have a named port '{}'",
            metadata(pod, "name"),
            port["targetPort"].as_str().unwrap_or_default()
        ))
    })?;
    let local = local.map_or_else(|| port["port"].to_string(), str::to_string);
    Ok(format!("{local}:{target}"))
}

async fn port_forward(session: &Session, matches: &Matches) -> Result<()> {
    let Some((target, words)) = matches.args.split_first().filter(|(_, words)| !words.is_empty()) else {
        return Err(Failure::usage("TYPE/NAME and list of ports are required for port-forward"));
    };
    let info: Info = object(session, std::slice::from_ref(target)).await?;
    let pod = pod_of(session, &info, matches.duration("pod-running-timeout")).await?;
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    if phase != "Running" {
        return Err(Failure::message(format!(
            "unable to forward port because pod is not running. Current status={phase}"
        )));
    }
    let mut wanted = Vec::new();
    for word in words {
        let word = match info.resource.name.as_str() {
            "services" => through_service(&info.object, &pod, word)?,
            _ => word.clone(),
        };
        let named = |port: &str| {
            let none =
                || Failure::message(format!("Pod '{}' does not have a named port '{port}'", metadata(&pod, "name")));
            named_port(&pod, port).ok_or_else(none)
        };
        wanted.push(ports(&word, named)?);
    }
    let addresses = matches.list("address");
    let mut listeners = Vec::new();
    for ports in wanted {
        listeners.extend(listen(session, &addresses, ports).await?);
    }
    session.output.flush();
    let pod = Rc::new(pod);
    let mut accepting: FuturesUnordered<_> =
        listeners.into_iter().map(|(listener, ports)| accept(session, pod.clone(), listener, ports)).collect();
    tokio::select! {
        Ok(()) = tokio::signal::ctrl_c() => Ok(()),
        Some(ended) = accepting.next() => ended,
        else => Ok(()),
    }
}

async fn listen(session: &Session, addresses: &[String], ports: Ports) -> Result<Vec<(TcpListener, Ports)>> {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for address in addresses {
        let hosts: Vec<IpAddr> = match address.as_str() {
            "localhost" => vec![IpAddr::from([127, 0, 0, 1]), "::1".parse().unwrap_or(IpAddr::from([127, 0, 0, 1]))],
            other => vec![other.parse().map_err(|_| Failure::message(format!("{other} is not a valid IP")))?],
        };
        let mut local = ports.local;
        for host in hosts {
            match TcpListener::bind((host, local)).await {
                Ok(listener) => {
                    local = listener.local_addr()?.port();
                    let shown = if host.is_ipv6() { format!("[{host}]") } else { host.to_string() };
                    session.output.line(&format!("Forwarding from {shown}:{local} -> {}", ports.remote));
                    found.push((listener, Ports { local, ..ports }));
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
    }
    match found.is_empty() {
        false => Ok(found),
        true => Err(Failure::message(format!(
            "unable to listen on any of the requested ports: [{{{} {}}}]",
            ports.local, ports.remote
        ))),
    }
}

async fn accept(session: &Session, pod: Rc<Value>, listener: TcpListener, ports: Ports) -> Result<()> {
    let mut open = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                session.output.line(&format!("Handling connection for {}", ports.local));
                session.output.flush();
                open.push(carry(session, pod.clone(), stream, ports.remote));
            }
            Some(ended) = open.next(), if !open.is_empty() => {
                if let Err(failure) = ended {
                    let why = format!("an error occurred forwarding {} -> {}: {}", ports.local, ports.remote, failure.text());
                    let text = format!("\"Unhandled Error\" err={why:?}");
                    crate::rest::log::error(&session.env, &session.output, "portforward.go:424", &text);
                    return Err(Failure::message("lost connection to pod"));
                }
            }
        }
    }
}

/// One connection over one WebSocket: channel 0 is data, channel 1 errors; each begins with the port.
async fn carry(session: &Session, pod: Rc<Value>, mut stream: TcpStream, port: u16) -> Result<()> {
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}/portforward?ports={port}",
        metadata(&pod, "namespace"),
        metadata(&pod, "name")
    );
    let (mut socket, _) = channels::open(session, &path, "v4.channel.k8s.io").await?;
    let mut buffer = vec![0; READ_BYTES_MAX];
    let mut announced = [false; 2];
    // The protocol can't say that one side has ended: what the other still has to say is waited for.
    let mut local_ended = false;
    let broken = |e: tokio_tungstenite::tungstenite::Error| Failure::message(e.to_string());
    loop {
        tokio::select! {
            () = env::sleep(HALF_CLOSED_IDLE_MAX), if local_ended => {
                let _ = socket.close(None).await;
                return Ok(());
            }
            message = socket.next() => match message {
                Some(Ok(Message::Binary(data))) => {
                    let Some((channel, data)) = data.split_first() else { continue };
                    let Some(known) = announced.get_mut(usize::from(*channel)) else { continue };
                    let data = if std::mem::replace(known, true) { data } else { data.get(2..).unwrap_or_default() };
                    if *channel == DATA {
                        if stream.write_all(data).await.is_err() {
                            // Whoever asked has gone.
                            let _ = socket.close(None).await;
                            return Ok(());
                        }
                    } else if !data.is_empty() {
                        return Err(Failure::message(String::from_utf8_lossy(data).into_owned()));
                    }
                }
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(broken(error)),
            },
            read = stream.read(&mut buffer), if !local_ended => match read {
                Ok(0) => local_ended = true,
                Err(_) => {
                    let _ = socket.close(None).await;
                    return Ok(());
                }
                Ok(count) => {
                    let mut bytes = BytesMut::with_capacity(count + 1);
                    bytes.put_u8(DATA);
                    bytes.extend_from_slice(&buffer[..count]);
                    socket.send(Message::Binary(bytes.freeze())).await.map_err(broken)?;
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read() {
        let named = |name: &str| (name == "http").then_some(8080).ok_or_else(|| Failure::message("no such port"));
        let check = |text: &str, wanted: Option<(u16, u16)>| {
            let found = ports(text, named).ok().map(|p| (p.local, p.remote));
            assert_eq!(found, wanted, "{text}");
        };
        check("5000", Some((5000, 5000)));
        check("8888:5000", Some((8888, 5000)));
        check(":5000", Some((0, 5000)));
        check("80:http", Some((80, 8080)));
        check("http", Some((8080, 8080)));
        check("80:nope", None);
        check("1:2:3", None);
        check("80:0", None);
    }
}
