// The cluster at a glance: what is wrong first, then nodes and their load, then what was said lately.
// Follows the tables of a few kinds; `problems` judges them.

import { get, pathOf } from "./api.js";
import { empty, failure, h, loading, redraw } from "./dom.js";
import { followMetrics, meter, samplesOf, usageCharts } from "./charts.js";
import { age, bytes, cores, plural, quantity } from "./format.js";
import { LiveTable } from "./live_table.js";
import { problems } from "./problems.js";
import { kinds, listLink, objectLink, title, titles } from "./resources.js";

const FOLLOWED = [
  "nodes",
  "pods",
  "apps/deployments",
  "apps/statefulsets",
  "apps/daemonsets",
  "batch/jobs",
  "persistentvolumeclaims",
];
const PROBLEMS_SHOWN_MAX = 15;
const WARNINGS_SHOWN_MAX = 8;
const NODES_SHOWN_MAX = 50;

export function overviewPage({ namespace }) {
  const sections = { summary: h("div.stats"), problems: h("div"), nodes: h("div"), load: h("div"), warnings: h("div") };
  const element = h(
    "section.page.overview",
    h("header.page-head", h("h1", "Overview"), h("p.state", namespace ? `Namespace ${namespace}` : "All namespaces")),
    h(
      "div.overview-body",
      sections.summary,
      h(
        "div.columns",
        h(
          "div.column",
          panel("Needs attention", sections.problems, "problems"),
          panel("Recent warnings", sections.warnings, "warnings"),
        ),
        h("div.column", panel("Load", sections.load, "load"), panel("Nodes", sections.nodes, "nodes")),
      ),
    ),
  );
  const tables = new Map();
  const stops = [];
  let nodes = [];
  let asked = 0;

  for (const id of FOLLOWED) {
    const kind = kinds.byId.get(id);
    if (!kind) continue;
    const table = new LiveTable(pathOf(kind, kind.namespaced ? namespace : ""));
    tables.set(kind.resource, { kind, table });
    stops.push(table.follow(() => (kind.resource === "nodes" ? loadNodes() : undefined, schedule())));
  }
  const events = new LiveTable(pathOf(kinds.byId.get("events"), namespace), { fieldSelector: "type=Warning" });
  stops.push(events.follow(() => schedule()));
  stops.push(followMetrics("nodes", () => schedule()));

  async function loadNodes() {
    const mine = ++asked;
    try {
      const list = await get("/api/v1/nodes?limit=500&pretty=false");
      if (mine === asked) nodes = list.items;
      schedule();
    } catch {
      nodes = [];
    }
  }

  let frame;
  function schedule() {
    frame ??= requestAnimationFrame(() => {
      frame = undefined;
      draw();
    });
  }

  function draw() {
    drawSummary();
    drawProblems();
    drawNodes();
    drawWarnings();
  }

  function drawSummary() {
    const cards = [...tables.values()]
      .filter(({ kind }) => kind.resource !== "persistentvolumeclaims")
      .map(({ kind, table }) => {
        const rows = [...table.model.rows.values()];
        const status = table.model.index("Status");
        const running =
          kind.resource === "pods" ? rows.filter((row) => row.cells[status] === "Running").length : undefined;
        const count = table.state === "failed" ? "–" : rows.length.toLocaleString("en");
        const note =
          table.state === "failed"
            ? "not allowed"
            : running !== undefined
              ? `${running.toLocaleString("en")} running`
              : "";
        return h(
          "a.stat",
          { href: listLink(kind) },
          h("span.stat-number", count),
          h("span.stat-name", titles(kind)),
          h("span.muted", note),
        );
      });
    redraw(sections.summary, cards);
  }

  function drawProblems() {
    const followed = [...tables.values()];
    if (
      followed.some(({ table }) => table.state === "loading") &&
      !followed.some(({ table }) => table.model.rows.size)
    ) {
      return redraw(sections.problems, loading());
    }
    const readable = followed.filter(({ table }) => table.state !== "failed");
    if (!readable.length) return redraw(sections.problems, failure(followed[0].table.error));
    const found = problems(Object.fromEntries(readable.map(({ kind, table }) => [kind.resource, table.model])));
    if (!found.length) {
      return redraw(sections.problems, h("p.all-good", h("span.dot.good"), "Everything is as it should be."));
    }
    const rows = found.slice(0, PROBLEMS_SHOWN_MAX).map((problem) => {
      const { kind } = tables.get(problem.resource);
      const place = problem.row.namespace && !namespace ? h("span.muted", ` in ${problem.row.namespace}`) : "";
      return h(
        "li",
        h(`span.dot.${problem.tone}`, { title: problem.tone === "bad" ? "Problem" : "Warning" }),
        h(
          "div.problem-body",
          h("a", { href: objectLink(kind, problem.row.namespace, problem.row.name) }, problem.row.name),
          h("span.problem-kind", ` ${title(kind)}`),
          place,
          h("div.problem-text", problem.text),
        ),
        h("span.muted.problem-age", age(problem.row.created)),
      );
    });
    const more = found.length - rows.length;
    redraw(sections.problems, h("ul.problems", rows), more > 0 && h("p.muted", `and ${plural(more, "more problem")}`));
  }

  function drawNodes() {
    const { table } = tables.get("nodes") ?? {};
    if (table?.state === "failed") return redraw(sections.nodes, failure(table.error));
    if (!nodes.length) return redraw(sections.nodes, loading());
    const pods = tables.get("pods")?.table.model;
    const nodeColumn = pods?.index("Node") ?? -1;
    const count = new Map();
    for (const row of pods?.rows.values() ?? []) {
      count.set(row.cells[nodeColumn], (count.get(row.cells[nodeColumn]) ?? 0) + 1);
    }
    const limits = { cpu: 0, memory: 0 };
    const rows = nodes.slice(0, NODES_SHOWN_MAX).map((node) => {
      const { name } = node.metadata;
      const sample = samplesOf(name).at(-1) ?? {};
      const [cpu, memory, podsMax] = ["cpu", "memory", "pods"].map((field) =>
        quantity(node.status?.allocatable?.[field]),
      );
      const ready = (node.status?.conditions ?? []).find((condition) => condition.type === "Ready");
      const good = ready?.status === "True";
      return h(
        "li.node",
        h(
          "div.node-head",
          h(`span.dot.${good ? "good" : "bad"}`, { title: good ? "Ready" : "NotReady" }),
          h("a", { href: objectLink(kinds.byId.get("nodes"), "", name) }, name),
          h("span.muted", good ? (node.status?.nodeInfo?.kubeletVersion ?? "") : (ready?.reason ?? "NotReady")),
        ),
        meter("CPU", sample.cpu, cpu, cores),
        meter("Memory", sample.memory, memory, bytes),
        meter("Pods", count.get(name) ?? 0, podsMax, (value) => String(value)),
      );
    });
    for (const node of nodes) {
      limits.cpu += quantity(node.status?.allocatable?.cpu) || 0;
      limits.memory += quantity(node.status?.allocatable?.memory) || 0;
    }
    const more = nodes.length - rows.length;
    redraw(sections.nodes, h("ul.nodes", rows), more > 0 && h("p.muted", `and ${plural(more, "more node")}`));
    drawLoad(limits);
  }

  function drawLoad(limits) {
    if (!kinds.metrics)
      return redraw(sections.load, empty("No metrics", "Nothing serves metrics.k8s.io in this cluster."));
    if (nodes.length === 1) return redraw(sections.load, usageCharts(nodes[0].metadata.name, limits));
    // The sum of all nodes, sample by sample from the last.
    const all = nodes.map((node) => samplesOf(node.metadata.name)).filter((samples) => samples.length);
    const length = Math.min(...all.map((samples) => samples.length));
    const sum = (index, field) => all.reduce((total, samples) => total + samples.at(index - length)[field], 0);
    totals.length = 0;
    for (let i = 0; i < (all.length ? length : 0); i++) totals.push({ cpu: sum(i, "cpu"), memory: sum(i, "memory") });
    redraw(sections.load, usageCharts(totals, limits));
  }
  const totals = [];

  function drawWarnings() {
    if (events.state === "failed") return redraw(sections.warnings, failure(events.error));
    if (events.state === "loading" && !events.model.rows.size) return redraw(sections.warnings, loading());
    const { model } = events;
    const rows = model.view({ sort: "Last Seen" }).slice(0, WARNINGS_SHOWN_MAX);
    if (!rows.length) return redraw(sections.warnings, h("p.muted", "No warnings in the last hour."));
    const cell = (row, name) => String(row.cells[model.index(name)] ?? "");
    redraw(
      sections.warnings,
      h(
        "ul.events",
        rows.map((row) =>
          h(
            "li",
            h("span.event-age.muted", cell(row, "Last Seen")),
            h(
              "div",
              h("strong", cell(row, "Reason")),
              " ",
              eventObject(row, cell(row, "Object")),
              h("div.event-text", cell(row, "Message")),
            ),
          ),
        ),
      ),
      h("p", h("a", { href: listLink(kinds.byId.get("events")) }, "All events")),
    );
  }

  const ticker = setInterval(schedule, 5000);
  draw();
  return {
    element,
    title: "Overview",
    keys: {},
    dispose() {
      stops.forEach((stop) => stop());
      clearInterval(ticker);
      cancelAnimationFrame(frame);
    },
  };
}

/** `pod/web-0` as a link, where its kind is known. */
export function eventObject(row, text) {
  const [resource, name] = text.split("/");
  const kind = kinds.all.find((candidate) => candidate.kind.toLowerCase() === resource);
  return kind && name
    ? h("a", { href: objectLink(kind, kind.namespaced ? row.namespace : "", name) }, text)
    : h("span", text);
}

function panel(name, content, id) {
  return h("section.panel", { "aria-labelledby": `panel-${id}` }, h("h2", { id: `panel-${id}` }, name), content);
}
