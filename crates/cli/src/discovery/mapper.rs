//! Words of a command line as resources: plurals, singulars, kinds, short names, `type.group`, `type.version.group`.
//! Used by `resource` and the verbs.
//! Without a group, the first group in the server's order that has the word; without a version, the preferred one.

use std::rc::Rc;

use super::{ApiResource, Discovery};
use crate::{
    failure::{Failure, Result},
    resource::suggestion,
    session::Session,
};

impl Discovery {
    fn preferred(&self, resource: &ApiResource) -> bool {
        self.groups.iter().any(|g| g.name == resource.group && g.preferred == resource.version)
    }

    /// The best of those that `fits`: of the preferred version, then in the server's order.
    fn best(&self, fits: impl Fn(&ApiResource) -> bool) -> Option<Rc<ApiResource>> {
        let fitting: Vec<&Rc<ApiResource>> =
            self.resources.iter().filter(|r| !r.name.contains('/') && fits(r)).collect();
        let first = fitting.first()?;
        // The preferred version may stand behind another of the same group.
        let same_group = fitting.iter().filter(|r| r.group == first.group);
        let preferred = same_group.clone().find(|r| self.preferred(r));
        preferred.or(Some(first)).map(|r| (*r).clone())
    }

    fn by_word(&self, word: &str, group: Option<&str>, version: Option<&str>) -> Option<Rc<ApiResource>> {
        let in_group = |r: &ApiResource| group.is_none_or(|g| r.group == g) && version.is_none_or(|v| r.version == v);
        let exact =
            self.best(|r| in_group(r) && (r.name == word || r.singular == word || r.kind.to_lowercase() == word));
        let exact = exact.or_else(|| self.best(|r| in_group(r) && r.short_names.iter().any(|s| s == word)));
        // A beginning of a group's name will do, if no group is called so.
        exact.or_else(|| {
            let prefix = group.filter(|g| !g.is_empty())?;
            let fits = |r: &ApiResource| r.group.starts_with(prefix) && version.is_none_or(|v| r.version == v);
            self.best(|r| fits(r) && (r.name == word || r.singular == word || r.short_names.iter().any(|s| s == word)))
        })
    }

    /// `pods`, `po`, `Pod`, `deployments.apps`, `deployments.v1.apps`.
    pub fn find(&self, argument: &str) -> Option<Rc<ApiResource>> {
        let lower = argument.to_lowercase();
        let mut parts = lower.splitn(3, '.');
        let word = parts.next().unwrap_or_default();
        if word.is_empty() {
            return None;
        }
        match (parts.next(), parts.next()) {
            (None, _) => self.by_word(word, None, None),
            (Some(group), None) => self.by_word(word, Some(group), None),
            (Some(version), Some(group)) => self
                .by_word(word, Some(group), Some(version))
                .or_else(|| self.by_word(word, Some(&format!("{version}.{group}")), None)),
        }
    }

    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<Rc<ApiResource>> {
        let fits =
            |r: &&Rc<ApiResource>| r.group == group && r.version == version && r.kind == kind && !r.name.contains('/');
        self.resources.iter().find(fits).cloned()
    }

    /// The members of a category, such as `all`.
    pub fn category(&self, name: &str) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for resource in self.resources.iter().filter(|r| !r.name.contains('/')) {
            let qualified = resource.qualified();
            if resource.categories.iter().any(|c| c == name) && !found.contains(&qualified) {
                found.push(qualified);
            }
        }
        found
    }
}

impl Session {
    /// A short name may be that of several resources; the first in the server's order is meant.
    fn warn_of_others(&self, discovery: &Discovery, argument: &str, found: &ApiResource) {
        if !found.short_names.iter().any(|short| short == argument) {
            return;
        }
        let mut named = vec![found.qualified()];
        for other in discovery.resources.iter().filter(|r| r.short_names.iter().any(|short| short == argument)) {
            let other = other.qualified();
            if !named.contains(&other) {
                self.output.warn(&format!(
                    "Warning: short name {argument:?} could also match lower priority resource {other}"
                ));
                named.push(other);
            }
        }
    }

    /// The resource that `argument` names; the server is asked again where the cache has none.
    pub async fn resource_if_any(&self, argument: &str) -> Result<Option<Rc<ApiResource>>> {
        if let Some(found) = self.discovery().await?.find(argument) {
            return Ok(Some(found));
        }
        Ok(self.rediscovered().await?.find(argument))
    }

    /// The resource that `argument` names.
    pub async fn resource(&self, argument: &str) -> Result<Rc<ApiResource>> {
        if let Some(found) = self.resource_if_any(argument).await? {
            self.warn_of_others(&*self.discovery().await?, argument, &found);
            return Ok(found);
        }
        let word = argument.split('.').next().unwrap_or(argument);
        let discovery = self.discovery().await?;
        // With a group the word itself may be right.
        let meant = suggestion::for_resource(&discovery, word).filter(|_| discovery.find(word).is_none());
        let meant = meant.map(|meant| format!("\n{meant}")).unwrap_or_default();
        Err(Failure::message(format!("the server doesn't have a resource type {word:?}{meant}")))
    }

    /// The resource of an object's kind.
    pub async fn resource_of_kind(&self, api_version: &str, kind: &str) -> Result<Option<Rc<ApiResource>>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if let Some(found) = self.discovery().await?.by_kind(group, version, kind) {
            return Ok(Some(found));
        }
        Ok(self.rediscovered().await?.by_kind(group, version, kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::Group;

    fn served() -> Discovery {
        let resource = |name: &str, kind: &str, group: &str, version: &str, short: &[&str]| {
            Rc::new(ApiResource {
                name: name.into(),
                singular: kind.to_lowercase(),
                kind: kind.into(),
                group: group.into(),
                version: version.into(),
                short_names: short.iter().map(|s| s.to_string()).collect(),
                categories: if group == "apps" || name == "pods" { vec!["all".into()] } else { Vec::new() },
                namespaced: true,
                ..ApiResource::default()
            })
        };
        let group = |name: &str, preferred: &str| Group {
            name: name.into(),
            versions: vec![preferred.into()],
            preferred: preferred.into(),
        };
        Discovery {
            groups: vec![
                group("", "v1"),
                group("apps", "v1"),
                group("autoscaling", "v2"),
                group("events.k8s.io", "v1"),
            ],
            resources: vec![
                resource("pods", "Pod", "", "v1", &["po"]),
                resource("pods/log", "Pod", "", "v1", &[]),
                resource("events", "Event", "", "v1", &["ev"]),
                resource("deployments", "Deployment", "apps", "v1", &["deploy"]),
                resource("horizontalpodautoscalers", "HorizontalPodAutoscaler", "autoscaling", "v1", &["hpa"]),
                resource("horizontalpodautoscalers", "HorizontalPodAutoscaler", "autoscaling", "v2", &["hpa"]),
                resource("events", "Event", "events.k8s.io", "v1", &["ev"]),
            ],
            ..Discovery::default()
        }
    }

    /// What a file remembers is not the last word on what there is.
    #[tokio::test]
    async fn a_word_that_the_cache_lacks_is_asked_for() {
        let output = crate::output::Output::to(std::io::sink(), std::io::sink());
        let server = Rc::new(crate::fake::FakeServer::of_pods());
        let session =
            Session::with_transport(output, &crate::command::globals_of(&[]), env::Env::real(), server.clone());
        *session.discovery.borrow_mut() = Some(Rc::new(Discovery::default()));
        let check = async |word: &str, wanted: Option<&str>, asked: usize| {
            let found = session.resource_if_any(word).await.unwrap_or_else(|failure| panic!("{}", failure.text()));
            assert_eq!(found.map(|r| r.name.clone()).as_deref(), wanted, "{word}");
            let asked_now = server.asked.borrow().iter().filter(|(line, _)| line == "GET /apis").count();
            assert_eq!(asked_now, asked, "{word}");
        };
        check("nope", None, 1).await;
        check("pods", Some("pods"), 1).await;
        check("nope", None, 1).await;
    }

    #[test]
    fn words_find_resources() {
        let served = served();
        let check = |word: &str, wanted: Option<&str>| {
            let found = served.find(word).map(|r| format!("{} {}", r.group_version(), r.name));
            assert_eq!(found.as_deref(), wanted, "{word}");
        };
        check("pods", Some("v1 pods"));
        check("po", Some("v1 pods"));
        check("Pod", Some("v1 pods"));
        check("events", Some("v1 events"));
        check("events.events.k8s.io", Some("events.k8s.io/v1 events"));
        check("events.events", Some("events.k8s.io/v1 events"));
        check("deploy.apps", Some("apps/v1 deployments"));
        check("deployments.v1.apps", Some("apps/v1 deployments"));
        check("hpa", Some("autoscaling/v2 horizontalpodautoscalers"));
        check("hpa.v1.autoscaling", Some("autoscaling/v1 horizontalpodautoscalers"));
        check("pods.v1.", Some("v1 pods"));
        check("foo", None);
        check("pods.apps", None);
        assert_eq!(served.category("all"), ["pods", "deployments.apps"]);
    }
}
