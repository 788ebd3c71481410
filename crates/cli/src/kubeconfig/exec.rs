//! Credentials that a program prints: `users[].user.exec`, in kubectl's words.
//! Used by `resolve`; the program is asked by `client::ExecPlugin`.
//! The program is run once for a command, and only if nothing else says who we are.

use std::path::Path;

use client::{ExecCredential, ExecError, ExecPlugin};

use super::Entry;
use crate::{
    failure::{Failure, Result},
    kuberc::plugin_policy::PluginPolicy,
};

impl From<ExecError> for Failure {
    fn from(error: ExecError) -> Self {
        match error {
            ExecError::Version(_) | ExecError::InteractiveMode(_) => Failure::message(error.to_string()),
            ExecError::Failed(_) => {
                Failure::Connection { server: String::new(), refused: false, cause: error.to_string() }
            }
        }
    }
}

/// `stdin_in_use`: the command reads its own input there.
pub async fn credential(
    user: &Entry,
    cluster: &Entry,
    server: &str,
    ca: &[u8],
    stdin_in_use: bool,
    plugins: &PluginPolicy,
) -> Result<ExecCredential> {
    let directory = user.file.parent().unwrap_or(Path::new(""));
    let plugin = ExecPlugin::new(&user.name, &user.value, &cluster.value, server, ca, directory)?;
    plugins.check(plugin.program()).map_err(ExecError::Failed)?;
    // Threads that block end with the command.
    let ran = env::spawn_blocking(move || plugin.run(stdin_in_use)).await;
    Ok(ran.map_err(|panicked| Failure::message(format!("exec plugin: {panicked}")))??)
}
