//! What rules see and say, as tables.

use serde_json::{Value, json};

use api::field::ErrorList;

use super::rules::Rules;

/// What the rules of a schema say about an object and what it was before.
fn broken(schema: &Value, object: &Value, old: Option<&Value>) -> Vec<String> {
    let mut errors = ErrorList::new();
    Rules::compile(schema).unwrap().check(object, old, &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

/// A schema with these rules on its `spec`.
fn with_rules(properties: Value, rules: Value) -> Value {
    json!({ "type": "object", "properties": { "spec": {
        "type": "object", "properties": properties, "x-kubernetes-validations": rules,
    } } })
}

#[test]
fn values_have_the_types_of_their_schema() {
    let properties = json!({
        "replicas": { "type": "integer" }, "ratio": { "type": "number" },
        "start": { "type": "string", "format": "date-time" }, "end": { "type": "string", "format": "date-time" },
        "day": { "type": "string", "format": "date" }, "wait": { "type": "string", "format": "duration" },
        "data": { "type": "string", "format": "byte" }, "port": { "x-kubernetes-int-or-string": true },
        "a-b": { "type": "integer" }, "c.d": { "type": "integer" }, "namespace": { "type": "string" },
        "snake_case": { "type": "integer" }, "e__f": { "type": "integer" },
        "labels": { "type": "object", "additionalProperties": { "type": "string" } },
        "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    });
    let object = json!({ "spec": {
        "ratio": 2, "start": "2024-01-01T12:00:00+02:00", "end": "2024-01-01T10:30:00Z", "day": "2024-01-02",
        "wait": "1m30s", "data": "AAEC", "port": "10%", "a-b": 1, "c.d": 2, "namespace": "x", "snake_case": 3,
        "e__f": 4, "labels": { "a-b": "c" }, "free": { "any-thing": 1 },
    } });
    for rule in [
        "self.?replicas.orValue(1) > 0",
        "!self.?replicas.hasValue()",
        "self[?'replicas'].orValue(7) == 7",
        "self.?labels['a-b'].orValue('') == 'c'",
        "self.?replicas.optMap(n, n + 1).orValue(0) == 0",
        "self.ratio / 4.0 == 0.5",
        "self.start < self.end && self.end - self.start == duration('30m')",
        "self.start == timestamp('2024-01-01T10:00:00Z')",
        "self.day > self.end && self.day.getFullYear() == 2024",
        "self.wait == duration('90s')",
        "size(self.data) == 3",
        "type(self.port) == string && self.port.endsWith('%')",
        "self.a__dash__b == 1 && self.c__dot__d == 2 && self.__namespace__ == 'x'",
        // After a dot a keyword can only be a field.
        "has(self.namespace) && self.namespace == self.__namespace__",
        "self.snake_case == 3 && self.e__underscores__f == 4",
        "self.labels['a-b'] == 'c' && self.labels.all(k, k == 'a-b')",
    ] {
        let schema = with_rules(properties.clone(), json!([{ "rule": rule }]));
        assert!(broken(&schema, &object, None).is_empty(), "{rule}: {:?}", broken(&schema, &object, None));
        let opposite = with_rules(properties.clone(), json!([{ "rule": format!("!({rule})") }]));
        let expected = format!("spec: Invalid value: \"object\": failed rule: !({rule})");
        assert_eq!(broken(&opposite, &object, None), [expected]);
    }
}

#[test]
fn what_was_before_may_be_optional() {
    let rule = |rule: &str| {
        json!({ "type": "object", "properties": { "kind": {
            "type": "string",
            "x-kubernetes-validations": [{ "rule": rule, "optionalOldSelf": true, "message": "no" }],
        } } })
    };
    let no: &[&str] = &["kind: Invalid value: \"b\": no"];
    let (none, a, b) = (json!({}), json!({ "kind": "a" }), json!({ "kind": "b" }));
    for (text, old, expected) in [
        ("!oldSelf.hasValue() || oldSelf.value() == self", None, &[][..]),
        ("!oldSelf.hasValue() || oldSelf.value() == self", Some(&none), &[]),
        ("!oldSelf.hasValue() || oldSelf.value() == self", Some(&b), &[]),
        ("!oldSelf.hasValue() || oldSelf.value() == self", Some(&a), no),
        ("oldSelf.orValue('a') == self", None, no),
        ("oldSelf.hasValue() || self == 'a'", None, no),
        ("oldSelf.optMap(o, o == self).orValue(true)", None, &[]),
        ("oldSelf.optMap(o, o == self).orValue(true)", Some(&a), no),
    ] {
        assert_eq!(broken(&rule(text), &b, old), expected, "{text} after {old:?}");
    }
}

#[test]
fn items_are_compared_with_those_of_their_keys() {
    let schema = |list: &str| {
        json!({ "type": "object", "properties": {
            "list": {
                "type": "array", "x-kubernetes-list-type": list, "x-kubernetes-list-map-keys": ["name", "port"],
                "items": {
                    "type": "object",
                    "properties": { "name": { "type": "string" }, "port": { "type": "integer" }, "size": {
                        "type": "integer", "x-kubernetes-validations": [{ "rule": "self >= oldSelf" }],
                    } },
                },
            },
            "map": { "type": "object", "additionalProperties": {
                "type": "integer", "x-kubernetes-validations": [{ "rule": "self >= oldSelf" }],
            } },
        } })
    };
    let item = |name: &str, size: i64| json!({ "name": name, "port": 1, "size": size });
    let old = json!({ "list": [item("a", 5), item("b", 9)], "map": { "x": 5, "y": 9 } });
    let new = json!({ "list": [item("c", 1), item("b", 8), item("a", 6)], "map": { "x": 4, "z": 1 } });
    let map = "map[x]: Invalid value: 4: failed rule: self >= oldSelf";
    let list = "list[1].size: Invalid value: 8: failed rule: self >= oldSelf";
    assert_eq!(broken(&schema("map"), &new, Some(&old)), [list, map]);
    assert_eq!(broken(&schema("atomic"), &new, Some(&old)), [map]);
    assert!(broken(&schema("map"), &new, None).is_empty());
}

#[test]
fn errors_say_what_the_rule_wants() {
    let properties = json!({ "a": { "type": "integer" }, "b": { "type": "object", "properties": {
        "c.d": { "type": "string" } } }, "list": { "type": "array", "items": { "type": "integer" } } });
    let object = json!({ "spec": { "a": 3, "list": (0..200).collect::<Vec<_>>() } });
    for (rule, expected) in [
        (
            json!({ "rule": "self.a < 1", "messageExpression": "'at most 1, not %d'.format([self.a])" }),
            "spec: Invalid value: \"object\": at most 1, not 3",
        ),
        (
            json!({ "rule": "self.a < 1", "message": "plain", "messageExpression": "string(self.none)" }),
            "spec: Invalid value: \"object\": plain",
        ),
        (
            json!({ "rule": "self.a < 1", "message": "plain", "messageExpression": "'two\\nlines'" }),
            "spec: Invalid value: \"object\": plain",
        ),
        (
            json!({ "rule": "self.a < 1", "reason": "FieldValueRequired", "fieldPath": ".b['c.d']" }),
            "spec.b.c.d: Required value: failed rule: self.a < 1",
        ),
        (json!({ "rule": "self.a < 1", "reason": "FieldValueForbidden" }), "spec: Forbidden: failed rule: self.a < 1"),
        (
            json!({ "rule": "self.none > 1" }),
            "spec: Invalid value: \"object\": no such key: none evaluating rule: self.none > 1",
        ),
        (
            json!({ "rule": "self.list.all(a, lists.range(100000).size() > 0)", "message": "far" }),
            "spec: Invalid value: \"object\": 'operation cancelled: actual cost limit exceeded': no further validation \
             rules will be run due to call cost exceeds limit for rule: far",
        ),
        (
            json!({ "rule": "self.?list.orValue([]).all(a, lists.range(100000).size() > 0)", "message": "far" }),
            "spec: Invalid value: \"object\": 'operation cancelled: actual cost limit exceeded': no further validation \
             rules will be run due to call cost exceeds limit for rule: far",
        ),
    ] {
        let schema = with_rules(properties.clone(), json!([rule]));
        assert_eq!(broken(&schema, &object, None), [expected], "{rule}");
    }
}

#[test]
fn only_what_changed_must_follow_a_rule_it_broke_before() {
    let properties = json!({ "min": { "type": "integer" }, "max": { "type": "integer" } });
    let schema = with_rules(properties, json!([{ "rule": "self.min <= self.max", "message": "min above max" }]));
    let object = |min: i64, label: &str| json!({ "spec": { "min": min, "max": 2 }, "label": label });
    let old = object(3, "a");
    assert!(broken(&schema, &object(3, "b"), Some(&old)).is_empty());
    assert_eq!(broken(&schema, &object(4, "a"), Some(&old)), ["spec: Invalid value: \"object\": min above max"]);
}
