//! Output templates of kubectl: JSONPath, Go templates and custom columns.
//! Neighbours: the printers of `get` and every verb with `-o`; `describe` formats values with `go_format`.
//! Pure; a template sees one decoded object and nothing else.

pub mod custom_columns;
pub mod go_format;
pub mod go_order;
pub mod go_template;
pub mod jsonpath;
mod jsonpath_parser;
