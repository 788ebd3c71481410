//! Field and label selectors of what is to be decided: from an access review, and to the reviews that webhooks get.
//! Used by the access reviews, by `webhook` and by its match conditions.
//! A requirement that can't be understood is left out: selectors only narrow, so the answer is only stricter.

use serde_json::{Value, json};

use api::{
    field::{ErrorList, Path},
    selectors::{FieldSelector, LabelSelector, Operator, Requirement},
};

use super::Attributes;

/// Which of the two selectors of `resourceAttributes` is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selector {
    Field,
    Label,
}

impl Selector {
    pub fn field_name(self) -> &'static str {
        match self {
            Self::Field => "fieldSelector",
            Self::Label => "labelSelector",
        }
    }

    /// A `fieldSelector` or `labelSelector` of an access review as the text of a query.
    pub fn text(self, selector: &Value, path: &Path, errors: &mut ErrorList) -> String {
        if selector.is_null() {
            return String::new();
        }
        let raw = selector["rawSelector"].as_str().unwrap_or_default();
        let requirements = selector["requirements"].as_array().map(Vec::as_slice).unwrap_or_default();
        match (raw.is_empty(), requirements.is_empty()) {
            (false, false) => {
                errors.invalid(&path.child("rawSelector"), raw, "may not specified at the same time as requirements");
            }
            (true, true) => {
                let detail = format!("when {path} is specified, requirements or rawSelector is required");
                errors.required(&path.child("requirements"), &detail);
            }
            _ => {}
        }
        for (index, requirement) in requirements.iter().enumerate() {
            validate(requirement, &path.child("requirements").index(index), errors);
        }
        if !raw.is_empty() {
            return raw.to_string();
        }
        let texts: Vec<String> = requirements.iter().filter_map(|r| self.requirement(r)).collect();
        texts.join(",")
    }

    fn requirement(self, requirement: &Value) -> Option<String> {
        let key = requirement["key"].as_str()?;
        let values = requirement["values"].as_array().map(Vec::as_slice).unwrap_or_default();
        let values: Vec<String> = values.iter().map(|v| v.as_str().map(str::to_string)).collect::<Option<_>>()?;
        let operator = requirement["operator"].as_str()?;
        match (self, operator, values.as_slice()) {
            (Self::Field, "In", [value]) => Some(format!("{key}={}", escape(value))),
            (Self::Field, "NotIn", [value]) => Some(format!("{key}!={}", escape(value))),
            (Self::Field, ..) => None,
            (Self::Label, ..) => {
                let operator = match operator {
                    "In" => Operator::In,
                    "NotIn" => Operator::NotIn,
                    "Exists" => Operator::Exists,
                    "DoesNotExist" => Operator::DoesNotExist,
                    _ => return None,
                };
                Requirement::new(key, operator, values).ok().map(|r| r.to_string())
            }
        }
    }
}

fn validate(requirement: &Value, path: &Path, errors: &mut ErrorList) {
    let text = |field: &str| requirement[field].as_str().unwrap_or_default();
    let values = requirement["values"].as_array().map_or(0, Vec::len);
    match text("operator") {
        "In" | "NotIn" if values == 0 => {
            let detail = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.required(&path.child("values"), detail);
        }
        "Exists" | "DoesNotExist" if values > 0 => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.forbidden(&path.child("values"), detail);
        }
        _ => {}
    }
    if text("key").is_empty() {
        errors.required(&path.child("key"), "must be specified");
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

/// The selectors of a request as an access review names them: the field and what belongs there.
pub fn review(a: &Attributes) -> Vec<(&'static str, Value)> {
    let fields = FieldSelector::parse(&a.field_selector).unwrap_or_default();
    let fields: Vec<Value> = fields
        .requirements()
        .iter()
        .map(|r| json!({ "key": r.field, "operator": if r.negated { "NotIn" } else { "In" }, "values": [r.value] }))
        .collect();
    let labels = LabelSelector::parse(&a.label_selector).unwrap_or_else(|_| LabelSelector::everything());
    let labels: Vec<Value> = labels
        .requirements()
        .iter()
        .filter_map(|r| {
            let (operator, values) = match r.operator {
                Operator::In | Operator::Equals | Operator::DoubleEquals => ("In", Some(&r.values)),
                Operator::NotIn | Operator::NotEquals => ("NotIn", Some(&r.values)),
                Operator::Exists => ("Exists", None),
                Operator::DoesNotExist => ("DoesNotExist", None),
                Operator::GreaterThan | Operator::LessThan => return None,
            };
            let mut requirement = json!({ "key": r.key, "operator": operator });
            if let Some(values) = values {
                requirement["values"] = json!(values);
            }
            Some(requirement)
        })
        .collect();
    let both = [(Selector::Field.field_name(), fields), (Selector::Label.field_name(), labels)];
    both.into_iter().filter(|(_, found)| !found.is_empty()).map(|(n, r)| (n, json!({ "requirements": r }))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_survive_the_way_to_a_webhook() {
        let check = |which: Selector, selector: Value, expected: &str| {
            let mut errors = ErrorList::new();
            let text = which.text(&selector, &Path::new("s"), &mut errors);
            let problems: Vec<_> = errors.iter().map(ToString::to_string).collect();
            let shown = if problems.is_empty() { text } else { problems.join("; ") };
            assert_eq!(shown, expected, "{selector}");
        };
        let one = |key: &str, operator: &str, values: Value| json!({ "requirements": [{ "key": key, "operator": operator, "values": values }] });
        check(Selector::Field, Value::Null, "");
        check(Selector::Field, json!({ "rawSelector": "spec.nodeName=a" }), "spec.nodeName=a");
        check(Selector::Field, one("spec.nodeName", "In", json!(["a=b"])), "spec.nodeName=a\\=b");
        check(Selector::Field, one("spec.nodeName", "NotIn", json!(["a"])), "spec.nodeName!=a");
        // What a field selector can't say is left out.
        check(Selector::Field, one("spec.nodeName", "In", json!(["a", "b"])), "");
        check(Selector::Label, one("app", "In", json!(["a", "b"])), "app in (a,b)");
        check(Selector::Label, one("app", "Exists", Value::Null), "app");
        check(Selector::Label, one("app", "DoesNotExist", Value::Null), "!app");
        check(Selector::Label, one("app", "Later", Value::Null), "");
        check(
            Selector::Label,
            json!({}),
            "s.requirements: Required value: when s is specified, requirements or rawSelector is required",
        );
        let both = json!({ "rawSelector": "a", "requirements": [{ "key": "a", "operator": "Exists" }] });
        check(
            Selector::Label,
            both,
            "s.rawSelector: Invalid value: \"a\": may not specified at the same time as requirements",
        );
        check(
            Selector::Label,
            one("", "In", Value::Null),
            "s.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'; \
             s.requirements[0].key: Required value: must be specified",
        );
        let attributes = Attributes {
            field_selector: "spec.nodeName=a,status.phase!=Failed".into(),
            label_selector: "app in (a,b),!x,n>3".into(),
            ..Attributes::default()
        };
        let expected = json!({
            "fieldSelector": { "requirements": [
                { "key": "spec.nodeName", "operator": "In", "values": ["a"] },
                { "key": "status.phase", "operator": "NotIn", "values": ["Failed"] },
            ] },
            "labelSelector": { "requirements": [
                { "key": "app", "operator": "In", "values": ["a", "b"] }, { "key": "x", "operator": "DoesNotExist" },
            ] },
        });
        assert_eq!(Value::from_iter(review(&attributes)), expected);
    }
}
