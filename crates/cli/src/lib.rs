//! kubectl: the verbs, and what they share.
//! `verbs` is the table of commands, one file each; `session` is what a verb is given: kubeconfig, REST, discovery, output.
//! Called by `minke kubectl`, and when the binary is called `kubectl`.
//! Starts one thread only, and nothing that the verb does not need.

pub mod apply;
pub mod command;
pub mod describe;
pub mod discovery;
mod edit;
pub mod explain;
pub mod failure;
pub mod flags;
pub mod generate;
pub mod kubeconfig;
mod kuberc;
pub mod kustomize;
pub mod live_top;
pub mod object_reader;
pub mod output;
pub mod printers;
pub mod resource;
pub mod rest;
pub mod session;
pub mod template;
mod terminal;
pub mod timeline;
pub mod translation;
mod verbs;
pub mod why;

#[cfg(test)]
pub mod fake;

use crate::{command::Invocation, output::Output, session::Session};

/// Whether the program was called by the name `kubectl`.
pub fn called_as_kubectl(argument_zero: &str) -> bool {
    std::path::Path::new(argument_zero).file_name().is_some_and(|name| name == "kubectl")
}

/// Runs one command line; `args` begins behind the program's name. Returns the exit code.
pub fn main(args: Vec<String>) -> u8 {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {error}");
            return 1;
        }
    };
    let output = Output::standard();
    let code =
        runtime.block_on(run_line(&args, output, |output, matches| Session::new(output, matches, env::Env::real())));
    // A thread that still reads the terminal must not hold up the end.
    runtime.shutdown_background();
    code
}

/// Runs one command line with the session that `open` makes, and prints what went wrong.
pub async fn run_line(args: &[String], output: Output, open: impl FnOnce(Output, &flags::Matches) -> Session) -> u8 {
    if let Some((first, words)) = args.split_first()
        && ["__complete", "__completeNoDesc"].contains(&first.as_str())
    {
        let session = open(output.clone(), &command::globals_of(words));
        verbs::candidates(&session, &verbs::ROOT, words).await;
        output.flush();
        return 0;
    }
    let preferred = match kuberc::apply(&verbs::ROOT, args) {
        Ok(preferred) => preferred,
        Err(why) => {
            output.warn(&why);
            output.flush();
            return 1;
        }
    };
    output.error_bytes(preferred.told.as_bytes());
    let args = &preferred.words[..];
    let (result, command) = match Invocation::parse(&verbs::ROOT, args) {
        Ok(Invocation::Help(text)) => {
            output.print(&text);
            (Ok(()), String::new())
        }
        Ok(Invocation::Incomplete { text, to_stdout }) => {
            match to_stdout {
                true => output.print(&text),
                false => output.error_bytes(text.as_bytes()),
            }
            (Err(failure::Failure::Exit(1)), String::new())
        }
        Ok(Invocation::Run(command, matches)) => {
            // `create` alone may be continued by plugins.
            if matches.command == "kubectl create"
                && !matches.args.is_empty()
                && args.first().is_some_and(|word| word == "create")
                && let Some(failure) = verbs::become_plugin(args, 2)
            {
                output.warn(&failure.report(&matches.command).0);
                return 1;
            }
            matches.deprecations.iter().for_each(|text| output.warn(text));
            let session = open(output.clone(), &matches).with_plugins(preferred.plugins.clone());
            if session.verbosity() >= 5 {
                let told = |text: &String| rest::log::line(&session.env, &output, "marshal.go:104", text);
                preferred.logged.iter().for_each(told);
            }
            let typed = matches.command.clone();
            let ran = match (flags::globals::unavailable(&session.matches), command.run) {
                (Err(failure), _) => Err(failure),
                (Ok(()), Some(run)) => run(&session, &matches).await,
                (Ok(()), None) => Ok(()),
            };
            (with_help(ran.and_then(|()| session.after()), command, &typed), typed)
        }
        Err((failure, command)) => {
            // What is no command of ours may be a plugin's.
            let named =
                matches!(failure, failure::Failure::Plain(_)) && args.first().is_some_and(|w| !w.starts_with('-'));
            let plugin = match args.first().filter(|word| word.starts_with('-')) {
                Some(flag) if matches!(failure, failure::Failure::Plain(_)) => {
                    Some(failure::Failure::Plain(format!("Error: flags cannot be placed before plugin name: {flag}")))
                }
                _ if named => verbs::become_plugin(args, 1),
                _ => None,
            };
            (Err(plugin.unwrap_or(failure)), command)
        }
    };
    output.flush();
    match result {
        Ok(()) => 0,
        Err(failure) => {
            if let failure::Failure::Printed { printed, .. } = &failure {
                output.print(printed);
            }
            let (text, code) = failure.report(&command);
            if !text.is_empty() {
                output.warn(text.trim_end_matches('\n'));
            }
            output.flush();
            code
        }
    }
}

/// Some commands answer a wrong line with their help first.
fn with_help(ran: failure::Result<()>, command: &'static command::Command, typed: &str) -> failure::Result<()> {
    match ran {
        Err(failure::Failure::Help(why)) => Err(failure::Failure::Printed {
            printed: command::help_text(command, typed, translation::Translation::of_environment()),
            failure: Box::new(why.map_or(failure::Failure::Exit(0), failure::Failure::Message)),
        }),
        other => other,
    }
}

/// The objects that a kustomization directory comes to.
pub(crate) fn kustomize_objects(directory: &str) -> failure::Result<Vec<serde_json::Value>> {
    verbs::must_be_there(directory)?;
    let built = kustomize::build(directory, &generate::source_files::Disk).map_err(failure::Failure::message)?;
    built.warnings.iter().for_each(|warning| eprintln!("{warning}"));
    Ok(built.objects)
}
