//! `minke why TYPE/NAME`: the cause in a sentence or two, the evidence under it, and the command that helps.
//! A row of `verbs::ROOT`; the explanation is made in `crate::why`.
//! The exit code is 1 if something is wrong, 2 if that could not be found out.

use super::{OUTPUT, named, wants_json};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::Matches,
    run,
    session::Session,
    verbs::read::reader::RestReader,
    why,
};

pub static COMMAND: Command = Command {
    name: "why",
    aliases: &[],
    usage: "(TYPE/NAME ... | TYPE NAME) [options]",
    about: "Say why an object is pending, not ready, restarting, terminating or otherwise not as it should be",
    flags: &[OUTPUT],
    commands: &[],
    run: run!(run),
};

/// Something is wrong, and the answer says what.
const WRONG: u8 = 1;
/// There is no answer.
const UNKNOWN: u8 = 2;

async fn run(session: &Session, matches: &Matches) -> Result<()> {
    let json = wants_json(matches)?;
    let infos = match named(session, matches).await {
        Ok(infos) => infos,
        Err(failure) => {
            let (text, _) = failure.report(&matches.command);
            session.output.warn(text.trim_end_matches('\n'));
            return Err(Failure::Exit(UNKNOWN));
        }
    };
    let reader = RestReader::new(session);
    let mut wrong = false;
    for (index, info) in infos.iter().enumerate() {
        let verdict = why::why(&info.object, &reader, session.env.now()).await;
        wrong |= verdict.wrong;
        if json {
            session.output.line(&crate::template::go_format::json_indent(&verdict.to_json(&info.object), "    "));
            continue;
        }
        if index > 0 {
            session.output.print("\n");
        }
        session.output.print(&verdict.to_text(&info.object));
    }
    if wrong { Err(Failure::Exit(WRONG)) } else { Ok(()) }
}
