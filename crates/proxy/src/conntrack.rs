//! Removes UDP connection tracking entries that point where the rules no longer do.
//! Called by `run` after a transaction, with what `Changes` found stale.
//! Invariant: TCP is left alone; an open connection ends when its endpoint does.

use std::{collections::BTreeSet, net::IpAddr, process::Stdio};

use tokio::process::Command;

use crate::{
    model::Protocol,
    rules::{Family, Frontend},
};

type Flows = BTreeSet<(Frontend, Option<IpAddr>)>;

/// Up to this many are deleted one by one; beyond, what the kernel has is listed and compared.
const FEW: usize = 16;

pub async fn forget(flows: Flows) {
    if let Err(error) = try_forget(&flows).await {
        tracing::warn!(%error, "failed to run conntrack (apt-get install -y conntrack); UDP clients may stick to endpoints that are gone");
    }
}

async fn try_forget(flows: &Flows) -> std::io::Result<()> {
    if flows.len() <= FEW {
        for (frontend, endpoint) in flows {
            delete(*frontend, *endpoint, &[]).await?;
        }
        return Ok(());
    }
    for family in [Family::V4, Family::V6] {
        if !flows.iter().any(|(frontend, _)| Family::of(frontend.ip) == family) {
            continue;
        }
        let output = Command::new("conntrack").args(["-L", "-p", "udp", "-f", family_name(family)]).output().await?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Some(flow) = Flow::parse(line) else { continue };
            let untranslated = flow.answers_from == flow.frontend.ip;
            let stale = flows.contains(&(flow.frontend, Some(flow.answers_from)))
                || (untranslated && flows.contains(&(flow.frontend, None)));
            if stale {
                let source =
                    [("--orig-src", flow.source.to_string()), ("--orig-port-src", flow.source_port.to_string())];
                delete(flow.frontend, None, &source).await?;
            }
        }
    }
    Ok(())
}

async fn delete(frontend: Frontend, endpoint: Option<IpAddr>, more: &[(&str, String)]) -> std::io::Result<()> {
    let mut command = Command::new("conntrack");
    command.args(["-D", "-f", family_name(Family::of(frontend.ip))]);
    command.args(["-p", frontend.protocol.name(), "--orig-port-dst", &frontend.port.to_string()]);
    command.args(["--orig-dst", &frontend.ip.to_string()]);
    if let Some(ip) = endpoint {
        command.args(["--dst-nat", &ip.to_string()]);
    }
    for (option, value) in more {
        command.args([option, value.as_str()]);
    }
    // It exits with 1 when there was no such flow, which is the usual case.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().await.map(drop)
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

/// One line of `conntrack -L`: the first direction is how it was asked, the second who answers.
#[derive(Debug, PartialEq, Eq)]
struct Flow {
    source: IpAddr,
    source_port: u16,
    frontend: Frontend,
    answers_from: IpAddr,
}

impl Flow {
    fn parse(line: &str) -> Option<Self> {
        let values = |name: &'static str| line.split_whitespace().filter_map(move |word| word.strip_prefix(name));
        Some(Self {
            source: values("src=").next()?.parse().ok()?,
            source_port: values("sport=").next()?.parse().ok()?,
            frontend: Frontend {
                ip: values("dst=").next()?.parse().ok()?,
                protocol: Protocol::Udp,
                port: values("dport=").next()?.parse().ok()?,
            },
            answers_from: values("src=").nth(1)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line = "udp      17 29 src=192.0.2.1 dst=10.96.0.10 sport=5555 dport=53 [UNREPLIED] \
                    src=10.244.0.2 dst=10.244.0.1 sport=8080 dport=5555 mark=0 use=1";
        let flow = Flow::parse(line).unwrap();
        assert_eq!(flow.frontend.ip, "10.96.0.10".parse::<IpAddr>().unwrap());
        assert_eq!((flow.source_port, flow.frontend.port), (5555, 53));
        assert_eq!(flow.answers_from, "10.244.0.2".parse::<IpAddr>().unwrap());
        assert_eq!(Flow::parse("conntrack v1.4.7 (conntrack-tools): 2 flow entries have been shown."), None);
    }
}
