//! Prometheus' text format, and histograms to show in it.
//! Used by the other files of `metrics`.
//! Invariant: what it writes is well-formed whatever labels hold: names are constants, values are escaped.

use std::{
    fmt::{Display, Write},
    sync::atomic::{AtomicU64, Ordering},
};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub type Labels<'a> = [(&'static str, &'a str)];

/// The answer to a scrape, as it grows.
pub struct Text(String);

impl Text {
    pub fn new() -> Self {
        Self(String::with_capacity(32 << 10))
    }

    pub fn finish(self) -> String {
        self.0
    }

    /// Opens a family; its samples follow.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { out: &mut self.0, name }
    }

    /// A family of one sample without labels.
    pub fn single(&mut self, name: &'static str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help).sample(&[], value);
    }
}

pub struct Family<'a> {
    out: &'a mut String,
    name: &'static str,
}

impl Family<'_> {
    pub fn sample(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.line("", labels, None, value);
    }

    pub fn histogram(&mut self, labels: &Labels<'_>, histogram: &Histogram) {
        let counts: Vec<u64> = histogram.counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        let mut total = 0;
        for (at, count) in counts.iter().enumerate() {
            total += count;
            let bound = histogram.bounds.get(at).map_or("+Inf".to_string(), f64::to_string);
            self.line("_bucket", labels, Some(&bound), total);
        }
        self.line("_sum", labels, None, histogram.sum());
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

/// How often values up to each bound were seen. Counting takes no lock.
pub struct Histogram {
    bounds: &'static [f64],
    /// One per bound and one for what is beyond.
    counts: Box<[AtomicU64]>,
    /// In parts of the unit, so that it can be added to as a whole number.
    sum: AtomicU64,
    parts: f64,
}

impl Histogram {
    pub fn seconds(bounds: &'static [f64]) -> Self {
        Self::new(bounds, 1e9)
    }

    pub fn bytes(bounds: &'static [f64]) -> Self {
        Self::new(bounds, 1.0)
    }

    fn new(bounds: &'static [f64], parts: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0), parts }
    }

    pub fn observe(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((value * self.parts) as u64, Ordering::Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }

    fn sum(&self) -> f64 {
        self.sum.load(Ordering::Relaxed) as f64 / self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up_and_labels_are_escaped() {
        let histogram = Histogram::seconds(&[0.5, 1.0]);
        [0.25, 0.5, 0.75, 7.0].iter().for_each(|v| histogram.observe(*v));
        let mut text = Text::new();
        text.family("x_seconds", "histogram", "Help.").histogram(&[("path", "a\"b\\\n")], &histogram);
        text.single("y", "gauge", "Help.", 3);
        let expected = [
            "# HELP x_seconds Help.",
            "# TYPE x_seconds histogram",
            r#"x_seconds_bucket{path="a\"b\\\n",le="0.5"} 2"#,
            r#"x_seconds_bucket{path="a\"b\\\n",le="1"} 3"#,
            r#"x_seconds_bucket{path="a\"b\\\n",le="+Inf"} 4"#,
            r#"x_seconds_sum{path="a\"b\\\n"} 8.5"#,
            r#"x_seconds_count{path="a\"b\\\n"} 4"#,
            "# HELP y Help.",
            "# TYPE y gauge",
            "y 3",
        ];
        assert_eq!(text.finish().lines().collect::<Vec<_>>(), expected);
    }
}
