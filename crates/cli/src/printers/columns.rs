//! Tables of the server as lines of columns.
//! Used by `get`, `events`, `api-resources` and others.
//! Column widths are remembered from one flush to the next, so that a watch stays aligned.

use api::printing::human_duration;
use serde_json::Value;

const WIDTH_MIN: usize = 6;
const PADDING: usize = 3;
const NARROW_PADDING: usize = 2;

/// Lays out cells as Go's tabwriter does for kubectl.
#[derive(Default)]
pub struct TabWriter {
    rows: Vec<Vec<String>>,
    widths: Vec<usize>,
    narrow: bool,
}

impl TabWriter {
    /// As upstream's texts about one object: columns stand closer than in a table.
    pub fn narrow() -> Self {
        Self { narrow: true, ..Self::default() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Whether lines were laid out before.
    pub fn has_flushed(&self) -> bool {
        !self.widths.is_empty()
    }

    /// The lines so far.
    pub fn flush(&mut self) -> String {
        let (padding, width_min) = if self.narrow { (NARROW_PADDING, 0) } else { (PADDING, WIDTH_MIN) };
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        self.widths.resize(self.widths.len().max(columns), 0);
        for row in &self.rows {
            // The last cell of a line is no column.
            for (column, cell) in row.iter().enumerate().take(row.len().saturating_sub(1)) {
                let width = (cell.chars().count() + padding).max(width_min);
                self.widths[column] = self.widths[column].max(width);
            }
        }
        let mut text = String::new();
        for row in self.rows.drain(..) {
            for (column, cell) in row.iter().enumerate() {
                text.push_str(cell);
                if column + 1 < row.len() {
                    let missing = self.widths[column].saturating_sub(cell.chars().count());
                    text.extend(std::iter::repeat_n(' ', missing));
                }
            }
            text.push('\n');
        }
        text
    }
}

#[derive(Debug, Clone, Default)]
pub struct TableOptions {
    pub wide: bool,
    pub no_headers: bool,
    pub with_namespace: bool,
    /// `pod/` before the name.
    pub kind_prefix: String,
    pub show_labels: bool,
    pub label_columns: Vec<String>,
    /// A column in front, such as the type of a watch event.
    pub event: Option<String>,
}

/// A cell as text: the first line of it.
pub fn cell_text(cell: &Value) -> String {
    match cell {
        Value::String(text) => match text.find(['\n', '\r', '\x0c']) {
            Some(at) => format!("{}...", &text[..at]),
            None => text.clone(),
        },
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn shown_columns(table: &Value, wide: bool) -> Vec<usize> {
    let definitions = table["columnDefinitions"].as_array().cloned().unwrap_or_default();
    (0..definitions.len()).filter(|i| wide || definitions[*i]["priority"].as_i64().unwrap_or(0) == 0).collect()
}

pub fn headers(table: &Value, options: &TableOptions) -> Vec<String> {
    let mut cells = Vec::new();
    if options.event.is_some() {
        cells.push("EVENT".to_string());
    }
    if options.with_namespace {
        cells.push("NAMESPACE".to_string());
    }
    for column in shown_columns(table, options.wide) {
        cells.push(table["columnDefinitions"][column]["name"].as_str().unwrap_or_default().to_uppercase());
    }
    for label in &options.label_columns {
        cells.push(label.rsplit('/').next().unwrap_or(label).to_uppercase());
    }
    if options.show_labels {
        cells.push("LABELS".to_string());
    }
    cells
}

/// Labels in one cell, sorted; `<none>` for none.
pub fn labels_text(labels: &Value) -> String {
    match labels.as_object() {
        Some(map) if !map.is_empty() => {
            let pairs: Vec<String> =
                map.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
            pairs.join(",")
        }
        _ => "<none>".to_string(),
    }
}

/// Adds the rows of a table; columns are those of `definitions`, which an event of a watch may leave out.
pub fn add_rows(writer: &mut TabWriter, definitions: &Value, table: &Value, options: &TableOptions) {
    let columns = shown_columns(definitions, options.wide);
    for row in table["rows"].as_array().into_iter().flatten() {
        let metadata = &row["object"]["metadata"];
        let mut cells = Vec::new();
        if let Some(event) = &options.event {
            cells.push(event.clone());
        }
        if options.with_namespace {
            cells.push(metadata["namespace"].as_str().unwrap_or_default().to_string());
        }
        for (position, column) in columns.iter().enumerate() {
            let mut text = cell_text(&row["cells"][*column]);
            if position == 0 && !options.kind_prefix.is_empty() {
                text = format!("{}/{text}", options.kind_prefix);
            }
            cells.push(text);
        }
        for label in &options.label_columns {
            cells.push(metadata["labels"][label].as_str().unwrap_or_default().to_string());
        }
        if options.show_labels {
            cells.push(labels_text(&metadata["labels"]));
        }
        writer.row(cells);
    }
}

/// A table of an object that the server sent as it is: name and age.
pub fn table_of(object: &Value, now: jiff::Timestamp) -> Value {
    let age = age(object["metadata"]["creationTimestamp"].as_str().unwrap_or_default(), now);
    serde_json::json!({
        "kind": "Table",
        "columnDefinitions": [{"name": "Name", "priority": 0}, {"name": "Age", "priority": 0}],
        "rows": [{"cells": [object["metadata"]["name"], age], "object": object}],
    })
}

pub fn age(timestamp: &str, now: jiff::Timestamp) -> String {
    match timestamp.parse::<jiff::Timestamp>() {
        Ok(then) => human_duration(now.as_second() - then.as_second()),
        Err(_) => "<unknown>".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_padded_and_the_last_is_not() {
        let mut writer = TabWriter::default();
        writer.row(["NAME", "AGE"].map(str::to_string).to_vec());
        writer.row(["a-longer-name", "5s"].map(str::to_string).to_vec());
        assert_eq!(writer.flush(), "NAME            AGE\na-longer-name   5s\n");
        writer.row(["b", "6s"].map(str::to_string).to_vec());
        assert_eq!(writer.flush(), "b               6s\n");
    }

    #[test]
    fn ages_are_as_long_as_they_need() {
        let check = |seconds: i64, wanted: &str| assert_eq!(human_duration(seconds), wanted, "{seconds}");
        check(-5, "<invalid>");
        check(0, "0s");
        check(119, "119s");
        check(182, "3m2s");
        check(180, "3m");
        check(3600, "60m");
        check(4 * 3600 + 120, "4h2m");
        check(3 * 86400 + 3600, "3d1h");
        check(300 * 86400, "300d");
        check(3 * 365 * 86400, "3y");
    }
}
