//! The files of an install, each written whole or not at all, and the list by which they are removed again.
//! Used by `install`.
//! Removes nothing that is not in the list.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap_complete::Shell;

use crate::commands::completion;

const LIST: &str = "usr/local/share/minke/installed-files";
const COMPLETIONS: &[(Shell, &str)] = &[
    (Shell::Bash, "usr/local/share/bash-completion/completions/minke"),
    (Shell::Zsh, "usr/local/share/zsh/site-functions/_minke"),
    (Shell::Fish, "usr/local/share/fish/vendor_completions.d/minke.fish"),
];
const MANUAL: &str = "usr/local/share/man/man1";

pub struct Files {
    root: PathBuf,
    listed: BTreeSet<String>,
}

impl Files {
    pub fn open(root: &Path) -> Result<Self> {
        let text = fs::read_to_string(root.join(LIST)).unwrap_or_default();
        // Only what an install can have written: a list that was meddled with removes nothing else.
        let is_ours = |line: &&str| {
            line.starts_with("usr/local/") || line.starts_with("etc/systemd/") || line.starts_with("etc/init.d/")
        };
        let listed = text.lines().filter(is_ours).filter(|line| !line.contains("..")).map(str::to_string).collect();
        Ok(Self { root: root.to_path_buf(), listed })
    }

    /// Notes a file before it is written, so that half an install can be removed.
    fn note(&mut self, path: &str) -> Result<()> {
        if self.listed.insert(path.to_string()) {
            let text = self.listed.iter().map(|line| format!("{line}\n")).collect::<String>();
            put(&self.root.join(LIST), text.as_bytes(), 0o644)?;
        }
        Ok(())
    }

    pub fn write(&mut self, path: &str, content: &[u8], mode: u32) -> Result<()> {
        self.note(path)?;
        put(&self.root.join(path), content, mode)
    }

    pub fn copy(&mut self, from: &Path, path: &str, mode: u32) -> Result<()> {
        self.note(path)?;
        let to = self.root.join(path);
        let is_same = from.canonicalize().ok().is_some_and(|from| to.canonicalize().ok() == Some(from));
        if is_same {
            return Ok(());
        }
        let mut source = File::open(from).with_context(|| format!("can't read {}", from.display()))?;
        replace(&to, mode, |file| std::io::copy(&mut source, file).map(drop))
    }

    /// Completion scripts and manual pages.
    pub fn write_documentation(&mut self) -> Result<()> {
        for (shell, path) in COMPLETIONS {
            self.write(path, &completion::completion(*shell)?, 0o644)?;
        }
        let pages = tempfile::tempdir().context("can't make a temporary directory")?;
        completion::write_pages(pages.path())?;
        for entry in fs::read_dir(pages.path())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            self.write(&format!("{MANUAL}/{name}"), &fs::read(entry.path())?, 0o644)?;
        }
        Ok(())
    }

    /// Returns how many files went.
    pub fn remove_all(self) -> Result<usize> {
        let mut removed = 0;
        for path in self.listed.iter().map(String::as_str).chain([LIST]) {
            let path = self.root.join(path);
            match fs::remove_file(&path) {
                Ok(()) => removed += 1,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("can't remove {}", path.display())),
            }
        }
        Ok(removed)
    }
}

pub fn put(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    replace(path, mode, |file| file.write_all(content))
}

/// Writes beside the file and takes its place in one step; one that runs goes on with the former.
fn replace(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // The same name each time: what an install left that was cut off is written over.
    let partial = path.with_file_name(format!(".{name}.partial"));
    let write = || -> std::io::Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = File::create(&partial)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        fill(&mut file)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&partial))).with_context(|| {
        format!(
            "can't write {}: is its disk full or read-only? Nothing was lost; try again when it can be written",
            path.display()
        )
    })
}
