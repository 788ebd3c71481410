//! Images: `image_manager` makes them present, `image_gc` removes unused ones.
//! Used by `runtime::runtime_manager` and `resources::eviction`.

pub(crate) mod image_gc;
pub mod image_manager;
