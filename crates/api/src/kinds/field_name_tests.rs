//! Every field that the kinds name exists: a misspelt `"termiantionGracePeriodSeconds"` fails here.
//! Reads the sources beside it: each text literal that looks like a field or a dotted path of fields must consist of
//! fields that the types of the file's API group can reach in the schema table, or be a known value (`VALUES`).

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Verb, kinds,
    schema::{self, Node, Schema, TypeId},
};

/// Texts that look like fields and are something else: file, texts, what they are.
const VALUES: &[(&str, &[&str], &str)] = &[
    ("apps/daemon_set.rs", &["deprecated.daemonset.template.generation"], "an annotation"),
    ("admissionregistration/initializer_configuration.rs", &["initializers"], "upstream has no such kind any more"),
    (
        "apiextensions/stored_definition.rs",
        &["version", "validation", "webhookClientConfig"],
        "fields of v1beta1, which is not served",
    ),
    ("admissionregistration/client_config.rs", &["https"], "a scheme of URLs"),
    ("admissionregistration/webhook_configuration.rs", &["v1beta1"], "a version of AdmissionReview"),
    ("apiextensions/structural_schema.rs", &["array", "integer", "object", "string"], "types of JSON schema"),
    ("apiextensions/custom_resource_definition.rs", &["customresourcecleanup.apiextensions.k8s.io"], "a finalizer"),
    ("apps/deployment.rs", &["deployment"], "a word of a message"),
    ("apps/replica_set.rs", &["deployment"], "a word of a message"),
    ("apps/stateful_set.rs", &["null", "statefulset"], "words of messages"),
    ("autoscaling/horizontal_pod_autoscaler.rs", &["cpu"], "a resource"),
    ("batch/cron_job.rs", &["false", "local", "nil"], "values of manualSelector and of time zones"),
    (
        "batch/cron_job.rs",
        &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", "sun", "mon", "tue",
            "wed", "thu", "fri", "sat",
        ],
        "months and days of schedules",
    ),
    ("batch/job/mod.rs", &["status.successful"], "a selectable field that is named otherwise than it is stored"),
    ("behavior.rs", &["date"], "a type of columns"),
    ("core/pod/app_armor.rs", &["unconfined", "windows"], "values of annotations and of operating systems"),
    ("certificates/certificate_signing_request.rs", &["any", "signing", "timestamping"], "key usages"),
    ("certificates/signer_name.rs", &["kubernetes.io"], "a domain"),
    ("common/columns.rs", &["boolean", "integer"], "types of columns"),
    ("common/metadata.rs", &["foregroundDeletion", "orphan"], "finalizers"),
    ("convert.rs", &["cpu"], "a resource"),
    (
        "convert.rs",
        &["metricName", "metricSelector"],
        "fields of autoscaling/v1 metrics, which only an annotation holds",
    ),
    ("core/limit_range.rs", &["storage"], "a resource"),
    ("core/namespace.rs", &["foregroundDeletion", "kubernetes", "orphan"], "finalizers"),
    ("core/persistent_volume.rs", &["persistentvolumesource"], "upstream's own name in an error"),
    ("core/persistent_volume.rs", &["storage"], "a resource"),
    ("core/persistent_volume_claim.rs", &["snapshot.storage.k8s.io"], "an API group"),
    ("core/persistent_volume_claim.rs", &["storage"], "a resource"),
    ("core/pod/mod.rs", &["false", "true"], "values of a selectable field"),
    ("core/pod/update.rs", &["are"], "a word of a message"),
    ("core/pod/update.rs", &["cpu", "memory", "windows"], "resources, and an operating system"),
    ("core/pod_spec/containers.rs", &["cpu", "memory"], "resources"),
    ("core/pod_spec/defaults.rs", &["admin", "ext4", "xfs"], "a user, and file systems"),
    (
        "core/pod_spec/environment.rs",
        &["hugepages", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"],
        "resources",
    ),
    ("core/pod_spec/handlers.rs", &["windows"], "an operating system"),
    ("core/pod_spec/image.rs", &["latest"], "a tag"),
    ("core/pod_spec/operating_system.rs", &["windows"], "an operating system"),
    (
        "core/pod_spec/resources.rs",
        &[
            "cpu",
            "limits.cpu",
            "limits.memory",
            "memory",
            "requests.cpu",
            "requests.memory",
            "requests.storage",
            "services.loadbalancers",
            "services.nodeports",
            "storage",
        ],
        "resources",
    ),
    ("core/pod_spec/resources.rs", &["kubernetes.io", "windows"], "a domain, and an operating system"),
    ("core/pod_spec/security.rs", &["kernel.msg", "kernel.sem", "kernel.shm", "seccomp"], "sysctls, and a feature"),
    ("core/secret.rs", &["password", "tls.crt", "tls.key", "username"], "keys of data"),
    ("core/service/validation.rs", &["ipFamily"], "a word of a message"),
    ("flowcontrol/bootstrap.rs", &["probes", "system", "true"], "names of bootstrap objects, and an annotation"),
    ("internal/storage_version.rs", &["group", "version"], "words of a message"),
    ("node/runtime_class.rs", &["limits"], "upstream checks podFixed as the limits of a container"),
    ("resource/resource_claim.rs", &["allocated", "deleted", "pending", "reserved"], "states that kubectl shows"),
    ("resource/validation/mod.rs", &["kubernetes.io"], "a domain"),
    ("storage/storage_class.rs", &["true"], "the value of an annotation"),
    (
        "apiextensions/schema_properties.rs",
        &["array", "atomic", "boolean", "granular", "integer", "map", "null", "number", "object", "set", "string"],
        "types of JSON schema, of lists and of maps",
    ),
    (
        "apiextensions/internal_form.rs",
        &["null", "validation", "version", "webhookClientConfig"],
        "names of upstream's internal form, and a null",
    ),
    (
        "apiextensions/custom_resource_definition.rs",
        &["k8s.io", "kubernetes.io", "unapproved", "v1beta1", "validation", "version", "webhookClientConfig"],
        "names of upstream's internal form, domains and versions",
    ),
    ("common/workload.rs", &["null"], "a null"),
    (
        "core/pod_spec/warnings.rs",
        &["duplicate", "memory", "overlapping", "storageOS", "unconfined"],
        "resources, and words of messages",
    ),
    ("core/pod_spec/image.rs", &["localhost"], "a host"),
    ("core/secret.rs", &["certificate"], "a word of a message"),
    ("core/persistent_volume.rs", &["storageOS"], "upstream's own name in a warning"),
];

/// The text literals of a source outside comments and its test module, each with its line.
fn literals(source: &str) -> Vec<(usize, String)> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = code.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' => line += 1,
            '/' if rest.peek() == Some(&'/') => {
                rest.by_ref().find(|c| *c == '\n');
                line += 1;
            }
            // A character, not a lifetime: `'"'` must not open a text.
            '\'' if rest.peek() == Some(&'"') => drop(rest.next()),
            '"' => {
                let (start, mut text) = (line, String::new());
                while let Some(c) = rest.next().filter(|c| *c != '"') {
                    line += usize::from(c == '\n');
                    text.push(c);
                    if let Some(escaped) = (c == '\\').then(|| rest.next()).flatten() {
                        line += usize::from(escaped == '\n');
                        text.push(escaped);
                    }
                }
                found.push((start, text));
            }
            _ => {}
        }
    }
    found
}

fn looks_like_a_field(text: &str) -> bool {
    let word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_lowercase() || c == '$')
            && word[1..].bytes().all(|b| b.is_ascii_alphanumeric())
    };
    text.split('.').all(|part| !part.is_empty() && word(part))
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, into),
            false => into.push(path),
        }
    }
}

fn add_reachable(schema: &Schema, id: TypeId, seen: &mut HashSet<TypeId>, names: &mut BTreeSet<String>) {
    fn of(node: &Node) -> Option<TypeId> {
        match node {
            Node::Struct(id) => Some(*id),
            Node::List(node, _) | Node::Map(node, _) => of(node),
            _ => None,
        }
    }
    if !seen.insert(id) {
        return;
    }
    for field in &schema.get(id).fields {
        names.insert(field.name.clone());
        if let Some(id) = of(&field.node) {
            add_reachable(schema, id, seen, names);
        }
    }
}

/// The fields of each folder's API group, and under the empty name those of all: for what the kinds share.
struct FieldNames(BTreeMap<String, BTreeSet<String>>);

impl FieldNames {
    fn new() -> Self {
        // Types that nobody serves are left out: a field that only they have is misspelt.
        let schema = schema::with_unserved();
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut seen: BTreeMap<String, HashSet<TypeId>> = BTreeMap::new();
        let gated = kinds::gated().iter().map(|(_, r)| (r.group.clone(), r.version.clone(), r.kind.clone()));
        let served: HashSet<_> = schema::builtin().by_kind.keys().cloned().chain(gated).collect();
        for ((group, _, _), id) in schema.by_kind.iter().filter(|(kind, _)| served.contains(*kind)) {
            let folder = match group.as_str() {
                // Both forms of an Event are one kind.
                "" | "events.k8s.io" => "core",
                group => group.split('.').next().unwrap_or_default(),
            };
            for folder in [folder, ""] {
                add_reachable(
                    schema,
                    *id,
                    seen.entry(folder.into()).or_default(),
                    all.entry(folder.into()).or_default(),
                );
            }
        }
        Self(all)
    }

    fn of(&self, file: &str) -> &BTreeSet<String> {
        let folder = file.split_once('/').map_or("", |(folder, _)| folder);
        self.0.get(if folder == "common" { "" } else { folder }).unwrap_or_else(|| panic!("{folder} is no API group"))
    }
}

/// What the table of kinds itself has as texts, and verbs.
fn words_of_the_table() -> BTreeSet<String> {
    let mut words: BTreeSet<String> = Verb::RESOURCE.iter().map(Verb::to_string).collect();
    for resource in kinds::builtin().iter().chain(kinds::gated().iter().map(|(_, resource)| resource)) {
        words.extend([&resource.group, &resource.version, &resource.plural].map(String::clone));
        words.extend(resource.subresources.iter().map(|sub| sub.name.clone()));
    }
    words
}

/// The literals of a file that are neither fields nor known values, as `line: text`.
fn misspelt(file: &str, source: &str, names: &FieldNames, table: &BTreeSet<String>) -> Vec<String> {
    let fields = names.of(file);
    let known = |text: &String| {
        table.contains(text)
            || text.split('.').all(|part| fields.contains(part))
            || VALUES.iter().any(|(of, texts, _)| *of == file && texts.contains(&text.as_str()))
    };
    literals(source)
        .into_iter()
        .filter(|(_, text)| looks_like_a_field(text) && !known(text))
        .map(|(line, text)| format!("{line}: {text}"))
        .collect()
}

#[test]
fn every_field_that_kinds_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kinds");
    let (names, table) = (FieldNames::new(), words_of_the_table());
    let (mut files, mut problems, mut texts) = (Vec::new(), Vec::new(), HashSet::new());
    sources(&root, &mut files);
    for path in files {
        let file = path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
        if file == "table.rs" || file.ends_with("tests.rs") {
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        problems.extend(misspelt(&file, &source, &names, &table).into_iter().map(|found| format!("{file}:{found}")));
        texts.extend(literals(&source).into_iter().map(|(_, text)| (file.clone(), text)));
    }
    assert!(texts.len() > 2000, "only {} literals", texts.len());
    for (file, words, _) in VALUES {
        let unused = words.iter().filter(|word| !texts.contains(&(file.to_string(), word.to_string())));
        problems.extend(unused.map(|word| format!("{file}: {word} is listed as a value and not there")));
    }
    assert!(problems.is_empty(), "no such fields in the schema table:\n{}", problems.join("\n"));
}

#[test]
fn misspellings_are_found() {
    let (names, table) = (FieldNames::new(), words_of_the_table());
    let check = |file: &str, source: &str, expected: &[&str]| {
        assert_eq!(misspelt(file, source, &names, &table), expected, "{source}");
    };
    let spec = r#"int(spec, "terminationGracePeriodSeconds")"#;
    check("core/pod/mod.rs", spec, &[]);
    check("core/pod/mod.rs", &spec.replace("termination", "termiantion"), &["1: termiantionGracePeriodSeconds"]);
    check("core/pod/mod.rs", "\n// \"nmae\"\ntext_at(object, \"metadata.nmae\")", &["3: metadata.nmae"]);
    check("core/pod/mod.rs", r#"json!({ "spec": { "contaners": [] } })"#, &["1: contaners"]);
    check("core/pod/mod.rs", r#"object["spec"]['"'.len()]["ingressClassName"]"#, &["1: ingressClassName"]);
    check("networking/ingress.rs", r#"object["spec"]["ingressClassName"]"#, &[]);
    check("common/metadata.rs", r#"text(meta, "generateNames")"#, &["1: generateNames"]);
    check("core/pod/mod.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n    \"nmae\"\n}", &[]);
}
