//! Describes Roles, ClusterRoles and their bindings.
//! Neighbours: `sections`.
//! Rules are shown one resource to a line with all verbs, in upstream's order.

use serde_json::Value;

use super::{
    Context, Related,
    fields::{list, name, string, strings, text},
    sections::labels_and_annotations,
    writer::{Writer, put},
};

/// A rule about one resource (and at most one name of it), or about one URL.
#[derive(Default, Clone, PartialEq)]
struct Rule {
    verbs: Vec<String>,
    group: Option<String>,
    resource: Option<String>,
    resource_name: Option<String>,
    url: Option<String>,
}

fn go_slice<'a>(items: impl IntoIterator<Item = &'a String>) -> String {
    format!("[{}]", items.into_iter().cloned().collect::<Vec<_>>().join(" "))
}

impl Rule {
    /// Upstream sorts by the text of its generated type.
    fn sort_key(&self) -> String {
        format!(
            "&PolicyRule{{Verbs:{},APIGroups:{},Resources:{},ResourceNames:{},NonResourceURLs:{},}}",
            go_slice(&self.verbs),
            go_slice(&self.group),
            go_slice(&self.resource),
            go_slice(&self.resource_name),
            go_slice(&self.url)
        )
    }

    fn resource_and_group(&self) -> String {
        let Some(resource) = &self.resource else { return String::new() };
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, subresource)) => (resource, format!("/{subresource}")),
            None => (resource.as_str(), String::new()),
        };
        match self.group.as_deref() {
            None | Some("") => format!("{resource}{subresource}"),
            Some(group) => format!("{resource}.{group}{subresource}"),
        }
    }
}

fn compact_rules(rules: &Value) -> Vec<Rule> {
    let mut compact: Vec<Rule> = Vec::new();
    let mut add = |rule: Rule| {
        let same = |own: &&mut Rule| {
            own.url.is_none()
                && rule.url.is_none()
                && (&own.group, &own.resource, &own.resource_name) == (&rule.group, &rule.resource, &rule.resource_name)
        };
        match compact.iter_mut().find(same) {
            Some(own) => {
                own.verbs.extend(rule.verbs.into_iter().filter(|verb| !own.verbs.contains(verb)).collect::<Vec<_>>())
            }
            None => compact.push(rule),
        }
    };
    for rule in list(rules) {
        let names = strings(&rule["resourceNames"]);
        let names: Vec<Option<String>> =
            if names.is_empty() { vec![None] } else { names.iter().map(|name| Some(name.to_string())).collect() };
        let verbs = strings(&rule["verbs"]);
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                for verb in &verbs {
                    for name in &names {
                        add(Rule {
                            verbs: vec![verb.to_string()],
                            group: Some(group.to_string()),
                            resource: Some(resource.to_string()),
                            resource_name: name.clone(),
                            url: None,
                        });
                    }
                }
            }
        }
        for url in strings(&rule["nonResourceURLs"]) {
            for verb in &verbs {
                add(Rule { verbs: vec![verb.to_string()], url: Some(url.to_string()), ..Rule::default() });
            }
        }
    }
    compact.sort_by_cached_key(Rule::sort_key);
    compact
}

pub fn role(w: &mut Writer, role: &Value, _: &Related, _: &Context) -> Result<(), String> {
    put!(w, 0, "Name:\t{}\n", name(role));
    labels_and_annotations(w, role);
    w.write(0, "PolicyRule:\n");
    w.write(1, "Resources\tNon-Resource URLs\tResource Names\tVerbs\n");
    w.write(1, "---------\t-----------------\t--------------\t-----\n");
    for rule in compact_rules(&role["rules"]) {
        let (urls, names) = (go_slice(&rule.url), go_slice(&rule.resource_name));
        put!(w, 1, "{}\t{urls}\t{names}\t{}\n", rule.resource_and_group(), go_slice(&rule.verbs));
    }
    Ok(())
}

pub fn binding(w: &mut Writer, binding: &Value, _: &Related, _: &Context) -> Result<(), String> {
    put!(w, 0, "Name:\t{}\n", name(binding));
    labels_and_annotations(w, binding);
    w.write(0, "Role:\n");
    put!(w, 1, "Kind:\t{}\n", text(&binding["roleRef"]["kind"]));
    put!(w, 1, "Name:\t{}\n", text(&binding["roleRef"]["name"]));
    w.write(0, "Subjects:\n");
    w.write(1, "Kind\tName\tNamespace\n");
    w.write(1, "----\t----\t---------\n");
    for subject in list(&binding["subjects"]) {
        let (kind, name) = (string(&subject["kind"]), string(&subject["name"]));
        put!(w, 1, "{kind}\t{name}\t{}\n", string(&subject["namespace"]));
    }
    Ok(())
}
