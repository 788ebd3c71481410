//! Which credential plugins may be run: `credentialPluginPolicy` and `credentialPluginAllowlist`.
//! Read by `kuberc` out of the preferences; asked by `kubeconfig::exec` before it starts a program.
//! Pure but for the search along PATH.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::kustomize::clean_path;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PluginPolicy {
    #[default]
    AllowAll,
    DenyAll,
    Allowlist(Vec<String>),
}

/// The path that a shell would run; `None` if there is no such program.
fn look(program: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let runs = |path: &Path| std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    match program.contains('/') {
        true => Some(PathBuf::from(program)).filter(|path| runs(path)),
        false => directories.iter().map(|folder| folder.join(program)).find(|path| runs(path)),
    }
}

impl PluginPolicy {
    pub fn of(preference: &Value) -> Result<Self, String> {
        let list = &preference["credentialPluginAllowlist"];
        match preference["credentialPluginPolicy"].as_str().unwrap_or_default() {
            policy @ ("" | "AllowAll" | "DenyAll") => match (list.is_null(), policy) {
                (false, _) => Err(format!(
                    "misconfigured credential plugin allowlist: plugin policy is {policy:?} but allowlist is non-nil"
                )),
                (true, "DenyAll") => Ok(Self::DenyAll),
                (true, _) => Ok(Self::AllowAll),
            },
            "Allowlist" => allowed(list).map(Self::Allowlist),
            other => Err(format!("unknown plugin policy: {other:?}")),
        }
    }

    /// Whether a program may be run; why not.
    pub fn check(&self, program: &str) -> Result<(), String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        self.check_along(program, &std::env::split_paths(&path).collect::<Vec<_>>())
    }

    fn check_along(&self, program: &str, directories: &[PathBuf]) -> Result<(), String> {
        let listed = match self {
            Self::AllowAll => return Ok(()),
            Self::DenyAll => return Err(format!("plugin {program:?} not allowed: policy set to \"DenyAll\"")),
            Self::Allowlist(listed) => listed,
        };
        if listed.iter().any(|name| name == program) {
            return Ok(());
        }
        let Some(resolved) = look(program, directories) else {
            return Err(format!(
                "plugin path {program:?} cannot be resolved for credential plugin allowlist check: exec: {program:?}: executable file not found in $PATH"
            ));
        };
        match listed.iter().any(|name| look(name, directories).as_deref() == Some(&*resolved)) {
            true => Ok(()),
            false => Err(format!(
                "plugin path {:?} is not permitted by the credential plugin allowlist",
                resolved.display().to_string()
            )),
        }
    }
}

fn allowed(list: &Value) -> Result<Vec<String>, String> {
    let policy = "credential plugin policy set to \"Allowlist\"";
    let Some(entries) = list.as_array() else { return Err(format!("{policy}, but allowlist is unspecified")) };
    if entries.is_empty() {
        return Err(format!("{policy}, but allowlist is empty; use \"DenyAll\" policy instead"));
    }
    let mut names = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let name = entry["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            return Err(format!("misconfigured credential plugin allowlist: empty allowlist entry #{}", at + 1));
        }
        let clean = clean_path(name);
        if clean != name {
            return Err(format!("non-normalized file path: {name:?} vs {clean:?}"));
        }
        names.push(clean);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_whole_or_refused() {
        let check = |preference: Value, wanted: Result<PluginPolicy, &str>| {
            assert_eq!(PluginPolicy::of(&preference), wanted.map_err(str::to_string), "{preference}");
        };
        check(json!({}), Ok(PluginPolicy::AllowAll));
        check(json!({"credentialPluginPolicy": "DenyAll"}), Ok(PluginPolicy::DenyAll));
        check(json!({"credentialPluginPolicy": "Nope"}), Err("unknown plugin policy: \"Nope\""));
        check(
            json!({"credentialPluginAllowlist": []}),
            Err("misconfigured credential plugin allowlist: plugin policy is \"\" but allowlist is non-nil"),
        );
        check(
            json!({"credentialPluginPolicy": "Allowlist"}),
            Err("credential plugin policy set to \"Allowlist\", but allowlist is unspecified"),
        );
        let list =
            |name: &str| json!({"credentialPluginPolicy": "Allowlist", "credentialPluginAllowlist": [{"name": name}]});
        check(list("/a/b"), Ok(PluginPolicy::Allowlist(vec!["/a/b".to_string()])));
        check(list("/a/../b"), Err("non-normalized file path: \"/a/../b\" vs \"/b\""));
        check(list(""), Err("misconfigured credential plugin allowlist: empty allowlist entry #1"));
    }

    #[test]
    fn only_listed_programs_run() {
        let directories = [PathBuf::from("/bin"), PathBuf::from("/usr/bin")];
        let check = |listed: &str, program: &str, wanted: Result<(), &str>| {
            let policy = PluginPolicy::Allowlist(vec![listed.to_string()]);
            assert_eq!(policy.check_along(program, &directories), wanted.map_err(str::to_string), "{listed} {program}");
        };
        check("sh", "sh", Ok(()));
        check("/bin/sh", "sh", Ok(()));
        check("sh", "/bin/sh", Ok(()));
        check("/bin/sh", "ls", Err("plugin path \"/bin/ls\" is not permitted by the credential plugin allowlist"));
        let why = PluginPolicy::DenyAll.check("sh");
        assert_eq!(why, Err("plugin \"sh\" not allowed: policy set to \"DenyAll\"".to_string()));
    }
}
