//! `kubectl get`: objects as tables, JSON, YAML, names or templates.
//! A row of `verbs::ROOT`; watches are in `get_watch`, `--sort-by` in `sorting`.
//! Tables come from the server; only their layout is made here.

use serde_json::Value;

use super::{get_watch, sorting};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, list, string},
    printers::{
        PRINT,
        columns::{TabWriter, TableOptions, add_rows, headers, table_of},
        format::Printer,
    },
    resource::{ALL_NAMESPACES, CHUNK_SIZE, FIELD_SELECTOR, FILENAME, Info, SELECTOR, Selection, list_of},
    run,
    session::Session,
};

pub const TABLE_ACCEPT: &str =
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
const ALLOWED: &str = "custom-columns,custom-columns-file,go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,wide,yaml";

const FLAGS: &[Flag] = &[
    string("raw", "", "Path to ask the server for, as it is"),
    boolean("watch", "false", "Go on with the changes").short('w'),
    boolean("watch-only", "false", "Only the changes, not what is there"),
    boolean("output-watch-events", "false", "Print the events of a watch, not only their objects"),
    boolean("ignore-not-found", "false", "A named object that is not there is no error"),
    boolean("server-print", "true", "Let the server make the columns"),
    boolean("no-headers", "false", "Leave out the headers"),
    boolean("show-labels", "false", "Show all labels in the last column"),
    boolean("show-kind", "false", "Show the kind in front of the name"),
    list("label-columns", "Labels that get a column").short('L'),
    string("sort-by", "", "JSONPath of the field that is sorted by"),
    string("subresource", "", "Subresource of the object"),
];

pub static COMMAND: Command = Command {
    name: "get",
    aliases: &[],
    usage: "[(-o|--output=)json|yaml|kyaml|name|go-template|go-template-file|template|templatefile|jsonpath|jsonpath-as-json|jsonpath-file|custom-columns|custom-columns-file|wide] (TYPE[.VERSION][.GROUP] [NAME | -l label] | TYPE[.VERSION][.GROUP]/NAME ...) [flags] [options]",
    about: "Display one or many resources",
    flags: &[FLAGS, PRINT, FILENAME, SELECTOR, FIELD_SELECTOR, ALL_NAMESPACES, CHUNK_SIZE],
    commands: &[],
    run: run!(get),
};

/// What `get` and its watch share.
pub struct Shown {
    pub printer: Option<Printer>,
    pub table: TableOptions,
    pub sort_by: Option<sorting::SortKey>,
}

async fn get(session: &Session, matches: &Matches) -> Result<()> {
    if let Some(raw) = matches.opt("raw") {
        return get_raw(session, matches, raw).await;
    }
    let watches = matches.bool("watch") || matches.bool("watch-only");
    let mut selection = Selection::of(session, matches)?;
    if matches.args.is_empty() && !selection.has_files() {
        session.output.warn("You must specify the type of resource to get. Use \"kubectl api-resources\" for a complete list of supported resources.\n");
        return Err(Failure::Plain(
            "error: Required resource not specified.\nUse \"kubectl explain <resource>\" for a detailed description of that resource (e.g. kubectl explain pods).\nSee 'kubectl get -h' for help and examples".to_string(),
        ));
    }
    let output = matches.str("output");
    if matches.bool("show-labels") && !["", "wide"].contains(&output) {
        return Err(Failure::message(format!("--show-labels option cannot be used with {output} printer")));
    }
    if matches.bool("output-watch-events") && !watches {
        return Err(Failure::message("--output-watch-events option can only be used with --watch or --watch-only"));
    }
    let printer = match output {
        "wide" => None,
        _ => Printer::of(matches, ALLOWED)?,
    };
    let table = TableOptions {
        wide: output == "wide",
        no_headers: matches.bool("no-headers"),
        show_labels: matches.bool("show-labels"),
        label_columns: matches.list("label-columns"),
        ..TableOptions::default()
    };
    let sort_by = matches.opt("sort-by").map(sorting::SortKey::parse).transpose()?;
    selection.allow_empty_selector = true;
    selection.ignore_not_found = matches.bool("ignore-not-found");
    selection.latest = true;
    if printer.is_none() && matches.bool("server-print") {
        selection.accept = TABLE_ACCEPT.to_string();
        selection.include_object = sort_by.is_some();
    }
    if sort_by.is_some() {
        selection.chunk_size = 0;
    }
    let shown = Shown { printer, table, sort_by };
    if watches {
        return get_watch::watch(session, matches, selection, shown).await;
    }
    match shown.printer {
        Some(_) => print_objects(session, &selection, shown).await,
        None => print_tables(session, matches, &selection, shown).await,
    }
}

async fn get_raw(session: &Session, matches: &Matches, raw: &str) -> Result<()> {
    if !matches.args.is_empty() {
        return Err(Failure::message("arguments may not be passed when --raw is specified"));
    }
    if matches.bool("watch") || matches.bool("watch-only") || matches.opt("selector").is_some() {
        return Err(Failure::message(
            "--raw may not be specified with other flags that filter the server request or alter the output",
        ));
    }
    if matches.opt("output").is_some() {
        return Err(Failure::message("--raw and --output are mutually exclusive"));
    }
    if !raw.starts_with('/') {
        return Err(Failure::message(format!(
            "--raw must be a valid URL path: parse {raw:?}: invalid URI for request"
        )));
    }
    use futures::StreamExt;
    let mut body = session.rest().await?.get(raw).open().await?.into_body();
    while let Some(chunk) = body.next().await {
        session.output.bytes(&chunk?);
    }
    Ok(())
}

async fn print_objects(session: &Session, selection: &Selection, mut shown: Shown) -> Result<()> {
    let (mut infos, failures) = selection.select(session).await?;
    let single = single_item_implied(selection);
    if single && let Some(failure) = failures.first() {
        return Err(failure.clone());
    }
    if infos.is_empty() && selection.ignore_not_found {
        return Failure::aggregate(failures);
    }
    if let Some(key) = &shown.sort_by {
        key.sort(&mut infos, |info| &info.object)?;
    }
    let Some(printer) = &mut shown.printer else { return Ok(()) };
    let text = match (single, infos.len()) {
        (true, 1) => printer.text(&infos[0].object),
        _ => printer.text(&list_of(infos.into_iter().map(|i| i.object).collect())),
    };
    session.output.print(&text?);
    Failure::aggregate(failures)
}

/// One name of one type, or one file: the object itself is printed, not a list of one.
fn single_item_implied(selection: &Selection) -> bool {
    if selection.has_files() {
        return selection.filenames.len() == 1 && std::path::Path::new(&selection.filenames[0]).is_file();
    }
    match selection.arguments.as_slice() {
        [one] => one.contains('/'),
        [types, _] => !types.contains('/') && !types.contains(','),
        _ => false,
    }
}

async fn print_tables(session: &Session, matches: &Matches, selection: &Selection, shown: Shown) -> Result<()> {
    let (infos, failures) = selection.select(session).await?;
    let mut kinds: Vec<&str> = infos.iter().map(|i| i.resource.name.as_str()).collect();
    kinds.dedup();
    let with_kind = kinds.len() > 1 || matches.bool("show-kind");
    let mut written = false;
    let all_namespaced = !selection.all_namespaces && infos.iter().all(|i| i.resource.namespaced);
    for group in groups(infos) {
        let resource = group[0].resource.clone();
        let options = TableOptions {
            with_namespace: selection.all_namespaces && resource.namespaced,
            kind_prefix: if with_kind { resource.qualified_kind() } else { String::new() },
            ..shown.table.clone()
        };
        let mut tables: Vec<Value> = group
            .into_iter()
            .map(|info| match info.object["kind"] == "Table" {
                true => info.object,
                false => table_of(&info.object, session.env.now()),
            })
            .collect();
        if let Some(key) = &shown.sort_by {
            let mut rows: Vec<Value> =
                tables.iter_mut().filter_map(|t| t["rows"].as_array_mut()).flat_map(std::mem::take).collect();
            key.sort(&mut rows, |row| &row["object"])?;
            tables.truncate(1);
            tables[0]["rows"] = rows.into();
        }
        if tables.iter().all(|t| t["rows"].as_array().is_none_or(Vec::is_empty)) {
            continue;
        }
        let mut writer = TabWriter::default();
        if !options.no_headers {
            writer.row(headers(&tables[0], &options));
        }
        for table in &tables {
            // Only the first chunk tells its columns.
            let definitions = if table["columnDefinitions"].is_array() { table } else { &tables[0] };
            add_rows(&mut writer, definitions, table, &options);
        }
        if written && !options.no_headers {
            session.output.line("");
        }
        session.output.print(&writer.flush());
        written = true;
    }
    if !written && !selection.ignore_not_found && failures.is_empty() {
        match all_namespaced {
            true => session.output.warn(&format!("No resources found in {} namespace.", selection.namespace)),
            false => session.output.warn("No resources found"),
        }
    }
    Failure::aggregate(failures)
}

/// Runs of the same type.
fn groups(infos: Vec<Info>) -> Vec<Vec<Info>> {
    let mut found: Vec<Vec<Info>> = Vec::new();
    for info in infos {
        match found.last_mut() {
            Some(group) if group[0].resource == info.resource => group.push(info),
            _ => found.push(vec![info]),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fake::FakeServer;

    fn server() -> FakeServer {
        let table = json!({"kind": "Table", "columnDefinitions": [
            {"name": "Name", "priority": 0}, {"name": "Status", "priority": 0}, {"name": "IP", "priority": 1}],
            "rows": [{"cells": ["web", "Running", "10.0.0.1"], "object": {"metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}}}}]});
        FakeServer::default()
            .on("GET /api", 200, json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": ""}, "versions": [
                {"version": "v1", "resources": [
                    {"resource": "pods", "singularResource": "pod", "scope": "Namespaced", "shortNames": ["po"], "responseKind": {"kind": "Pod"}, "verbs": ["get", "list"]}]}]}]}))
            .on("GET /apis", 200, json!({"kind": "APIGroupDiscoveryList", "items": []}))
            .on("GET /api/v1/namespaces/default/pods?limit=500", 200, table.clone())
            .on("GET /api/v1/pods?limit=500", 200, table)
            .on("GET /api/v1/namespaces/empty/pods?limit=500", 200, json!({"kind": "Table", "columnDefinitions": [], "rows": []}))
            .on("GET /api/v1/namespaces/default/pods/web", 200, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "managedFields": [1]}}))
            .on("GET /api/v1/namespaces/default/pods/gone", 404, json!({"kind": "Status", "reason": "NotFound", "code": 404, "message": "pods \"gone\" not found"}))
    }

    #[test]
    fn prints_as_kubectl() {
        let check = |words: &[&str], out: &str, err: &str, code: u8| {
            let (found_out, found_err, found_code) = server().run(words);
            assert_eq!((found_out.as_str(), found_err.as_str(), found_code), (out, err, code), "{words:?}");
        };
        check(&["get", "pods"], "NAME   STATUS\nweb    Running\n", "", 0);
        check(&["get", "po", "-o", "wide"], "NAME   STATUS    IP\nweb    Running   10.0.0.1\n", "", 0);
        check(&["get", "pods", "--no-headers", "-L", "app"], "web   Running   web\n", "", 0);
        check(&["get", "pods", "--show-labels"], "NAME   STATUS    LABELS\nweb    Running   app=web\n", "", 0);
        check(&["get", "pods", "-A"], "NAMESPACE   NAME   STATUS\ndefault     web    Running\n", "", 0);
        check(&["get", "pods", "-n", "empty"], "", "No resources found in empty namespace.\n", 0);
        check(&["get", "pod/web", "-o", "name"], "pod/web\n", "", 0);
        check(&["get", "pod", "web", "-o", "yaml"], "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n", "", 0);
        check(&["get", "pod", "gone"], "", "Error from server (NotFound): pods \"gone\" not found\n", 1);
        check(&["get", "pod", "gone", "--ignore-not-found"], "", "", 0);
        check(&["get", "foo"], "", "error: the server doesn't have a resource type \"foo\"\n", 1);
    }
}
