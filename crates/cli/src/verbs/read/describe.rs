//! `kubectl describe`: an object with everything that belongs to it, for people.
//! A row of `verbs::ROOT`; the texts are made in `crate::describe`.
//! A name that fits nothing is tried as a beginning.

use crate::{
    command::Command,
    describe::{self, Context},
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean},
    resource::{ALL_NAMESPACES, CHUNK_SIZE, FILENAME, Info, SELECTOR, Selection},
    run,
    session::Session,
    verbs::read::reader::RestReader,
};

const FLAGS: &[Flag] = &[boolean("show-events", "true", "Also the events of the object")];

pub static COMMAND: Command = Command {
    name: "describe",
    aliases: &[],
    usage: "(-f FILENAME | TYPE [NAME_PREFIX | -l label] | TYPE/NAME) [options]",
    about: "Show details of a specific resource or group of resources",
    flags: &[FLAGS, FILENAME, SELECTOR, ALL_NAMESPACES, CHUNK_SIZE],
    commands: &[],
    run: run!(run),
};

async fn run(session: &Session, matches: &Matches) -> Result<()> {
    let mut selection = Selection::of(session, matches)?;
    if selection.arguments.is_empty() && !selection.has_files() {
        return Err(Failure::Plain("error: You must specify the type of resource to describe. Use \"kubectl api-resources\" for a complete list of supported resources.\n".to_string()));
    }
    selection.allow_empty_selector = true;
    selection.latest = true;
    let (mut infos, mut failures) = selection.select(session).await?;
    let mut by_beginning = false;
    if infos.is_empty() && failures.iter().all(Failure::is_not_found) && matches.args.len() == 2 && !failures.is_empty()
    {
        let found = by_prefix(session, &selection, &matches.args).await?;
        if !found.is_empty() {
            by_beginning = true;
            infos = found;
            failures.clear();
        }
    }
    let reader = RestReader::in_chunks_of(session, matches.int("chunk-size"));
    let context = Context { now: session.env.now(), zone: jiff::tz::TimeZone::system() };
    for (index, info) in infos.iter().enumerate() {
        let text = describe::describe(&info.object, &reader, &context, matches.bool("show-events")).await;
        match text {
            Ok(text) => {
                if index > 0 && !by_beginning {
                    session.output.print("\n\n");
                }
                session.output.print(&text);
                // Those that only begin so are ended, not parted.
                if by_beginning {
                    session.output.print("\n");
                }
            }
            Err(error) => failures.push(Failure::Message(error)),
        }
    }
    if infos.is_empty() && failures.is_empty() {
        match selection.all_namespaces {
            true => session.output.warn("No resources found"),
            false => session.output.warn(&format!("No resources found in {} namespace.", selection.namespace)),
        }
    }
    Failure::aggregate(failures)
}

async fn by_prefix(session: &Session, selection: &Selection, words: &[String]) -> Result<Vec<Info>> {
    let wide = Selection { arguments: vec![words[0].clone()], ..selection.clone() };
    let (infos, _) = wide.select(session).await?;
    Ok(infos.into_iter().filter(|info| info.name.starts_with(&words[1])).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fake::FakeServer;

    /// The flag counts for what is read beside the object too.
    #[test]
    fn chunk_size_holds_for_related_objects() {
        let check = |flag: &str, list: &'static str, asked_with: Option<&str>| {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "default"}});
            let server = FakeServer::of_pods().on(list, 200, json!({"kind": "PodList", "items": [pod]}));
            let (_, err, code) = server.run(&["describe", "pods", flag]);
            assert_eq!((err.as_str(), code), ("", 0), "{flag}");
            let asked = server.asked.borrow();
            let events: Vec<&String> = asked.iter().map(|(line, _)| line).filter(|l| l.contains("/events?")).collect();
            assert_eq!(events.len(), 1, "{flag}: {asked:?}");
            let limit = events[0].split_once("limit=").map(|(_, limit)| limit);
            assert_eq!(limit, asked_with, "{flag}: {events:?}");
        };
        check("--chunk-size=10", "GET /api/v1/namespaces/default/pods?limit=10", Some("10"));
        check("--chunk-size=500", "GET /api/v1/namespaces/default/pods?limit=500", Some("500"));
        check("--chunk-size=0", "GET /api/v1/namespaces/default/pods", None);
    }
}
