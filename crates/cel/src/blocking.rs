//! Work that may take a while, without holding up the other tasks of its worker.
//! Used for expressions with loops, and by the API server for long patches.
//! Runs on the caller's thread; whoever waits for it still waits.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Lets the other tasks of this worker go elsewhere first, where there is an elsewhere.
pub fn off_worker<T>(run: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(run),
        _ => run(),
    }
}
