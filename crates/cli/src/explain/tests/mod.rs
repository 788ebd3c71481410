//! Explanations against what kubectl 1.35 prints for the same OpenAPI document (`document.json`, `expected.txt`).

use serde_json::Value;

use super::{GroupVersionResource, plaintext};

#[test]
fn explanations_are_kubectls() {
    let document: Value = serde_json::from_str(include_str!("document.json")).unwrap();
    let gardens = GroupVersionResource { group: "example.com", version: "v1", resource: "gardens" };
    let mut count = 0;
    for part in include_str!("expected.txt").split("=== ").skip(1) {
        let (arguments, expected) = part.split_once('\n').unwrap();
        let (argument, flag) = arguments.split_once(' ').unwrap_or((arguments, ""));
        let path: Vec<&str> = argument.split('.').skip(1).collect();
        let explained = plaintext(&document, gardens, &path, flag == "--recursive");
        match expected.strip_prefix("ERROR error: ") {
            Some(error) => assert_eq!(explained.unwrap_err(), error.trim_end(), "{arguments}"),
            None => assert_eq!(explained.unwrap(), expected, "{arguments}"),
        }
        count += 1;
    }
    assert_eq!(count, 10);
    let nothing = GroupVersionResource { resource: "weeds", ..gardens };
    let error = plaintext(&document, nothing, &[], false).unwrap_err();
    assert_eq!(error, "GVR (example.com/v1, Resource=weeds) not found in OpenAPI schema");
}
