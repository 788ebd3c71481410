//! ServiceCIDRs: columns and validation.
//! Read by the address allocator of services.
//! The ranges of a ServiceCIDR never change.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::texts,
            checks,
            columns::{age, age_of, name, name_of, string},
        },
    },
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
