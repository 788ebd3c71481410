//! Claims and volumes: who is bound to whom, and what may be deleted while in use.
//! `matching` is the binder's core; `protection` keeps finalizers.
//! A volume is bound to one claim, and says so before the claim does.

mod attach_detach;
mod binder;
mod ephemeral;
mod expander;
mod local_storage;
mod matching;
mod protection;
mod reclaim;
mod recycler;
mod selinux_warning;
mod volume_metrics;

pub use attach_detach::make as make_attach_detach;
pub use binder::make as make_binder;
pub use ephemeral::make as make_ephemeral;
pub use expander::make as make_expander;
pub use local_storage::{LocalStorage, make as make_local_storage};
pub use protection::{
    make_claims as make_claim_protection, make_classes as make_class_protection, make_volumes as make_volume_protection,
};
pub use selinux_warning::make as make_selinux_warning;
