//! Go's names of the types of fields, where the field table does not tell them: `v1.PullPolicy` is a string to it.
//! Read by `codec::typed` for its errors, from `go_types.table` (written by `tools/schema-table/go_types.py`).
//! Not loaded before the first such error.

use std::{collections::HashMap, sync::LazyLock};

/// How Go holds one field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GoField {
    /// As Go prints it; absent where the field table tells as much.
    pub type_name: Option<&'static str>,
    /// The embedded structs that the field is in, joined by dots.
    pub inlined: Option<&'static str>,
}

type Table = HashMap<(&'static str, &'static str, &'static str), GoField>;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let (mut package, mut of) = ("", "");
    let mut table = Table::new();
    for line in include_str!("go_types.table").lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('@') {
            package = name;
        } else if let Some(row) = line.strip_prefix(' ') {
            let mut words = row.split(' ');
            let name = words.next().unwrap_or_default();
            let type_name = words.next().filter(|word| *word != "-");
            table.insert((package, of, name), GoField { type_name, inlined: words.next() });
        } else {
            of = line;
        }
    }
    table
});

/// `of` is the full name of the struct, e.g. `io.k8s.api.core.v1.Volume`.
pub fn go_field(of: &str, field: &str) -> GoField {
    let (package, name) = of.rsplit_once('.').unwrap_or(("", of));
    // The keys live as long as the program; a shorter borrow of them will do to look one up.
    let table: &HashMap<(&str, &str, &str), GoField> = &TABLE;
    table.get(&(package, name, field)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_types_and_embedded_structs() {
        let check = |of: &str, field: &str, type_name: Option<&str>, inlined: Option<&str>| {
            let found = go_field(&format!("io.k8s.api.{of}"), field);
            assert_eq!((found.type_name, found.inlined), (type_name, inlined), "{of}.{field}");
        };
        check("core.v1.Container", "imagePullPolicy", Some("v1.PullPolicy"), None);
        check("core.v1.Container", "image", None, None);
        check("core.v1.Volume", "hostPath", None, Some("VolumeSource"));
        check("admissionregistration.v1.NamedRuleWithOperations", "apiGroups", None, Some("RuleWithOperations.Rule"));
    }

    #[test]
    fn every_row_is_a_field() {
        let schema = super::super::builtin();
        for (package, of, field) in TABLE.keys() {
            let id = schema.by_name.get(&format!("{package}.{of}")).unwrap_or_else(|| panic!("no {package}.{of}"));
            assert!(schema.get(*id).field(field).is_some(), "{package}.{of} has no {field}");
        }
    }
}
