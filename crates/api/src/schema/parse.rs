//! Reads the compact field tables (`*.table`, written by `tools/schema-table`) into a `Schema`.
//! Called once per table set by `builtin` and `unserved`.
//! A table is part of the program, so a line that does not parse is a bug and panics.
//!
//! The format, one line each:
//! ```text
//! @ALIAS PACKAGE GROUP/VERSION        the package of the types that follow
//! NAME [k[GROUP/VERSION]] [!]         a type; k: a kind; !: atomic
//!  FIELD TYPE NUMBERS FLAGS...        a field; NUMBERS: protobuf, with those of inlined messages before it
//! ```
//! TYPE: `s`tring `b`ool `i`nt32 `l`ong `n`umber b`y`tes `t`ime microtime `u` `d`uration `q`uantity int-or-string `x`
//! `a`ny `f`ields, `Name` or `alias:Name` (`~` after it: granular though the type is atomic), `[]T`, `[!]T` said
//! atomic, `[set]T`, `[key,key]T`, `{}T`, `{!}T` atomic map, `{~}T` said granular.
//! FLAGS: `!` required `*` pointer `?` omitempty `z` omitzero `w`rapped said-atomic bytes `A` `oa ob os` schema or array, bool, strings
//! `r` retainKeys `m` merge `R` said replace `m=KEY` merge key `=JSON` default.

use std::collections::HashMap;

use super::{Field, ListType, Node, Schema, SchemaOr, Struct, TypeId, Wire};

struct Reader<'t> {
    schema: Schema,
    /// Package by alias.
    packages: HashMap<&'t str, &'t str>,
    /// Granular twins of atomic types, made after everything is read.
    twins: HashMap<String, TypeId>,
}

pub(super) fn parse(tables: &[&str]) -> Schema {
    let mut reader = Reader {
        schema: Schema { go_types: true, ..Schema::default() },
        packages: HashMap::new(),
        twins: HashMap::new(),
    };
    tables.iter().for_each(|table| reader.names(table));
    let named = reader.schema.types.len();
    tables.iter().for_each(|table| reader.fields(table));
    let mut schema = reader.schema;
    // The twins were reserved while reading, before their originals were complete.
    for id in named..schema.types.len() {
        let original = schema.by_name[&schema.types[id].name];
        let twin = Struct { atomic: false, ..schema.types[original.0 as usize].clone() };
        schema.types[id] = twin;
    }
    schema
}

fn lines(table: &str) -> impl Iterator<Item = &str> {
    table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

impl<'t> Reader<'t> {
    /// First pass: every type gets its id, so that fields can refer to types further down.
    fn names(&mut self, table: &'t str) {
        let (mut package, mut api_version) = ("", "");
        for line in lines(table) {
            if let Some(header) = line.strip_prefix('@') {
                let mut words = header.split(' ');
                let alias = words.next().unwrap_or_default();
                package = words.next().unwrap_or_default();
                api_version = words.next().unwrap_or_default();
                self.packages.insert(alias, package);
            } else if !line.starts_with(' ') {
                let mut words = line.split(' ');
                let name = words.next().unwrap_or_default();
                let id = TypeId(self.schema.types.len() as u32);
                let mut atomic = false;
                for word in words {
                    if let Some(own) = word.strip_prefix('k') {
                        let place = if own.is_empty() { api_version } else { own };
                        let (group, version) = place.split_once('/').expect("a kind has a group and a version");
                        self.schema.by_kind.insert((group.into(), version.into(), name.into()), id);
                    } else {
                        atomic = word == "!";
                    }
                }
                let name = format!("{package}.{name}");
                self.schema.types.push(Struct { name: name.clone(), atomic, ..Struct::default() });
                self.schema.by_name.insert(name, id);
            }
        }
    }

    /// Second pass: the fields.
    fn fields(&mut self, table: &'t str) {
        let (mut package, mut current) = ("", Vec::new());
        let mut id = None;
        for line in lines(table) {
            if let Some(field) = line.strip_prefix(' ') {
                let field = self.field(field, package);
                current.push(field);
                continue;
            }
            self.finish(id.take(), &mut current);
            if let Some(header) = line.strip_prefix('@') {
                package = header.split(' ').nth(1).unwrap_or_default();
            } else {
                let name = line.split(' ').next().unwrap_or_default();
                id = Some(self.schema.by_name[&format!("{package}.{name}")]);
            }
        }
        self.finish(id, &mut current);
    }

    fn finish(&mut self, id: Option<TypeId>, fields: &mut Vec<Field>) {
        let Some(id) = id else { return };
        let mut fields = std::mem::take(fields);
        fields.shrink_to_fit();
        let mut order: Vec<u16> = (0..fields.len() as u16).filter(|i| fields[*i as usize].proto != 0).collect();
        order.sort_by_key(|i| wire_key(&fields[*i as usize]));
        let entry = &mut self.schema.types[id.0 as usize];
        entry.fields = fields;
        entry.wire_order = order;
    }

    fn field(&mut self, line: &str, package: &str) -> Field {
        let mut words = line.splitn(4, ' ');
        let (name, node, numbers) = (words.next(), words.next(), words.next());
        let (Some(name), Some(node), Some(numbers)) = (name, node, numbers) else { panic!("bad field: {line}") };
        let mut wire = Wire { said_atomic: node.starts_with("[!]") || node.starts_with("{!}"), ..Wire::default() };
        let mut numbers = numbers.rsplit('.').map(|n| n.parse::<u32>().expect("a protobuf number"));
        let proto = numbers.next().unwrap_or_default();
        let mut inside: Vec<u8> = numbers.map(|n| n as u8).collect();
        inside.reverse();
        wire.said_granular = node.starts_with("{~}");
        wire.inside[..inside.len()].copy_from_slice(&inside);
        let mut field = Field { name: name.into(), node: self.node(node, package), proto, ..Field::default() };
        let mut flags = words.next().unwrap_or_default();
        while !flags.is_empty() {
            if let Some(json) = flags.strip_prefix('=') {
                field.default = Some(serde_json::from_str(json).expect("a default is JSON"));
                break;
            }
            let (flag, rest) = flags.split_once(' ').unwrap_or((flags, ""));
            match flag {
                "!" => field.required = true,
                "*" => wire.pointer = true,
                "?" => wire.omit_empty = true,
                "z" => (wire.omit_empty, wire.omit_zero) = (true, true),
                "w" => wire.wrapped = true,
                "A" => wire.said_atomic = true,
                "oa" => wire.or = SchemaOr::Array,
                "ob" => wire.or = SchemaOr::Bool,
                "os" => wire.or = SchemaOr::Strings,
                "r" => field.patch_retain_keys = true,
                "m" => field.patch_merge = true,
                "R" => wire.said_replace = true,
                _ => field.patch_merge_key = Some(flag.strip_prefix("m=").expect("a known flag").into()),
            }
            flags = rest;
        }
        field.nullable = wire.pointer;
        field.wire = wire;
        field
    }

    fn node(&mut self, text: &str, package: &str) -> Node {
        if let Some(rest) = text.strip_prefix('[') {
            let (list_type, item) = rest.split_once(']').expect("a list has an end");
            let list_type = match list_type {
                "" | "!" => ListType::Atomic,
                "set" => ListType::Set,
                keys => ListType::Map(keys.split(',').map(Into::into).collect()),
            };
            return Node::List(Box::new(self.node(item, package)), list_type);
        }
        if let Some(rest) = text.strip_prefix('{') {
            let (kind, item) = rest.split_once('}').expect("a map has an end");
            return Node::Map(Box::new(self.node(item, package)), kind == "!");
        }
        match text {
            "s" => Node::String,
            "b" => Node::Boolean,
            "i" => Node::Int32,
            "l" => Node::Int64,
            "n" => Node::Number,
            "y" => Node::Bytes,
            "t" => Node::Time,
            "u" => Node::MicroTime,
            "d" => Node::Duration,
            "q" => Node::Quantity,
            "x" => Node::IntOrString,
            "a" => Node::Any,
            "f" => Node::Fields,
            _ => Node::Struct(self.reference(text, package)),
        }
    }

    fn reference(&mut self, text: &str, package: &str) -> TypeId {
        let (bare, granular) = text.strip_suffix('~').map_or((text, false), |bare| (bare, true));
        let full = match bare.split_once(':') {
            Some((alias, name)) => format!("{}.{name}", self.packages[alias]),
            None => format!("{package}.{bare}"),
        };
        if !granular {
            return *self.schema.by_name.get(&full).unwrap_or_else(|| panic!("no type {full}"));
        }
        let next = TypeId(self.schema.types.len() as u32);
        let id = *self.twins.entry(full.clone()).or_insert(next);
        if id == next {
            self.schema.types.push(Struct { name: full, ..Struct::default() });
        }
        id
    }
}

/// Where a field stands on the wire: by its own number, or that of the message it is inlined from.
pub(crate) fn wire_key(field: &Field) -> [u32; 3] {
    let [outer, inner] = field.wire.inside.map(u32::from);
    match (outer, inner) {
        (0, _) => [field.proto, 0, 0],
        (outer, 0) => [outer, field.proto, 0],
        (outer, inner) => [outer, inner, field.proto],
    }
}
