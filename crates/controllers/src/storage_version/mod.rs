//! In which versions objects are stored: `garbage_collector` removes what API servers that are gone have said of it,
//! `migrator` has all objects of a resource written again.
//! Both are there only with their feature gates.

mod garbage_collector;
mod migrator;

pub use garbage_collector::make as make_garbage_collector;
pub use migrator::make as make_migrator;
