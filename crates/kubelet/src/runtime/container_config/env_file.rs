//! Values out of files in volumes: `NAME='value'` lines, in the small part of a shell's grammar that has one meaning.
//! Used by `environment`; containers write these files, so nothing in them is trusted.
//! A file is read only inside its volume and only up to a limit.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Container;

use super::sub_paths;

const FILE_BYTES_MAX: u64 = 1 << 20;

/// By volume and path.
pub type Files = BTreeMap<(String, String), io::Result<String>>;

/// A file that a container takes values from: its volume and path, and where the volume is on the host.
pub type NamedFile = (String, String, PathBuf);

/// The files that the container's environment names, of volumes that are there.
pub fn named(container: &Container, volumes: &BTreeMap<String, PathBuf>) -> Vec<NamedFile> {
    let sources = container.env.iter().flatten().filter_map(|env| env.value_from.as_ref()?.file_key_ref.as_ref());
    let files = sources.filter_map(|reference| {
        let root = volumes.get(&reference.volume_name)?.clone();
        Some((reference.volume_name.clone(), reference.path.clone(), root))
    });
    files.collect()
}

pub fn read_all(files: &[NamedFile]) -> Files {
    files.iter().map(|(volume, path, root)| ((volume.clone(), path.clone()), read(root, path))).collect()
}

/// The text of the file at `path` in the volume at `root`.
fn read(root: &Path, path: &str) -> io::Result<String> {
    let mut text = String::new();
    sub_paths::open_file(root, path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

/// What is wrong with a file of values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid environment variable format at line {line}: {problem}")]
pub struct EnvFileError {
    line: usize,
    problem: &'static str,
}

/// The value of `key`; `None` when it has none. A file that is wrong before the key has no values at all.
pub fn value(text: &str, key: &str) -> Result<Option<String>, EnvFileError> {
    let blank = [' ', '\t'];
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let wrong = |problem| Err(EnvFileError { line: number + 1, problem });
        let line = line.trim_start_matches(blank);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, given)) = line.split_once('=') else { return wrong("missing '='") };
        if name.trim_end_matches(blank).is_empty() {
            return wrong("empty variable name");
        }
        if name.ends_with(blank) {
            return wrong("whitespace before '=' is not allowed");
        }
        // As in a shell: what follows the space is another word.
        if given.starts_with(blank) {
            match name == key {
                true => return Ok(None),
                false => continue,
            }
        }
        let Some(mut rest) = given.strip_prefix('\'') else { return wrong("value must be enclosed in single quotes") };
        let mut value = String::new();
        let after = loop {
            match rest.split_once('\'') {
                Some((last, after)) => {
                    value.push_str(last);
                    break after.trim_start_matches(blank);
                }
                None => {
                    value.push_str(rest);
                    value.push('\n');
                    let Some((_, next)) = lines.next() else { return wrong("unclosed single quote") };
                    rest = next;
                }
            }
        };
        if !after.is_empty() && !after.starts_with('#') {
            return wrong("unexpected content after closing quote");
        }
        if name == key {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_one_meaning_is_a_value() {
        let check = |text: &str, expected: Result<Option<&str>, &str>| match (value(text, "K"), expected) {
            (Ok(found), Ok(wanted)) => assert_eq!(found.as_deref(), wanted, "{text}"),
            (Err(found), Err(part)) => assert!(found.to_string().contains(part), "{text}: {found}"),
            (found, wanted) => panic!("{text}: {found:?} instead of {wanted:?}"),
        };
        check("# c\n\nA='1'\n \tK='a # b' # c\n", Ok(Some("a # b")));
        check("K='one\n  two='\n", Ok(Some("one\n  two=")));
        check("A='1'\n", Ok(None));
        check("K=''\n", Ok(None));
        check("K= '1'\nK='2'", Ok(None));
        check("K=1", Err("at line 1: value must be enclosed in single quotes"));
        check("A='1'\nK ='1'", Err("at line 2: whitespace before '=' is not allowed"));
        check("='1'", Err("empty variable name"));
        check("word\nK='1'", Err("missing '='"));
        check("K='1'2", Err("unexpected content after closing quote"));
        check("K='1\n", Err("unclosed single quote"));
    }

    /// What a container does that wants to see a file of the host.
    #[test]
    fn files_are_read_inside_their_volume_only() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("volume");
        std::fs::create_dir_all(root.join("d")).unwrap();
        std::fs::write(directory.path().join("secret"), "K='host'").unwrap();
        std::fs::write(root.join("d/own"), "K='own'").unwrap();
        std::fs::write(root.join("large"), vec![b'#'; 2 << 20]).unwrap();
        std::os::unix::fs::symlink("../secret", root.join("out")).unwrap();
        std::os::unix::fs::symlink(directory.path().join("secret"), root.join("away")).unwrap();
        std::os::unix::fs::symlink("d/own", root.join("in")).unwrap();
        nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in ["d/own", "/d/own", "in"] {
            assert_eq!(read(&root, path).unwrap(), "K='own'", "{path}");
        }
        for path in ["out", "away", "../secret", "none", "d", "pipe", "large"] {
            assert!(read(&root, path).is_err(), "{path}");
        }
        assert_eq!(read(&root, "d/none").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
