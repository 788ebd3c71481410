//! One policy rule: what it allows, and whether rules cover other rules.
//! Used by the index of grants, by `escalation` and by the node authorizer.
//! Invariant: pure; matching allocates nothing (tidy: `pure_files`).

use serde::{Deserialize, Serialize};

use crate::authz::Attributes;

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    pub verbs: Vec<String>,
}

fn any(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    pub fn allows(&self, a: &Attributes) -> bool {
        if !any(&self.verbs, a.verb.as_str()) {
            return false;
        }
        match a.is_resource {
            true => {
                any(&self.api_groups, &a.group)
                    && self.resources.iter().any(|r| resource_matches(r, &a.resource, &a.subresource))
                    && (self.resource_names.is_empty() || self.resource_names.contains(&a.name))
            }
            false => self.non_resource_urls.iter().any(|url| url_covers(url, &a.path)),
        }
    }

    /// Whether this rule alone allows all that `part`, which has one of everything, allows.
    fn covers(&self, part: &Rule) -> bool {
        let verbs = part.verbs.iter().all(|v| any(&self.verbs, v));
        let groups = part.api_groups.iter().all(|g| any(&self.api_groups, g));
        let resources = part.resources.iter().all(|wanted| {
            let (resource, subresource) = wanted.split_once('/').unwrap_or((wanted, ""));
            self.resources.iter().any(|r| r == wanted || resource_matches(r, resource, subresource))
        });
        let names = match part.resource_names.is_empty() {
            true => self.resource_names.is_empty(),
            false => {
                self.resource_names.is_empty() || part.resource_names.iter().all(|n| self.resource_names.contains(n))
            }
        };
        let urls = part.non_resource_urls.iter().all(|u| self.non_resource_urls.iter().any(|own| url_covers(own, u)));
        verbs && groups && resources && names && urls
    }

    /// The rule as many rules with one verb and one resource (or path) each.
    fn parts(&self) -> Vec<Rule> {
        let mut parts = Vec::new();
        let one = |text: &String| vec![text.clone()];
        for (group, resource) in self.api_groups.iter().flat_map(|g| self.resources.iter().map(move |r| (g, r))) {
            for verb in &self.verbs {
                let part =
                    Rule { api_groups: one(group), resources: one(resource), verbs: one(verb), ..Rule::default() };
                match self.resource_names.is_empty() {
                    true => parts.push(part),
                    false => parts
                        .extend(self.resource_names.iter().map(|n| Rule { resource_names: one(n), ..part.clone() })),
                }
            }
        }
        for url in &self.non_resource_urls {
            let part = |verb| Rule { non_resource_urls: one(url), verbs: one(verb), ..Rule::default() };
            parts.extend(self.verbs.iter().map(part));
        }
        parts
    }

    fn is_simple(&self) -> bool {
        self.non_resource_urls.is_empty()
            && self.resource_names.len() <= 1
            && self.resources.len() == 1
            && self.api_groups.len() == 1
    }

    /// As refusals print it: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
    pub fn describe(&self) -> String {
        let fields = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let shown = fields.iter().filter(|(_, list)| !list.is_empty());
        let shown: Vec<_> = shown.map(|(name, list)| format!("{name}:{}", quoted(list))).collect();
        format!("{{{}}}", shown.join(", "))
    }
}

/// A list as Go prints it with `%q`.
pub fn quoted(list: &[String]) -> String {
    let items: Vec<_> = list.iter().map(|item| format!("{item:?}")).collect();
    format!("[{}]", items.join(" "))
}

fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    match rule.split_once('/') {
        None => subresource.is_empty() && rule == resource,
        Some((named, sub)) => !subresource.is_empty() && sub == subresource && (named == "*" || named == resource),
    }
}

fn url_covers(rule: &str, path: &str) -> bool {
    rule == "*" || rule == path || (rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*')))
}

/// What `wanted` allows and `owned` does not, as few rules as possible; empty if all of it is covered.
pub fn missing(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let lacking = wanted.iter().flat_map(Rule::parts).filter(|part| !owned.iter().any(|o| o.covers(part)));
    let mut compact: Vec<Rule> = Vec::new();
    for part in lacking {
        let same = |known: &&mut Rule| {
            known.is_simple()
                && known.api_groups == part.api_groups
                && known.resources == part.resources
                && known.resource_names == part.resource_names
        };
        match part.is_simple().then(|| compact.iter_mut().find(same)).flatten() {
            Some(known) => known.verbs.extend(part.verbs),
            None => compact.push(part),
        }
    }
    compact
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(value: serde_json::Value) -> Vec<Rule> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn rules_match_as_upstream() {
        let check = |rule: serde_json::Value, request: &str, expected: bool| {
            let rule: Rule = serde_json::from_value(rule).unwrap();
            let mut words = request.split(' ');
            let mut next = || words.next().unwrap_or_default().to_string();
            let verb = next().as_str().into();
            let target = next();
            let attributes = match target.starts_with('/') {
                true => Attributes { verb, path: target, ..Attributes::default() },
                false => {
                    let (resource, subresource) = target.split_once('/').unwrap_or((&target, ""));
                    let (resource, subresource) = (resource.to_string(), subresource.to_string());
                    Attributes { verb, is_resource: true, resource, subresource, name: next(), ..Attributes::default() }
                }
            };
            assert_eq!(rule.allows(&attributes), expected, "{rule:?} {request}");
        };
        let pods = json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] });
        check(pods.clone(), "get pods", true);
        check(pods.clone(), "list pods", false);
        check(pods, "get pods/log", false);
        check(json!({ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }), "get pods/log", true);
        check(json!({ "apiGroups": [""], "resources": ["*/log"], "verbs": ["*"] }), "get pods/log x", true);
        check(json!({ "apiGroups": [""], "resources": ["*/log"], "verbs": ["*"] }), "get pods", false);
        let named = json!({ "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"], "verbs": ["get"] });
        check(named.clone(), "get pods a", true);
        check(named.clone(), "get pods b", false);
        check(named, "get pods", false);
        check(json!({ "nonResourceURLs": ["/api/*"], "verbs": ["get"] }), "get /api/v1", true);
        check(json!({ "nonResourceURLs": ["/api/*"], "verbs": ["get"] }), "get /apis", false);
        check(json!({ "nonResourceURLs": ["*"], "verbs": ["get"] }), "post /x", false);
    }

    #[test]
    fn what_is_missing_is_told_compactly() {
        let check = |owned, wanted, expected: &[&str]| {
            let found: Vec<_> = missing(&rules(owned), &rules(wanted)).iter().map(Rule::describe).collect();
            assert_eq!(found, expected);
        };
        let read = json!([{ "apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["get", "list"] }]);
        check(read.clone(), read.clone(), &[]);
        check(json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]), read.clone(), &[]);
        check(
            json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["*"] }]),
            read,
            &["{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}"],
        );
        check(
            json!([]),
            json!([{ "nonResourceURLs": ["/x"], "verbs": ["get"] }]),
            &["{NonResourceURLs:[\"/x\"], Verbs:[\"get\"]}"],
        );
    }
}
