//! Plugins: programs named `kubectl-…` on the PATH, and `kubectl plugin list`.
//! A row of `verbs::ROOT`; `lib` asks for a plugin where no command fits.
//! A command of ours is never replaced by a plugin.

use std::{
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
};

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean},
    run,
    session::Session,
};

pub static COMMAND: Command = Command {
    name: "plugin",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Provides utilities for interacting with plugins",
    flags: &[],
    commands: &[&LIST],
    run: None,
};

const FLAGS: &[Flag] = &[boolean("name-only", "false", "Only the names of the files")];

static LIST: Command = Command {
    name: "list",
    aliases: &[],
    usage: "[flags] [options]",
    about: "List all visible plugin executables on a user's PATH",
    flags: &[FLAGS],
    commands: &[],
    run: run!(list),
};

fn folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found: Vec<PathBuf> = Vec::new();
    for folder in std::env::split_paths(&path) {
        if !folder.as_os_str().is_empty() && !found.contains(&folder) {
            found.push(folder);
        }
    }
    found
}

fn is_executable(file: &std::path::Path) -> bool {
    std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

async fn list(session: &Session, matches: &Matches) -> Result<()> {
    let mut found = Vec::new();
    for folder in folders() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        let mut files: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
        files.sort();
        found.extend(files.into_iter().filter(|f| {
            f.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("kubectl-")) && !f.is_dir()
        }));
    }
    if found.is_empty() {
        return Err(Failure::message("unable to find any kubectl plugins in your PATH"));
    }
    session.output.line("The following compatible plugins are available:\n");
    let (mut names, mut warnings): (Vec<String>, usize) = (Vec::new(), 0);
    for file in &found {
        let name = file.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_string();
        match matches.bool("name-only") {
            true => session.output.line(&name),
            false => session.output.line(&file.display().to_string()),
        }
        if !is_executable(file) {
            warnings += 1;
            session.output.warn(&format!(
                "  - warning: {} identified as a kubectl plugin, but it is not executable",
                file.display()
            ));
        }
        if names.contains(&name) {
            warnings += 1;
            session
                .output
                .warn(&format!("  - warning: {} is overshadowed by a similarly named plugin", file.display()));
        }
        let words: Vec<&str> = name.split('-').skip(1).collect();
        if !names.contains(&name)
            && let Some(path) = existing(&words)
        {
            warnings += 1;
            session.output.warn(&format!("  - warning: {name} overwrites existing command: {path:?}"));
        }
        names.push(name);
    }
    match warnings {
        0 => Ok(()),
        1 => Err(Failure::message("one plugin warning was found")),
        count => Err(Failure::message(format!("{count} plugin warnings were found"))),
    }
}

/// The path of the command of ours that the words name.
fn existing(words: &[&str]) -> Option<String> {
    let mut command = &crate::verbs::ROOT;
    let mut path = command.name.to_string();
    for word in words {
        command = command.commands.iter().copied().find(|c| c.name == *word || c.aliases.contains(word))?;
        path = format!("{path} {}", command.name);
    }
    Some(path)
}

/// Becomes the plugin that the words name, the longest name first; returns if there is none of at least `least` words.
pub fn become_plugin(words: &[String], least: usize) -> Option<Failure> {
    let named: Vec<&String> = words.iter().take_while(|w| !w.starts_with('-')).collect();
    for count in (least..=named.len()).rev() {
        let name: Vec<String> = named[..count].iter().map(|w| w.replace('-', "_")).collect();
        let file = format!("kubectl-{}", name.join("-"));
        if let Some(path) = folders().iter().map(|f| f.join(&file)).find(|f| is_executable(f)) {
            let error = std::process::Command::new(&path).args(&words[count..]).exec();
            return Some(Failure::message(format!("{}: {error}", path.display())));
        }
    }
    None
}
