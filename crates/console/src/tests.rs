//! What a browser is sent: headers, tags, sizes, and that nothing comes from elsewhere.

use std::{collections::BTreeSet, io::Read, path::Path};

use super::*;

/// On the wire, all of it.
const PAGE_BYTES_MAX: usize = 120 << 10;

fn get(path: &str, headers: &[(&'static str, &str)]) -> Option<Response<Bytes>> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, value.parse().unwrap());
    }
    respond(&Method::GET, path, &map)
}

fn header(response: &Response<Bytes>, name: &str) -> String {
    response.headers().get(name).map(|value| value.to_str().unwrap().to_string()).unwrap_or_default()
}

#[test]
fn paths_and_methods() {
    let check = |method: Method, path: &str, expected: Option<u16>| {
        let answered = respond(&method, path, &HeaderMap::new()).map(|response| response.status().as_u16());
        assert_eq!(answered, expected, "{method} {path}");
    };
    check(Method::GET, "/console", Some(301));
    check(Method::GET, "/console/", Some(200));
    check(Method::HEAD, "/console/", Some(200));
    check(Method::GET, "/console/main.js", Some(200));
    check(Method::POST, "/console/main.js", Some(405));
    check(Method::GET, "/console/why", None);
    check(Method::GET, "/console/../main.js", None);
    check(Method::GET, "/console/no.js", None);
    check(Method::GET, "/consoles/", None);
    check(Method::GET, "/", None);
    assert_eq!(header(&get("/console", &[]).unwrap(), "location"), "/console/");
}

#[test]
fn every_answer_is_locked_down() {
    let paths = assets::all().iter().map(|asset| format!("{ROOT}{}", asset.name)).chain(["/console".into()]);
    for path in paths {
        let response = get(&path, &[]).unwrap();
        let policy = header(&response, "content-security-policy");
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'"] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(header(&response, "x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header(&response, "referrer-policy"), "no-referrer", "{path}");
        assert_eq!(header(&response, "cache-control"), "no-cache", "{path}");
    }
}

#[test]
fn tags_spare_what_the_browser_has() {
    let tag = header(&get("/console/main.js", &[]).unwrap(), "etag");
    let check = |known: &str, expected: u16| {
        let response = get("/console/main.js", &[("if-none-match", known)]).unwrap();
        assert_eq!(response.status().as_u16(), expected, "{known}");
        assert_eq!(response.body().is_empty(), expected == 304, "{known}");
        assert_eq!(header(&response, "etag"), tag, "{known}");
    };
    check(&tag, 304);
    check(tag.trim_start_matches("W/"), 304);
    check(&format!("\"other\", {tag}"), 304);
    check("*", 304);
    check("\"other\"", 200);
    check("", 200);
    let tags: BTreeSet<_> = assets::all().iter().map(|asset| asset.tag.as_bytes()).collect();
    assert_eq!(tags.len(), assets::all().len(), "one for each file");
}

#[test]
fn compressed_for_whoever_accepts_it() {
    let check = |accepted: &str, compressed: bool| {
        let response = get("/console/", &[("accept-encoding", accepted)]).unwrap();
        assert_eq!(header(&response, "content-encoding") == "gzip", compressed, "{accepted}");
        assert_eq!(header(&response, "vary"), "Accept-Encoding");
        let mut page = String::new();
        match compressed {
            true => drop(flate2::read::GzDecoder::new(&response.body()[..]).read_to_string(&mut page).unwrap()),
            false => page = String::from_utf8(response.body().to_vec()).unwrap(),
        }
        assert!(page.starts_with("<!doctype html>"), "{accepted}");
    };
    check("gzip, deflate, br", true);
    check("br;q=1.0, GZIP;q=0.5", true);
    check("gzip;q=0", false);
    check("", false);
}

#[test]
fn the_whole_page_is_small() {
    let bytes: usize = assets::all().iter().map(|asset| asset.gzip.len()).sum();
    assert!(bytes < PAGE_BYTES_MAX, "{bytes} bytes");
}

#[test]
fn every_file_has_a_row() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files: BTreeSet<String> = entries.collect();
    let rows: BTreeSet<String> = assets::all().iter().map(|asset| asset.name.to_string()).collect();
    assert_eq!(files, rows);
}

/// The text of every `…="…"` or `from "…"` that follows `before`.
fn quoted<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split('"').next())
}

#[test]
fn nothing_comes_from_elsewhere_and_nothing_is_inline() {
    let text = |name: &str| std::str::from_utf8(assets::find(name).unwrap().content).unwrap();
    let page = text("index.html");
    for reference in quoted(page, "src=\"").chain(quoted(page, "href=\"").filter(|link| !link.starts_with('#'))) {
        assert!(assets::find(reference).is_some(), "index.html: {reference}");
    }
    for inline in ["<style", "style=\"", "onclick=", "onload=", "<script>", "javascript:"] {
        assert!(!page.contains(inline), "index.html: {inline}");
    }
    for script in assets::all().iter().filter(|asset| asset.name.ends_with(".js")) {
        let source = text(script.name);
        for imported in quoted(source, "from \"") {
            assert!(assets::find(imported.trim_start_matches("./")).is_some(), "{}: {imported}", script.name);
            let preloaded = format!("href=\"{}\"", imported.trim_start_matches("./"));
            assert!(page.contains(&preloaded), "index.html does not preload {imported}");
        }
        // What objects say is shown as text, never read as markup.
        for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
            assert!(!source.contains(forbidden), "{}: {forbidden}", script.name);
        }
        assert!(source.starts_with("// "), "{} opens with what it is for", script.name);
        let lines = source.lines().count();
        assert!(lines <= 600, "{} has {lines} lines", script.name);
    }
    assert!(!text("style.css").contains("url("), "style.css loads nothing");
}
