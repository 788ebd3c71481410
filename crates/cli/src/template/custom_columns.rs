//! `-o custom-columns=`: columns whose cells are JSONPath expressions.
//! Neighbours: `jsonpath` evaluates a cell; the printers align what `cells` returns.
//! A cell without a value reads `<none>`.

use serde_json::Value;

use super::{go_format, jsonpath::JsonPath};

#[derive(Debug)]
pub struct CustomColumns {
    pub headers: Vec<String>,
    paths: Vec<JsonPath>,
}

impl CustomColumns {
    /// From `NAME:.metadata.name,IMAGE:.spec.containers[*].image`.
    pub fn from_spec(spec: &str) -> Result<Self, String> {
        if spec.is_empty() {
            return Err("custom-columns format specified but no custom columns given".to_string());
        }
        let columns = spec.split(',').map(|part| {
            part.split_once(':')
                .ok_or_else(|| format!("unexpected custom-columns spec: {part}, expected <header>:<json-path-expr>"))
        });
        Self::from_columns(columns)
    }

    /// From a template of two lines: headers, then expressions.
    pub fn from_template(template: &str) -> Result<Self, String> {
        let missing = |line: &str| {
            format!(
                "invalid template, missing {line} line. Expected format is one line of space separated headers, one \
                 line of space separated column specs."
            )
        };
        let mut lines = template.lines();
        let headers: Vec<&str> = lines.next().ok_or_else(|| missing("header"))?.split_whitespace().collect();
        let specs: Vec<&str> = lines.next().ok_or_else(|| missing("spec"))?.split_whitespace().collect();
        if headers.len() != specs.len() {
            return Err(format!(
                "number of headers ({}) and field specifications ({}) don't match",
                headers.len(),
                specs.len()
            ));
        }
        Self::from_columns(headers.into_iter().zip(specs).map(Ok))
    }

    fn from_columns<'a>(columns: impl Iterator<Item = Result<(&'a str, &'a str), String>>) -> Result<Self, String> {
        let (mut headers, mut paths) = (Vec::new(), Vec::new());
        for column in columns {
            let (header, spec) = column?;
            headers.push(header.to_string());
            paths.push(JsonPath::parse(&relaxed_expression(spec)?)?.allow_missing_keys(true));
        }
        Ok(Self { headers, paths })
    }

    /// One row of cells.
    pub fn cells(&self, object: &Value) -> Result<Vec<String>, String> {
        let cell = |path: &JsonPath| {
            let groups = path.results(object)?;
            let mut values = Vec::new();
            if groups.first().is_none_or(|group| group.is_empty()) {
                values.push("<none>".to_string());
            }
            values.extend(groups.iter().flatten().map(|value| go_format::escape_terminal(&go_format::sprint(value))));
            Ok(values.join(","))
        };
        self.paths.iter().map(cell).collect()
    }
}

/// `metadata.name`, `.metadata.name` and `{metadata.name}` all mean `{.metadata.name}`.
pub fn relaxed_expression(path: &str) -> Result<String, String> {
    if path.is_empty() {
        return Ok(String::new());
    }
    let inner = match path.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')) {
        Some(inner) => inner,
        None => path,
    };
    let field = inner.strip_prefix('.').unwrap_or(inner);
    // A lone dot is its own field, as the expression upstream matches with needs one character.
    let field = if field.is_empty() { inner } else { field };
    if field.is_empty() || field.contains(['{', '}']) {
        return Err("unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{name1.name2}' or \
                    '{.name1.name2}'"
            .to_string());
    }
    Ok(format!("{{.{field}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_read_as_kubectls() {
        let object = json!({"metadata": {"name": "web", "labels": {"app": "x"}}, "spec": {"containers": [
            {"image": "a"}, {"image": "b"}], "nodeName": null}});
        let check = |spec: &str, expected: &[&str]| {
            assert_eq!(CustomColumns::from_spec(spec).unwrap().cells(&object).unwrap(), expected, "{spec}");
        };
        check("NAME:.metadata.name,IMAGES:spec.containers[*].image", &["web", "a,b"]);
        check("L:{.metadata.labels},N:.spec.nodeName,M:.spec.missing", &["map[app:x]", "<nil>", "<none>"]);
        let refused = |spec: &str, expected: &str| {
            assert_eq!(CustomColumns::from_spec(spec).unwrap_err(), expected, "{spec}");
        };
        refused("", "custom-columns format specified but no custom columns given");
        refused("NAME", "unexpected custom-columns spec: NAME, expected <header>:<json-path-expr>");
        refused(
            "NAME:{.a}{.b}",
            "unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{name1.name2}' or '{.name1.name2}'",
        );
        assert_eq!(
            CustomColumns::from_template("A B\n.a").unwrap_err(),
            "number of headers (2) and field specifications (1) don't match"
        );
        let columns = CustomColumns::from_template("NAME  APP\n.metadata.name {.metadata.labels.app}\n").unwrap();
        assert_eq!(
            (columns.headers.clone(), columns.cells(&object).unwrap()),
            (vec!["NAME".to_string(), "APP".to_string()], vec!["web".to_string(), "x".to_string()])
        );
    }
}
