//! Takes the whole network away: ports, bridge, rules, addresses. For `minke down`.
//! Uses `link` and `nft`; the pods must be gone by then.
//! What is not there is no error.

use std::path::PathBuf;

use crate::{attach::is_host_link, link::Links, nft, types::Error};

#[derive(Debug, Clone)]
pub struct CleanupParams {
    pub name: String,
    pub bridge: String,
    pub table: String,
    pub data_dir: PathBuf,
}

/// In the calling thread's network namespace. Blocks; call it from a blocking context.
pub fn cleanup(params: &CleanupParams) -> Result<(), Error> {
    std::thread::scope(|scope| {
        scope.spawn(|| links(params)).join().map_err(|_| Error::internal("the cleanup panicked"))?
    })?;
    nft::delete_tables(&params.table)?;
    match std::fs::remove_dir_all(params.data_dir.join(&params.name)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("failed to remove the address store of {}: {error}", params.name)))
        }
        _ => Ok(()),
    }
}

fn links(params: &CleanupParams) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|error| Error::io(format!("failed to start a runtime: {error}")))?;
    runtime.block_on(async {
        let host = Links::open()?;
        let Some(bridge) = host.find(&params.bridge).await? else { return Ok(()) };
        for link in host.all().await? {
            if link.controller == Some(bridge.index) && is_host_link(&link.name) {
                host.delete(&link.name).await?;
            }
        }
        host.delete(&params.bridge).await
    })
}
