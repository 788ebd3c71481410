//! Writes container images from files, as OCI archives: the pause and demo images, and those of tests.
//! Used by `minke` and `tests/e2e`; the archives are imported into containerd.
//! Invariant: the same input gives the same bytes, so an image keeps its digest (test:
//! `the_same_input_gives_the_same_archive`).

mod unpack;

use std::io::{self, Write};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub use unpack::unpack;

/// One image of one layer.
pub struct Image {
    layer: tar::Builder<Vec<u8>>,
    config: Value,
}

impl Default for Image {
    fn default() -> Self {
        Self::new()
    }
}

impl Image {
    pub fn new() -> Self {
        Self { layer: tar::Builder::new(Vec::new()), config: json!({}) }
    }

    pub fn file(mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<Self> {
        let mut header = header(tar::EntryType::Regular, mode, content.len() as u64);
        self.layer.append_data(&mut header, path.trim_start_matches('/'), content)?;
        Ok(self)
    }

    pub fn directory(mut self, path: &str, mode: u32) -> io::Result<Self> {
        let mut header = header(tar::EntryType::Directory, mode, 0);
        self.layer.append_data(&mut header, path.trim_start_matches('/'), io::empty())?;
        Ok(self)
    }

    pub fn symlink(mut self, path: &str, target: &str) -> io::Result<Self> {
        let mut header = header(tar::EntryType::Symlink, 0o777, 0);
        self.layer.append_link(&mut header, path.trim_start_matches('/'), target)?;
        Ok(self)
    }

    pub fn entrypoint(mut self, words: &[&str]) -> Self {
        self.config["Entrypoint"] = json!(words);
        self
    }

    pub fn command(mut self, words: &[&str]) -> Self {
        self.config["Cmd"] = json!(words);
        self
    }

    pub fn env(mut self, variables: &[&str]) -> Self {
        self.config["Env"] = json!(variables);
        self
    }

    pub fn user(mut self, user: &str) -> Self {
        self.config["User"] = json!(user);
        self
    }

    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.config["Labels"][name] = json!(value);
        self
    }

    /// An OCI layout in a tar, under the full `reference` (`docker.io/library/demo:1`).
    pub fn write(self, reference: &str, archive: impl Write) -> io::Result<()> {
        let layer = self.layer.into_inner()?;
        let platform = json!({ "architecture": architecture(), "os": "linux" });
        let config = json!({
            "architecture": platform["architecture"], "os": "linux", "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
            "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "minke" }],
        })
        .to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", config.as_bytes()),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        })
        .to_string();
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
        entry["platform"] = platform;
        entry["annotations"] = json!({ "io.containerd.image.name": reference,
            "org.opencontainers.image.ref.name": reference.rsplit(':').next() });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();

        let mut tar = tar::Builder::new(archive);
        let mut add = |path: &str, content: &[u8]| {
            let mut header = header(tar::EntryType::Regular, 0o644, content.len() as u64);
            tar.append_data(&mut header, path, content)
        };
        add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        add("index.json", index.as_bytes())?;
        for blob in [layer.as_slice(), config.as_bytes(), manifest.as_bytes()] {
            add(&format!("blobs/sha256/{}", &digest(blob)["sha256:".len()..]), blob)?;
        }
        tar.into_inner()?.flush()
    }
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header
}

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    format!("sha256:{}", hash.iter().map(|b| format!("{b:02x}")).collect::<String>())
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_input_gives_the_same_archive() {
        let make = || {
            let mut bytes = Vec::new();
            let image = Image::new().directory("bin", 0o755).unwrap().file("bin/x", 0o755, b"x").unwrap();
            image
                .symlink("bin/y", "x")
                .unwrap()
                .entrypoint(&["/bin/x"])
                .write("docker.io/library/t:1", &mut bytes)
                .unwrap();
            bytes
        };
        assert_eq!(make(), make());
        let bytes = make();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let names: Vec<_> =
            archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().display().to_string()).collect();
        assert_eq!(names.len(), 5);
        assert_eq!(names[..2], ["oci-layout", "index.json"]);
    }
}
