//! JSONPath templates against what kubectl 1.35 prints for the same object.

use serde_json::Value;

use super::JsonPath;

const OBJECT: &str = r#"{"apiVersion":"example.com/v1","kind":"Garden","metadata":{"name":"kew","namespace":"london","labels":{"app.kubernetes.io/name":"kew","k":"v"}},
 "spec":{"beds":[{"name":"rose","depth":2,"wet":true,"ph":6.5,"rows":[1,2,3]},{"name":"fern","depth":5,"wet":false,"ph":5.25},{"name":"moss","depth":1,"wet":true,"note":null}],
 "empty":[],"nothing":null,"big":1e21,"small":0.00001,"big2":12345678,"float":3.5,"text":"q\"uo<te","secret":"aGVsbG8="}}"#;

fn object() -> Value {
    serde_json::from_str(OBJECT).unwrap()
}

#[test]
fn templates_print_what_kubectl_prints() {
    let rows: &[(&str, &str)] = &[
        ("{.metadata.name}", "kew"),
        ("{.spec.beds[*].name}", "rose fern moss"),
        ("{.spec.beds[-1].name}", "moss"),
        ("{.spec.beds[0:2].name}", "rose fern"),
        ("{.spec.beds[::2].name}", "rose moss"),
        ("{.spec.beds[1:].depth}", "5 1"),
        ("{.spec.beds[-2:].name}", "fern moss"),
        ("{.spec.beds[?(@.wet==true)].name}", "rose moss"),
        ("{.spec.beds[?(@.depth>1)].name}", "rose fern"),
        ("{.spec.beds[?(@.depth!=2)].name}", "fern moss"),
        ("{.spec.beds[?(@.ph)].name}", "rose fern"),
        (r#"{.spec.beds[?(@.name=="rose")].rows}"#, "[1,2,3]"),
        ("{.spec.beds[?(@.name=='fern')].ph}", "5.25"),
        ("{.spec.beds[?(@.ph<6.0)].name}", "fern"),
        ("{.spec.beds[*]['name','depth']}", "rose fern moss 2 5 1"),
        (r"{.metadata.labels.app\.kubernetes\.io/name}", "kew"),
        (r"{.metadata.labels['app\.kubernetes\.io/name']}", "kew"),
        ("{.metadata['name','namespace']}", "kew london"),
        ("{.metadata.labels}", r#"{"app.kubernetes.io/name":"kew","k":"v"}"#),
        ("{..name}", "kew rose fern moss"),
        ("{.spec.beds[0].rows[0,2]}", "1 3"),
        ("{.spec.empty}", "[]"),
        ("{.spec.nothing}", "null"),
        ("{.spec.empty[*].x}", ""),
        ("{.spec.big} {.spec.small} {.spec.big2} {.spec.float}", "1e+21 1e-05 12345678 3.5"),
        (r#"{range .spec.beds[*]}{.name}{"\t"}{.depth}{"\n"}{end}"#, "rose\t2\nfern\t5\nmoss\t1\n"),
        ("{range .spec.beds[*]}[{.name}:{range .rows[*]}{@},{end}]{end}-{.kind}", "[rose:1,2,3,][fern:][moss:]-Garden"),
        ("{range .spec.empty[*]}{.name}{end}done", "done"),
        ("{.missing}", ""),
        ("a{.missing}b", "ab"),
        ("{.spec.text}", r#"q"uo<te"#),
        ("{.spec.beds[0]}", r#"{"depth":2,"name":"rose","ph":6.5,"rows":[1,2,3],"wet":true}"#),
        (r#"{.kind} has {"{"}braces{"}"}"#, "Garden has {braces}"),
        ("{@.kind}{$.kind}", "GardenGarden"),
        ("{.spec.beds[*].rows[*]}", "1 2 3"),
        ("{true}{1}{2.5}", "true12.5"),
        ("{.spec.beds[*].name.*}", "114 111 115 101 102 101 114 110 109 111 115 115"),
        ("{.spec.beds[0].*}", "2 rose 6.5 [1,2,3] true"),
    ];
    let object = object();
    for (template, expected) in rows {
        let path = JsonPath::parse(template).unwrap().allow_missing_keys(true);
        assert_eq!(path.render(&object).as_deref(), Ok(*expected), "{template}");
    }
}

#[test]
fn templates_fail_with_kubectls_words() {
    let rows: &[(&str, &str)] = &[
        ("{.spec.beds[?(@.ph<6)].name}", "incompatible types for comparison"),
        ("{.spec.beds[0:9]}", "array index out of bounds: index 8, length 3"),
        ("{.spec.beds[5]}", "array index out of bounds: index 5, length 3"),
        ("{.spec.beds[2:1]}", "starting index 2 is greater than ending index 1"),
        ("{.spec.text[0]}", "string is not array or slice"),
        ("{.metadata[0]}", "map[string]interface {} is not array or slice"),
        ("{end}", "not in range, nothing to end"),
        ("{hello}", "unrecognized identifier hello"),
        ("{.spec.text[?(@.x)]}", r#"q"uo<te is not array or slice and cannot be filtered"#),
        ("{.spec.beds[?(@.depth<>2)]}", "unrecognized filter operator <>"),
        ("{.spec.beds[?(@.wet<true)]}", "invalid type for comparison"),
        ("{.spec.beds[::0]}", "step must be > 0"),
    ];
    let object = object();
    for (template, expected) in rows {
        let path = JsonPath::parse(template).unwrap().allow_missing_keys(true);
        assert_eq!(path.render(&object).unwrap_err(), *expected, "{template}");
    }
    let strict = JsonPath::parse("{.missing}").unwrap();
    assert_eq!(strict.render(&object).unwrap_err(), "missing is not found");
}

#[test]
fn results_can_be_one_json_array_each() {
    let path = JsonPath::parse("{.metadata.name}{.spec.beds[*].depth}").unwrap();
    let expected = "[\n    \"kew\"\n]\n[\n    2,\n    5,\n    1\n]\n";
    assert_eq!(path.render_as_json(&object()).as_deref(), Ok(expected));
}
