//! Bindings: a request to put a pod on a node, never stored.
//! Carried out by the API server, as `pods/binding` is.

use crate::kinds::{Behavior, Handler};

#[derive(Default)]
pub struct Binding;

impl Behavior for Binding {
    fn handler(&self) -> Handler {
        Handler::Binding
    }
}
