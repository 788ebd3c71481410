//! How objects are shown: tables, JSON, YAML, names, templates.
//! Used by the verbs through `-o`; `format` reads the flag, `table` lays out columns, `operation` says what was done.
//! Pure: objects in, text out.

pub mod format;
pub mod kyaml;
pub mod operation;
pub mod table;
pub mod yaml;

pub use format::{Format, PRINT};
pub use operation::Operation;
