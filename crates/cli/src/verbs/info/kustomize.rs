//! `kustomize DIR`: the objects of a kustomization, printed.
//! A row of `verbs::ROOT`; also what `-k` reads. The objects are built in `crate::kustomize`.
//! Asks no server.

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, string},
    generate::source_files::Disk,
    kustomize,
    printers::yaml,
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[string("output", "", "File to write instead of printing").short('o')];

pub static COMMAND: Command = Command {
    name: "kustomize",
    aliases: &[],
    usage: "DIR [flags] [options]",
    about: "Build a kustomization target from a directory or URL",
    flags: &[FLAGS],
    commands: &[],
    run: run!(run),
};

/// A directory of this machine must be there; what is no path is looked for elsewhere.
pub fn must_be_there(directory: &str) -> Result<()> {
    if directory.contains("://") || std::path::Path::new(directory).exists() {
        return Ok(());
    }
    let whole = absolute(directory);
    Err(Failure::message(format!(
        "must build at directory: not a valid directory: evalsymlink failure on '{directory}' : lstat {whole}: no such file or directory"
    )))
}

fn absolute(directory: &str) -> String {
    std::path::absolute(directory).map_or_else(|_| directory.to_string(), |path| path.display().to_string())
}

async fn run(session: &Session, matches: &Matches) -> Result<()> {
    let directory = match matches.args.as_slice() {
        [] => ".",
        [directory] => directory,
        _ => return Err(Failure::message("specify one path to kustomization.yaml")),
    };
    must_be_there(directory)?;
    let built = kustomize::build(directory, &Disk).map_err(Failure::message)?;
    for warning in &built.warnings {
        session.output.warn(warning);
    }
    let text = built.objects.iter().map(yaml::to_string).collect::<Vec<_>>().join("---\n");
    match matches.opt("output") {
        None => session.output.print(&text),
        Some(file) => std::fs::write(file, text).map_err(|error| Failure::message(format!("open {file}: {error}")))?,
    }
    Ok(())
}
