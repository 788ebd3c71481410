//! How objects are shown: tables, JSON, YAML, names, templates.
//! Used by the verbs through `-o`; `format` reads the flag, `columns` lays out tables, `operation` says what was done.
//! Pure: objects in, text out.

pub mod columns;
pub mod format;
pub mod kyaml;
pub mod operation;
pub use api::codec::yaml_text as yaml;
pub use format::{Format, PRINT};
pub use operation::Operation;
