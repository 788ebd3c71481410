//! Reads a kustomization with its bases and components, and applies what it says in kustomize's order.
//! Called by `build`, and by itself for each base.
//! A field that is not known or not supported is refused by name.

use serde_json::{Map, Value};

use super::{Resource, generators, patches, references, replacements, transformers};
use crate::{
    describe::fields::{list, string, strings},
    generate::source_files::SourceFiles,
    resource::yaml,
};

const FILE_NAMES: &[&str] = &["kustomization.yaml", "kustomization.yml", "Kustomization"];
const KNOWN: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata",
    "resources",
    "bases",
    "components",
    "namePrefix",
    "nameSuffix",
    "namespace",
    "commonLabels",
    "labels",
    "commonAnnotations",
    "patches",
    "patchesStrategicMerge",
    "patchesJson6902",
    "images",
    "imageTags",
    "replicas",
    "replacements",
    "configMapGenerator",
    "secretGenerator",
    "generatorOptions",
    "sortOptions",
];
/// Fields that would be ignored silently otherwise.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("helmCharts", "Helm charts are not supported: render them with helm template and name the result under resources"),
    (
        "helmChartInflationGenerator",
        "Helm charts are not supported: render them with helm template and name the result under resources",
    ),
    (
        "helmGlobals",
        "Helm charts are not supported: render them with helm template and name the result under resources",
    ),
    ("vars", "vars are not supported: use replacements"),
    ("configurations", "transformer configurations are not supported"),
    ("crds", "crds are not supported"),
    ("openapi", "openapi is not supported"),
    ("generators", "generator plugins are not supported"),
    ("transformers", "transformer plugins are not supported"),
    ("validators", "validator plugins are not supported"),
    ("buildMetadata", "buildMetadata is not supported"),
];
/// Kustomizations within each other.
const DEPTH_MAX: usize = 64;

/// A path without `.` and `..` inside.
pub fn clean(path: &str) -> String {
    let absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if absolute => {}
            part => parts.push(part),
        }
    }
    match (absolute, parts.join("/")) {
        (true, joined) => format!("/{joined}"),
        (false, joined) if joined.is_empty() => ".".to_string(),
        (false, joined) => joined,
    }
}

pub fn join(directory: &str, path: &str) -> String {
    if path.starts_with('/') { clean(path) } else { clean(&format!("{directory}/{path}")) }
}

/// A file of a kustomization, which must be in its directory or below.
pub fn read_below(directory: &str, path: &str, files: &impl SourceFiles) -> Result<Vec<u8>, String> {
    let (root, full) = (clean(directory), join(directory, path));
    let below = root == "." && !full.starts_with("..") && !full.starts_with('/')
        || full.strip_prefix(&root).is_some_and(|rest| rest.starts_with('/') || root == "/");
    if !below && files.keeps_below() {
        return Err(format!("security; file '{full}' is not in or below '{root}'"));
    }
    files.read(&full).map_err(|error| format!("evalsymlink failure on '{full}' : {error}"))
}

fn find(directory: &str, files: &impl SourceFiles) -> Result<(String, Vec<u8>), String> {
    let mut found = FILE_NAMES.iter().filter_map(|name| {
        let path = join(directory, name);
        files.read(&path).ok().map(|bytes| (path, bytes))
    });
    match (found.next(), found.next()) {
        (Some(_), Some(_)) => Err(format!("Found multiple kustomization files under: {directory}")),
        (Some(one), None) => Ok(one),
        (None, _) => Err(format!(
            "unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{directory}'"
        )),
    }
}

fn fields(directory: &str, files: &impl SourceFiles) -> Result<Map<String, Value>, String> {
    let (path, bytes) = find(directory, files)?;
    let value = yaml::read(&bytes).map_err(|error| format!("invalid Kustomization: {path}: {error}"))?;
    let Value::Object(fields) = value else {
        return Err("kustomization.yaml is empty".to_string());
    };
    // As Go's decoder, which does not mind how a field's name is capitalized.
    let canonical = |field: String| {
        let known = KNOWN.iter().copied().chain(UNSUPPORTED.iter().map(|(own, _)| *own));
        known.into_iter().find(|own| own.eq_ignore_ascii_case(&field)).map_or(field, str::to_string)
    };
    let fields: Map<String, Value> = fields.into_iter().map(|(field, value)| (canonical(field), value)).collect();
    for field in fields.keys() {
        if let Some((_, why)) = UNSUPPORTED.iter().find(|(own, _)| own == field) {
            return Err(format!("{path}: {field}: {why}"));
        }
        if !KNOWN.contains(&field.as_str()) {
            return Err(format!("invalid Kustomization: json: unknown field {field:?}"));
        }
    }
    Ok(fields)
}

/// `sortOptions` of the kustomization in a directory.
pub fn sort_options(directory: &str, files: &impl SourceFiles) -> Result<Value, String> {
    Ok(fields(&clean(directory), files)?.remove("sortOptions").unwrap_or_default())
}

/// What a kustomization makes. `within` are the directories that led here.
pub fn load(
    directory: &str,
    files: &impl SourceFiles,
    within: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Resource>, String> {
    load_onto(Vec::new(), directory, files, within, warnings)
}

/// A component changes what is there already.
fn load_onto(
    resources: Vec<Resource>,
    directory: &str,
    files: &impl SourceFiles,
    within: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Resource>, String> {
    let directory = clean(directory);
    if within.contains(&directory) || within.len() > DEPTH_MAX {
        return Err(format!("cycle detected: candidate root '{directory}' contains visited root '{directory}'"));
    }
    let kustomization = Value::Object(fields(&directory, files)?);
    deprecations(&kustomization, warnings);
    within.push(directory.clone());
    let mut resources = resources;
    for path in strings(&kustomization["resources"]).into_iter().chain(strings(&kustomization["bases"])) {
        let added = entry(&directory, path, files, within, warnings)?;
        for resource in added {
            append(&mut resources, resource)?;
        }
    }
    for path in strings(&kustomization["components"]) {
        let component = join(&directory, path);
        resources = load_onto(resources, &component, files, within, warnings)?;
    }
    within.pop();
    generators::run(&kustomization, &directory, files, &mut resources)?;
    patches::run(&kustomization, &directory, files, &mut resources)?;
    transformers::run(&kustomization, &mut resources)?;
    references::follow_renames(&mut resources);
    replacements::run(&kustomization, &directory, files, &mut resources)?;
    Ok(resources)
}

fn deprecations(kustomization: &Value, warnings: &mut Vec<String>) {
    let old = [
        ("bases", "resources"),
        ("commonLabels", "labels"),
        ("imageTags", "images"),
        ("patchesJson6902", "patches"),
        ("patchesStrategicMerge", "patches"),
    ];
    for (field, instead) in old {
        if !kustomization[field].is_null() {
            warnings.push(format!(
                "# Warning: '{field}' is deprecated. Please use '{instead}' instead. Run 'kustomize edit fix' to update your Kustomization automatically."
            ));
        }
    }
}

/// A file of objects, or another kustomization.
fn entry(
    directory: &str,
    path: &str,
    files: &impl SourceFiles,
    within: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Resource>, String> {
    if path.contains("://") || path.starts_with("git@") || path.starts_with("github.com/") {
        return Err(format!(
            "accumulating resources from '{path}': remote resources are not supported: clone it and name the directory"
        ));
    }
    let full = join(directory, path);
    if files.directory(&full).is_some() || FILE_NAMES.iter().any(|name| files.read(&join(&full, name)).is_ok()) {
        return load(&full, files, within, warnings);
    }
    let bytes = read_below(directory, path, files).map_err(|error| {
        format!("accumulating resources: accumulation err='accumulating resources from '{path}': {error}'")
    })?;
    objects(&bytes)
        .map_err(|error| format!("accumulating resources from '{path}': {error}"))
        .map(|objects| objects.into_iter().map(Resource::new).collect())
}

/// The objects of a file; lists are taken apart.
pub fn objects(bytes: &[u8]) -> Result<Vec<Value>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let mut objects = Vec::new();
    for document in yaml::documents(text) {
        let value = yaml::read_core(document.as_bytes())?;
        if value.is_null() {
            continue;
        }
        if string(&value["kind"]).ends_with("List") && value["items"].is_array() {
            objects.extend(list(&value["items"]).iter().cloned());
            continue;
        }
        if string(&value["kind"]).is_empty() {
            return Err("missing Resource metadata: Object 'Kind' is missing".to_string());
        }
        if string(&value["metadata"]["name"]).is_empty() {
            return Err("missing metadata.name in object".to_string());
        }
        objects.push(value);
    }
    Ok(objects)
}

fn append(resources: &mut Vec<Resource>, resource: Resource) -> Result<(), String> {
    let same = |own: &Resource| {
        own.group_version() == resource.group_version()
            && own.kind() == resource.kind()
            && own.name() == resource.name()
            && own.namespace() == resource.namespace()
    };
    if resources.iter().any(same) {
        let (group, version) = resource.group_version();
        let group = if group.is_empty() { String::new() } else { format!(".{group}") };
        let namespace = if resource.namespace().is_empty() { "[noNs]" } else { resource.namespace() };
        return Err(format!(
            "may not add resource with an already registered id: {}.{version}{group}/{}.{namespace}",
            resource.kind(),
            resource.name()
        ));
    }
    resources.push(resource);
    Ok(())
}
