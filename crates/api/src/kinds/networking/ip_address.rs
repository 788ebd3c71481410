//! IPAddresses: columns and validation.
//! Written by the address allocator of services, one per address.
//! The parent of an address never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{part, text},
            checks,
            columns::{age, age_of, name, name_of, string},
        },
    },
    names,
};

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
