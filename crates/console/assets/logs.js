// The log of a container, followed.
// A tab of `object_page` for pods, and for what controls pods. Keeps the last lines only.

import { lines, query, request } from "./api.js";
import { failure, h, loading, replace } from "./dom.js";

const LINES_MAX = 5000;
const TAIL_LINES = 500;

/** `pods()` are those to choose from, as objects. */
export function logsTab({ pods }) {
  const output = h("div.log", { role: "log", tabindex: "0", "aria-label": "Log", "aria-live": "off" });
  const note = h("p.state", { role: "status" });
  const options = { pod: "", container: "", previous: false, timestamps: false, wrap: true, follow: true, filter: "" };
  let controller;
  let count = 0;

  const choice = (label, change) =>
    h("select", { "aria-label": label, onchange: (event) => change(event.target.value) });
  const podChoice = choice("Pod", (value) => ((options.pod = value), fillContainers(), start()));
  const containerChoice = choice("Container", (value) => ((options.container = value), start()));
  const check = (label, name, apply = start) =>
    h(
      "label.check",
      h("input", {
        type: "checkbox",
        checked: options[name],
        onchange: (event) => {
          options[name] = event.target.checked;
          apply();
        },
      }),
      label,
    );
  const filter = h("input.filter", {
    type: "search",
    placeholder: "Filter lines",
    "aria-label": "Filter lines",
    id: "filter",
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => ((options.filter = filter.value.toLowerCase()), refilter()),
  });
  const element = h(
    "div.logs",
    h(
      "div.bar-row",
      podChoice,
      containerChoice,
      filter,
      check("Follow", "follow", () => options.follow && scrollDown()),
      check("Wrap", "wrap", () => output.classList.toggle("nowrap", !options.wrap)),
      check("Timestamps", "timestamps"),
      check("Previous", "previous"),
      note,
    ),
    output,
  );

  output.addEventListener(
    "scroll",
    () => {
      const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 40;
      if (atEnd !== options.follow) {
        options.follow = atEnd;
        element.querySelector("input[type=checkbox]").checked = atEnd;
      }
    },
    { passive: true },
  );

  function fill(select, values, chosen) {
    replace(
      select,
      values.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
    );
    select.hidden = values.length < 2;
  }

  function fillPods() {
    const all = pods();
    const names = all.map((pod) => pod.metadata.name);
    if (!names.includes(options.pod)) options.pod = names[0] ?? "";
    fill(
      podChoice,
      names.map((name) => [name, name]),
      options.pod,
    );
    fillContainers();
  }

  function fillContainers() {
    const pod = pods().find((candidate) => candidate.metadata.name === options.pod);
    const all = containersOf(pod);
    if (!all.some(([name]) => name === options.container)) {
      options.container =
        pod?.metadata.annotations?.["kubectl.kubernetes.io/default-container"] ?? all.at(-1)?.[0] ?? "";
    }
    fill(containerChoice, all, options.container);
  }

  async function start() {
    controller?.abort();
    controller = new AbortController();
    const { signal } = controller;
    output.replaceChildren();
    count = 0;
    const pod = pods().find((candidate) => candidate.metadata.name === options.pod);
    if (!pod) return replace(output, h("p.muted", "There are no pods whose log could be shown."));
    replace(output, loading());
    const { container, previous, timestamps } = options;
    const parameters = { container, previous, timestamps, follow: !previous, tailLines: TAIL_LINES };
    const path = `/api/v1/namespaces/${pod.metadata.namespace}/pods/${pod.metadata.name}/log`;
    try {
      const response = await request("GET", path + query(parameters), { accept: "*/*", signal });
      output.replaceChildren();
      note.textContent = previous ? "" : "Live";
      for await (const batch of lines(response)) add(batch);
      note.textContent = "The log has ended.";
      if (!count) replace(output, h("p.muted", "The container has written nothing."));
    } catch (error) {
      if (signal.aborted) return;
      note.textContent = "";
      const waiting = /waiting to start|not found/.test(error.message);
      replace(
        output,
        failure(error, start),
        waiting && h("p.muted", "The summary says why the container does not run."),
      );
    }
  }

  function add(batch) {
    const fragment = document.createDocumentFragment();
    for (const text of batch.slice(-LINES_MAX)) {
      const line = h(
        `div.log-line${/\b(error|fatal|panic)\b/i.test(text) ? ".bad" : /\bwarn(ing)?\b/i.test(text) ? ".warn" : ""}`,
        stripColours(text) || "\u00a0",
      );
      line.hidden = Boolean(options.filter) && !text.toLowerCase().includes(options.filter);
      fragment.append(line);
      count++;
    }
    output.append(fragment);
    while (count > LINES_MAX) {
      output.firstChild.remove();
      count--;
    }
    if (options.follow) scrollDown();
  }

  function refilter() {
    for (const line of output.querySelectorAll(".log-line")) {
      line.hidden = Boolean(options.filter) && !line.textContent.toLowerCase().includes(options.filter);
    }
    if (options.follow) scrollDown();
  }

  const scrollDown = () => (output.scrollTop = output.scrollHeight);

  fillPods();
  start();
  return {
    element,
    keys: { "/": () => filter.focus(), G: scrollDown },
    /** The pods may be others now. */
    update() {
      const before = options.pod;
      fillPods();
      if (before !== options.pod) start();
    },
    dispose: () => controller?.abort(),
  };
}

/** Names of a pod's containers with what they are. */
export function containersOf(pod) {
  const list = (field, word) => (pod?.spec?.[field] ?? []).map(({ name }) => [name, word ? `${name} (${word})` : name]);
  return [...list("initContainers", "init"), ...list("ephemeralContainers", "ephemeral"), ...list("containers")];
}

export const stripColours = (text) => text.replace(/\x1b\[[0-9;]*[A-Za-z]/g, "");
