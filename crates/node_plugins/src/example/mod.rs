//! Small plugins that work: for tests, and to read before writing one.
//! Used by the tests of this crate and by `tests/e2e`; no part of a node.

pub mod device_plugin;
pub mod dra_driver;

use tonic::{Code, Status};

/// What the next call of a method does, first to last; `None` never answers.
pub type Faults = std::collections::BTreeMap<String, Vec<Option<Code>>>;

/// Fails or hangs as told.
async fn begin(fault: Option<Option<Code>>, method: &str) -> Result<(), Status> {
    match fault {
        None | Some(Some(Code::Ok)) => Ok(()),
        Some(Some(code)) => Err(Status::new(code, format!("{method} fails"))),
        Some(None) => std::future::pending().await,
    }
}
