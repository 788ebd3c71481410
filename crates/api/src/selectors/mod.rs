//! Which objects a request, a service or a controller means: label and field selectors.
//! Read by `apiserver` (list, watch, deletecollection), controllers and the scheduler.
//! Parsing is bounded by the size of its text; matching allocates nothing.

mod fields;
mod labels;
mod lexer;

pub use fields::{FieldRequirement, FieldSelector};
pub use labels::{LabelSelector, Operator, Requirement};

/// No selector is longer: a URL cannot carry more, and nothing good needs it.
pub const SELECTOR_BYTES_MAX: usize = 256 * 1024;

fn check_size(text: &str) -> Result<(), String> {
    if text.len() > SELECTOR_BYTES_MAX {
        return Err(format!("selector is too long: may not be more than {SELECTOR_BYTES_MAX} bytes"));
    }
    Ok(())
}
