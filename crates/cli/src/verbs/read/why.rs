//! `minke why` and `minke timeline`: what holds an object up, and what it went through.
//! Rows of `verbs::ROOT`; decided in `crate::why` and `crate::timeline`.
//! Reads only; the exit code of `why` says whether something is wrong.

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, string},
    printers::format::json_text,
    resource::Info,
    run,
    session::Session,
    timeline,
    verbs::{read::reader::RestReader, streams::containers::object},
    why,
};

const FLAGS: &[Flag] = &[string("output", "", "json").short('o')];

pub static WHY: Command = Command {
    name: "why",
    aliases: &[],
    usage: "TYPE/NAME [options]",
    about: "Say what holds an object up, and what helps",
    flags: &[FLAGS],
    commands: &[],
    run: run!(explain),
};

pub static TIMELINE: Command = Command {
    name: "timeline",
    aliases: &[],
    usage: "TYPE/NAME [options]",
    about: "Show what an object went through, and when",
    flags: &[FLAGS],
    commands: &[],
    run: run!(journey),
};

async fn named(session: &Session, matches: &Matches) -> Result<Info> {
    if !["", "json"].contains(&matches.str("output")) {
        return Err(Failure::message("--output must be 'json'"));
    }
    if matches.args.is_empty() {
        return Err(Failure::usage("TYPE/NAME is required"));
    }
    object(session, &matches.args).await
}

async fn explain(session: &Session, matches: &Matches) -> Result<()> {
    let info = named(session, matches).await?;
    let verdict = why::why(&info.object, &RestReader { session }, session.env.now()).await;
    match matches.str("output") {
        "json" => session.output.print(&json_text(&verdict.to_json(&info.object))),
        _ => session.output.print(&verdict.to_text(&info.object)),
    }
    match verdict.exit_code() {
        0 => Ok(()),
        code => Err(Failure::Exit(code)),
    }
}

async fn journey(session: &Session, matches: &Matches) -> Result<()> {
    let info = named(session, matches).await?;
    let stations = timeline::timeline(&info.object, &RestReader { session }).await;
    match matches.str("output") {
        "json" => session.output.print(&json_text(&timeline::to_json(&info.object, &stations))),
        _ => session.output.print(&timeline::to_text(&info.object, &stations, &jiff::tz::TimeZone::system())),
    }
    Ok(())
}
