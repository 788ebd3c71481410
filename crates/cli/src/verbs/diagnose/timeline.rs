//! `minke timeline TYPE/NAME`: what happened to an object, station by station.
//! A row of `verbs::ROOT`; the stations are read in `crate::timeline`.
//! Times are shown in the machine's zone.

use super::{OUTPUT, named, wants_json};
use crate::{
    command::Command, failure::Result, flags::Matches, run, session::Session, timeline, verbs::read::reader::RestReader,
};

pub static COMMAND: Command = Command {
    name: "timeline",
    aliases: &[],
    usage: "(TYPE/NAME ... | TYPE NAME) [options]",
    about: "Show what happened to an object and when",
    flags: &[OUTPUT],
    commands: &[],
    run: run!(run),
};

async fn run(session: &Session, matches: &Matches) -> Result<()> {
    let json = wants_json(matches)?;
    let reader = RestReader::new(session);
    for info in named(session, matches).await? {
        let stations = timeline::timeline(&info.object, &reader).await;
        if json {
            let shown = timeline::to_json(&info.object, &stations);
            session.output.line(&crate::template::go_format::json_indent(&shown, "    "));
        } else {
            session.output.print(&timeline::to_text(&info.object, &stations, &jiff::tz::TimeZone::system()));
        }
    }
    Ok(())
}
