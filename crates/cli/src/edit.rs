//! The editor: an object as YAML in a temporary file, and what comes back.
//! Used by `edit`, `apply edit-last-applied` and `create --edit`.
//! The file is kept where its content can't be read back.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    failure::{Failure, Result},
    flags::Matches,
    printers::yaml,
    session::Session,
    terminal,
};

const ADVICE: &str = "# Please edit the object below. Lines beginning with a '#' will be ignored,\n# and an empty file will abort the edit. If an error occurs while saving this file will be\n# reopened with the relevant failures.\n#\n";

/// Why a file has to be edited again.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Reason {
    pub head: String,
    pub causes: Vec<String>,
}

/// What stands above the objects, each line behind a `#`.
pub fn header(reasons: &[Reason]) -> String {
    let commented = |text: &str| text.trim_end_matches('\n').replace('\n', "\n# ");
    let mut text = ADVICE.to_string();
    for Reason { head, causes } in reasons {
        let colon = if causes.is_empty() { "" } else { ":" };
        text.push_str(&format!("# {}{colon}\n", commented(head)));
        causes.iter().for_each(|cause| text.push_str(&format!("# * {}\n", commented(cause))));
        text.push_str("#\n");
    }
    text
}

/// Without the lines that begin with a `#`.
pub fn without_comments(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.trim_start().starts_with('#')).collect()
}

/// The editor's program and its arguments before the file's; whether a shell has to read them.
fn editor() -> (Vec<String>, bool) {
    let named = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let text = named("KUBE_EDITOR").or_else(|| named("EDITOR")).unwrap_or_else(|| "vi".to_string());
    match text.contains(' ') && text.contains(['"', '\'', '\\']) {
        true => (vec![named("SHELL").unwrap_or_else(|| "/bin/bash".to_string()), "-c".to_string(), text], true),
        false => (text.split(' ').map(str::to_string).collect(), false),
    }
}

async fn launch(path: &Path) -> Result<()> {
    let (mut words, shell) = editor();
    let shown = words.join(" ");
    match words.last_mut() {
        Some(script) if shell => script.push_str(&format!(" {:?}", path.display().to_string())),
        _ => words.push(path.display().to_string()),
    }
    // An editor that ends badly may leave the terminal as no shell wants it.
    let _kept = terminal::Kept::enter();
    let run = env::spawn_blocking(move || std::process::Command::new(&words[0]).args(&words[1..]).status());
    match run.await.map_err(|panicked| Failure::message(format!("editor: {panicked}")))? {
        Ok(status) if status.success() => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Failure::message(format!("unable to launch the editor {shown:?}")))
        }
        _ => Err(Failure::message(format!("there was a problem with the editor {shown:?}"))),
    }
}

/// What the editor left, and the file it is in, which is the caller's to remove.
pub struct Edited {
    pub text: String,
    pub file: PathBuf,
}

/// Opens the text in a file of that suffix.
pub async fn edit_file(session: &Session, matches: &Matches, text: &str, suffix: &str) -> Result<Edited> {
    session.output.flush();
    let mut file = tempfile::Builder::new().prefix("kubectl-edit-").suffix(suffix).tempfile()?;
    let text = match matches.bool("windows-line-endings") {
        true => text.replace('\n', "\r\n"),
        false => text.to_string(),
    };
    file.write_all(text.as_bytes())?;
    let (_, path) = file.keep().map_err(|e| Failure::message(e.to_string()))?;
    launch(&path).await?;
    let after = std::fs::read_to_string(&path)?;
    Ok(Edited { text: after.replace("\r\n", "\n"), file: path })
}

/// What the person made of it; `None` if nothing.
pub async fn edit_value(session: &Session, matches: &Matches, value: &Value) -> Result<Option<Value>> {
    let before = yaml::to_string(value);
    let Edited { text, file } = edit_file(session, matches, &format!("{}{before}", header(&[])), ".yaml").await?;
    let after = without_comments(&text);
    if after.trim().is_empty() || after == before {
        std::fs::remove_file(file)?;
        return Ok(None);
    }
    let read = crate::resource::yaml::read(after.as_bytes());
    match read {
        Ok(value) => {
            std::fs::remove_file(file)?;
            Ok(Some(value))
        }
        Err(why) => {
            session.output.warn(&preserved(&file));
            Err(Failure::Message(why))
        }
    }
}

/// Where the work of the person is, when it could not be used.
pub fn preserved(file: &Path) -> String {
    format!("A copy of your changes has been stored to {:?}", file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_above_the_object() {
        let check = |reasons: &[Reason], wanted: &str| {
            assert_eq!(header(reasons).strip_prefix(ADVICE), Some(wanted), "{reasons:?}");
        };
        check(&[], "");
        check(&[Reason { head: "a\nb".into(), causes: Vec::new() }], "# a\n# b\n#\n");
        let causes = vec!["spec.x: wrong".to_string(), "spec.y: odd".to_string()];
        check(&[Reason { head: "h".into(), causes }], "# h:\n# * spec.x: wrong\n# * spec.y: odd\n#\n");
        assert_eq!(without_comments("# a\n  # b\nc: d # e\n"), "c: d # e\n");
    }
}
