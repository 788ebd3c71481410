//! Removes UDP connection tracking entries that point where the rules no longer do.
//! Called by `run` after a transaction, with the frontends whose endpoints changed.
//! Invariant: TCP is left alone; an open connection ends when its endpoint does.

use std::{collections::HashMap, net::IpAddr, process::Stdio, sync::Arc};

use tokio::process::Command;

use crate::{
    model::Protocol,
    rules::{Family, Frontend, Target},
};

/// Where flows through a frontend may go on going.
type Kept = HashMap<Frontend, Arc<[Target]>>;

pub async fn forget(kept: Kept) {
    if let Err(error) = try_forget(&kept).await {
        tracing::warn!(%error, "failed to run conntrack (apt-get install -y conntrack); UDP clients may stick to endpoints that are gone");
    }
}

async fn try_forget(kept: &Kept) -> std::io::Result<()> {
    for family in Family::ALL {
        if !kept.keys().any(|frontend| Family::of(frontend.ip) == family) {
            continue;
        }
        let output = Command::new("conntrack").args(["-L", "-p", "udp", "-f", family_name(family)]).output().await?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Some(flow) = Flow::parse(line) else { continue };
            if kept.get(&flow.frontend).is_some_and(|targets| !targets.contains(&flow.answers)) {
                delete(&flow).await?;
            }
        }
    }
    Ok(())
}

async fn delete(Flow { source, source_port, frontend, .. }: &Flow) -> std::io::Result<()> {
    let mut command = Command::new("conntrack");
    command.args(["-D", "-f", family_name(Family::of(frontend.ip)), "-p", frontend.protocol.name()]);
    command.args(["--orig-dst", &frontend.ip.to_string(), "--orig-port-dst", &frontend.port.to_string()]);
    command.args(["--orig-src", &source.to_string(), "--orig-port-src", &source_port.to_string()]);
    // It exits with 1 when there is no such flow any more.
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
    answers: Target,
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
            answers: Target { ip: values("src=").nth(1)?.parse().ok()?, port: values("sport=").nth(1)?.parse().ok()? },
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
        assert_eq!(flow.answers, Target { ip: "10.244.0.2".parse().unwrap(), port: 8080 });
        assert_eq!(Flow::parse("conntrack v1.4.7 (conntrack-tools): 2 flow entries have been shown."), None);
    }
}
