//! Go templates against what kubectl 1.35 prints for the same object.

use serde_json::Value;

use super::GoTemplate;

const OBJECT: &str = r#"{"apiVersion":"example.com/v1","kind":"Garden","metadata":{"name":"kew","namespace":"london","labels":{"app.kubernetes.io/name":"kew","k":"v"}},
 "spec":{"beds":[{"name":"rose","depth":2,"wet":true,"ph":6.5,"rows":[1,2,3]},{"name":"fern","depth":5,"wet":false,"ph":5.25},{"name":"moss","depth":1,"wet":true,"note":null}],
 "empty":[],"nothing":null,"big":1e21,"small":0.00001,"big2":12345678,"float":3.5,"text":"q\"uo<te","secret":"aGVsbG8="}}"#;

fn render(template: &str) -> Result<String, String> {
    let object: Value = serde_json::from_str(OBJECT).unwrap();
    let parsed = GoTemplate::parse(template)?;
    let quoted = crate::template::go_format::quote(template);
    parsed.render(&object).map_err(|error| {
        let behind = error.message.strip_prefix(&format!("error executing template {quoted}: ")).unwrap().to_string();
        assert!(error.written.contains(&format!("Error executing template: {behind}. Printing more information")));
        behind
    })
}

#[test]
fn templates_print_what_kubectl_prints() {
    let rows: &[(&str, &str)] = &[
        ("{{.metadata.name}}", "kew"),
        (
            "{{.spec.beds}}",
            "[map[depth:2 name:rose ph:6.5 rows:[1 2 3] wet:true] map[depth:5 name:fern ph:5.25 wet:false] map[depth:1 name:moss note:<nil> wet:true]]",
        ),
        ("{{range .spec.beds}}{{.name}}={{.depth}};{{end}}", "rose=2;fern=5;moss=1;"),
        ("{{range $i, $b := .spec.beds}}{{$i}}:{{$b.name}} {{end}}", "0:rose 1:fern 2:moss "),
        ("{{range $k, $v := .metadata.labels}}{{$k}}={{$v}} {{end}}", "app.kubernetes.io/name=kew k=v "),
        ("{{range .spec.empty}}x{{else}}none{{end}}", "none"),
        ("{{if .spec.nothing}}a{{else if .spec.text}}b{{else}}c{{end}}", "b"),
        ("{{with .spec.beds}}{{len .}}{{end}}", "3"),
        ("{{with $x := .kind}}{{$x}}{{.}}{{end}}", "GardenGarden"),
        ("{{.missing}} {{.a.b.c}} {{.spec.nothing}}", "<no value> <no value> <no value>"),
        ("{{index .spec.beds 1}}", "map[depth:5 name:fern ph:5.25 wet:false]"),
        ("{{(index .spec.beds 0).name}}", "rose"),
        (r#"{{index .metadata.labels "app.kubernetes.io/name"}}"#, "kew"),
        (
            r#"{{printf "%s|%5s|%-5s|%q|%v|%d|%03d|%x|%t" .kind .metadata.name .metadata.name .kind .spec.beds 42 7 255 true}}"#,
            r#"Garden|  kew|kew  |"Garden"|[map[depth:2 name:rose ph:6.5 rows:[1 2 3] wet:true] map[depth:5 name:fern ph:5.25 wet:false] map[depth:1 name:moss note:<nil> wet:true]]|42|007|ff|true"#,
        ),
        (r#"{{printf "%d %s" "a" 1.5}}"#, "%!d(string=a) %!s(float64=1.5)"),
        (r#"{{printf "%d"}}"#, "%!d(MISSING)"),
        (r#"{{printf "%d" 1 2}}"#, "1%!(EXTRA int=2)"),
        (
            r#"{{printf "%.2f %e %g %6.1f" .spec.float .spec.float .spec.big .spec.small}}"#,
            "3.50 3.500000e+00 1e+21    0.0",
        ),
        (r#"{{printf "%v %v" .missing .spec.nothing}}"#, "<nil> <nil>"),
        (r#"{{print "a" 1 2 "b"}} {{println "a" 1}}"#, "a1 2b a 1\n"),
        (
            "{{.spec.text | html}} {{.spec.text | js}} {{.spec.text | urlquery}}",
            r#"q&#34;uo&lt;te q\"uo\u003Cte q%22uo%3Cte"#,
        ),
        ("{{len .spec.beds}} {{len .kind}} {{slice .kind 1 3}}", "3 6 ar"),
        (
            r#"{{eq .kind "Garden"}} {{ne 1 2}} {{lt 1 2}} {{ge 2 3}} {{eq .kind "a" "Garden"}}"#,
            "true true true false true",
        ),
        (r#"{{and 1 0}} {{or 0 "x"}} {{not 1}} {{and .kind .spec.empty}}"#, "0 x false []"),
        (r#"{{exists .spec "beds" 0 "name"}} {{exists .spec "nope" "x"}}"#, "true false"),
        ("{{.spec.secret | base64decode}}", "hello"),
        (r#"{{define "T"}}[{{.name}}]{{end}}{{range .spec.beds}}{{template "T" .}}{{end}}"#, "[rose][fern][moss]"),
        (r#"{{block "B" .metadata}}{{.name}}{{end}}"#, "kew"),
        ("a  {{- .kind -}}  b", "aGardenb"),
        ("{{/* c */}}x{{- /* d */ -}}  y", "xy"),
        ("{{$x := 1}}{{if true}}{{$x = 2}}{{end}}{{$x}}", "2"),
        (
            r#"{{range .spec.beds}}{{if eq .name "fern"}}{{continue}}{{end}}{{.name}}{{end}} {{range .spec.beds}}{{.name}}{{break}}{{end}}"#,
            "rosemoss rose",
        ),
        ("{{range 3}}{{.}}{{end}}", "012"),
        (r#"{{"a\tb"}}{{`raw\t`}}{{'a'}} {{0x1F}} {{1e3}} {{-4}}"#, "a\tbraw\\t97 31 1000 -4"),
        (r#"{{.kind | printf "%s-%s" "a"}}"#, "a-Garden"),
        (r#"{{(len .spec.beds) | printf "%d"}}"#, "3"),
        ("{{.spec.big}} {{.spec.small}} {{.spec.big2}} {{.spec.float}}", "1e+21 1e-05 12345678 3.5"),
        ("{{range $i, $c := .spec.beds}}{{if $i}}, {{end}}{{$c.name}}{{end}}", "rose, fern, moss"),
        (r#"{{printf "%T %T %T" .kind .spec.beds .spec.float}}"#, "string []interface {} float64"),
        (r#"{{if and .kind (eq .metadata.name "kew")}}yes{{end}}"#, "yes"),
        ("{{len (index .spec.beds 0).rows}}", "3"),
    ];
    for (template, expected) in rows {
        assert_eq!(render(template).as_deref(), Ok(*expected), "{template}");
    }
}

#[test]
fn templates_fail_with_gos_words() {
    let rows: &[(&str, &str)] = &[
        (
            "{{index .spec.beds 9}}",
            r#"template: output:1:2: executing "output" at <index .spec.beds 9>: error calling index: index out of range: 9"#,
        ),
        (
            "{{eq .kind 1}}",
            r#"template: output:1:2: executing "output" at <eq .kind 1>: error calling eq: incompatible types for comparison: string and int"#,
        ),
        (
            "{{lt .kind 1}}",
            r#"template: output:1:2: executing "output" at <lt .kind 1>: error calling lt: incompatible types for comparison: string and int"#,
        ),
        (
            "{{.kind | base64decode}}",
            r#"template: output:1:10: executing "output" at <base64decode>: error calling base64decode: base64 decode failed: illegal base64 data at input byte 4"#,
        ),
        (
            "{{range .kind}}{{end}}",
            r#"template: output:1:8: executing "output" at <.kind>: range can't iterate over Garden"#,
        ),
        (
            "{{.kind.x}}",
            r#"template: output:1:7: executing "output" at <.kind.x>: can't evaluate field x in type interface {}"#,
        ),
        (
            "{{.spec.nothing.x}}",
            r#"template: output:1:7: executing "output" at <.spec.nothing.x>: nil pointer evaluating interface {}.x"#,
        ),
        (
            r#"{{template "nope"}}"#,
            r#"template: output:1:11: executing "output" at <{{template "nope"}}>: template "nope" not defined"#,
        ),
        ("{{nope}}", r#"template: output:1: function "nope" not defined"#),
        ("{{.kind", "template: output:1: unclosed action"),
        ("{{if .kind}}x", "template: output:1: unexpected EOF"),
        ("{{$y}}", r#"template: output:1: undefined variable "$y""#),
        ("{{end}}", "template: output:1: unexpected {{end}}"),
        ("{{}}", "template: output:1: missing value for command"),
        ("{{len 3}}", r#"template: output:1:2: executing "output" at <len 3>: error calling len: len of type int"#),
        (
            "{{1 | .kind}}",
            r#"template: output:1:6: executing "output" at <.kind>: kind is not a method but has arguments"#,
        ),
        (
            "{{index .spec.nothing 1}}",
            r#"template: output:1:2: executing "output" at <index .spec.nothing 1>: error calling index: index of untyped nil"#,
        ),
        ("{{not}}", r#"template: output:1:2: executing "output" at <not>: wrong number of args for not: want 1 got 0"#),
        (
            r#"{{"x" "y"}}"#,
            r#"template: output:1:2: executing "output" at <"x">: can't give argument to non-function "x""#,
        ),
    ];
    for (template, expected) in rows {
        assert_eq!(render(template).as_ref().unwrap_err(), *expected, "{template}");
    }
}

#[test]
fn a_missing_key_can_be_an_error() {
    let strict = GoTemplate::parse("{{.missing}}").unwrap().allow_missing_keys(false);
    let object: Value = serde_json::from_str(OBJECT).unwrap();
    let expected = r#"template: output:1:2: executing "output" at <.missing>: map has no entry for key "missing""#;
    assert!(strict.render(&object).unwrap_err().message.ends_with(expected));
}
