//! ServiceCIDRs and IPAddresses: columns and validation.
//! Neighbours: the address allocator of services.
//! Invariant: neither changes its range or address.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{part, text, texts},
    checks,
    columns::{age, age_of, name, name_of, string},
};
use crate::{
    field::{ErrorList, Path},
    names,
};

#[derive(Default)]
pub struct ServiceCidr;

impl Behavior for ServiceCidr {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let path = Path::new("spec").child("cidrs");
        let ranges: Vec<&str> = texts(&object["spec"], "cidrs").collect();
        if ranges.is_empty() {
            errors.required(&path, "at least one CIDR required");
        }
        if ranges.len() > 2 {
            errors.invalid(&path, object["spec"].clone(), "may only hold up to 2 values");
        }
        for (index, range) in ranges.iter().enumerate() {
            checks::complaints(errors, &path.index(index), range, names::cidr(range));
        }
        let families: Vec<bool> =
            ranges.iter().filter_map(|range| names::parse_cidr(range)).map(|(address, _)| address.is_ipv6()).collect();
        if let [first, second] = families[..]
            && first == second
        {
            errors.invalid(
                &path,
                object["spec"]["cidrs"].clone(),
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
            );
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        let ranges = |object: &'_ Value| texts(&object["spec"], "cidrs").map(str::to_string).collect::<Vec<_>>();
        let (new, before) = (ranges(object), ranges(old));
        if before.len() == 1 && new.len() == 2 && new[0] == before[0] {
            return self.validate_create(object, errors);
        }
        checks::immutable(errors, &Path::new("spec"), &object["spec"], &old["spec"], "cidrs");
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({})
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("CIDRs", "Its ranges."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ranges: Vec<&str> = texts(&object["spec"], "cidrs").collect();
        vec![name_of(object), json!(ranges.join(",")), age_of(object, now)]
    }
}

#[derive(Default)]
pub struct IpAddress;

impl Behavior for IpAddress {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let path = Path::new("spec").child("parentRef");
        let Some(parent) = part(&object["spec"], "parentRef") else { return errors.required(&path, "") };
        let segment = |name: &str| names::path_segment(name, false);
        checks::optional_name(errors, &path, parent, "group", |name| names::dns_subdomain(name, false));
        checks::required_name(errors, &path, parent, "resource", segment);
        checks::required_name(errors, &path, parent, "name", segment);
        checks::optional_name(errors, &path, parent, "namespace", segment);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        checks::immutable(errors, &Path::new("spec"), &object["spec"], &old["spec"], "parentRef");
    }

    fn validate_name(&self, name: &str, _prefix: bool) -> Vec<String> {
        match names::parse_ip(name) {
            None => names::ip(name),
            Some(ip) if ip.to_string() != name => vec![format!("must be in canonical form ({:?})", ip.to_string())],
            Some(_) => Vec::new(),
        }
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("ParentRef", "Who has the address."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let parent = part(&object["spec"], "parentRef").map(|parent| {
            let (group, resource) = (text(parent, "group"), text(parent, "resource").to_lowercase());
            let mut shown = if group.is_empty() { resource } else { format!("{resource}.{}", group.to_lowercase()) };
            for field in ["namespace", "name"] {
                if !text(parent, field).is_empty() || field == "name" {
                    shown.push('/');
                    shown.push_str(text(parent, field));
                }
            }
            shown
        });
        vec![name_of(object), json!(parent.as_deref().unwrap_or("<none>")), age_of(object, now)]
    }
}
