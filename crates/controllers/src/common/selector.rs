//! Label selectors, made ready for matching.
//! Used by every controller that selects pods.
//! Invariant: a selector that can't be read matches nothing, and says so.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq)]
pub struct Selector {
    equal: Labels,
    requirements: Vec<LabelSelectorRequirement>,
}

impl Selector {
    pub fn new(selector: &LabelSelector) -> Result<Self, String> {
        let requirements = selector.match_expressions.clone().unwrap_or_default();
        for requirement in &requirements {
            let values = requirement.values.as_ref().map_or(0, Vec::len);
            match (requirement.operator.as_str(), values) {
                ("In" | "NotIn", 0) => return Err("for 'in', 'notin' operators, values set can't be empty".into()),
                ("Exists" | "DoesNotExist", n) if n > 0 => {
                    return Err("values set must be empty for exists and does not exist".into());
                }
                ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
                (other, _) => return Err(format!("{other:?} is not a valid label selector operator")),
            }
        }
        Ok(Self { equal: selector.match_labels.clone().unwrap_or_default(), requirements })
    }

    pub fn selects_everything(&self) -> bool {
        self.equal.is_empty() && self.requirements.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.equal.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.requirements.iter().all(|requirement| holds(requirement, labels))
    }
}

fn holds(requirement: &LabelSelectorRequirement, labels: &Labels) -> bool {
    let value = labels.get(&requirement.key);
    let listed = || value.is_some_and(|v| requirement.values.as_ref().is_some_and(|values| values.contains(v)));
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching() {
        let labels: Labels = [("app".to_string(), "web".to_string()), ("tier".into(), "front".into())].into();
        let check = |json: serde_json::Value, expected: Option<bool>| {
            let selector: LabelSelector = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(Selector::new(&selector).ok().map(|s| s.matches(&labels)), expected, "{json}");
        };
        let expression = |key: &str, operator: &str, values: &[&str]| serde_json::json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
        check(serde_json::json!({}), Some(true));
        check(serde_json::json!({ "matchLabels": { "app": "web" } }), Some(true));
        check(serde_json::json!({ "matchLabels": { "app": "db" } }), Some(false));
        check(expression("app", "In", &["web", "db"]), Some(true));
        check(expression("app", "NotIn", &["web"]), Some(false));
        check(expression("other", "NotIn", &["web"]), Some(true));
        check(expression("other", "DoesNotExist", &[]), Some(true));
        check(expression("tier", "Exists", &[]), Some(true));
        check(expression("tier", "In", &[]), None);
        check(expression("tier", "Like", &["x"]), None);
    }
}
