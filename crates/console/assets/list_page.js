// The page of a kind: a live table with a filter, an order, and a word about how it stands.
// Rows come from `live_table`, and are drawn by `table_view`.

import { announce, empty, failure, h, loading, replace } from "./dom.js";
import { plural } from "./format.js";
import { LiveTable } from "./live_table.js";
import { pathOf } from "./api.js";
import { idOf, objectLink, titles } from "./resources.js";
import { TableView } from "./table_view.js";

const EVENTS_ORDER = "Last Seen";

export function listPage({ kind, namespace, parameters, setParameters, setNamespace }) {
  const isEvents = idOf(kind) === "events";
  const scope = kind.namespaced ? namespace : "";
  const table = new LiveTable(pathOf(kind, scope), {}, kind.verbs.includes("watch"));
  const order = () => ({
    sort: parameters.get("sort") ?? (isEvents ? EVENTS_ORDER : "Name"),
    descending: parameters.get("order") === "desc",
    filter: parameters.get("q") ?? "",
  });
  const view = new TableView({
    label: titles(kind),
    link: (row) => objectLink(kind, row.namespace, row.name),
    onsort: (name) => {
      const { sort, descending } = order();
      setParameters({ sort: name, order: sort === name && !descending ? "desc" : "" });
      draw();
    },
  });
  const filter = h("input.filter", {
    type: "search",
    id: "filter",
    placeholder: "Filter by word or label=value",
    "aria-label": `Filter ${titles(kind)}`,
    autocomplete: "off",
    spellcheck: "false",
    value: order().filter,
    oninput: () => (setParameters({ q: filter.value }), draw()),
    onkeydown: (event) => {
      if (event.key === "Enter" || event.key === "ArrowDown") {
        event.preventDefault();
        view.move(1);
      } else if (event.key === "Escape") {
        event.stopPropagation();
        if (filter.value) ((filter.value = ""), setParameters({ q: "" }), draw());
        else filter.blur();
      }
    },
  });
  const state = h("p.state", { role: "status" });
  const area = h("div.list-area");
  const element = h(
    "section.page.list",
    h("header.page-head", h("h1", titles(kind)), state, h("div.tools", filter)),
    area,
  );

  function columns() {
    const { model } = table;
    const { sort, descending } = order();
    const mark = (name) => (sort.toLowerCase() === name.toLowerCase() ? (descending ? "down" : "up") : undefined);
    const shown = model.shown().map((index) => {
      const { name, priority } = model.columns[index];
      const isName = name === "Name";
      const text = isName ? (row) => row.name : (row) => model.cell(row, index);
      return { name, isName, optional: priority > 0, sorted: mark(name), text };
    });
    if (!shown.some((column) => column.isName)) {
      // Events have no column of names: their reason leads to them.
      const lead = shown.find((column) => column.name === "Reason") ?? shown[0];
      if (lead) lead.isName = true;
    }
    if (kind.namespaced && !namespace) {
      shown.unshift({ name: "Namespace", sorted: mark("Namespace"), text: (row) => row.namespace ?? "" });
    }
    return shown;
  }

  let drawn = "";
  function draw() {
    const { model } = table;
    const total = model.rows.size;
    const rows = model.view(order());
    describe(rows.length, total);
    if (table.state === "failed") return show("failed", () => failure(table.error, () => table.retry()));
    if (!total && table.state === "loading") return show("loading", () => loading(`Loading ${titles(kind)}…`));
    if (!rows.length) return show(total ? "filtered" : "empty", () => nothing(total));
    show("table", () => view.element);
    view.show(columns(), rows);
  }

  function show(name, build) {
    if (drawn === name) return;
    drawn = name;
    replace(area, build());
  }

  function nothing(total) {
    if (total) {
      const clear = h(
        "button",
        { type: "button", onclick: () => ((filter.value = ""), setParameters({ q: "" }), draw()) },
        "Clear the filter",
      );
      return empty("Nothing matches", `None of ${plural(total, "row")} has these words.`, clear);
    }
    const everywhere = h("button", { type: "button", onclick: () => setNamespace("") }, "Look in all namespaces");
    return scope
      ? empty(`No ${titles(kind)} in ${scope}`, "New ones appear here by themselves.", everywhere)
      : empty(`No ${titles(kind)}`, "New ones appear here by themselves.");
  }

  let said = "";
  function describe(count, total) {
    const counts = count === total ? plural(total, "row") : `${count.toLocaleString("en")} of ${plural(total, "row")}`;
    const word = { live: "Live", loading: "Loading", retrying: "Connection lost, trying again", failed: "" }[
      table.state
    ];
    const text = `${counts}`;
    replace(state, table.state === "failed" ? "" : text, " ", h(`span.live.${table.state}`, word));
    if (word !== said && table.state !== "loading") announce(`${titles(kind)}: ${counts}. ${word}`);
    said = word;
  }

  const stop = table.follow(draw);
  const ticker = setInterval(draw, 10000);
  draw();
  return {
    element,
    title: titles(kind),
    keys: {
      "/": () => filter.focus(),
      j: () => view.move(1),
      k: () => view.move(-1),
      ArrowDown: () => view.move(1),
      ArrowUp: () => view.move(-1),
      PageDown: () => view.move(15),
      PageUp: () => view.move(-15),
      G: () => view.move(1e9),
      Enter: () => view.open(),
    },
    dispose() {
      stop();
      clearInterval(ticker);
      view.dispose();
    },
  };
}
