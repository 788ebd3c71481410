// The rows of a live table: what a list and its watch say, filtered and in order. Pure.
// Fed by `live_table`, drawn by `table_view`.

import { age, parseDuration } from "./format.js";

const SAMPLE_ROWS = 200;

/** What a cell is sorted by: numbers and ages before words. */
export function sortKey(value) {
  if (typeof value === "number") return value;
  if (value === null || value === undefined) return "";
  const text = String(value);
  const seconds = parseDuration(text);
  if (seconds !== undefined) return seconds;
  const number = /^-?\d+(\.\d+)?(?![\w.:-])/.exec(text);
  return number ? Number(number[0]) : text.toLowerCase();
}

export function compare(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}

/** The words of a filter; each must be found in a row. `label=value` looks at labels, `!word` for what is not there. */
export function parseFilter(text) {
  return text
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .map((word) => {
      const not = word.length > 1 && word.startsWith("!");
      return { not, word: not ? word.slice(1) : word };
    });
}

function searchText(row) {
  const labels = Object.entries(row.labels).map(([key, value]) => `${key}=${value}`);
  return [row.namespace ?? "", ...row.cells, ...labels].join("\u0001").toLowerCase();
}

export class TableModel {
  constructor() {
    this.columns = [];
    this.rows = new Map();
    this.version = 0;
    this.resourceVersion = "";
  }

  /** A list comes in pages. What was there before stays until the new list is whole; the first list shows at once. */
  beginList() {
    this.incoming = this.rows.size ? new Map() : this.rows;
  }

  page(table) {
    if (table.columnDefinitions?.length) this.columns = table.columnDefinitions;
    this.resourceVersion = table.metadata?.resourceVersion ?? this.resourceVersion;
    for (const row of table.rows ?? []) put(this.incoming, row);
    this.version++;
  }

  endList() {
    this.rows = this.incoming;
    this.version++;
  }

  /** A watch event; returns whether a row changed. */
  event({ type, object }) {
    this.resourceVersion = object?.metadata?.resourceVersion || this.resourceVersion;
    if (type === "BOOKMARK") return false;
    for (const row of object.rows ?? []) {
      const meta = row.object?.metadata ?? {};
      this.resourceVersion = meta.resourceVersion || this.resourceVersion;
      if (type === "DELETED") this.rows.delete(keyOf(meta));
      else put(this.rows, row);
    }
    this.version++;
    return true;
  }

  /** Indices of the columns to show: the important ones, and of the others those that say something. */
  shown() {
    const says = (index) => {
      let left = SAMPLE_ROWS;
      for (const row of this.rows.values()) {
        if (!["", "<none>", null, undefined].includes(row.cells[index])) return true;
        if (!left--) break;
      }
      return false;
    };
    const important = (index) => (this.columns[index].priority ?? 0) === 0;
    return this.columns.map((_, index) => index).filter((index) => important(index) || says(index));
  }

  index(name) {
    return this.columns.findIndex((column) => column.name.toLowerCase() === name.toLowerCase());
  }

  cell(row, index, now = Date.now()) {
    const column = this.columns[index];
    if (column?.name === "Age" && row.created) return age(row.created, now);
    const value = row.cells[index];
    return value === null || value === undefined ? "" : value;
  }

  /** Rows that pass the filter, in order. `sort`: a column's name, or `Namespace`. */
  view({ filter = "", sort = "Name", descending = false, namespace = "" } = {}) {
    const words = parseFilter(filter);
    let rows = [...this.rows.values()];
    if (namespace) rows = rows.filter((row) => row.namespace === namespace);
    if (words.length) {
      rows = rows.filter((row) => {
        row.search ??= searchText(row);
        return words.every(({ not, word }) => row.search.includes(word) !== not);
      });
    }
    const index = this.index(sort);
    const isAge = this.columns[index]?.name === "Age";
    const key = (row) => {
      if (sort === "Namespace") return row.namespace ?? "";
      if (isAge && row.created) return -Date.parse(row.created);
      return sortKey(index < 0 || sort === "Name" ? row.name : row.cells[index]);
    };
    const keyed = rows.map((row) => ({ row, key: key(row) }));
    const direction = descending ? -1 : 1;
    const byName = (a, b) => compare(a.namespace ?? "", b.namespace ?? "") || compare(a.name, b.name);
    keyed.sort((a, b) => compare(a.key, b.key) * direction || byName(a.row, b.row));
    return keyed.map(({ row }) => row);
  }
}

function put(rows, row) {
  const meta = row.object?.metadata ?? {};
  const key = keyOf(meta);
  rows.set(key, {
    key,
    name: meta.name ?? "",
    namespace: meta.namespace,
    created: meta.creationTimestamp,
    deleted: meta.deletionTimestamp,
    labels: meta.labels ?? {},
    cells: row.cells ?? [],
    search: undefined,
  });
}

function keyOf(meta) {
  return `${meta.namespace ?? ""}/${meta.name ?? ""}`;
}
