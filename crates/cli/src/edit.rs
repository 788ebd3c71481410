//! The editor: an object as YAML in a temporary file, and what comes back.
//! Used by `edit`, `apply edit-last-applied` and `create --edit`.
//! The file is kept where its content can't be read back.

use std::io::{Read, Write};

use serde_json::Value;

use crate::{
    failure::{Failure, Result},
    printers::yaml,
    session::Session,
};

const ADVICE: &str = "# Please edit the object below. Lines beginning with a '#' will be ignored,\n# and an empty file will abort the edit. If an error occurs while saving this file will be\n# reopened with the relevant failures.\n#\n";

fn editor() -> Vec<String> {
    let named = |name: &str| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
    let text = named("KUBE_EDITOR").or_else(|| named("EDITOR")).unwrap_or_else(|| "vi".to_string());
    text.split_whitespace().map(str::to_string).collect()
}

/// What the person made of it; `None` if nothing. `problem` is shown at the top.
pub fn edit_value(session: &Session, value: &Value, problem: &str) -> Result<Option<Value>> {
    let before = yaml::to_string(value);
    let Some(after) = edit_text(session, &before, problem)? else { return Ok(None) };
    crate::resource::yaml::read(after.as_bytes()).map(Some).map_err(Failure::Message)
}

/// The text that came back without its comments; `None` if it is empty or the same.
pub fn edit_text(session: &Session, before: &str, problem: &str) -> Result<Option<String>> {
    session.output.flush();
    let mut file = tempfile::Builder::new().prefix("kubectl-edit-").suffix(".yaml").tempfile()?;
    let told: String = problem.lines().map(|line| format!("# {line}\n")).collect();
    file.write_all(format!("{ADVICE}{told}{before}").as_bytes())?;
    file.flush()?;
    let words = editor();
    let program = words.first().cloned().unwrap_or_default();
    // Through a shell, so that quotes in $EDITOR mean what they mean there.
    let script = format!("{} \"{}\"", words.join(" "), file.path().display());
    let status = std::process::Command::new(std::env::var("SHELL").unwrap_or_else(|_| "/bin/bash".into()))
        .arg("-c")
        .arg(script)
        .status()
        .map_err(|e| Failure::message(format!("unable to launch the editor {program:?}: {e}")))?;
    if !status.success() {
        return Err(Failure::message(format!("there was a problem with the editor {program:?}")));
    }
    let mut after = String::new();
    std::fs::File::open(file.path())?.read_to_string(&mut after)?;
    let kept: String = after.split_inclusive('\n').filter(|line| !line.starts_with('#')).collect();
    Ok((!kept.trim().is_empty() && kept != before).then_some(kept))
}
