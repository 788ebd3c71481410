//! `kustomize DIR`: the objects of a kustomization, printed.
//! A row of `verbs::ROOT`; also what `-k` reads. The objects are built in `crate::kustomize`.
//! Asks no server.

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, array, boolean, string},
    generate::source_files::{Disk, WholeDisk},
    kustomize,
    printers::yaml,
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    boolean("as-current-user", "false", "Run functions as the current user; there are none here"),
    boolean("enable-alpha-plugins", "false", "Functions and exec plugins; refused, as they are left out here"),
    boolean("enable-helm", "false", "Charts; refused, as they are left out here"),
    array("env", "Variable of functions; there are none here").short('e'),
    array("helm-api-versions", "API versions for charts; there are none here"),
    string("helm-command", "helm", "Program for charts; there are none here"),
    boolean("helm-debug", "false", "Output of the program for charts; there are none here"),
    string("helm-kube-version", "", "Version for charts; there are none here"),
    string("load-restrictor", "LoadRestrictionsRootOnly", "LoadRestrictionsNone: files may lie elsewhere"),
    array("mount", "Mount of functions; there are none here"),
    boolean("network", "false", "Network for functions; there are none here"),
    string("network-name", "bridge", "Network of functions; there are none here"),
    string("output", "", "File to write instead of printing").short('o'),
];

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
    for flag in ["enable-alpha-plugins", "enable-helm"] {
        if matches.bool(flag) {
            return Err(Failure::message(format!("--{flag} is not supported: functions and charts are left out")));
        }
    }
    let restrictor = matches.str("load-restrictor");
    if !["LoadRestrictionsRootOnly", "LoadRestrictionsNone"].contains(&restrictor) {
        return Err(Failure::message(format!(
            "illegal flag value --load-restrictor {restrictor}; legal values: [LoadRestrictionsRootOnly LoadRestrictionsNone]"
        )));
    }
    must_be_there(directory)?;
    let built = match restrictor {
        "LoadRestrictionsNone" => kustomize::build(directory, &WholeDisk),
        _ => kustomize::build(directory, &Disk),
    };
    let built = built.map_err(Failure::message)?;
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
