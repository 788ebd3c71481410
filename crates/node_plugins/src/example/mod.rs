//! Small plugins that work: for tests, and to read before writing one.
//! Used by the tests of this crate and by `tests/e2e`; no part of a node.

pub mod device_plugin;
pub mod dra_driver;

use futures::{Stream, stream};
use tokio::sync::watch;
use tonic::{Code, Status};

/// What the next call of a method does, first to last; `None` never answers.
pub type Faults = std::collections::BTreeMap<String, Vec<Option<Code>>>;

/// What is so now, and then whenever it changes.
fn latest<T, R>(known: &watch::Sender<T>, say: fn(&T) -> R) -> impl Stream<Item = Result<R, Status>> + use<T, R> {
    stream::unfold((known.subscribe(), true), move |(mut receiver, first)| async move {
        if !first {
            receiver.changed().await.ok()?;
        }
        let said = say(&receiver.borrow_and_update());
        Some((Ok(said), (receiver, false)))
    })
}

/// Fails or hangs as told.
async fn begin(fault: Option<Option<Code>>, method: &str) -> Result<(), Status> {
    match fault {
        None | Some(Some(Code::Ok)) => Ok(()),
        Some(Some(code)) => Err(Status::new(code, format!("{method} fails"))),
        Some(None) => std::future::pending().await,
    }
}
