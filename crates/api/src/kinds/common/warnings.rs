//! Warnings that several kinds share: names that are no DNS labels, labels of old, parts of a byte.
//! Used by the `warnings` of the kinds and of pod specs.
//! Never stops a request.

use serde_json::Value;

use crate::{
    kinds::common::access::{items, text, text_at, texts},
    names,
    quantity::Quantity,
};

const OLD_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// What is said of a label of nodes that is on its way out.
pub fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(old, _)| *old == key).map(|(_, message)| *message)
}

/// `term` stands at `path`; values are looked at only where nothing refuses them.
pub fn node_selector_term(path: &str, term: &Value, check_values: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, expression) in items(term, "matchExpressions").iter().enumerate() {
        let key = text(expression, "key");
        if let Some(message) = old_label(key) {
            warnings.push(format!("{path}.matchExpressions[{index}].key: {key} is {message}"));
        }
        for (place, value) in texts(expression, "values").enumerate().filter(|_| check_values) {
            for complaint in names::label_value(value) {
                let path = format!("{path}.matchExpressions[{index}].values[{place}]");
                warnings.push(format!("{path}: {value} is invalid, {complaint}"));
            }
        }
    }
    warnings
}

/// The name of something that its pods are named after.
pub fn pod_owner_name(object: &Value) -> Option<String> {
    label_name(object, "Pod names and hostnames")
}

pub fn label_name(object: &Value, used_in: &str) -> Option<String> {
    let complaints = names::dns_label(text_at(object, "metadata.name"), false);
    (!complaints.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in {used_in}, which can result in surprising behavior; a DNS label is \
             recommended: [{}]",
            complaints.join(" ")
        )
    })
}

/// A part of a byte at `path`, if the quantity is one.
pub fn fractional_bytes(path: &str, quantity: &Value) -> Option<String> {
    let parsed = Quantity::parse(quantity.as_str()?).ok()?;
    (parsed.milli_value() % 1000 != 0)
        .then(|| format!("{path}: fractional byte value {:?} is invalid, must be an integer", parsed.canonical()))
}

/// Of the spec of a claim at `path`.
pub fn claim_spec(path: &str, spec: &Value) -> Vec<String> {
    let at = |list: &str| {
        fractional_bytes(&format!("{path}.resources.{list}[storage]"), &spec["resources"][list]["storage"])
    };
    at("requests").into_iter().chain(at("limits")).collect()
}

/// Whether an update asks for something else: warnings are not told again otherwise.
pub fn generation_changed(object: &Value, old: &Value) -> bool {
    object["metadata"]["generation"] != old["metadata"]["generation"]
}
