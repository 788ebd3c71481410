//! Nothing but the table of kinds lists kinds: everything else iterates it.

use crate::sources::{all, check};

/// Plural names of kinds from different groups. Code that names many of them in one place keeps a list of its own.
const PLURALS: &[&str] = &[
    "pods",
    "services",
    "configmaps",
    "secrets",
    "nodes",
    "namespaces",
    "persistentvolumeclaims",
    "deployments",
    "replicasets",
    "statefulsets",
    "daemonsets",
    "jobs",
    "cronjobs",
    "endpointslices",
    "leases",
    "storageclasses",
];
const NAMED_MAX: usize = 8;

const ALLOWED: &[(&str, &str)] = &[];

#[test]
fn only_the_table_lists_kinds() {
    let files = all();
    let sources = files.iter().filter(|file| !file.is_test() && !file.path.starts_with("crates/api/src/kinds/"));
    let listing = sources.filter(|file| {
        let code: String = file.code().map(|(_, line)| line).collect();
        let names = |plural: &&&str| code.contains(&format!("\"{plural}\""));
        PLURALS.iter().filter(names).count() > NAMED_MAX
    });
    check("nothing but the table of kinds lists kinds", listing.map(|file| file.path.clone()), ALLOWED);
}
