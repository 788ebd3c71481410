//! Files that become data: of `--from-file`, `--from-env-file` and kustomizations.
//! Implemented by the disk here and by maps in tests.
//! Reads only what it is asked for by name.

use std::path::Path;

pub trait SourceFiles {
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;
    /// Names of the regular files in a directory in order; none if the path is no directory.
    fn directory(&self, path: &str) -> Option<Vec<String>>;
    /// Whether a kustomization may only read what is beside or below it.
    fn keeps_below(&self) -> bool {
        true
    }
}

/// The file system.
pub struct Disk;

impl SourceFiles for Disk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                return "no such file or directory".to_string();
            }
            if error.kind() == std::io::ErrorKind::PermissionDenied {
                return "permission denied".to_string();
            }
            error.to_string()
        })
    }

    fn directory(&self, path: &str) -> Option<Vec<String>> {
        let entries = std::fs::read_dir(Path::new(path)).ok()?;
        let files = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let mut names: Vec<String> = files.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        Some(names)
    }
}

/// The file system for whoever trusts the kustomizations.
pub struct WholeDisk;

impl SourceFiles for WholeDisk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        Disk.read(path)
    }

    fn directory(&self, path: &str) -> Option<Vec<String>> {
        Disk.directory(path)
    }

    fn keeps_below(&self) -> bool {
        false
    }
}

/// Stricter than what a container's variables may be called.
const VARIABLE_RULE: &str = "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.', and must not start with a digit (e.g. 'my.env-name', or 'MY_ENV.NAME', or 'MyEnvName1', regex used for validation is '[-._a-zA-Z][-._a-zA-Z0-9]*')";

fn is_variable(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    name.bytes().all(fits) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}

/// Lines of `KEY=VALUE`; a key alone takes its value from the environment. Comments and empty lines are left out.
pub fn env_file(bytes: &[u8], environment: impl Fn(&str) -> Option<String>) -> Result<Vec<(String, String)>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "env file contains invalid utf8 bytes".to_string())?;
    let mut pairs = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = if i == 0 { line.trim_start_matches('\u{feff}') } else { line };
        let line = line.trim_start_matches(|c: char| c.is_whitespace());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key, value.to_string()),
            None => (line, environment(line).unwrap_or_default()),
        };
        if !is_variable(key) {
            let quoted = crate::template::go_format::quote(key);
            return Err(format!("{quoted} is not a valid key name: {VARIABLE_RULE}"));
        }
        pairs.push((key.to_string(), value));
    }
    Ok(pairs)
}

#[cfg(test)]
pub mod fake {
    use std::collections::BTreeMap;

    use super::SourceFiles;

    /// Files by path.
    #[derive(Default)]
    pub struct MapFiles(pub BTreeMap<String, Vec<u8>>);

    impl MapFiles {
        pub fn new(files: &[(&str, &str)]) -> Self {
            Self(files.iter().map(|(path, text)| (path.to_string(), text.as_bytes().to_vec())).collect())
        }
    }

    impl SourceFiles for MapFiles {
        fn read(&self, path: &str) -> Result<Vec<u8>, String> {
            self.0.get(path).cloned().ok_or_else(|| "no such file or directory".to_string())
        }

        fn directory(&self, path: &str) -> Option<Vec<String>> {
            let prefix = format!("{path}/");
            let names: Vec<String> = self
                .0
                .keys()
                .filter_map(|own| own.strip_prefix(&prefix))
                .filter(|rest| !rest.contains('/'))
                .map(str::to_string)
                .collect();
            (!names.is_empty()).then_some(names)
        }
    }
}
