//! Credentials that a program prints: `users[].user.exec`.
//! Used by `resolve`; how such a program is called is `client::ExecPlugin`'s to know.
//! The program is run once for a command, and only if nothing else says who we are.

use std::path::Path;

use client::{ExecCredential, ExecError, ExecPlugin};

use super::Entry;
use crate::failure::{Failure, Result};

fn failure(error: ExecError) -> Failure {
    match error {
        ExecError::Version(_) => Failure::message(error.to_string()),
        ExecError::InteractiveMode(_) => Failure::Plain(format!("Error in configuration: {error}")),
        ExecError::Failed(_) => Failure::Connection { server: String::new(), refused: false, cause: error.to_string() },
    }
}

pub async fn credential(user: &Entry, cluster: &Entry, server: &str, ca: &[u8]) -> Result<ExecCredential> {
    let directory = user.file.parent().unwrap_or(Path::new(""));
    let plugin = ExecPlugin::new(&user.name, &user.value, &cluster.value, server, ca, directory).map_err(failure)?;
    let ran = env::spawn_blocking(move || plugin.run()).await;
    ran.map_err(|e| failure(ExecError::Failed(e.to_string())))?.map_err(failure)
}
