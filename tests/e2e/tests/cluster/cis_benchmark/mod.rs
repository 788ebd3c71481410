//! The CIS Kubernetes Benchmark (v1.11) as a table: what holds is checked on the running cluster, what does not is listed
//! with its reason, and where the reason claims something, that is checked too.
//! `docs/cis-benchmark.md` is this table; `MINKE_UPDATE_DOCS=1` writes it anew.

mod control_plane;
mod facts;
mod nodes;
mod policies;
mod tls_hello;

use std::{fs, path::Path};

use control_plane::{API_SERVER, CONTROL_PLANE, CONTROLLERS, ETCD, FILES};
use facts::Facts;
use nodes::NODES;
use policies::{OTHER_POLICIES, POD_SECURITY, RBAC};

/// What a fresh cluster of `minke up` does about a recommendation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It holds, and the check shows it.
    Pass,
    /// There is no such file, process or flag here.
    Absent,
    /// It does not hold.
    Open,
    /// It is about what runs in the cluster, and so the operator's.
    Operator,
}

type Check = fn(&Facts) -> Result<(), String>;
type Row = (&'static str, &'static str, Verdict, &'static str, Check);

use Verdict::{Absent, Open, Operator, Pass};

const SECTIONS: &[(&str, &[Row])] = &[
    ("Control plane files", FILES),
    ("API server", API_SERVER),
    ("Controller manager and scheduler", CONTROLLERS),
    ("etcd", ETCD),
    ("Control plane configuration", CONTROL_PLANE),
    ("Nodes", NODES),
    ("RBAC and service accounts", RBAC),
    ("Pod Security Standards", POD_SECURITY),
    ("Other policies", OTHER_POLICIES),
];

#[test]
fn the_cis_benchmark_holds_or_says_why_not() {
    let facts = Facts::gather();
    let rows = SECTIONS.iter().flat_map(|(_, rows)| rows.iter());
    let wrong: Vec<String> = rows
        .filter_map(|(number, title, _, text, check)| {
            check(&facts).err().map(|seen| format!("{number} {title} ({text}): {}", seen.trim()))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_about_the_cis_benchmark_is_this_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cis-benchmark.md");
    let text = page_text();
    if std::env::var_os("MINKE_UPDATE_DOCS").is_some() {
        fs::create_dir_all(page.parent().expect("a directory")).expect("made");
        fs::write(&page, &text).expect("written");
    }
    let found = fs::read_to_string(&page).unwrap_or_default();
    assert!(found == text, "write it anew with MINKE_UPDATE_DOCS=1");
}

fn page_text() -> String {
    let all = || SECTIONS.iter().flat_map(|(_, rows)| rows.iter());
    let count = |wanted: Verdict| all().filter(|row| row.2 == wanted).count();
    let mut text = format!(
        "# The CIS benchmark\n\nEach recommendation of the CIS Kubernetes Benchmark v1.11, and what a cluster of `minke up` does \
         about it: {} hold, {} are about\nsomething that is not there, {} do not hold, {} are the operator's. The titles are \
         ours. The table is checked on a running\ncluster by `tests/e2e/tests/cluster/cis_benchmark`, which also writes this \
         page.\n",
        count(Pass),
        count(Absent),
        count(Open),
        count(Operator)
    );
    for (section, rows) in SECTIONS {
        text += &format!("\n## {section}\n\n| number | recommendation | | how, or why not |\n|---|---|---|---|\n");
        for (number, title, verdict, reason, _) in *rows {
            let word = match verdict {
                Pass => "holds",
                Absent => "absent",
                Open => "does not hold",
                Operator => "operator",
            };
            text += &format!("| {number} | {title} | {word} | {reason} |\n");
        }
    }
    text
}
