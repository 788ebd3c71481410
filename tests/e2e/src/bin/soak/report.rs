//! The lines while a soak runs and the table at its end.
//! Called by `main`.
//! Whatever makes the run a failure is marked in the table.

use std::time::Duration;

use e2e::Cluster;

use crate::requests::Tally;

/// How much more memory than at the mark may be held at the end.
const GROWTH_MAX: f64 = 1.10;

/// Resident memory of the control plane's process, in bytes.
#[derive(Default)]
pub struct Memory {
    pub start: u64,
    pub mark: u64,
    pub end: u64,
    /// After everything was deleted.
    pub settled: u64,
}

pub struct Report {
    pub length: Duration,
    pub memory: Memory,
    pub left: Vec<String>,
    pub interrupted: bool,
}

/// 0 while there is no such process.
pub fn resident(cluster: &Cluster) -> u64 {
    let pid = std::fs::read_to_string(cluster.data.join("minke.pid")).unwrap_or_default();
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    line.unwrap_or(0) * 1024
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

pub fn progress(tally: &Tally, at: Duration, length: Duration, resident: u64) {
    let explained: u64 = tally.explained.values().sum();
    let done: Vec<String> = tally.done.iter().map(|(what, count)| format!("{count} {what}")).collect();
    println!(
        "soak: {:>5.0} of {:.0} s  {} requests, {explained} errors explained, {} not  {:.0} MiB  {}",
        at.as_secs_f64(),
        length.as_secs_f64(),
        tally.requests,
        tally.unexplained,
        mib(resident),
        done.join(", ")
    );
}

impl Report {
    /// Prints the table; true when something is wrong.
    pub fn print(&self, tally: &mut Tally) -> bool {
        tally.durations.sort_by(f32::total_cmp);
        let percentile = |part: f64| {
            let at = (tally.durations.len() as f64 * part) as usize;
            tally.durations.get(at.min(tally.durations.len().saturating_sub(1))).copied().unwrap_or(0.0)
        };
        let grown = self.memory.end as f64 > self.memory.mark as f64 * GROWTH_MAX;
        let mut wrong = tally.unexplained > 0 || grown || !self.left.is_empty();
        let row = |name: &str, value: String, bad: bool| {
            println!("{name:<44} {value:>14}{}", if bad { "   FAILED" } else { "" });
        };
        println!();
        row("length", format!("{:.0} s", self.length.as_secs_f64()), false);
        row("requests", tally.requests.to_string(), tally.requests == 0);
        for (what, count) in &tally.done {
            row(&format!("  {what}"), count.to_string(), false);
        }
        row("request duration, median", format!("{:.1} ms", percentile(0.5)), false);
        row("request duration, p99", format!("{:.1} ms", percentile(0.99)), false);
        for (cause, count) in &tally.explained {
            row(&format!("errors during {cause}"), count.to_string(), false);
        }
        row("errors that nothing explains", tally.unexplained.to_string(), tally.unexplained > 0);
        row("memory at the start", format!("{:.1} MiB", mib(self.memory.start)), false);
        row("memory after 5 minutes (or half a short run)", format!("{:.1} MiB", mib(self.memory.mark)), false);
        row("memory at the end of the churn", format!("{:.1} MiB", mib(self.memory.end)), grown);
        row("memory when all was deleted", format!("{:.1} MiB", mib(self.memory.settled)), false);
        row("left behind", self.left.len().to_string(), !self.left.is_empty());
        self.left.iter().take(40).for_each(|left| println!("  {left}"));
        tally.examples.iter().for_each(|example| println!("  {example}"));
        if self.interrupted {
            println!("interrupted: figures of a part of the run");
        }
        wrong |= tally.requests == 0;
        wrong
    }
}
