//! `kubectl get -w`: what is there, then every change until the server or Ctrl-C ends it.
//! Used by `get`.
//! Never starts again by itself: an ended watch ends the command, as with kubectl.

use futures::StreamExt;
use http::header;
use serde_json::{Value, json};

use super::get::Shown;
use crate::{
    failure::{Failure, Result},
    flags::Matches,
    printers::columns::{TabWriter, TableOptions, add_rows, headers, table_of},
    resource::Selection,
    session::Session,
    terminal,
};

pub async fn watch(session: &Session, matches: &Matches, mut selection: Selection, mut shown: Shown) -> Result<()> {
    let flag = if matches.bool("watch") { "watch" } else { "watch-only" };
    if shown.sort_by.is_some() {
        let tail = if flag == "watch" { " for watch events received" } else { "" };
        session.output.warn(&format!("warning: --{flag} requested, --sort-by will be ignored{tail}"));
    }
    selection.single_type = true;
    selection.keep_lists = true;
    let infos = selection.all_or_nothing(session).await;
    let infos = match infos {
        Err(failure) if selection.ignore_not_found && failure.is_not_found() => return Ok(()),
        other => other?,
    };
    if infos.len() > 1 && !infos[0].name.is_empty() {
        return Err(Failure::message(format!(
            "watch is only supported on individual resources and resource collections - {} resources were found",
            infos.len()
        )));
    }
    let Some(first) = infos.first() else { return Ok(()) };
    let is_list = first.name.is_empty();
    let resource = first.resource.clone();
    let mut view = View {
        events: matches.bool("output-watch-events"),
        options: TableOptions {
            with_namespace: selection.all_namespaces && resource.namespaced,
            ..shown.table.clone()
        },
        writer: TabWriter::default(),
        definitions: Value::Null,
    };
    let only = matches.bool("watch-only");
    if !only {
        for info in &infos {
            view.print(session, &mut shown, "ADDED", &info.object)?;
        }
        session.output.flush();
    } else if let Some(info) = infos.first() {
        view.define(&info.object);
    }
    let version = match is_list {
        true => infos.last().and_then(|i| i.object["metadata"]["resourceVersion"].as_str()).unwrap_or("0").to_string(),
        false => "0".to_string(),
    };
    let namespace = if selection.all_namespaces { "" } else { first.namespace.as_str() };
    let mut call = session.rest().await?.get(resource.path(namespace, ""));
    if !selection.accept.is_empty() {
        call = call.header(header::ACCEPT, selection.accept.as_str());
    }
    let field_selector = match is_list {
        true => selection.field_selector.clone(),
        false => format!("metadata.name={}", first.name),
    };
    call = call.query_opt("fieldSelector", &field_selector).query_opt("labelSelector", &selection.selector);
    let mut lines = call.query("resourceVersion", version).query("watch", "true").lines().await?;
    let mut skip = !is_list && !only;
    terminal::end_at_signals(&session.output)?;
    while let Some(line) = lines.next().await {
        let event: Value = serde_json::from_slice(&line?)?;
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "ERROR" {
            let text = event["object"]["message"].as_str().unwrap_or_default();
            return Err(Failure::message(text.to_string()));
        }
        // A watch of one object begins with what was printed already.
        if std::mem::take(&mut skip) && kind == "ADDED" {
            continue;
        }
        view.print(session, &mut shown, kind, &event["object"])?;
        session.output.flush();
    }
    Ok(())
}

struct View {
    events: bool,
    options: TableOptions,
    writer: TabWriter,
    definitions: Value,
}

impl View {
    fn define(&mut self, table: &Value) {
        if table["columnDefinitions"].as_array().is_some_and(|c| !c.is_empty()) {
            self.definitions = json!({"columnDefinitions": table["columnDefinitions"]});
        }
    }

    fn print(&mut self, session: &Session, shown: &mut Shown, event: &str, object: &Value) -> Result<()> {
        if let Some(printer) = &mut shown.printer {
            let items = match object["items"].as_array() {
                Some(_) => crate::resource::items_of(object.clone()),
                None => vec![object.clone()],
            };
            for item in items {
                let item = match self.events {
                    true => json!({"type": event, "object": item}),
                    false => item,
                };
                session.output.print(&printer.text(&item)?);
            }
            return Ok(());
        }
        let held;
        let table = match object["kind"] == "Table" {
            true => object,
            false => {
                held = table_of(object, session.env.now());
                &held
            }
        };
        let options = TableOptions { event: self.events.then(|| event.to_string()), ..self.options.clone() };
        let first = self.definitions.is_null();
        let has_rows = table["rows"].as_array().is_some_and(|r| !r.is_empty());
        self.define(table);
        if !has_rows {
            if first {
                self.definitions = Value::Null;
            }
            return Ok(());
        }
        if (first || self.writer_is_new()) && !options.no_headers {
            self.writer.row(headers(&self.definitions, &options));
        }
        add_rows(&mut self.writer, &self.definitions, table, &options);
        session.output.print(&self.writer.flush());
        Ok(())
    }

    fn writer_is_new(&self) -> bool {
        !self.writer.has_flushed()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fake::FakeServer;

    /// Also where the file has them in one list.
    #[test]
    fn several_objects_of_a_file_are_not_watched() {
        let pod = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}});
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("pods.json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod("a"), pod("b")]});
        std::fs::write(&file, list.to_string()).expect("a file");
        let server = FakeServer::of_pods().on("GET /api/v1/namespaces/default/pods/a", 200, pod("a")).on(
            "GET /api/v1/namespaces/default/pods/b",
            200,
            pod("b"),
        );
        let (_, err, code) = server.run(&["get", "-f", &file.display().to_string(), "--watch"]);
        let wanted = "error: watch is only supported on individual resources and resource collections - 2 resources were found\n";
        assert_eq!((err.as_str(), code), (wanted, 1));
    }
}
