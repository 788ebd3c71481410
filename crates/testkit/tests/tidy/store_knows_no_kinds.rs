//! The store keeps bytes under keys: it knows no Kubernetes object.

use crate::sources::{all, check};

const KUBERNETES: &[&str] = &["k8s_openapi", "api::kinds", "api::Object", "apiVersion", "\"metadata\""];

#[test]
fn the_store_knows_no_kinds() {
    let files = all();
    let own = files.iter().filter(|file| file.crate_name() == "store" && !file.is_test());
    let breaking = own.flat_map(|file| {
        let named = |line: &str| KUBERNETES.iter().any(|word| line.contains(word));
        let lines = file.code().filter(move |(_, line)| named(line));
        lines.map(|(number, line)| format!("{}:{number}: {}", file.path, line.trim()))
    });
    check("`store` knows no Kubernetes kinds", breaking, &[]);
}
