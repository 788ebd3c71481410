//! Verbs beyond kubectl's: why an object is as it is, and how it came to be so.
//! Rows of `verbs::ROOT`; also `minke why` and `minke timeline`.
//! They only read.

pub mod timeline;
pub mod why;

use crate::{
    failure::{Failure, Result},
    flags::{Flag, Matches, string},
    resource::{Info, Selection},
    session::Session,
};

pub const OUTPUT: &[Flag] = &[string("output", "", "Form of the output: json, or nothing for people").short('o')];

/// Whether JSON is wanted; other forms are refused.
fn wants_json(matches: &Matches) -> Result<bool> {
    match matches.str("output") {
        "" | "text" => Ok(false),
        "json" => Ok(true),
        other => Err(Failure::message(format!("unable to match a printer suitable for the output format \"{other}\", allowed formats are: json"))),
    }
}

/// The objects that were named, as they are now.
async fn named(session: &Session, matches: &Matches) -> Result<Vec<Info>> {
    if matches.args.is_empty() {
        return Err(Failure::usage("You must name an object: TYPE/NAME or TYPE NAME"));
    }
    let mut selection = Selection::of(session, matches)?;
    selection.latest = true;
    selection.all_or_nothing(session).await
}
