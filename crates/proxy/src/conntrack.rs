//! Removes UDP connection tracking entries that point where the rules no longer do.
//! Called by `run` after a transaction, with what `Changes::stale_flows` found.
//! Invariant: TCP is left alone; an open connection ends when its endpoint does.

use std::process::Stdio;

use tokio::process::Command;

use crate::rules::{Family, Frontend, Target};

pub async fn forget(flows: impl IntoIterator<Item = (Frontend, Option<Target>)>) {
    for (frontend, target) in flows {
        let mut command = Command::new("conntrack");
        command.args(["-D", "-f", if Family::of(frontend.ip) == Family::V4 { "ipv4" } else { "ipv6" }]);
        command.args(["-p", frontend.protocol.name(), "--orig-port-dst", &frontend.port.to_string()]);
        // Nothing was behind the frontend before: a flow to it never was translated and would stay so.
        command.args(["--orig-dst", &frontend.ip.to_string()]);
        if let Some(target) = target {
            command.args(["--dst-nat", &target.ip.to_string()]);
        }
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().await;
        // It exits with 1 when there was no such flow, which is the usual case.
        if let Err(error) = status {
            tracing::warn!(%error, "failed to run conntrack (apt-get install -y conntrack); UDP clients may stick to endpoints that are gone");
            return;
        }
    }
}
