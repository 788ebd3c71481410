//! A container's own stop signal (`lifecycle.stopSignal`): finds its first process and signals it.
//! Used by `kill`.
//! A process that is not in the container's control group is never signalled.

use std::io;

use cri::v1;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// The container's first process, by what the runtime tells those who want to know everything.
pub fn process(answer: &v1::ContainerStatusResponse, id: &str) -> Option<Pid> {
    let pid = pid(answer)?;
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.contains(id).then(|| Pid::from_raw(pid))
}

fn pid(answer: &v1::ContainerStatusResponse) -> Option<i32> {
    let info: Value = serde_json::from_str(answer.info.get("info")?).ok()?;
    info["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 1)
}

pub fn send(process: Pid, signal: &str) -> io::Result<()> {
    let signal =
        parse(signal).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a signal of this system"))?;
    Ok(kill(process, signal)?)
}

/// Signals for real time have numbers, not names, in the kernel's interface that we use; they are left to the runtime.
fn parse(name: &str) -> Option<Signal> {
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_names_the_process() {
        let answer = |info: &str| v1::ContainerStatusResponse {
            info: [("info".to_string(), info.to_string())].into(),
            ..Default::default()
        };
        for (info, expected) in [("{\"pid\": 42}", Some(42)), ("{\"pid\": 1}", None), ("{}", None), ("x", None)] {
            assert_eq!(pid(&answer(info)), expected, "{info}");
        }
        let own = format!("{{\"pid\": {}}}", std::process::id());
        assert_eq!(process(&answer(&own), "an-id-that-no-group-has"), None, "not in the container's group");
        assert_eq!(parse("SIGUSR1"), Some(Signal::SIGUSR1));
        assert_eq!(parse("SIGRTMIN+3"), None);
    }
}
