// What nodes and pods use, from metrics.k8s.io: asked while the page is open, and drawn as lines.
// Used by `overview` and `object_page`. Keeps what it has seen in this tab only.

import { get } from "./api.js";
import { h, s } from "./dom.js";
import { bytes, cores, quantity } from "./format.js";
import { kinds } from "./resources.js";

const INTERVAL_MS = 5000;
const SAMPLES_MAX = 360;
const history = new Map();

function keep(key, cpu, memory, time) {
  const samples = history.get(key) ?? [];
  if (samples.at(-1)?.time === time) return;
  samples.push({ time, cpu, memory });
  if (samples.length > SAMPLES_MAX) samples.shift();
  history.set(key, samples);
}

export const samplesOf = (key) => history.get(key) ?? [];

/** Asks for `nodes` or for pods (`namespace/name`, or a namespace) until stopped; calls back after each answer. */
export function followMetrics(what, listener) {
  let stopped = false;
  let timer;
  const path = what === "nodes" ? "/apis/metrics.k8s.io/v1beta1/nodes" : podPath(what);
  async function ask() {
    if (!document.hidden) {
      try {
        const answer = await get(path);
        for (const item of answer.items ?? [answer]) take(item);
        if (!stopped) listener();
      } catch {
        // Metrics are an extra: a page without them is still a page.
      }
    }
    if (!stopped) timer = setTimeout(ask, INTERVAL_MS);
  }
  if (kinds.metrics) ask();
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}

function podPath(what) {
  const [namespace, name] = what.split("/");
  return `/apis/metrics.k8s.io/v1beta1/namespaces/${namespace}/pods${name ? "/" + name : ""}`;
}

function take(item) {
  const { namespace, name } = item.metadata;
  const parts = item.containers ?? [item];
  const sum = (field) => parts.reduce((total, part) => total + (quantity(part.usage?.[field]) || 0), 0);
  keep(namespace ? `${namespace}/${name}` : name, sum("cpu"), sum("memory"), item.timestamp);
}

/** The points of a line in a box; at least two, so that a single value is a line too. */
export function points(values, width, height, most) {
  const padded = values.length === 1 ? [values[0], values[0]] : values;
  const top = Math.max(most || 0, ...padded) || 1;
  return padded.map((value, index) => [
    Math.round((index * width * 10) / (padded.length - 1)) / 10,
    Math.round((height - (value / top) * height) * 10) / 10,
  ]);
}

export function chart({ title, values, format, most }) {
  const [width, height] = [320, 72];
  const last = values.at(-1);
  const line = values.length
    ? points(values, width, height - 2, most)
        .map(([x, y]) => `${x},${y + 1}`)
        .join(" ")
    : "";
  const of = most ? ` of ${format(most)}` : "";
  const summary = values.length
    ? `${title}: ${format(last)}${of}, at least ${format(Math.min(...values))} and at most ` +
      `${format(Math.max(...values))} since this page was opened`
    : `${title}: no values yet`;
  return h(
    "figure.chart",
    h("figcaption", h("span", title), h("strong", values.length ? format(last) : "–"), h("span.muted", of)),
    s(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": summary },
      s("line.base", { x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 }),
      line && s("polygon.area", { points: `0,${height} ${line} ${width},${height}` }),
      line && s("polyline.line", { points: line }),
    ),
  );
}

/** Of a node, of a pod (`namespace/name`), or of samples that are given. */
export function usageCharts(of, limits = {}) {
  const samples = Array.isArray(of) ? of : samplesOf(of);
  return h(
    "div.charts",
    chart({ title: "CPU", values: samples.map((sample) => sample.cpu), format: cores, most: limits.cpu }),
    chart({ title: "Memory", values: samples.map((sample) => sample.memory), format: bytes, most: limits.memory }),
  );
}

/** A bar with a number beside it. */
export function meter(label, value, most, format) {
  const share = most > 0 && Number.isFinite(value) ? Math.min(1, value / most) : 0;
  const mood = share > 0.9 ? "bad" : share > 0.75 ? "warn" : "";
  const fill = h(`span.fill${mood ? "." + mood : ""}`);
  fill.style.width = `${share * 100}%`;
  const text = Number.isFinite(value) ? `${format(value)} of ${format(most)}` : `– of ${format(most)}`;
  return h(
    "div.meter",
    { role: "img", "aria-label": `${label} ${text}` },
    h("span.meter-label", label),
    h("span.bar", fill),
    h("span.meter-text", text),
  );
}
