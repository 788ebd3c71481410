//! The versions of what a cluster is made of on this machine.
//! Shown by `status` and `doctor`, kept by `support_bundle`.
//! Asks programs for their versions, and starts nothing else.

use tokio::process::Command;

use crate::cluster::preflight;

/// Name and version; `absent` where a program is not there.
pub async fn of_machine() -> Vec<(String, String)> {
    let mut found = vec![("kernel".to_string(), kernel())];
    for (program, arguments) in [("containerd", "--version"), ("runc", "--version"), ("nft", "--version")] {
        found.push((program.to_string(), of_program(program, arguments).await.unwrap_or_else(|| "absent".into())));
    }
    found
}

pub fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_string()
}

/// The first word of the first line that begins with a digit.
pub async fn of_program(name: &str, argument: &str) -> Option<String> {
    let program = preflight::find_program(name)?;
    let output = Command::new(program).arg(argument).kill_on_drop(true).output().await.ok()?;
    first_version(&String::from_utf8_lossy(&output.stdout)).map(str::to_string)
}

fn first_version(text: &str) -> Option<&str> {
    let mut words = text.lines().next()?.split_whitespace().map(|word| word.trim_start_matches('v'));
    words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
}

/// `6.1.0-18-amd64` as (6, 1).
pub fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_say_their_versions_in_their_own_ways() {
        let check = |text: &str, expected: &str| assert_eq!(first_version(text), Some(expected), "{text}");
        check("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1", "1.6.20~ds1");
        check("runc version 1.1.5+ds1\ncommit: x", "1.1.5+ds1");
        check("nftables v1.0.6 (Lester Gooch #5)", "1.0.6");
        assert_eq!(major_minor("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(major_minor("none"), None);
    }
}
