//! Limits of a pod's traffic: `kubernetes.io/ingress-bandwidth` and `egress-bandwidth`, as the runtime hands them over.
//! Called by `attach` for new pods; the limits go with the interfaces.
//! A token bucket on either end of the pod's link: packets beyond it wait, and those that would wait long are dropped.

use std::{fs::File, process::Command};

use serde::Deserialize;

use crate::{netns, types::Error};

/// What may come at once: a quarter of a second's worth, and never less than two large packets. Runtimes ask for as good
/// as no limit here.
const BURST_PER_SECOND_DIVISOR: u64 = 4;
const BURST_BYTES_MIN: u64 = 128 << 10;
const LATENCY: &str = "25ms";

/// In bits, and bits per second. containerd writes Go's names, others the specification's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bandwidth {
    #[serde(alias = "IngressRate")]
    pub ingress_rate: u64,
    #[serde(alias = "IngressBurst")]
    pub ingress_burst: u64,
    #[serde(alias = "EgressRate")]
    pub egress_rate: u64,
    #[serde(alias = "EgressBurst")]
    pub egress_burst: u64,
}

impl Bandwidth {
    /// What goes to the pod leaves the host's end of its link, what it sends leaves its own.
    pub fn limit(&self, host_link: &str, pod_link: &str, namespace: &File) -> Result<(), Error> {
        if let Some(arguments) = token_bucket(host_link, self.ingress_rate, self.ingress_burst) {
            tc(&arguments)?;
        }
        if let Some(arguments) = token_bucket(pod_link, self.egress_rate, self.egress_burst) {
            netns::within(namespace, || tc(&arguments))?;
        }
        Ok(())
    }
}

/// None where there is no limit.
fn token_bucket(link: &str, rate: u64, burst: u64) -> Option<Vec<String>> {
    if rate == 0 {
        return None;
    }
    let burst_max = (rate / 8 / BURST_PER_SECOND_DIVISOR).max(BURST_BYTES_MIN);
    let burst = match burst / 8 {
        0 => burst_max,
        asked => asked.clamp(BURST_BYTES_MIN, burst_max),
    };
    let words = ["qdisc", "replace", "dev", link, "root", "tbf", "rate", &format!("{rate}bit"), "burst"];
    let words = words.into_iter().map(String::from);
    Some(words.chain([format!("{burst}b"), "latency".into(), LATENCY.into()]).collect())
}

fn tc(arguments: &[String]) -> Result<(), Error> {
    let output = Command::new("tc").args(arguments).output();
    let problem = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("{error} (apt-get install -y iproute2)"),
    };
    Err(Error::io(format!("failed to limit bandwidth with tc {}: {problem}", arguments.join(" "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_become_token_buckets() {
        let check = |rate: u64, burst: u64, expected: Option<&str>| {
            let found = token_bucket("veth0", rate, burst).map(|words| words[6..].join(" "));
            assert_eq!(found.as_deref(), expected, "{rate} {burst}");
        };
        check(0, 8, None);
        check(1_000_000, u64::from(u32::MAX), Some("rate 1000000bit burst 131072b latency 25ms"));
        check(80_000_000, u64::from(u32::MAX), Some("rate 80000000bit burst 2500000b latency 25ms"));
        check(80_000_000, 0, Some("rate 80000000bit burst 2500000b latency 25ms"));
        check(80_000_000, 8_000_000, Some("rate 80000000bit burst 1000000b latency 25ms"));
    }

    #[test]
    fn both_spellings_are_read() {
        let read = |text: &str| serde_json::from_str::<Bandwidth>(text).unwrap();
        let go = read(r#"{"IngressRate": 1, "IngressBurst": 2, "EgressRate": 3, "EgressBurst": 4}"#);
        assert_eq!(go, read(r#"{"ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4}"#));
        assert_eq!((go.ingress_rate, go.egress_burst), (1, 4));
    }
}
