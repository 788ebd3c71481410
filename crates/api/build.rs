//! Collects the descriptions of types and fields from the sources of the `k8s-openapi` dependency into one compressed
//! file, which `openapi::descriptions` reads when someone asks for OpenAPI.
//! No text of upstream is kept in this repository.

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    let sources = k8s_openapi().expect("the sources of k8s-openapi: is the dependency downloaded?");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", sources.join("Cargo.toml").display());
    let mut files = Vec::new();
    walk(&sources.join("src/v1_35"), &mut files);
    files.sort();
    let mut text = String::new();
    for file in files {
        collect(&fs::read_to_string(&file).expect("a source file"), &mut text);
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("descriptions.deflate");
    let file = fs::File::create(out).expect("a file in OUT_DIR");
    let mut encoder = flate2::write::DeflateEncoder::new(file, flate2::Compression::best());
    encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish().map(drop)).expect("the descriptions compress");
}

fn k8s_openapi() -> Option<PathBuf> {
    // Offline first: the build has everything already. Without, for a lock file that names more than was downloaded.
    metadata(&["--offline"]).or_else(in_registry).or_else(|| metadata(&[]))
}

fn metadata(extra: &[&str]) -> Option<PathBuf> {
    let target = env::var("TARGET").ok()?;
    let output = Command::new(env::var_os("CARGO")?)
        .args(["metadata", "--format-version", "1", "--filter-platform", &target])
        .args(extra)
        .arg("--manifest-path")
        .arg(Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("Cargo.toml"))
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let package = text.find("{\"name\":\"k8s-openapi\"")?;
    let from = package + text[package..].find("\"manifest_path\":\"")? + "\"manifest_path\":\"".len();
    let manifest = &text[from..from + text[from..].find('"')?];
    Path::new(manifest).parent().map(Path::to_path_buf).filter(|p| p.join("src/v1_35").is_dir())
}

fn in_registry() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")))?;
    let registries = fs::read_dir(home.join("registry/src")).ok()?;
    let packages = registries.flatten().filter_map(|r| fs::read_dir(r.path()).ok()).flatten().flatten();
    packages
        .map(|p| p.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("k8s-openapi-")))
        .find(|p| p.join("src/v1_35").is_dir())
}

fn walk(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a source directory").flatten() {
        if entry.path().is_dir() {
            walk(&entry.path(), files);
        } else {
            files.push(entry.path());
        }
    }
}

/// The schema of each type is written out in its file, one thing per line, so indentation says whose text it is.
/// Out come `@TYPE\tTEXT` and `FIELD\tTEXT`, with the escapes of a Rust string left in.
fn collect(source: &str, out: &mut String) {
    let Some(start) = source.find("fn schema_name()") else { return };
    let mut lines = source[start..].lines().skip(1);
    let Some(name) = lines.next().and_then(|l| l.trim().strip_prefix('"')).and_then(|l| l.split('"').next()) else {
        return;
    };
    out.push_str(&format!("@{name}"));
    let mut field = None;
    for line in lines.skip_while(|l| !l.contains("json_schema!")) {
        let bare = line.trim_start();
        match line.len() - bare.len() {
            12 => {
                if let Some(text) = bare.strip_prefix("\"description\": ").and_then(literal) {
                    out.push_str(&format!("\t{text}"));
                }
            }
            16 => field = bare.strip_prefix('"').and_then(|l| l.split('"').next()),
            20 => {
                let insert = "schema_obj.ensure_object().insert(\"description\".into(), ";
                let text = bare.strip_prefix("\"description\": ").or_else(|| bare.strip_prefix(insert));
                if let (Some(text), Some(field)) = (text.and_then(literal), field) {
                    out.push_str(&format!("\n{field}\t{text}"));
                }
            }
            _ => {}
        }
    }
    out.push('\n');
}

/// The inside of the string literal that `text` starts with.
fn literal(text: &str) -> Option<&str> {
    let inside = text.strip_prefix('"')?;
    let mut escaped = false;
    let end = inside.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })?;
    Some(&inside[..end])
}
