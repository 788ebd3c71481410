//! Values of policy options, which are texts in the configuration.
//! Used by the options of the CPU manager and the topology manager.
//! Invariant: pure (tidy: `pure_files`).

/// As Go's `strconv.ParseBool`.
pub fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
