//! Which Kubernetes the server speaks, and what every Prometheus client says of its process.
//! Shown by `Metrics::render`.

use ::metrics::{Text, process};

pub fn render(out: &mut Text) {
    let version = crate::discovery::version();
    let text = |field: &str| version[field].as_str().unwrap_or_default();
    let names = [
        ("build_date", "buildDate"),
        ("compiler", "compiler"),
        ("git_commit", "gitCommit"),
        ("git_tree_state", "gitTreeState"),
        ("git_version", "gitVersion"),
        ("go_version", "goVersion"),
        ("major", "major"),
        ("minor", "minor"),
        ("platform", "platform"),
    ];
    let labels = names.map(|(label, field)| (label, text(field)));
    out.family("kubernetes_build_info", "gauge", "The version of Kubernetes this server speaks.").sample(&labels, 1);
    process(out);
}
