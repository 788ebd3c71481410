//! `minke timeline TYPE/NAME`: the journey of an object, station by station, with times.
//! `stations` reads them from the object, its events and the pods it controls; here they are put in order and drawn.
//! A station is something the cluster recorded with a time; nothing is interpolated.

mod stations;
#[cfg(test)]
mod tests;

use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Value, json};

use crate::{
    describe::{
        event_queries,
        fields::{list, name, namespace, selector_text, string},
        writer::align,
    },
    object_reader::{ObjectReader, Query},
};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Station {
    pub time: Timestamp,
    /// Order of things that happened at one time.
    pub rank: u8,
    pub what: String,
    pub who: String,
    pub detail: String,
    /// Where the time is written: `metadata`, `managedFields`, `condition`, `event`, `container`.
    pub source: &'static str,
}

/// Gaps of at least this many seconds are drawn.
const GAP_SECONDS: i64 = 5;

/// All that is recorded about an object, oldest first.
pub async fn timeline<R: ObjectReader>(object: &Value, reader: &R) -> Vec<Station> {
    let mut events = Vec::new();
    for query in event_queries(object) {
        events.extend(reader.read(query).await.unwrap_or_default());
    }
    let mut all = stations::of_object(object);
    all.extend(stations::of_events(&events));
    if !object["spec"]["selector"].is_null() && object["spec"]["template"].is_object() {
        let selector = selector_text(&object["spec"]["selector"]);
        let pods = reader.read(Query::list("v1", "pods", namespace(object)).labels(selector)).await.unwrap_or_default();
        all.extend(pods.iter().flat_map(stations::of_member));
    }
    all.sort_by_key(|station| (station.time, station.rank));
    all
}

pub fn to_json(object: &Value, stations: &[Station]) -> Value {
    let station = |station: &Station| {
        json!({ "time": station.time.to_string(), "what": station.what, "who": station.who, "detail": station.detail,
            "source": station.source })
    };
    json!({
        "object": { "apiVersion": object["apiVersion"], "kind": object["kind"],
            "namespace": object["metadata"]["namespace"], "name": object["metadata"]["name"] },
        "stations": stations.iter().map(station).collect::<Vec<_>>(),
    })
}

/// One line for each station; long pauses show how long they were.
pub fn to_text(object: &Value, stations: &[Station], zone: &TimeZone) -> String {
    let kind = string(&object["kind"]).to_lowercase();
    let mut head = format!("{kind}/{}", name(object));
    if !namespace(object).is_empty() {
        head.push_str(&format!(" in namespace {}", namespace(object)));
    }
    let Some(first) = stations.first() else {
        return format!("{head}: nothing is recorded with a time\n");
    };
    let date = first.time.to_zoned(zone.clone()).strftime("%Y-%m-%d %Z").to_string();
    let mut lines = String::new();
    let mut previous = first.time;
    for station in stations {
        let gap = station.time.as_second() - previous.as_second();
        if gap >= GAP_SECONDS {
            lines.push_str(&format!("  │  {} later\n", api::printing::human_duration(gap)));
        }
        previous = station.time;
        let time = station.time.to_zoned(zone.clone()).strftime("%H:%M:%S%.f").to_string();
        let since_start = offset(station.time.as_microsecond() - first.time.as_microsecond());
        let detail = [station.who.as_str(), station.detail.as_str()];
        let detail: Vec<&str> = detail.into_iter().filter(|part| !part.is_empty()).collect();
        let row = format!("{time}\t{since_start}\t{}\t{}", station.what, detail.join(": "));
        lines.push_str(&format!("  ●  {}\n", row.trim_end_matches('\t').replace('\n', " ")));
    }
    format!("{head}, {date}\n{}", align(&lines, 2))
}

/// `+0.2s`, `+12s`, `+3m5s`.
fn offset(microseconds: i64) -> String {
    let seconds = microseconds as f64 / 1e6;
    match seconds {
        s if s < 10.0 => format!("+{}s", (s * 1000.0).round() / 1000.0),
        s if s < 120.0 => format!("+{}s", s.round()),
        s => format!("+{}", api::printing::human_duration(s as i64)),
    }
}

/// Containers of a pod in the order in which they run, with what each status array is called.
fn container_statuses(pod: &Value) -> impl Iterator<Item = (&'static str, &Value)> {
    let status = &pod["status"];
    let of = |noun, field: &str| list(&status[field]).iter().map(move |status| (noun, status));
    of("init container", "initContainerStatuses")
        .chain(of("container", "containerStatuses"))
        .chain(of("ephemeral container", "ephemeralContainerStatuses"))
}
