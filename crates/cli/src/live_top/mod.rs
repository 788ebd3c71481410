//! The picture of `minke top`: nodes, pods and containers with their use over the last minutes.
//! `samples` keeps what was measured; here a screen of it is drawn. The verb reads metrics and paints.
//! Pure; a frame fits the given width and height.

pub mod samples;

use samples::{History, Samples};

use crate::describe::writer::align;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Lines above the pods that are not nodes.
const HEADER_LINES: usize = 4;
/// Columns of a sparkline.
const SPARKLINE_WIDTH: usize = 24;

/// The last measurements as blocks, scaled to their greatest.
fn sparkline(history: &History) -> String {
    let recent = history.recent(SPARKLINE_WIDTH);
    let greatest = recent.iter().copied().fold(0.0, f64::max);
    let block = |value: &f64| match greatest {
        greatest if greatest <= 0.0 => BLOCKS[0],
        greatest => BLOCKS[((value / greatest * 7.0).round() as usize).min(7)],
    };
    let line: String = recent.iter().map(block).collect();
    format!("{}{line}", " ".repeat(SPARKLINE_WIDTH - recent.len()))
}

fn cores(value: f64) -> String {
    if value < 10.0 { format!("{}m", (value * 1000.0).round()) } else { format!("{value:.1}") }
}

fn bytes(value: f64) -> String {
    let mebibytes = value / (1024.0 * 1024.0);
    if mebibytes < 10_240.0 { format!("{}Mi", mebibytes.round()) } else { format!("{:.1}Gi", mebibytes / 1024.0) }
}

fn percent(used: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{}%", (used / whole * 100.0).round()) } else { "-".to_string() }
}

/// One screen. Pods come in order of the CPU they use.
pub fn frame(samples: &Samples, width: usize, height: usize, by_container: bool) -> String {
    let mut nodes = String::from("NODE\tCPU\t\t\tMEMORY\t\t\n");
    for (name, node) in &samples.nodes {
        let (cpu, memory) = (node.cpu.last(), node.memory.last());
        nodes.push_str(&format!(
            "{name}\t{}\t{}\t{}\t{}\t{}\t{}\n",
            cores(cpu),
            percent(cpu, node.cpu_allocatable),
            sparkline(&node.cpu),
            bytes(memory),
            percent(memory, node.memory_allocatable),
            sparkline(&node.memory)
        ));
    }
    let mut ranked: Vec<_> = samples.containers(by_container).into_iter().collect();
    ranked.sort_by(|(a, left), (b, right)| right.cpu.last().total_cmp(&left.cpu.last()).then_with(|| a.cmp(b)));
    let room = height.saturating_sub(HEADER_LINES + samples.nodes.len()).max(1);
    let title = if by_container { "CONTAINER" } else { "POD" };
    let mut pods = format!("{title}\tCPU\t\tMEMORY\t\n");
    for (name, pod) in ranked.iter().take(room) {
        let (cpu, memory) = (cores(pod.cpu.last()), bytes(pod.memory.last()));
        pods.push_str(&format!("{name}\t{cpu}\t{}\t{memory}\t{}\n", sparkline(&pod.cpu), sparkline(&pod.memory)));
    }
    let hidden = ranked.len().saturating_sub(room);
    if hidden > 0 {
        pods.push_str(&format!("and {hidden} more\n"));
    }
    let whole = format!("{}\n{}", align(&nodes, 2), align(&pods, 2));
    let lines = whole.lines().take(height).map(|line| line.chars().take(width).collect::<String>());
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn samples() -> Samples {
        let mut samples = Samples::default();
        let nodes =
            json!([{ "metadata": { "name": "n1" }, "status": { "allocatable": { "cpu": "2", "memory": "4Gi" } } }]);
        samples.set_allocatable(nodes.as_array().unwrap());
        for cpu in ["100m", "1"] {
            let node = json!([{ "metadata": { "name": "n1" }, "usage": { "cpu": cpu, "memory": "1Gi" } }]);
            let pods = json!([{ "metadata": { "name": "web", "namespace": "shop" }, "containers": [
                { "name": "app", "usage": { "cpu": cpu, "memory": "64Mi" } },
                { "name": "side", "usage": { "cpu": "1m", "memory": "1Mi" } }] }]);
            samples.add(node.as_array().unwrap(), pods.as_array().unwrap());
        }
        samples
    }

    #[test]
    fn a_frame_shows_use_and_its_history() {
        let frame = frame(&samples(), 120, 20, false);
        let squeezed: Vec<String> =
            frame.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            squeezed,
            ["NODE CPU MEMORY", "n1 1000m 50% ▂█ 1024Mi 25% ██", "", "POD CPU MEMORY", "shop/web 1001m ▂█ 65Mi ██"]
        );
    }

    #[test]
    fn a_frame_fits_the_screen() {
        let narrow = frame(&samples(), 10, 3, true);
        assert!(narrow.lines().count() <= 3 && narrow.lines().all(|line| line.chars().count() <= 10), "{narrow}");
        let containers = frame(&samples(), 120, 20, true);
        assert!(containers.contains("shop/web/app") && containers.contains("shop/web/side"), "{containers}");
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut samples = samples();
        samples.add(&[], &[]);
        assert!(samples.nodes.is_empty() && samples.containers(false).is_empty());
    }
}
