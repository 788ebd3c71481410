//! Connects to sockets of plugins, also where the path is longer than an address may be: kubelets with long root directories
//! have plugins with long names.
//! Used by both kinds of channels.

use std::{io, os::fd::AsRawFd, path::Path};

use tokio::net::UnixStream;

/// Of the path in a socket's address, without the zero at its end.
const ADDRESS_BYTES_MAX: usize = 107;

pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let (directory, name) = match (path.parent(), path.file_name()) {
        (Some(directory), Some(name)) if path.as_os_str().len() > ADDRESS_BYTES_MAX => (directory, name),
        _ => return UnixStream::connect(path).await,
    };
    let directory = tokio::fs::File::open(directory).await?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
    UnixStream::connect(short.join(name)).await
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn paths_may_be_long() {
        let root = tempfile::tempdir().unwrap();
        for length in [1, ADDRESS_BYTES_MAX] {
            let directory = root.path().join("d".repeat(length));
            std::fs::create_dir(&directory).unwrap();
            let bound = UnixListener::bind(root.path().join("s")).unwrap();
            std::fs::rename(root.path().join("s"), directory.join("s")).unwrap();
            connect(&directory.join("s")).await.unwrap();
            drop(bound);
            assert!(connect(&directory.join("s")).await.is_err());
        }
    }
}
