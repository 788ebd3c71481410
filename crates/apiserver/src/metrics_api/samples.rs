//! What a kubelet's `/metrics/resource` says, and what two such pages say about the time between them.
//! Read by `metrics_api`.
//! Invariant: pure. A rate is made only from two readings of the same counter (tidy: `pure_files`).

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// Processor time used until some moment, and the memory used at it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reading {
    cpu_seconds: f64,
    memory_bytes: f64,
    /// Unix time in seconds.
    pub at: f64,
    /// When the counter began, where that is known.
    since: Option<f64>,
}

/// Average use over a window that ends at `at`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResourceUsage {
    pub cpu_nanocores: i64,
    pub memory_bytes: i64,
    pub window: Duration,
    pub at: f64,
}

/// Containers closer together than this say nothing about a rate.
const WINDOW_SECONDS_MIN: f64 = 0.1;

impl Reading {
    /// `earlier` is of the same thing; without it (or after a restart) the counter's beginning takes its place.
    pub fn since(&self, earlier: Option<&Reading>) -> Option<ResourceUsage> {
        let earlier = earlier.filter(|e| e.cpu_seconds <= self.cpu_seconds && e.at < self.at && e.since == self.since);
        let (cpu, from) = match earlier {
            Some(earlier) => (self.cpu_seconds - earlier.cpu_seconds, earlier.at),
            None => (self.cpu_seconds, self.since?),
        };
        let span = self.at - from;
        (span >= WINDOW_SECONDS_MIN).then(|| ResourceUsage {
            cpu_nanocores: (cpu / span * 1e9).round() as i64,
            memory_bytes: self.memory_bytes as i64,
            window: Duration::from_millis((span * 1000.0).round() as u64),
            at: self.at,
        })
    }
}

/// One page.
#[derive(Debug, Default)]
pub struct Sample {
    /// When it was read, in Unix time.
    pub at: f64,
    pub node: Option<Reading>,
    /// By namespace and pod, then by container.
    pods: HashMap<(String, String), BTreeMap<String, Reading>>,
}

impl Sample {
    /// `now` stands in for samples without a time of their own.
    pub fn parse(text: &str, now: f64) -> Self {
        let mut sample = Self { at: now, ..Self::default() };
        let mut node = Reading { at: now, ..Reading::default() };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some(metric) = Metric::parse(line) else { continue };
            let at = metric.milliseconds.map_or(now, |ms| ms as f64 / 1000.0);
            let container = || {
                let of = |name: &str| metric.labels.get(name).cloned().unwrap_or_default();
                (of("container"), (of("namespace"), of("pod")))
            };
            match metric.name {
                "node_cpu_usage_seconds_total" => {
                    (node.cpu_seconds, node.at) = (metric.value, at);
                    sample.node = Some(node);
                }
                "node_memory_working_set_bytes" => node.memory_bytes = metric.value,
                "container_cpu_usage_seconds_total"
                | "container_memory_working_set_bytes"
                | "container_start_time_seconds" => {
                    let (name, pod) = container();
                    let reading = sample.pods.entry(pod).or_default().entry(name).or_default();
                    match metric.name {
                        "container_cpu_usage_seconds_total" => {
                            (reading.cpu_seconds, reading.at) = (metric.value, at);
                        }
                        "container_memory_working_set_bytes" => reading.memory_bytes = metric.value,
                        _ => reading.since = Some(metric.value),
                    }
                }
                _ => {}
            }
        }
        if let Some(found) = &mut sample.node {
            found.memory_bytes = node.memory_bytes;
        }
        sample
    }

    pub fn containers(&self, namespace: &str, pod: &str) -> Option<&BTreeMap<String, Reading>> {
        // Two small strings per lookup are cheap next to a question to a kubelet.
        self.pods.get(&(namespace.to_string(), pod.to_string()))
    }
}

/// `name{label="value",…} value [milliseconds]`.
struct Metric<'a> {
    name: &'a str,
    labels: HashMap<&'a str, String>,
    value: f64,
    milliseconds: Option<i64>,
}

impl<'a> Metric<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (name, mut rest) = line.split_at(line.find(['{', ' '])?);
        let mut labels = HashMap::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                rest = rest.trim_start_matches(',');
                if let Some(after) = rest.strip_prefix('}') {
                    rest = after;
                    break;
                }
                let (label, value) = rest.split_once("=\"")?;
                let (value, after) = quoted(value)?;
                labels.insert(label, value);
                rest = after;
            }
        }
        let mut words = rest.split_whitespace();
        let value = words.next()?.parse().ok()?;
        Some(Self { name, labels, value, milliseconds: words.next().and_then(|word| word.parse().ok()) })
    }
}

/// Up to the closing quote, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP x y\n\
        container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 4.5 11000\n\
        container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 1.048576e+06 11000\n\
        container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 2 11000\n\
        node_memory_working_set_bytes 2048\nnode_cpu_usage_seconds_total 100\n\
        odd{label=\"a\\\"b\\\\\"} 1\nbroken{ 3\n";

    #[test]
    fn pages_become_readings() {
        let sample = Sample::parse(PAGE, 12.0);
        let node = Reading { cpu_seconds: 100.0, memory_bytes: 2048.0, at: 12.0, since: None };
        assert_eq!(sample.node, Some(node));
        let containers = sample.containers("n", "p").unwrap();
        let expected = Reading { cpu_seconds: 4.5, memory_bytes: 1048576.0, at: 11.0, since: Some(2.0) };
        assert_eq!(containers["c"], expected);
        assert_eq!(quoted("a\\\"b\\\\\" rest"), Some(("a\"b\\".to_string(), " rest")));
    }

    #[test]
    fn rates_need_two_readings_of_one_counter() {
        let at = |cpu_seconds, at, since| Reading { cpu_seconds, memory_bytes: 1.0, at, since };
        let check = |later: Reading, earlier: Option<Reading>, expected: Option<(i64, u64)>| {
            let found = later.since(earlier.as_ref()).map(|u| (u.cpu_nanocores, u.window.as_millis() as u64));
            assert_eq!(found, expected, "{earlier:?} {later:?}");
        };
        check(at(3.0, 20.0, None), Some(at(1.0, 10.0, None)), Some((200_000_000, 10_000)));
        check(at(3.0, 20.0, None), None, None);
        check(at(3.0, 20.0, Some(14.0)), None, Some((500_000_000, 6000)));
        check(at(3.0, 20.0, Some(14.0)), Some(at(9.0, 10.0, Some(2.0))), Some((500_000_000, 6000)));
        check(at(1.0, 10.05, None), Some(at(1.0, 10.0, None)), None);
        check(at(1.0, 10.0, None), Some(at(1.0, 10.0, None)), None);
    }
}
