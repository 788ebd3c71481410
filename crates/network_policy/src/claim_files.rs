//! The network plugin's claims as files, one per pod: an agent that starts again knows addresses that no status has yet.
//! Kept by `run` before a claim is answered, in the run directory, which a reboot empties as it ends the pods.
//! Invariant: a claim is there whole or not at all (test: `claims_come_back_in_their_order`).

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use crate::pod_claims::Claim;

const NEW: &str = ".new";

pub struct ClaimFiles {
    directory: PathBuf,
}

impl ClaimFiles {
    pub fn open(directory: &Path) -> io::Result<Self> {
        // Which pods there are is for nobody else on the machine to read.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// The oldest first: of two that name an address, the later one has it.
    pub fn load(&self) -> Vec<Claim> {
        let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
        let files = entries(&self.directory).flat_map(|namespace| entries(&namespace.path()));
        let mut found: Vec<_> = files
            .filter_map(|file| {
                let claim = serde_json::from_slice::<Claim>(&fs::read(file.path()).ok()?).ok()?;
                Some((file.metadata().ok()?.modified().ok()?, claim))
            })
            .collect();
        found.sort_by_key(|(written, _)| *written);
        found.into_iter().map(|(_, claim)| claim).collect()
    }

    pub fn keep(&self, claim: &Claim) -> io::Result<()> {
        let place = self.place(&claim.key()).ok_or(io::ErrorKind::InvalidInput)?;
        let new = self.directory.join(NEW);
        fs::write(&new, serde_json::to_vec(claim)?)?;
        if let Some(namespace) = place.parent() {
            fs::create_dir_all(namespace)?;
        }
        fs::rename(new, place)
    }

    pub fn forget(&self, key: &str) -> io::Result<()> {
        let Some(place) = self.place(key) else { return Ok(()) };
        match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // With the last pod of a namespace its directory goes.
        match place.parent().map(fs::remove_dir) {
            Some(Err(error)) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Names of pods and namespaces are names of files as well; nothing else becomes one.
    fn place(&self, key: &str) -> Option<PathBuf> {
        let (namespace, name) = key.split_once('/')?;
        let is_name = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains('/');
        (is_name(namespace) && is_name(name)).then(|| self.directory.join(namespace).join(name))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn claims_come_back_in_their_order() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("claims");
        let files = ClaimFiles::open(&root).unwrap();
        assert_eq!(fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
        let claim = |name: &str, ip: &str| Claim {
            namespace: "d".into(),
            name: name.into(),
            uid: name.into(),
            ips: vec![ip.parse().unwrap()],
        };
        let keys = |files: &ClaimFiles| files.load().iter().map(Claim::key).collect::<Vec<_>>();
        for (name, second) in [("b", 2), ("a", 3), ("c", 1)] {
            files.keep(&claim(name, "10.0.0.1")).unwrap();
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(second);
            fs::File::open(root.join("d").join(name)).unwrap().set_modified(at).unwrap();
        }
        assert_eq!(keys(&files), ["d/c", "d/b", "d/a"]);
        fs::write(root.join("d/torn"), "{").unwrap();
        files.forget("d/b").unwrap();
        files.forget("d/b").unwrap();
        assert_eq!(keys(&ClaimFiles::open(&root).unwrap()), ["d/c", "d/a"]);
        let other = Claim { namespace: "e".into(), ..claim("a", "10.0.0.2") };
        files.keep(&other).unwrap();
        files.forget("e/a").unwrap();
        files.forget("e/a").unwrap();
        assert!(!root.join("e").exists() && root.join("d").exists());
        for name in ["../x", "a/../../x", "", ".", "a/b"] {
            assert!(files.keep(&claim(name, "10.0.0.1")).is_err(), "{name}");
        }
    }
}
