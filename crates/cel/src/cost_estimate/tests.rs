//! Estimates as upstream's own tests have them: of rules on a schema without limits, and with the same limit on every
//! list, map and text of it.

use serde_json::{Value, json};

use super::DeclType;
use crate::Expression;
use crate::types::Type;

fn cost(schema: &Value, rule: &str) -> u64 {
    let declared = DeclType::from_schema(schema, false).unwrap();
    let own = Type::from_decl_type(&declared);
    Expression::compile(rule).unwrap().max_cost(&declared, &[("self", own.clone()), ("oldSelf", own)])
}

/// `schema` with `limit` wherever it says `LIMIT`, which says nothing without one.
fn limited(schema: &Value, limit: Option<u64>) -> Value {
    let fields = match schema {
        Value::Object(fields) => fields,
        other => return other.clone(),
    };
    let entries = fields.iter().filter_map(|(name, value)| match (value.as_str(), limit) {
        (Some("LIMIT"), None) => None,
        (Some("LIMIT"), Some(limit)) => Some((name.clone(), limit.into())),
        _ => Some((name.clone(), limited(value, limit))),
    });
    Value::Object(entries.collect())
}

fn of(kind: &str) -> Value {
    match kind {
        "int-or-string" => json!({ "x-kubernetes-int-or-string": true }),
        "date" | "date-time" | "duration" => json!({ "type": "string", "format": kind }),
        other => json!({ "type": other }),
    }
}

fn list(kind: &str) -> Value {
    json!({ "type": "array", "maxItems": "LIMIT", "items": of(kind) })
}

fn map(kind: &str) -> Value {
    json!({ "type": "object", "maxProperties": "LIMIT", "additionalProperties": of(kind) })
}

fn text() -> Value {
    json!({ "type": "string", "maxLength": "LIMIT" })
}

fn lists(inner: Value) -> Value {
    json!({ "type": "array", "maxItems": "LIMIT", "items": inner })
}

fn maps(inner: Value) -> Value {
    json!({ "type": "object", "maxProperties": "LIMIT", "additionalProperties": inner })
}

fn objects() -> Value {
    json!({ "type": "object", "required": ["required"], "properties": {
        "required": { "type": "string" }, "optional": { "type": "string" },
    } })
}

#[test]
fn rules_cost_what_they_cost_upstream() {
    let check = |schema: Value, rule: &str, unlimited: u64, limit: u64, expected: u64| {
        assert_eq!(cost(&limited(&schema, None), rule), unlimited, "{rule} on {schema} without limits");
        assert_eq!(cost(&limited(&schema, Some(limit)), rule), expected, "{rule} on {schema} with {limit}");
    };
    let all = "self.all(x, true)";
    check(list("number"), all, 4_718_591, 10, 32);
    check(list("string"), all, 3_145_727, 20, 62);
    check(list("boolean"), all, 1_887_437, 5, 17);
    check(list("int-or-string"), all, 4_718_591, 10, 32);
    check(list("duration"), all, 2_359_295, 5, 17);
    check(list("date"), all, 725_936, 15, 47);
    check(list("date-time"), all, 428_963, 25, 77);
    check(lists(json!({ "type": "array", "items": of("number") })), all, 3_145_727, 100, 302);
    check(lists(objects()), all, 555_128, 50, 152);
    check(map("number"), all, 1_348_169, 10, 32);
    check(map("string"), all, 1_179_647, 3, 11);
    check(map("boolean"), all, 943_718, 100, 302);
    check(map("int-or-string"), all, 1_348_169, 15, 47);
    check(map("duration"), all, 1_048_577, 5, 17);
    check(map("date"), all, 524_288, 10, 32);
    check(map("date-time"), all, 349_526, 25, 77);
    check(maps(json!({ "type": "array", "items": of("number") })), all, 1_179_647, 25, 77);
    check(maps(json!({ "type": "object", "additionalProperties": of("number") })), all, 1_179_647, 10, 32);

    check(text(), "self.contains('test')", 314_574, 10, 5);
    check(text(), "self.startsWith('test')", 2, 15, 2);
    check(text(), "self.endsWith('test')", 2, 30, 2);
    check(text(), "size(self + \"hello\") > size(\"hello\")", 314_578, 4, 7);
    check(text(), "self.matches(\"x\")", 314_574, 50, 22);
    check(text(), "\"\".matches(\"(((((((((())))))))))[0-9]\")", 7, 10, 7);
    check(text(), "self.matches(\"\")", 1, 100, 1);
    check(text(), "self == \"x\"", 2, 0, 1);
    check(json!({ "type": "string", "format": "byte", "maxLength": "LIMIT" }), "self == b\"x\"", 2, 0, 1);
    check(text(), "self.find('[0-9]+') == ''", 629_147, 10, 11);
    check(text(), "self.lowerAscii() == 'lower!'", 314_575, 10, 6);

    check(list("number"), "self[1] == 0.0", 2, 5000, 2);
    check(list("string"), "self[1] == self[1]", 314_577, 8, 314_577);
    check(list("int-or-string"), "self[0] == 5", 3, 10, 3);
    check(list("boolean"), "self[0] == false", 2, 25, 2);
    check(lists(objects()), "self[0] == null", 2, 422, 2);
    check(lists(list("number")), "self[0][0] == -1.0", 3, 51, 3);
    check(lists(map("number")), "self[0].x > 2.0", 4, 3000, 4);
    check(list("duration"), "self[0].getHours() == 2", 4, 525, 4);
    check(list("date"), "self[2].getDayOfMonth() == 13", 4, 42, 4);
    check(list("date-time"), "self[2].getMinutes() == 45", 4, 99, 4);
    check(map("number"), "self[\"x\"] == 0.0", 2, 0, 2);
    check(map("date-time"), "self[\"a\"] == self[\"b\"]", 8, 7, 8);
    check(map("duration"), "self[\"c\"] == self[\"d\"]", 8, 42, 8);
    check(map("integer"), "oldSelf.size() == self.size()", 5, 10, 5);
    check(list("number"), "self.all(x, x == 0.0)", 6_291_454, 3 * 1024 * 2048, 25_165_826);
    check(lists(map("number")), "self.all(x, x.y == 25.2)", 6_291_452, 12, 74);

    let strings = || lists(text());
    check(strings(), "self.join(' ') == 'aa bb'", 329_853_068_905, 10, 43);
    check(strings(), "self.isSorted() == true", 329_854_432_052, 10, 52);
    let split = json!({ "type": "object", "properties": { "str": text(), "separator": text() } });
    check(split, "self.str.split(self.separator) == []", 629_160, 10, 22);
    let replace = json!({ "type": "object", "properties": {
        "str": text(), "before": { "type": "string", "maxLength": 2 }, "after": { "type": "string", "maxLength": 4 },
    } });
    check(replace, "self.str.replace(self.before, self.after) == 'does not matter'", 629_154, 4, 12);
    check(maps(text()), "self.all(x, x.contains(self[x]))", 2_752_507, 10, 72);
    let nested = json!({ "type": "object", "maxProperties": "LIMIT", "additionalProperties": objects() });
    check(lists(nested.clone()), "self.all(x, x[\"y\"].required == \"z\")", 7_340_027, 10, 72);
    let unlimited = json!({ "type": "array", "items": nested });
    check(unlimited, "self.all(x, x[\"y\"].required == \"z\")", 7_340_027, 10, 7_340_027);
    let values = json!({ "type": "string", "maxLength": "LIMIT", "enum": ["A", "B", "C", "LongValue"] });
    check(values, "self.contains('A')", 2, 1000, 401);
    let quantity = json!({ "x-kubernetes-int-or-string": true, "maxLength": "LIMIT" });
    check(quantity, "isQuantity(self)", 314_574, 20, 9);
    for (rule, limit, expected) in
        [("self.all(x, self.all(y, true))", 10, 352), ("self.all(x, self.all(y, self.all(z, true)))", 10, 3552)]
    {
        assert_eq!(cost(&limited(&list("number"), Some(limit)), rule), expected, "{rule}");
        assert!(cost(&limited(&list("number"), None), rule) > 10_000_000, "{rule}");
    }
}
