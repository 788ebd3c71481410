//! Prometheus' text format.
//! Written by `Metrics`, `process`, the API server's own counters and what the kubelet measures.
//! Invariant: what it writes is well-formed whatever labels hold: names are constants, values are escaped (test:
//! `families_are_shown_in_prometheus_text`).

use std::{
    collections::BTreeMap,
    fmt::{Display, Write},
};

use crate::stability;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub type Labels<'a> = [(&'static str, &'a str)];

/// The answer to a scrape, as it grows.
#[derive(Default)]
pub struct Text {
    out: String,
    /// How many families of each level there were so far.
    levels: BTreeMap<&'static str, u32>,
}

impl Text {
    pub fn finish(self) -> String {
        self.out
    }

    /// Opens a family; its samples follow.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Samples<'_> {
        let level = stability::level(name);
        // Some say it themselves.
        let shown = level.filter(|_| !help.starts_with('[')).map(|level| format!("[{level}] ")).unwrap_or_default();
        let _ = writeln!(self.out, "# HELP {name} {shown}{help}\n# TYPE {name} {kind}");
        *self.levels.entry(level.unwrap_or_default()).or_default() += 1;
        Samples { out: &mut self.out, name }
    }

    /// What upstream's registry says of itself, about the families written before.
    pub(crate) fn registry(&mut self) {
        let levels = self.levels.clone();
        let help = "Metrics by stability level and the version that deprecates them.";
        let mut samples = self.family("registered_metrics_total", "counter", help);
        for (level, count) in levels {
            samples.sample(&[("deprecated_version", ""), ("stability_level", level)], count);
        }
    }

    /// A family of one sample without labels.
    pub fn single(&mut self, name: &'static str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help).sample(&[], value);
    }
}

pub struct Samples<'a> {
    out: &'a mut String,
    name: &'static str,
}

impl Samples<'_> {
    pub fn sample(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.line("", labels, None, value);
    }

    /// With the moment of its measurement, in milliseconds of Unix time.
    pub fn sample_at(&mut self, labels: &Labels<'_>, value: impl Display, at_milliseconds: i64) {
        self.line("", labels, None, format_args!("{value} {at_milliseconds}"));
    }

    /// `counts`: how often values up to each bound, and beyond the last, were seen.
    pub fn histogram(&mut self, labels: &Labels<'_>, bounds: &[f64], counts: impl Iterator<Item = u64>, sum: f64) {
        let mut total = 0;
        for (at, count) in counts.enumerate() {
            total += count;
            let bound = bounds.get(at).map_or("+Inf".to_string(), f64::to_string);
            self.line("_bucket", labels, Some(&bound), total);
        }
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, total);
    }

    fn line(&mut self, suffix: &str, labels: &Labels<'_>, bound: Option<&str>, value: impl Display) {
        let _ = write!(self.out, "{}{suffix}", self.name);
        let all = labels.iter().copied().chain(bound.map(|b| ("le", b)));
        for (at, (label, text)) in all.enumerate() {
            let _ = write!(self.out, "{}{label}=\"{}\"", if at == 0 { '{' } else { ',' }, Escaped(text));
        }
        let close = if labels.is_empty() && bound.is_none() { "" } else { "}" };
        let _ = writeln!(self.out, "{close} {value}");
    }
}

struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            other => f.write_char(other),
        })
    }
}
