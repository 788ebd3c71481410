//! Blobs, manifests and tags as files.
//! Used by `handler`; blobs come in through `uploads`.
//!
//! `blobs/<hex>` holds every blob and manifest, `repositories/<name>/manifests/<hex>` says that a repository has a
//! manifest and of which media type, `repositories/<name>/tags/<tag>` holds a digest. A name's slashes are `%2F`.
//! A file is there whole or not at all; nothing here waits for anybody.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use serde_json::Value;

use crate::{answers::Problem, digest::Digest, routes::Reference};

/// As docker's registry.
pub const MANIFEST_BYTES_MAX: usize = 4 << 20;

/// What pushes leave free of a disk that the cluster's own store may be on: a twentieth, and at most this.
const BYTES_KEPT_FREE_MAX: u64 = 1 << 30;

const INDEX_TYPES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];

pub struct Storage {
    root: PathBuf,
    /// Uploads that a request is at work on: what another appended after the digest was checked would be in the blob.
    pub(crate) in_use: Mutex<HashSet<String>>,
    /// Held while a manifest finds its blobs and is written, and while those that none names are removed.
    pub(crate) naming: Mutex<()>,
    /// Whether the disk that a directory is on has no room for more.
    pub(crate) is_full: fn(&Path) -> io::Result<bool>,
}

fn is_full(directory: &Path) -> io::Result<bool> {
    let disk = nix::sys::statvfs::statvfs(directory)?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.fragment_size());
    Ok(bytes(disk.blocks_available()) < (bytes(disk.blocks()) / 20).min(BYTES_KEPT_FREE_MAX))
}

pub struct Manifest {
    pub digest: Digest,
    pub media_type: String,
    pub bytes: Vec<u8>,
}

impl Storage {
    pub fn open(root: &Path) -> io::Result<Self> {
        for directory in ["blobs", "repositories", "uploads"] {
            fs::create_dir_all(root.join(directory))?;
        }
        Ok(Self { root: root.to_path_buf(), in_use: Mutex::default(), naming: Mutex::default(), is_full })
    }

    pub fn blob(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.hex())
    }

    pub fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    pub fn uploads(&self) -> PathBuf {
        self.root.join("uploads")
    }

    fn repositories_directory(&self) -> PathBuf {
        self.root.join("repositories")
    }

    fn repository(&self, name: &str) -> PathBuf {
        self.repositories_directory().join(name.replace('/', "%2F"))
    }

    fn manifest_link(&self, name: &str, digest: &Digest) -> PathBuf {
        self.repository(name).join("manifests").join(digest.hex())
    }

    fn tag_link(&self, name: &str, tag: &str) -> PathBuf {
        self.repository(name).join("tags").join(tag)
    }

    /// Beside its place first, then in it, and there after a power cut.
    pub fn put(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let directory = path.parent().unwrap_or(&self.root);
        make_directory(directory)?;
        let mut file = tempfile::NamedTempFile::new_in(self.uploads())?;
        io::Write::write_all(&mut file, content)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        sync_directory(directory)
    }

    pub fn blob_size(&self, digest: &Digest) -> Result<u64, Problem> {
        match fs::metadata(self.blob(digest)) {
            Ok(found) => Ok(found.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Problem::BlobUnknown),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that everything it names is here, and keeps it under its digest and, if it was given one, its tag.
    pub fn put_manifest(
        &self,
        name: &str,
        reference: &Reference,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<(Digest, Option<Digest>), Problem> {
        let digest = Digest::of_bytes(bytes);
        if let Reference::Digest(said) = reference
            && *said != digest
        {
            return Err(Problem::DigestInvalid);
        }
        let manifest: Value =
            serde_json::from_slice(bytes).map_err(|error| Problem::ManifestInvalid(error.to_string()))?;
        if let Some(own) = manifest["mediaType"].as_str()
            && own != media_type
        {
            return Err(Problem::ManifestInvalid(format!("it says that it is {own}, but was sent as {media_type}")));
        }
        let is_index = INDEX_TYPES.contains(&media_type) || manifest["manifests"].is_array();
        if !is_index && !manifest["config"].is_object() {
            return Err(Problem::ManifestInvalid("it has neither a config nor manifests".into()));
        }
        let _naming = self.naming.lock();
        for named in named_by(&manifest).map_err(Problem::ManifestInvalid)? {
            // Layers from elsewhere (`urls`) are nobody's to keep here.
            if !named.is_elsewhere && self.blob_size(&named.digest).is_err() {
                return Err(Problem::ManifestBlobUnknown(named.digest.to_string()));
            }
        }
        let subject = manifest["subject"]["digest"].as_str().and_then(Digest::parse);
        self.put(&self.blob(&digest), bytes)?;
        self.put(&self.manifest_link(name, &digest), media_type.as_bytes())?;
        if let Reference::Tag(tag) = reference {
            self.put(&self.tag_link(name, tag), digest.to_string().as_bytes())?;
        }
        Ok((digest, subject))
    }

    pub fn manifest(&self, name: &str, reference: &Reference) -> Result<Manifest, Problem> {
        let unknown = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Problem::ManifestUnknown,
            _ => Problem::Io(error),
        };
        let digest = match reference {
            Reference::Digest(digest) => digest.clone(),
            Reference::Tag(tag) => {
                let text = fs::read_to_string(self.tag_link(name, tag)).map_err(unknown)?;
                Digest::parse(text.trim()).ok_or(Problem::ManifestUnknown)?
            }
        };
        let media_type = fs::read_to_string(self.manifest_link(name, &digest)).map_err(unknown)?;
        let bytes = fs::read(self.blob(&digest)).map_err(unknown)?;
        Ok(Manifest { digest, media_type, bytes })
    }

    /// A tag alone, or a manifest with every tag of it.
    pub fn delete_manifest(&self, name: &str, reference: &Reference) -> Result<(), Problem> {
        let found = self.manifest(name, reference)?;
        match reference {
            Reference::Tag(tag) => fs::remove_file(self.tag_link(name, tag))?,
            Reference::Digest(digest) => {
                for tag in self.tags(name).unwrap_or_default() {
                    let link = self.tag_link(name, &tag);
                    if fs::read_to_string(&link).is_ok_and(|text| text.trim() == digest.to_string()) {
                        fs::remove_file(link)?;
                    }
                }
                fs::remove_file(self.manifest_link(name, &found.digest))?;
            }
        }
        Ok(())
    }

    /// In the order of the alphabet.
    pub fn tags(&self, name: &str) -> Result<Vec<String>, Problem> {
        if !self.repository(name).is_dir() {
            return Err(Problem::NameUnknown);
        }
        Ok(names(&self.repository(name).join("tags")))
    }

    pub fn repositories(&self) -> Vec<String> {
        names(&self.repositories_directory()).into_iter().map(|name| name.replace("%2F", "/")).collect()
    }

    /// Every manifest of a repository, with its media type.
    pub fn manifests(&self, name: &str) -> Vec<(Digest, String)> {
        let directory = self.repository(name).join("manifests");
        let found = names(&directory).into_iter().filter_map(|hex| {
            let media_type = fs::read_to_string(directory.join(&hex)).ok()?;
            Some((Digest::of_hex(&hex)?, media_type))
        });
        found.collect()
    }

    /// Descriptors of the manifests that say they belong to this one.
    pub fn referrers(&self, name: &str, subject: &Digest) -> Vec<Value> {
        let of = |(digest, media_type): (Digest, String)| {
            let bytes = fs::read(self.blob(&digest)).ok()?;
            let manifest: Value = serde_json::from_slice(&bytes).ok()?;
            if manifest["subject"]["digest"].as_str()? != subject.to_string() {
                return None;
            }
            let kind = manifest["artifactType"].as_str().or(manifest["config"]["mediaType"].as_str());
            let mut descriptor = serde_json::json!({
                "mediaType": media_type, "digest": digest.to_string(), "size": bytes.len(), "artifactType": kind });
            if manifest["annotations"].is_object() {
                descriptor["annotations"] = manifest["annotations"].clone();
            }
            Some(descriptor)
        };
        self.manifests(name).into_iter().filter_map(of).collect()
    }
}

/// The names in it are kept.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

/// With all that it is in, each kept before what is in it.
fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let Some(parent) = directory.parent() else { return Ok(()) };
    make_directory(parent)?;
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync_directory(parent),
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// A blob or manifest that a manifest names.
pub struct Named {
    pub digest: Digest,
    pub is_elsewhere: bool,
}

pub fn named_by(manifest: &Value) -> Result<Vec<Named>, String> {
    let lists =
        ["layers", "manifests", "blobs"].into_iter().flat_map(|field| manifest[field].as_array().into_iter().flatten());
    let config = Some(&manifest["config"]).filter(|config| config.is_object());
    lists
        .chain(config)
        .map(|descriptor| {
            let digest = descriptor["digest"].as_str().unwrap_or_default();
            let digest = Digest::parse(digest).ok_or_else(|| format!("{digest:?} is no digest"))?;
            Ok(Named { digest, is_elsewhere: descriptor["urls"].as_array().is_some_and(|urls| !urls.is_empty()) })
        })
        .collect()
}
