//! ServiceCIDRs and IPAddresses: columns and validation.
//! Neighbours: the address allocator of services.
//! Invariant: neither changes its range or address.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{part, text, texts},
    columns::{age, age_of, name, name_of, string},
};

#[derive(Default)]
pub struct ServiceCidr;

impl Behavior for ServiceCidr {
    fn has_status(&self) -> bool {
        true
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
