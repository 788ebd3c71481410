//! Reads the resolver settings of the node itself.
//! Used by `runtime_manager` for every sandbox; `network_files` makes a pod's settings of them.
//! A file that can't be read is never taken for an empty one.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use cri::v1;

use crate::runtime::container_config::network_files;

const FILE_BYTES_MAX: u64 = 10 << 20;

#[derive(Debug, thiserror::Error)]
pub enum HostDnsError {
    #[error("open {}: {}", .file.display(), system_text(.error))]
    Open { file: PathBuf, error: io::Error },
    #[error("Encountered error while parsing resolv conf file. Error: read {}: {}", .file.display(), system_text(.error))]
    Read { file: PathBuf, error: io::Error },
    #[error("Encountered error while parsing resolv conf file. Error: the read limit is reached")]
    TooLarge,
    #[error("Encountered error while parsing resolv conf file. Error: {0}")]
    Parse(String),
}

/// As the system words it, in lower case.
fn system_text(error: &io::Error) -> String {
    let known = error.raw_os_error().map(|code| nix::errno::Errno::from_raw(code).desc().to_lowercase());
    known.unwrap_or_else(|| error.to_string())
}

/// The settings in the node's own resolver file.
pub fn read(file: &Path) -> Result<v1::DnsConfig, HostDnsError> {
    let mut bytes = Vec::new();
    let open = |error| HostDnsError::Open { file: file.into(), error };
    let mut reader = std::fs::File::open(file).map_err(open)?.take(FILE_BYTES_MAX + 1);
    let read = reader.read_to_end(&mut bytes);
    let length = read.map_err(|error| HostDnsError::Read { file: file.into(), error })?;
    if length as u64 > FILE_BYTES_MAX {
        return Err(HostDnsError::TooLarge);
    }
    let parsed = network_files::parse_resolv_conf(&String::from_utf8_lossy(&bytes));
    parsed.map_err(|error| HostDnsError::Parse(error.to_string()))
}
