//! Which groups and versions clients meet first: as their APIServices say.
//! Asked by `discovery`; the defaults are those of `builtin_api_services`.
//! Decides what an ambiguous short name means, so a user may change it by editing an APIService.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    aggregator::builtin_api_services,
    discovery::{Group, priority, served::Set},
    storage::cluster::Cluster,
};

/// Not an APIService of its own: upstream puts it before all others.
const API_REGISTRATION: &str = "apiregistration.k8s.io";
const API_REGISTRATION_PRIORITY: i64 = 20_001;

/// Groups of one priority are in another order in each form of discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// By the name of the APIService, which begins with the version.
    Plain,
    /// By the name of the group.
    Aggregated,
}

/// Priorities by group and version: of the group, and of the version in it.
#[derive(Default)]
pub(super) struct GroupOrder(BTreeMap<(String, String), (i64, i64)>);

impl GroupOrder {
    pub(super) fn new(cluster: &Cluster, set: &Set) -> Self {
        let mut order = Self::default();
        for served in &set.resources {
            let of = (served.group.clone(), served.version.clone());
            order.0.entry(of).or_insert_with(|| {
                let custom = served.custom.is_some();
                let (group, version, _) = builtin_api_services::priorities(&served.group, &served.version, custom);
                (group.into(), version.into())
            });
        }
        for service in cluster.list("apiservices", "") {
            let spec = &service.value()["spec"];
            let text = |field: &str| spec[field].as_str().unwrap_or_default().to_string();
            let number = |field: &str| spec[field].as_i64().unwrap_or_default();
            let priorities = (number("groupPriorityMinimum"), number("versionPriority"));
            order.0.insert((text("group"), text("version")), priorities);
        }
        order
    }

    fn of(&self, group: &str, version: &str) -> (i64, i64) {
        let known = self.0.get(&(group.to_string(), version.to_string()));
        match group {
            API_REGISTRATION => (API_REGISTRATION_PRIORITY, 0),
            _ => known.copied().unwrap_or_default(),
        }
    }

    pub(super) fn sort(&self, groups: &mut [Group], form: Form) {
        for (group, versions) in groups.iter_mut() {
            versions.sort_by_cached_key(|version| (Reverse(self.of(group, version).1), priority(version)));
        }
        groups.sort_by_cached_key(|(group, versions)| {
            let key = |version: &String| {
                let tie = match form {
                    Form::Plain => format!("{version}.{group}"),
                    Form::Aggregated => group.clone(),
                };
                (Reverse(self.of(group, version).0), tie)
            };
            versions.iter().map(key).min()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_in_the_order_of_their_api_services() {
        let rows = [
            (("apps", "v1"), (17_800, 15)),
            (("a.example.com", "v1beta1"), (1000, 100)),
            (("b.example.com", "v1"), (1000, 100)),
            (("c.example.com", "v1"), (1000, 100)),
            (("c.example.com", "v2"), (2000, 10)),
        ];
        let order = GroupOrder(rows.map(|((g, v), p)| ((g.to_string(), v.to_string()), p)).into());
        let found = |form| {
            let mut groups: Vec<Group> = Vec::new();
            for (group, versions) in [
                ("a.example.com", &["v1beta1"][..]),
                ("b.example.com", &["v1"]),
                ("c.example.com", &["v2", "v1"]),
                ("apps", &["v1"]),
                (API_REGISTRATION, &["v1"]),
            ] {
                groups.push((group.into(), versions.iter().map(ToString::to_string).collect()));
            }
            order.sort(&mut groups, form);
            groups.iter().map(|(group, versions)| format!("{group}/{}", versions.join(","))).collect::<Vec<_>>()
        };
        let first = ["apiregistration.k8s.io/v1", "apps/v1", "c.example.com/v1,v2"];
        let last = ["b.example.com/v1", "a.example.com/v1beta1"];
        assert_eq!(found(Form::Plain), [&first[..], &last].concat());
        assert_eq!(found(Form::Aggregated), [&first[..], &[last[1], last[0]]].concat());
    }
}
