//! Reads the resolver settings of the node itself.
//! Used by `runtime_manager` for every sandbox; `network_files` makes a pod's settings of them.
//! Invariant: a file that can't be read is never taken for an empty one.

use std::{io::Read, path::Path};

use cri::v1;

use crate::runtime::container_config::network_files;

const LARGEST_FILE: u64 = 10 << 20;

/// What the node's own resolver file says.
pub fn read(file: &Path) -> Result<v1::DnsConfig, String> {
    let failed = |step: &str, error: std::io::Error| {
        let why = error.raw_os_error().map(|code| nix::errno::Errno::from_raw(code).desc().to_lowercase());
        format!("{step} {}: {}", file.display(), why.unwrap_or_else(|| error.to_string()))
    };
    let mut bytes = Vec::new();
    let mut reader = std::fs::File::open(file).map_err(|error| failed("open", error))?.take(LARGEST_FILE + 1);
    let read = reader.read_to_end(&mut bytes).map_err(|error| failed("read", error));
    let parsed = match read {
        Ok(length) if length as u64 > LARGEST_FILE => Err("the read limit is reached".into()),
        Ok(_) => network_files::parse_resolv_conf(&String::from_utf8_lossy(&bytes)),
        Err(error) => Err(error),
    };
    parsed.map_err(|error| format!("Encountered error while parsing resolv conf file. Error: {error}"))
}
