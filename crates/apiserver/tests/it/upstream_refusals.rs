//! What upstream's v1.35 API server refuses, and in which words: requests and its answers as data, recorded from it alone
//! (`upstream_refusals.json`). Neighbours: `upstream_answers`, `upstream_objects`.
//! A row is a request; code, message, number of causes and warnings of the answer must be upstream's to the letter.

use serde::Deserialize;
use serde_json::Value;

use crate::harness::{Server, config_map, server};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Row {
    method: String,
    path: String,
    #[serde(default)]
    body: Value,
    content_type: Option<String>,
    accept: Option<String>,
    code: u16,
    message: String,
    /// Where the answer has details.
    causes: Option<usize>,
    warning: Option<String>,
}

pub async fn difference(s: &Server, row: &Row) -> Option<String> {
    let headers = [
        ("content-type", row.content_type.as_deref().unwrap_or("application/json")),
        ("accept", row.accept.as_deref().unwrap_or("application/json")),
    ];
    let content = match &row.body {
        Value::Null => Vec::new(),
        Value::String(text) => text.clone().into_bytes(),
        other => other.to_string().into_bytes(),
    };
    let answer = s.send(&row.method, &row.path, &headers, content).await;
    let text = answer.value["message"].as_str().unwrap_or_default();
    let details = answer.value.get("details");
    let causes = details.map(|details| details["causes"].as_array().map_or(0, Vec::len));
    let warnings: Vec<_> = answer.headers.get_all("warning").iter().filter_map(|value| value.to_str().ok()).collect();
    let warning = (!warnings.is_empty()).then(|| warnings.join(", "));
    let same = (answer.code, text, causes, &warning) == (row.code, &row.message, row.causes, &row.warning);
    (!same).then(|| {
        let (method, path, body) = (&row.method, &row.path, &row.body);
        let ours = format!("{} {causes:?} {warning:?} {text}", answer.code);
        format!("{method} {path} {body}\n  ours     {ours}\n  upstream {} {:?} {}", row.code, row.causes, row.message)
    })
}

#[tokio::test]
async fn refusals_are_upstreams_to_the_letter() {
    let s = server().await;
    s.create_config_map("m").await.expect(201);
    let mut changed = config_map("m");
    changed["data"] = serde_json::json!({ "a": "b" });
    s.put("/api/v1/namespaces/default/configmaps/m", changed).await.expect(200);
    let rows: Vec<Row> = serde_json::from_str(include_str!("upstream_refusals.json")).unwrap();
    let mut differences = Vec::new();
    for row in &rows {
        differences.extend(difference(&s, row).await);
    }
    assert!(differences.is_empty(), "{} of {} differ:\n{}", differences.len(), rows.len(), differences.join("\n"));
}
