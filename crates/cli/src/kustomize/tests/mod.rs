//! A base, a component and an overlay against what `kubectl kustomize` 1.35 prints (`files.txt`, `expected.yaml`).

use serde_json::Value;

use super::build;
use crate::{generate::source_files::fake::MapFiles, resource::yaml};

fn files() -> MapFiles {
    let parts = include_str!("files.txt").split("=== ").skip(1);
    let files: Vec<(&str, &str)> = parts.map(|part| part.split_once('\n').unwrap()).collect();
    // The one file whose bytes are hashed has no line end.
    let trimmed = |(path, text): &(&'static str, &'static str)| {
        (*path, if path.ends_with(".txt") { text.trim_end() } else { *text })
    };
    MapFiles::new(&files.iter().map(trimmed).collect::<Vec<_>>())
}

#[test]
fn an_overlay_is_built_as_kubectl_builds_it() {
    let built = build("over", &files()).unwrap();
    let expected: Vec<Value> = yaml::documents(include_str!("expected.yaml"))
        .iter()
        .map(|text| yaml::read(text.as_bytes()).unwrap())
        .collect();
    for (ours, theirs) in built.objects.iter().zip(&expected) {
        assert_eq!(ours, theirs, "{} {}", theirs["kind"], theirs["metadata"]["name"]);
    }
    assert_eq!(built.objects.len(), expected.len());
    assert_eq!(built.warnings.len(), 1, "{:?}", built.warnings);
}

#[test]
fn what_cannot_be_built_is_refused() {
    let check = |kustomization: &str, expected: &str| {
        let files =
            MapFiles::new(&[("a/kustomization.yaml", kustomization), ("x.yaml", "kind: X\nmetadata: {name: x}\n")]);
        let error = build("a", &files).unwrap_err();
        assert!(error.contains(expected), "{kustomization}: {error}");
    };
    check("helmCharts: [{name: x}]", "Helm charts are not supported");
    check("vars: []", "use replacements");
    check("resourcez: []", "unknown field \"resourcez\"");
    check("resources: [../x.yaml]", "security; file 'x.yaml' is not in or below 'a'");
    check("resources: [https://example.com/x.yaml]", "remote resources are not supported");
    check("resources: [.]", "cycle detected");
    check("patches: [{patch: '[{op: remove, path: /a}]'}]", "must specify a target for JSON patch");
    check("configMapGenerator: [{name: c, behavior: merge}]", "does not exist; cannot merge or replace");
    let files = MapFiles::new(&[
        ("kustomization.yaml", "nameprefix: a-\nResources: [x.yaml]\n"),
        ("x.yaml", "kind: X\nmetadata: {name: x}\n"),
    ]);
    let built = build(".", &files).expect("fields in any case");
    assert_eq!(built.objects[0]["metadata"]["name"], "a-x");
    let missing = build("nowhere", &MapFiles::default()).unwrap_err();
    assert!(missing.contains("unable to find one of 'kustomization.yaml'"), "{missing}");
}

#[test]
fn objects_come_in_the_order_that_is_asked_for() {
    let check = |options: &str, expected: &[&str]| {
        let kustomization = format!("resources: [x.yaml]\n{options}");
        let objects = "kind: Service\nmetadata: {name: s}\n---\nkind: Job\nmetadata: {name: j}\n---\nkind: Namespace\nmetadata: {name: n}\n";
        let files = MapFiles::new(&[("kustomization.yaml", kustomization.as_str()), ("x.yaml", objects)]);
        let made = build(".", &files);
        let kinds: Vec<String> = match made {
            Ok(built) => built.objects.iter().map(|o| o["kind"].as_str().unwrap_or_default().to_string()).collect(),
            Err(why) => vec![why],
        };
        assert_eq!(kinds, expected, "{options}");
    };
    check("", &["Namespace", "Service", "Job"]);
    check("sortOptions: {order: fifo}", &["Service", "Job", "Namespace"]);
    check("sortOptions: {order: legacy}", &["Namespace", "Service", "Job"]);
    check(
        "sortOptions: {order: legacy, legacySortOptions: {orderFirst: [Job], orderLast: [Namespace]}}",
        &["Job", "Service", "Namespace"],
    );
    check("sortOptions: {order: up}", &["the field 'sortOptions.order' must be one of [fifo, legacy]"]);
}
