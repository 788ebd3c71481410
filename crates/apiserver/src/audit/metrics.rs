//! What auditing counts, under upstream's names (`apiserver_audit_*`).
//! Counted by `audit` and its backends; shown by `metrics::Metrics::render`.
//! A few atomics: no lock is taken to count.

use std::sync::atomic::{AtomicU64, Ordering};

use ::metrics::Text;

use super::policy::Level;

const PLUGINS: [&str; 4] = ["buffered", "log", "truncate", "webhook"];

#[derive(Default)]
pub struct AuditMetrics {
    events: AtomicU64,
    rejected: AtomicU64,
    levels: [AtomicU64; Level::ALL.len()],
    errors: [AtomicU64; PLUGINS.len()],
}

impl AuditMetrics {
    pub fn event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    pub fn rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    pub fn decided(&self, level: Level) {
        self.levels[level as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn failed(&self, plugin: &str, events: u64) {
        if let Some(index) = PLUGINS.iter().position(|p| *p == plugin) {
            self.errors[index].fetch_add(events, Ordering::Relaxed);
        }
    }

    pub fn render(&self, out: &mut Text) {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        out.single("apiserver_audit_event_total", "counter", "Audit events made.", value(&self.events));
        let mut family = out.family("apiserver_audit_error_total", "counter", "Audit events that were not recorded.");
        for (plugin, count) in PLUGINS.iter().zip(&self.errors).filter(|(_, count)| value(count) > 0) {
            family.sample(&[("plugin", plugin)], value(count));
        }
        let mut family = out.family("apiserver_audit_level_total", "counter", "Requests by the level of their record.");
        for (level, count) in Level::ALL.iter().zip(&self.levels).filter(|(_, count)| value(count) > 0) {
            family.sample(&[("level", level.as_str())], value(count));
        }
        let help = "Requests refused because they could not be recorded.";
        out.single("apiserver_audit_requests_rejected_total", "counter", help, value(&self.rejected));
    }
}
