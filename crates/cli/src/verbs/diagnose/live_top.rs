//! `minke top`: nodes and pods with their use, drawn again every few seconds until Ctrl-C.
//! A row of `verbs::ROOT` under a name of its own, for `kubectl top` is another verb. The picture is made in `crate::live_top`.
//! Without a terminal it draws once. The screen that was there before comes back, also when a request fails.

use std::time::Duration;

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, duration, string},
    live_top::{frame, samples::Samples},
    resource::items_of,
    run,
    session::Session,
    terminal,
};

const FLAGS: &[Flag] = &[
    duration("interval", "5s", "How often to measure"),
    boolean("containers", "false", "Containers instead of pods"),
    boolean("once", "false", "Draw once and end"),
    string("selector", "", "Label selector of pods").short('l'),
];
/// Where there is no terminal.
const SIZE_DEFAULT: (u16, u16) = (160, 60);
const INTERVAL_MIN: Duration = Duration::from_secs(1);

pub static COMMAND: Command = Command {
    name: "live-top",
    aliases: &[],
    usage: "[--interval=5s] [--containers] [--once] [options]",
    about: "Watch the use of nodes and pods",
    flags: &[FLAGS],
    commands: &[],
    run: run!(run),
};

async fn run(session: &Session, matches: &Matches) -> Result<()> {
    let mut samples = Samples::default();
    measure(session, matches, &mut samples).await?;
    if matches.bool("once") || !session.output.is_terminal() {
        session.output.print(&picture(&samples, matches));
        return Ok(());
    }
    let interval = matches.duration("interval").max(INTERVAL_MIN);
    let interrupted = tokio::signal::ctrl_c();
    let screen = terminal::OtherScreen::enter(&session.output)?;
    // Also where a server does not answer.
    let ended = tokio::select! {
        Ok(()) = interrupted => Ok(()),
        failed = draw(session, matches, samples, interval) => failed,
    };
    session.output.flush();
    drop(screen);
    ended
}

async fn draw(session: &Session, matches: &Matches, mut samples: Samples, interval: Duration) -> Result<()> {
    loop {
        let text = picture(&samples, matches).replace('\n', "\x1b[K\r\n");
        session.output.print(&format!("\x1b[H{text}\x1b[J"));
        session.output.flush();
        session.env.sleep(interval).await;
        measure(session, matches, &mut samples).await?;
    }
}

fn picture(samples: &Samples, matches: &Matches) -> String {
    let (columns, lines) = terminal::size().unwrap_or(SIZE_DEFAULT);
    frame(samples, columns.into(), usize::from(lines).saturating_sub(1), matches.bool("containers"))
}

async fn measure(session: &Session, matches: &Matches, samples: &mut Samples) -> Result<()> {
    let rest = session.rest().await?;
    let (namespace, given) = session.namespace()?;
    let pods = match given {
        true => format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"),
        false => "/apis/metrics.k8s.io/v1beta1/pods".to_string(),
    };
    let missing = |failure: Failure| match failure.is_not_found() {
        true => Failure::message("Metrics API not available"),
        false => failure,
    };
    let nodes = rest.get("/api/v1/nodes").value().await?;
    samples.set_allocatable(&items_of(nodes));
    let nodes = rest.get("/apis/metrics.k8s.io/v1beta1/nodes").value().await.map_err(missing)?;
    let pods = rest.get(pods).query_opt("labelSelector", matches.str("selector")).value().await.map_err(missing)?;
    samples.add(&items_of(nodes), &items_of(pods));
    Ok(())
}
