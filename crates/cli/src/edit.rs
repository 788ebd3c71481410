//! The editor: an object as YAML in a temporary file, and what comes back.
//! Used by `edit`, `apply edit-last-applied` and `create --edit`.
//! The file is kept where its content can't be read back.

use std::io::{Read, Write};

use serde_json::Value;

use crate::{
    failure::{Failure, Result},
    flags::Matches,
    printers::yaml,
    session::Session,
};

const ADVICE: &str = "# Please edit the object below. Lines beginning with a '#' will be ignored,\n# and an empty file will abort the edit. If an error occurs while saving this file will be\n# reopened with the relevant failures.\n#\n";

/// The editor's program and its arguments before the file's; whether a shell has to read them.
fn editor() -> (Vec<String>, bool) {
    let named = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let text = named("KUBE_EDITOR").or_else(|| named("EDITOR")).unwrap_or_else(|| "vi".to_string());
    match text.contains(' ') && text.contains(['"', '\'', '\\']) {
        true => (vec![named("SHELL").unwrap_or_else(|| "/bin/bash".to_string()), "-c".to_string(), text], true),
        false => (text.split(' ').map(str::to_string).collect(), false),
    }
}

fn launch(path: &std::path::Path) -> Result<()> {
    let (mut words, shell) = editor();
    let shown = words.join(" ");
    match words.last_mut() {
        Some(script) if shell => script.push_str(&format!(" {:?}", path.display().to_string())),
        _ => words.push(path.display().to_string()),
    }
    match std::process::Command::new(&words[0]).args(&words[1..]).status() {
        Ok(status) if status.success() => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Failure::message(format!("unable to launch the editor {shown:?}")))
        }
        _ => Err(Failure::message(format!("there was a problem with the editor {shown:?}"))),
    }
}

/// What the person made of it; `None` if nothing. `problem` is shown at the top.
pub fn edit_value(session: &Session, matches: &Matches, value: &Value, problem: &str) -> Result<Option<Value>> {
    let before = yaml::to_string(value);
    let Some(after) = edit_text(session, matches, &before, problem)? else { return Ok(None) };
    crate::resource::yaml::read(after.as_bytes()).map(Some).map_err(Failure::Message)
}

/// The text that came back without its comments; `None` if it is empty or the same.
pub fn edit_text(session: &Session, matches: &Matches, before: &str, problem: &str) -> Result<Option<String>> {
    session.output.flush();
    let mut file = tempfile::Builder::new().prefix("kubectl-edit-").suffix(".yaml").tempfile()?;
    let told: String = problem.lines().map(|line| format!("# {line}\n")).collect();
    let mut text = format!("{ADVICE}{told}{before}");
    if matches.bool("windows-line-endings") {
        text = text.replace('\n', "\r\n");
    }
    file.write_all(text.as_bytes())?;
    file.flush()?;
    launch(file.path())?;
    let mut after = String::new();
    std::fs::File::open(file.path())?.read_to_string(&mut after)?;
    let after = after.replace("\r\n", "\n");
    let kept: String = after.split_inclusive('\n').filter(|line| !line.starts_with('#')).collect();
    Ok((!kept.trim().is_empty() && kept != before).then_some(kept))
}
