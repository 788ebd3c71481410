// The page of one group: asks for its samples while it is visible, and draws them.
// Everything that comes from the node is set as text, never as markup.
"use strict";

const INTERVAL_MILLISECONDS = 2000;
const SAMPLES_MAX = 60;
const SVG = "http://www.w3.org/2000/svg";

const $ = (id) => document.getElementById(id);
const group = groupName(location.pathname);
const isNode = group === "/";
let samples = [];
let spec = {};
let rows = [];
let earlier = new Map();
let order = { column: "cpu", descending: true };
let paused = false;
let timer = 0;
let processesOpen = false;

function groupName(path) {
  let name = path.replace(/^\/containers/, "");
  try { name = decodeURIComponent(name); } catch (error) { /* stays as it is */ }
  return "/" + name.replace(/^\/+|\/+$/g, "");
}

function address(prefix, name) {
  return prefix + name.split("/").map(encodeURIComponent).join("/");
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

async function ask(url) {
  const answer = await fetch(url, { cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return answer.json();
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return (at === 0 ? value.toFixed(0) : value.toFixed(value < 10 ? 2 : 1)) + " " + units[at];
}

const rate = (value) => bytes(value) + "/s";
const cores = (value) => (value < 0.1 ? (value * 1000).toFixed(1) + " m" : value.toFixed(2)) + (value < 0.1 ? "cores" : " cores");
const percent = (value) => value.toFixed(1) + " %";

const milliseconds = (sample) => Date.parse(sample.timestamp);
const interfaces = (sample) => (sample.network && sample.network.interfaces) || [];
const total = (list, of) => list.reduce((sum, one) => sum + of(one), 0);
const disk = (sample, operation) => {
  // Partitions of the node tell what whole disks do; groups tell it themselves.
  const told = (sample.diskio && sample.diskio.io_service_bytes) || [];
  if (told.length > 0) return total(told, (one) => one.stats[operation] || 0);
  const field = operation === "Read" ? "sectors_read" : "sectors_written";
  return total(sample.filesystem || [], (one) => one[field] * 512);
};

// Per second, between each two samples.
function perSecond(of) {
  const points = [];
  for (let at = 1; at < samples.length; at += 1) {
    const seconds = (milliseconds(samples[at]) - milliseconds(samples[at - 1])) / 1000;
    const grown = of(samples[at]) - of(samples[at - 1]);
    if (seconds > 0 && grown >= 0) points.push({ at: milliseconds(samples[at]), value: grown / seconds });
  }
  return points;
}

const plain = (of) => samples.map((sample) => ({ at: milliseconds(sample), value: of(sample) }));

const GRAPHS = [
  { title: "CPU", format: cores, limit: () => cpuLimit(), series: [
    { name: "used", points: () => perSecond((s) => s.cpu.usage.total / 1e9) },
    { name: "in the kernel", points: () => perSecond((s) => s.cpu.usage.system / 1e9) },
  ] },
  { title: "Memory", format: bytes, limit: () => memoryLimit(), series: [
    { name: "working set", points: () => plain((s) => s.memory.working_set) },
    { name: "with caches", points: () => plain((s) => s.memory.usage) },
  ] },
  { title: "Network", format: rate, shown: () => samples.some((s) => interfaces(s).length > 0), series: [
    { name: "received", points: () => perSecond((s) => total(interfaces(s), (i) => i.rx_bytes)) },
    { name: "sent", points: () => perSecond((s) => total(interfaces(s), (i) => i.tx_bytes)) },
  ] },
  { title: "Disk", format: rate, series: [
    { name: "read", points: () => perSecond((s) => disk(s, "Read")) },
    { name: "written", points: () => perSecond((s) => disk(s, "Write")) },
  ] },
  { title: "Pressure", format: percent, shown: () => samples.some((s) => s.cpu.psi || s.memory.psi), series: [
    { name: "waiting for CPU", points: () => plain((s) => (s.cpu.psi ? s.cpu.psi.some.avg10 : 0)) },
    { name: "waiting for memory", points: () => plain((s) => (s.memory.psi ? s.memory.psi.some.avg10 : 0)) },
  ] },
];

function cpuLimit() {
  return spec.cpu && spec.cpu.quota && spec.cpu.period ? spec.cpu.quota / spec.cpu.period : 0;
}

function memoryLimit() {
  const limit = (spec.memory && spec.memory.limit) || 0;
  return limit < 2 ** 53 ? limit : 0;
}

const STYLES = ["one", "two"];

function makeGraph(graph, at) {
  const caption = element("figcaption", {}, element("h2", { id: "graph-" + at }, graph.title));
  graph.values = graph.series.map((series, index) => {
    const value = element("strong", {}, "–");
    const line = drawn("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" }, drawn("path", { d: "M0 4H26", class: "series " + STYLES[index] }));
    caption.append(element("span", { class: "key" }, line, series.name + " ", value));
    return value;
  });
  graph.canvas = drawn("svg", { class: "graph", viewBox: "0 0 400 160", preserveAspectRatio: "none", role: "img", "aria-label": graph.title });
  graph.figure = element("figure", { "aria-labelledby": "graph-" + at }, caption, graph.canvas);
  $("graphs").append(graph.figure);
}

// A round number not below the largest.
function ceiling(value) {
  if (value <= 0) return 1;
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((times) => times * step).find((top) => top >= value) || value;
}

function drawGraph(graph) {
  graph.figure.hidden = graph.shown ? !graph.shown() : false;
  if (graph.figure.hidden) return;
  const lines = graph.series.map((series) => series.points());
  const largest = Math.max(0, ...lines.flat().map((point) => point.value));
  const limit = graph.limit ? graph.limit() : 0;
  // A limit far away would press the line flat: it is told in words then.
  const showLimit = limit > 0 && limit <= largest * 4;
  const binary = graph.format === bytes || graph.format === rate;
  const top = Math.max(binary ? 2 ** Math.ceil(Math.log2(Math.max(largest, 1))) : ceiling(largest), showLimit ? limit * 1.05 : 0);
  const end = samples.length > 0 ? milliseconds(samples[samples.length - 1]) : Date.now();
  const begin = Math.min(end - SAMPLES_MAX * INTERVAL_MILLISECONDS / 2, samples.length > 0 ? milliseconds(samples[0]) : end);
  const x = (at) => ((at - begin) / (end - begin || 1) * 400).toFixed(1);
  const y = (value) => (150 - value / top * 140).toFixed(1);
  const shapes = [];
  for (const share of [0, 0.5, 1]) {
    shapes.push(drawn("line", { class: "grid", x1: 0, x2: 400, y1: y(top * share), y2: y(top * share), "vector-effect": "non-scaling-stroke" }));
  }
  if (showLimit) shapes.push(drawn("line", { class: "limit", x1: 0, x2: 400, y1: y(limit), y2: y(limit), "vector-effect": "non-scaling-stroke" }));
  lines.forEach((points, index) => {
    const path = points.map((point, at) => (at === 0 ? "M" : "L") + x(point.at) + " " + y(point.value)).join("");
    shapes.push(drawn("path", { class: "series " + STYLES[index], d: path || "M0 0", "vector-effect": "non-scaling-stroke" }));
  });
  graph.canvas.replaceChildren(...shapes);
  const words = graph.series.map((series, index) => {
    const last = lines[index].length > 0 ? graph.format(lines[index][lines[index].length - 1].value) : "–";
    graph.values[index].textContent = last;
    return series.name + " " + last;
  });
  graph.canvas.setAttribute("aria-label", graph.title + ": " + words.join(", ") + (limit > 0 ? ", limit " + graph.format(limit) : "") + "; top of the graph " + graph.format(top));
  if (!graph.scale) { graph.scale = element("span", { class: "key", "aria-hidden": "true" }); graph.figure.append(graph.scale); }
  graph.scale.textContent = "0 to " + graph.format(top) + ", last " + Math.round((end - begin) / 1000) + " s" + (limit > 0 ? ", limit " + graph.format(limit) : "");
}

function showTrail(labels) {
  const links = [element("li", {}, isNode ? element("span", { "aria-current": "page" }, "Node") : element("a", { href: "/containers/" }, "Node"))];
  const parts = group.split("/").filter((part) => part !== "");
  parts.forEach((part, at) => {
    const name = "/" + parts.slice(0, at + 1).join("/");
    const last = at === parts.length - 1;
    const shown = last ? labels || part : part.length > 24 ? part.slice(0, 21) + "…" : part;
    links.push(element("li", {}, last ? element("span", { "aria-current": "page" }, shown) : element("a", { href: address("/containers", name), title: part }, shown)));
  });
  $("trail").replaceChildren(...links);
}

function showFacts(view) {
  const labels = spec.labels || {};
  const pod = labels["io.kubernetes.pod.name"];
  const container = labels["io.kubernetes.container.name"];
  const title = isNode ? "Node" : container ? "Container " + container : pod ? "Pod " + pod : group;
  $("title").textContent = title;
  document.title = title;
  showTrail(container || pod);
  const newest = samples[samples.length - 1];
  const facts = [
    ["Namespace", labels["io.kubernetes.pod.namespace"]],
    ["Pod", container ? pod : ""],
    ["Image", spec.image],
    ["Id", (view.aliases || [])[0]],
    ["Group", isNode ? "" : group],
    ["Since", new Date(spec.creation_time).toLocaleString()],
    ["CPU shares", !isNode && spec.cpu && spec.cpu.limit],
    ["CPU limit", cpuLimit() ? cores(cpuLimit()) : ""],
    [isNode ? "Memory" : "Memory limit", memoryLimit() ? bytes(memoryLimit()) : ""],
    ["Threads", newest && newest.processes.threads_current],
    ["Out of memory", newest && newest.oom_events ? newest.oom_events + " times" : ""],
  ].filter(([, value]) => value);
  $("facts").replaceChildren(...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
}

function bar(share) {
  const width = Math.max(0, Math.min(1, share)) * 100;
  return drawn("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": percent(share * 100) },
    drawn("rect", { width: 100, height: 8 }), drawn("rect", { width, height: 8 }));
}

function showSystems() {
  const newest = samples[samples.length - 1];
  const systems = (newest && newest.filesystem) || [];
  $("systems").hidden = systems.length === 0;
  $("systems").querySelector("tbody").replaceChildren(...systems.map((system) => element("tr", {},
    element("th", { scope: "row" }, system.device),
    element("td", { class: "number" }, bytes(system.usage)),
    element("td", { class: "number" }, bytes(system.capacity)),
    element("td", {}, bar(system.capacity ? system.usage / system.capacity : 0)))));
}

const COLUMNS = [
  { key: "title", title: isNode ? "Pod" : "Name" },
  { key: "namespace", title: "Namespace", shown: isNode },
  { key: "cpu", title: "CPU", number: true, format: cores },
  { key: "working_set", title: "Working set", number: true, format: bytes },
  { key: "memory", title: "With caches", number: true, format: bytes },
].filter((column) => column.shown !== false);

function makeHead(table, columns, sort) {
  table.querySelector("thead tr").replaceChildren(...columns.map((column) => {
    const head = element("th", { scope: "col", class: column.number ? "number" : "" });
    if (!sort) { head.append(column.title); return head; }
    const button = element("button", { type: "button" }, column.title);
    button.addEventListener("click", () => sort(column));
    head.append(button);
    if (order.column === column.key) head.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
    return head;
  }));
}

function sortBy(column) {
  order = { column: column.key, descending: order.column === column.key ? !order.descending : Boolean(column.number) };
  const focused = column.key;
  showInside();
  const at = COLUMNS.findIndex((one) => one.key === focused);
  $("inside").querySelectorAll("thead button")[at].focus();
}

function takeList(list) {
  const now = new Map();
  rows = list.map((row) => {
    const at = Date.parse(row.timestamp);
    now.set(row.name, { at, cpu: row.cpu });
    const before = earlier.get(row.name);
    const seconds = before ? (at - before.at) / 1000 : 0;
    const last = row.name.split("/").pop();
    const title = row.kind === "pod" ? row.pod : row.container || (row.kind === "sandbox" ? "(sandbox)" : last);
    const old = rows.find((one) => one.name === row.name);
    const cpu = seconds > 0 ? Math.max(0, (row.cpu - before.cpu) / 1e9 / seconds) : old ? old.cpu : 0;
    return { ...row, title, cpu };
  });
  earlier = now;
  showInside();
}

function showInside() {
  $("inside").hidden = rows.length === 0;
  $("inside-title").textContent = isNode ? "Pods" : rows.some((row) => row.kind === "container") ? "Containers" : "Inside";
  makeHead($("inside"), COLUMNS, sortBy);
  const wanted = $("filter").value.trim().toLowerCase();
  const shown = rows.filter((row) => (row.namespace + "/" + row.title + " " + row.name).toLowerCase().includes(wanted));
  shown.sort((a, b) => {
    const [one, two] = [a[order.column], b[order.column]];
    const compared = typeof one === "number" ? one - two : String(one).localeCompare(String(two));
    return (order.descending ? -compared : compared) || a.name.localeCompare(b.name);
  });
  $("shown").textContent = wanted ? shown.length + " of " + rows.length : "";
  // A row that has the focus keeps it.
  const focused = document.activeElement && document.activeElement.getAttribute("href");
  const body = $("inside").querySelector("tbody");
  body.replaceChildren(...shown.map((row) => element("tr", {}, ...COLUMNS.map((column) => {
    if (column.key === "title") return element("th", { scope: "row" }, element("a", { href: address("/containers", row.name) }, row.title));
    const value = row[column.key];
    return element("td", { class: column.number ? "number" : "" }, column.format ? column.format(value) : String(value));
  }))));
  if (focused) [...body.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

const PROCESS_COLUMNS = [
  { key: "pid", title: "PID", number: true }, { key: "parent_pid", title: "Parent", number: true },
  { key: "user", title: "User" }, { key: "cmd", title: "Command" }, { key: "status", title: "State" },
  { key: "percent_cpu", title: "CPU", number: true, format: percent },
  { key: "percent_mem", title: "Memory", number: true, format: percent },
  { key: "rss", title: "RSS", number: true, format: bytes },
  { key: "virtual_size", title: "Virtual", number: true, format: bytes },
  { key: "running_time", title: "CPU time", number: true },
];

async function showProcesses() {
  const list = await ask(address("/api/v2.0/ps", group));
  $("list").querySelector("tbody").replaceChildren(...list.map((process) => element("tr", {}, ...PROCESS_COLUMNS.map((column) => {
    const value = process[column.key];
    return element("td", { class: column.number ? "number" : "" }, column.format ? column.format(value) : String(value));
  }))));
}

function say(text, problem) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = problem ? "problem" : "";
}

async function update() {
  const view = await ask(address("/api/v1.3/containers", group) + "?num_stats=" + (samples.length === 0 ? SAMPLES_MAX : 3));
  spec = view.spec;
  const last = samples.length > 0 ? milliseconds(samples[samples.length - 1]) : 0;
  samples = samples.concat(view.stats.filter((sample) => milliseconds(sample) > last)).slice(-SAMPLES_MAX);
  showFacts(view);
  GRAPHS.forEach(drawGraph);
  showSystems();
  takeList(await ask("/ui/list?name=" + encodeURIComponent(group)));
}

async function turn() {
  clearTimeout(timer);
  if (paused || document.hidden) return;
  try {
    await update();
    say("Live", false);
  } catch (error) {
    say(samples.length > 0 ? "No longer there: " + error.message : error.message, true);
  }
  clearTimeout(timer);
  timer = setTimeout(turn, samples.length < 2 ? INTERVAL_MILLISECONDS / 2 : INTERVAL_MILLISECONDS);
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").textContent = paused ? "Resume" : "Pause";
  say(paused ? "Paused" : "Live", false);
  turn();
});
$("filter").addEventListener("input", showInside);
$("load").addEventListener("click", async () => {
  processesOpen = !processesOpen;
  $("load").setAttribute("aria-expanded", String(processesOpen));
  $("load").textContent = processesOpen ? "Hide" : "Show";
  $("list").hidden = !processesOpen;
  if (processesOpen) showProcesses().catch((error) => say(error.message, true));
});
document.addEventListener("visibilitychange", turn);

makeHead($("list"), PROCESS_COLUMNS, null);
showTrail("");
GRAPHS.forEach(makeGraph);
turn();
