// The page of one object, live: tabs for its summary, YAML, timeline, log, terminal and topology.
// Each tab is a file of its own; here is what they share.

import { explain, get, pathOf, query } from "./api.js";
import { actionsOf, remove } from "./actions.js";
import { announce, empty, failure, h, loading, redraw, replace } from "./dom.js";
import { followMetrics, samplesOf, usageCharts } from "./charts.js";
import { quantity } from "./format.js";
import { followObject } from "./live_table.js";
import { logsTab } from "./logs.js";
import { idOf, listLink, title, titles } from "./resources.js";
import { eventsList, podsCard, summary, verdictBox } from "./summary.js";
import { terminalTab } from "./terminal.js";
import { timelineTab } from "./timeline.js";
import { topologyView } from "./topology.js";
import { yamlTab } from "./yaml_tab.js";

const PODS_INTERVAL_MS = 5000;
const EVENTS_INTERVAL_MS = 5000;
const WHY_PAUSE_MS = 800;
const CONTROLLERS = ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"];

export function objectPage({ kind, namespace, name, tab, setTab, isEditing }) {
  const controller = new AbortController();
  const { signal } = controller;
  const collection = pathOf(kind, namespace);
  const path = pathOf(kind, namespace, name);
  const controls = CONTROLLERS.includes(kind.kind);
  const isPod = idOf(kind) === "pods";
  const inTopology = ["pods", "services", "nodes", "networking.k8s.io/ingresses"].includes(idOf(kind));
  const tabs = [
    ["summary", "Summary", "1"],
    ["yaml", "YAML", "y"],
    ["timeline", "Timeline", "t"],
    (isPod || controls) && ["logs", "Logs", "l"],
    isPod && ["terminal", "Terminal", "s"],
    inTopology && ["topology", "Topology", "p"],
  ].filter(Boolean);
  let object;
  let current = tabs.some(([id]) => id === tab) ? tab : "summary";
  let panel;
  const known = { verdict: "", events: undefined, pods: undefined };

  const content = h(
    "div.tab-panel",
    { role: "tabpanel", id: "tab-panel", "aria-labelledby": `tab-${current}` },
    loading(),
  );
  const buttons = h("div.actions");
  const strip = h(
    "div.tabs",
    { role: "tablist", "aria-label": "Views" },
    tabs.map(([id, text, key]) =>
      h(
        "button",
        {
          type: "button",
          role: "tab",
          id: `tab-${id}`,
          "aria-controls": "tab-panel",
          "aria-keyshortcuts": key,
          onclick: () => choose(id),
        },
        text,
      ),
    ),
  );
  strip.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const at = tabs.findIndex(([id]) => id === current);
    choose(tabs[(at + by + tabs.length) % tabs.length][0]);
    strip.querySelector("[aria-selected=true]").focus();
  });
  const element = h(
    "section.page.object",
    h(
      "header.page-head",
      h(
        "nav.crumbs",
        { "aria-label": "Place" },
        h("a", { href: listLink(kind) }, titles(kind)),
        namespace && h("span", h("span.muted", " / "), namespace),
      ),
      h("div.title-row", h("h1", name), buttons),
    ),
    strip,
    content,
  );

  function mark() {
    for (const button of strip.children) {
      const chosen = button.id === `tab-${current}`;
      button.setAttribute("aria-selected", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }
    content.setAttribute("aria-labelledby", `tab-${current}`);
    content.className = `tab-panel ${current}-panel`;
  }

  function choose(id, edit = false) {
    if (panel?.isDirty?.() && !window.confirm("Leave without applying your changes?")) return;
    current = id;
    setTab(id === "summary" ? "" : id);
    open(edit);
  }

  function open(edit = false) {
    panel?.dispose();
    panel = undefined;
    mark();
    if (!object) return;
    const build = {
      yaml: () => yamlTab({ path, kind, startsEditing: edit }),
      timeline: () => timelineTab({ kind, namespace, name }),
      logs: () => logsTab({ pods: () => (isPod ? [object] : (known.pods ?? [])) }),
      terminal: () => terminalTab({ pod: object }),
      topology: () => topologyView({ namespace, focus: `${kind.resource}/${namespace ?? ""}/${name}` }),
    }[current];
    if (!build) return drawSummary();
    panel = build();
    replace(content, panel.element);
  }

  function drawSummary() {
    if (current !== "summary" || !object) return;
    const usage = isPod
      ? { key: `${namespace}/${name}`, limits: podLimits(object) }
      : idOf(kind) === "nodes"
        ? { key: name, limits: nodeLimits(object) }
        : undefined;
    // Another verdict opens its own evidence.
    const draw = known.shown === known.verdict.cause ? redraw : replace;
    known.shown = known.verdict.cause;
    draw(
      content,
      summary({
        object,
        more: {
          verdict: known.verdict && verdictBox(known.verdict),
          charts: usage && samplesOf(usage.key).length > 0 && usageCharts(usage.key, usage.limits),
          events: eventsList(known.events),
          pods: controls ? podsCard(known.pods, name) : "",
        },
      }),
    );
  }

  function drawActions() {
    if (!object) return replace(buttons);
    const focused = document.activeElement?.textContent;
    const had = buttons.contains(document.activeElement);
    replace(
      buttons,
      kind.verbs.includes("update") && h("button", { type: "button", onclick: edit }, "Edit"),
      actionsOf(kind, object).map((action) => h("button", { type: "button", onclick: action.run }, action.name)),
      kind.verbs.includes("delete") && h("button.danger-quiet", { type: "button", onclick: destroy }, "Delete"),
    );
    if (had) [...buttons.children].find((button) => button.textContent === focused)?.focus();
  }

  const edit = () => choose("yaml", true);
  const destroy = async () => (await remove(kind, object)) && namespace !== undefined && loadEvents();

  let whyTimer;
  function askWhy() {
    clearTimeout(whyTimer);
    whyTimer = setTimeout(
      async () => {
        try {
          const before = known.verdict?.cause;
          known.verdict = await explain("why", kind, namespace, name, signal);
          if (before !== undefined && before !== known.verdict.cause) announce(known.verdict.cause);
        } catch {
          known.verdict = "";
        }
        drawSummary();
      },
      known.verdict ? WHY_PAUSE_MS : 0,
    );
  }

  async function loadEvents() {
    try {
      const fieldSelector = `involvedObject.name=${name},involvedObject.kind=${kind.kind}`;
      const answer = await get(
        (namespace ? `/api/v1/namespaces/${namespace}/events` : "/api/v1/events") +
          query({ fieldSelector, limit: 200, pretty: "false" }),
        { signal },
      );
      known.events = answer.items;
    } catch {
      known.events = [];
    }
    if (!signal.aborted) drawSummary();
  }

  async function loadPods() {
    const labels = object?.spec?.selector?.matchLabels ?? object?.spec?.selector;
    if (!controls || !labels) return;
    try {
      const labelSelector = Object.entries(labels)
        .map(([key, value]) => `${key}=${value}`)
        .join(",");
      const answer = await get(
        `/api/v1/namespaces/${namespace}/pods` + query({ labelSelector, limit: 200, pretty: "false" }),
        { signal },
      );
      known.pods = answer.items;
    } catch {
      known.pods = [];
    }
    if (signal.aborted) return;
    drawSummary();
    if (current === "logs") panel?.update?.();
  }

  let first = true;
  followObject(collection, name, signal, (found) => {
    if (!found) {
      if (first)
        return replace(
          content,
          failure({ code: 404, reason: "NotFound", message: `${title(kind)} ${name} is not there.` }),
        );
      object = undefined;
      panel?.dispose();
      panel = undefined;
      announce(`${name} was deleted`);
      drawActions();
      return replace(
        content,
        empty(`${name} was deleted`, "", h("a.button", { href: listLink(kind) }, `Back to ${titles(kind)}`)),
      );
    }
    object = found;
    drawActions();
    askWhy();
    if (first) {
      first = false;
      open(isEditing);
      loadEvents();
      loadPods();
    } else drawSummary();
  }).catch((error) =>
    replace(
      content,
      failure(error, () => location.reload()),
    ),
  );

  const timers = [setInterval(loadEvents, EVENTS_INTERVAL_MS), controls && setInterval(loadPods, PODS_INTERVAL_MS)];
  const stopMetrics = isPod
    ? followMetrics(`${namespace}/${name}`, drawSummary)
    : idOf(kind) === "nodes"
      ? followMetrics("nodes", drawSummary)
      : () => {};
  mark();
  const keys = Object.fromEntries(tabs.map(([id, , key]) => [key, () => choose(id)]));
  return {
    element,
    title: `${name} · ${title(kind)}`,
    get keys() {
      const up = () => (location.hash = listLink(kind).slice(1));
      return { ...keys, e: edit, D: destroy, u: up, Escape: up, ...panel?.keys };
    },
    mayLeave: () => !panel?.isDirty?.() || window.confirm("Leave without applying your changes?"),
    dispose() {
      controller.abort();
      timers.forEach((timer) => clearInterval(timer));
      clearTimeout(whyTimer);
      stopMetrics();
      panel?.dispose();
    },
  };
}

function podLimits(pod) {
  const total = (field) => {
    const values = pod.spec.containers.map((container) => quantity(container.resources?.limits?.[field]));
    return values.every(Number.isFinite) ? values.reduce((sum, value) => sum + value, 0) : undefined;
  };
  return { cpu: total("cpu"), memory: total("memory") };
}

const nodeLimits = (node) => ({
  cpu: quantity(node.status?.allocatable?.cpu),
  memory: quantity(node.status?.allocatable?.memory),
});
