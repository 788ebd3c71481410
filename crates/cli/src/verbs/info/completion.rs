//! `kubectl completion`: scripts that let a shell complete command lines; and `__complete`, which the scripts call.
//! A row of `verbs::ROOT`; `lib` gives `__complete` its words unparsed.
//! Names are asked of the server; where it does not answer, nothing is offered.

use crate::{
    command::{Command, Completion, complete},
    failure::{Failure, Result},
    flags::Matches,
    resource::{items_of, metadata},
    run,
    session::Session,
};

macro_rules! shell {
    ($constant:ident, $name:literal, $function:ident) => {
        static $constant: Command = Command {
            name: $name,
            aliases: &[],
            usage: "[options]",
            about: concat!("Print the completion script for ", $name),
            flags: &[],
            commands: &[],
            run: run!($function),
        };
    };
}

pub static COMMAND: Command = Command {
    name: "completion",
    aliases: &[],
    usage: "SHELL [options]",
    about: "Output shell completion code for the specified shell (bash, zsh, fish, or powershell)",
    flags: &[],
    commands: &[&BASH, &ZSH, &FISH, &POWERSHELL],
    run: run!(no_shell),
};

shell!(BASH, "bash", bash);
shell!(ZSH, "zsh", zsh);
shell!(FISH, "fish", fish);
shell!(POWERSHELL, "powershell", powershell);

const BASH_SCRIPT: &str = r#"# bash completion for kubectl
__kubectl_complete() {
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}") line
    COMPREPLY=()
    while IFS= read -r line; do
        [[ $line == :* ]] || COMPREPLY+=("${line%%$'\t'*}")
    done < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null)
}
complete -o default -F __kubectl_complete kubectl
"#;

const ZSH_SCRIPT: &str = r#"#compdef kubectl
compdef _kubectl kubectl
_kubectl() {
    local -a found
    local line
    while IFS= read -r line; do
        [[ $line == :* ]] || found+=("${${line%%$'\t'*}//:/\\:}${${(M)line:#*$'\t'*}:+:${line#*$'\t'}}")
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    _describe kubectl found
}
"#;

const FISH_SCRIPT: &str = r#"function __kubectl_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..-1] 2>/dev/null | string match -v ':*'
end
complete -c kubectl -f -a '(__kubectl_complete)'
"#;

const POWERSHELL_SCRIPT: &str = r#"Register-ArgumentCompleter -Native -CommandName 'kubectl' -ScriptBlock {
    param($word, $ast, $position)
    $words = @($ast.CommandElements | Select-Object -Skip 1 | ForEach-Object { "$_" })
    if ($word -eq '') { $words += '' }
    & $ast.CommandElements[0].Value __complete @words 2>$null | Where-Object { $_ -notlike ':*' } | ForEach-Object {
        $name = ($_ -split "`t")[0]
        [System.Management.Automation.CompletionResult]::new($name, $name, 'ParameterValue', $name)
    }
}
"#;

async fn no_shell(_: &Session, matches: &Matches) -> Result<()> {
    match matches.args.as_slice() {
        [] => Err(Failure::usage("Shell not specified.")),
        [shell] => Err(Failure::usage(format!("Unsupported shell type {shell:?}."))),
        _ => Err(Failure::usage("Too many arguments. Expected only the shell type.")),
    }
}

fn script(session: &Session, matches: &Matches, script: &str) -> Result<()> {
    if !matches.args.is_empty() {
        return Err(Failure::Plain(
            "error: Too many arguments. Expected only the shell type.\nSee 'kubectl completion -h' for help and examples".to_string(),
        ));
    }
    session.output.print(script);
    Ok(())
}

async fn bash(session: &Session, matches: &Matches) -> Result<()> {
    script(session, matches, BASH_SCRIPT)
}

async fn zsh(session: &Session, matches: &Matches) -> Result<()> {
    script(session, matches, ZSH_SCRIPT)
}

async fn fish(session: &Session, matches: &Matches) -> Result<()> {
    script(session, matches, FISH_SCRIPT)
}

async fn powershell(session: &Session, matches: &Matches) -> Result<()> {
    script(session, matches, POWERSHELL_SCRIPT)
}

/// Verbs whose first argument is a type.
const TYPED: [&str; 17] = [
    "get",
    "describe",
    "delete",
    "edit",
    "label",
    "annotate",
    "patch",
    "scale",
    "autoscale",
    "expose",
    "wait",
    "why",
    "timeline",
    "status",
    "restart",
    "undo",
    "history",
];
/// Verbs whose argument is a pod.
const PODS: [&str; 5] = ["logs", "exec", "attach", "port-forward", "cp"];

/// Prints what may follow `words`, the last of which is being typed.
pub async fn candidates(session: &Session, root: &'static Command, words: &[String]) {
    let last = words.last().map(String::as_str).unwrap_or_default();
    let offer = |text: &str| {
        if text.starts_with(last) {
            session.output.line(text);
        }
    };
    match complete(root, words) {
        Completion::Words(found) => found.iter().for_each(|word| offer(word)),
        Completion::Values(flag) => match flag {
            "namespace" => names(session, "namespaces").await.iter().for_each(|name| offer(name)),
            "context" | "cluster" | "user" => {
                let Ok(config) = session.config() else { return };
                let entries = match flag {
                    "context" => &config.contexts,
                    "cluster" => &config.clusters,
                    _ => &config.users,
                };
                entries.iter().for_each(|entry| offer(&entry.name));
            }
            _ => {}
        },
        Completion::Arguments(command, given) => match (command, given.as_slice()) {
            (verb, []) if PODS.contains(&verb) => names(session, "pods").await.iter().for_each(|name| offer(name)),
            ("drain" | "cordon" | "uncordon", _) => names(session, "nodes").await.iter().for_each(|name| offer(name)),
            ("use-context" | "delete-context" | "rename-context", []) => {
                if let Ok(config) = session.config() {
                    config.contexts.iter().for_each(|entry| offer(&entry.name));
                }
            }
            (verb, []) if TYPED.contains(&verb) => types(session, last).await.iter().for_each(|name| offer(name)),
            (verb, [word, ..]) if TYPED.contains(&verb) => {
                names(session, word).await.iter().for_each(|name| offer(name))
            }
            _ => {}
        },
    }
    // cobra's directive: offer no files.
    session.output.line(":4");
}

async fn types(session: &Session, last: &str) -> Vec<String> {
    if let Some((word, _)) = last.split_once('/') {
        return names(session, word).await.iter().map(|name| format!("{word}/{name}")).collect();
    }
    let Ok(discovery) = session.discovery().await else { return Vec::new() };
    let mut found: Vec<String> =
        discovery.resources.iter().filter(|r| !r.name.contains('/') && r.can("list")).map(|r| r.qualified()).collect();
    found.sort();
    found.dedup();
    found
}

async fn names(session: &Session, word: &str) -> Vec<String> {
    let listed = async {
        let resource = session.resource(word).await?;
        let (namespace, _) = session.namespace()?;
        session.rest().await?.get(resource.path(&namespace, "")).value().await
    };
    match listed.await {
        Ok(list) => items_of(list).iter().map(|object| metadata(object, "name").to_string()).collect(),
        Err(_) => Vec::new(),
    }
}
