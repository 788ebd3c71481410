//! How objects are shown: tables, JSON, YAML, names, templates.
//! Used by the verbs through `-o`.
//! Pure: text in, text out.

pub mod yaml;
