//! The discovery cache: `~/.kube/cache/discovery/<host>/`, one file per group version, shared with stock kubectl.
//! Used by `discovery`.
//! A file that is older than six hours counts for nothing; files are replaced whole.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Discovery, Group, text};
use crate::{kubeconfig, session::Session};

const AGE_MAX_SECONDS: i64 = 6 * 3600;

/// Where the answers of `server` are kept. Nowhere for a fake server.
pub fn place(session: &Session, server: &str) -> Option<PathBuf> {
    let host = server.trim_start_matches("https://").trim_start_matches("http://");
    let safe: String = host
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '(' | '/' | '.' | ')') { c } else { '_' })
        .collect();
    if server.ends_with(".test") {
        return None;
    }
    Some(base(session).join("discovery").join(safe))
}

fn base(session: &Session) -> PathBuf {
    if let Some(folder) = session.matches.opt("cache-dir") {
        return folder.into();
    }
    match std::env::var_os("KUBECACHEDIR").filter(|v| !v.is_empty()) {
        Some(folder) => folder.into(),
        None => kubeconfig::home().join(".kube/cache"),
    }
}

fn read_young(file: &Path, now_seconds: i64) -> Option<Value> {
    let modified = std::fs::metadata(file).ok()?.modified().ok()?;
    let seconds = modified.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs() as i64;
    if now_seconds - seconds > AGE_MAX_SECONDS {
        return None;
    }
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

pub fn read(place: &Path, env: &env::Env) -> Option<Discovery> {
    let now = env.now().as_second();
    let groups = read_young(&place.join("servergroups.json"), now)?;
    let mut found = Discovery::default();
    for group in groups["groups"].as_array()? {
        let name = text(&group["name"]);
        let versions: Vec<String> = group["versions"].as_array()?.iter().map(|v| text(&v["version"])).collect();
        for version in &versions {
            let list = read_young(&place.join(&name).join(version).join("serverresources.json"), now)?;
            found.add_list(&name, version, &list);
        }
        let preferred = text(&group["preferredVersion"]["version"]);
        found.groups.push(Group { name, versions, preferred });
    }
    Some(found)
}

pub fn write(place: &Path, found: &Discovery) -> std::io::Result<()> {
    let put = |file: PathBuf, value: Value| -> std::io::Result<()> {
        let folder = file.parent().unwrap_or(place);
        std::fs::create_dir_all(folder)?;
        let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
        std::io::Write::write_all(&mut temporary, value.to_string().as_bytes())?;
        temporary.persist(&file).map_err(|e| e.error)?;
        Ok(())
    };
    for group in &found.groups {
        for version in &group.versions {
            let shown = format!("{}/{version}", group.name);
            if found.failed.iter().any(|(name, _)| *name == shown) {
                continue;
            }
            let file = place.join(&group.name).join(version).join("serverresources.json");
            put(file, found.resource_list(&group.name, version))?;
        }
    }
    put(place.join("servergroups.json"), found.group_list())
}
