// What happened to an object, station by station, as `minke timeline` tells it.
// A tab of `object_page`.

import { explain } from "./api.js";
import { empty, failure, h, loading, replace } from "./dom.js";
import { duration } from "./format.js";

const INTERVAL_MS = 5000;
const GAP_SECONDS = 5;

/** `+0.2s`, `+12s`, `+3m5s`. */
export function offset(ms) {
  const seconds = ms / 1000;
  if (seconds < 10) return `+${Math.round(ms) / 1000}s`;
  return seconds < 120 ? `+${Math.round(seconds)}s` : `+${duration(seconds)}`;
}

export function timelineTab({ kind, namespace, name }) {
  const element = h("div.timeline", loading());
  const controller = new AbortController();
  let timer;
  let shown = "";
  async function draw() {
    try {
      const { stations } = await explain("timeline", kind, namespace, name, controller.signal);
      const key = JSON.stringify(stations);
      if (key !== shown)
        replace(element, stations.length ? list(stations) : empty("Nothing is recorded with a time", ""));
      shown = key;
    } catch (error) {
      if (controller.signal.aborted) return;
      replace(element, failure(error, draw));
    }
    timer = setTimeout(draw, INTERVAL_MS);
  }
  draw();
  return {
    element,
    dispose() {
      controller.abort();
      clearTimeout(timer);
    },
  };
}

function list(stations) {
  const start = Date.parse(stations[0].time);
  let previous = start;
  const rows = stations.flatMap((station) => {
    const time = Date.parse(station.time);
    const gap = (time - previous) / 1000;
    previous = time;
    const bad = /Fail|Kill|BackOff|Unhealthy|Evict|Error|exit code [1-9]/.test(`${station.what} ${station.detail}`);
    return [
      gap >= GAP_SECONDS && h("li.gap", h("span.muted", `${duration(gap)} later`)),
      h(
        `li.station${bad ? ".bad" : ""}`,
        h("time.muted", { datetime: station.time, title: station.time }, new Date(time).toLocaleTimeString("en-GB")),
        h("span.offset.muted", offset(time - start)),
        h(
          "div",
          h("strong", station.what),
          station.who && h("span.muted", ` ${station.who}`),
          station.detail && h("div.event-text", station.detail),
        ),
      ),
    ];
  });
  return h("ol.stations", rows);
}
