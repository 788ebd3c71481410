// A table that draws only the rows in sight, so that ten thousand cost what fifty do.
// Drawn from rows of a `TableModel`; the page around it is `list_page`.

import { h, s } from "./dom.js";
import { tone } from "./format.js";

const ROW_HEIGHT = 32;
/** Rows drawn beyond the edge, so that a quick scroll shows no gap. */
const OVERSCAN = 6;
const WIDTH_SAMPLES = 400;
const CELL_CHARS_MAX = 60;
const CHAR_PIXELS = 7.6;
/** The padding of a cell. */
const CELL_PIXELS = 22;

export class TableView {
  /** `link(row)` is where a row leads; `onsort(column)` is called for a heading. */
  constructor({ label, link, onsort }) {
    this.link = link;
    this.onsort = onsort;
    this.rows = [];
    this.slots = [];
    this.cursor = undefined;
    this.colgroup = h("colgroup");
    this.head = h("tr");
    this.before = h("tr.spacer", { "aria-hidden": "true" }, h("td"));
    this.after = h("tr.spacer", { "aria-hidden": "true" }, h("td"));
    this.body = h("tbody", this.before, this.after);
    this.table = h("table.grid", { "aria-label": label }, this.colgroup, h("thead", this.head), this.body);
    this.element = h("div.table-scroll", { tabindex: "-1" }, this.table);
    this.element.addEventListener("scroll", () => this.schedule(), { passive: true });
    this.body.addEventListener("click", (event) => this.click(event));
    this.body.addEventListener("focusin", (event) => {
      const slot = this.slots.find((candidate) => candidate.element.contains(event.target));
      if (slot?.row && this.cursor !== slot.row.key) {
        this.cursor = slot.row.key;
        this.draw();
      }
    });
    this.observer = new ResizeObserver(() => this.schedule());
    this.observer.observe(this.element);
  }

  dispose() {
    this.observer.disconnect();
  }

  /** `columns`: `[{ name, text(row), sorted, isName, optional }]`; optional ones are left out without room. */
  show(columns, rows) {
    this.rows = rows;
    this.columns = this.fit(columns);
    const names = this.columns.map((column) => `${column.name}:${column.sorted ?? ""}`).join();
    if (names !== this.names) {
      this.names = names;
      this.headings();
      this.slots.forEach((slot) => slot.element.remove());
      this.slots = [];
    }
    this.table.setAttribute("aria-rowcount", rows.length + 1);
    this.draw();
  }

  headings() {
    this.head.replaceChildren(
      ...this.columns.map((column) => {
        const sorted = { up: "ascending", down: "descending" }[column.sorted] ?? "none";
        const arrow = s(
          `svg.arrow${column.sorted ? "" : ".hidden"}`,
          { viewBox: "0 0 8 8", "aria-hidden": "true" },
          s("path", { d: column.sorted === "down" ? "M0 2h8L4 7z" : "M0 6h8L4 1z" }),
        );
        return h(
          "th",
          { scope: "col", "aria-sort": sorted },
          h("button", { type: "button", onclick: () => this.onsort(column.name) }, column.name, arrow),
        );
      }),
    );
    this.before.firstChild.colSpan = this.after.firstChild.colSpan = this.columns.length;
  }

  /** Widths follow from what is in the columns, not from what is in sight: nothing jumps while it scrolls. */
  fit(columns) {
    const step = Math.max(1, Math.floor(this.rows.length / WIDTH_SAMPLES));
    const chars = columns.map((column) => column.name.length + 2);
    for (let i = 0; i < this.rows.length; i += step) {
      columns.forEach((column, index) => {
        chars[index] = Math.max(chars[index], Math.min(CELL_CHARS_MAX, String(column.text(this.rows[i])).length));
      });
    }
    let kept = columns.map((column, index) => ({
      column,
      width: Math.round(chars[index] * CHAR_PIXELS + CELL_PIXELS),
    }));
    const total = () => kept.reduce((sum, { width }) => sum + width, 0);
    const room = this.element.clientWidth || 1000;
    while (total() > room && kept.some(({ column }) => column.optional)) {
      kept.splice(
        kept.findLastIndex(({ column }) => column.optional),
        1,
      );
    }
    const key = kept.map(({ column, width }) => column.name + width).join();
    if (key !== this.widthKey) {
      this.widthKey = key;
      this.colgroup.replaceChildren(
        ...kept.map(({ width }) => {
          const col = h("col");
          col.style.width = `${width}px`;
          return col;
        }),
      );
      this.table.style.minWidth = `${total()}px`;
    }
    return kept.map(({ column }) => column);
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  draw() {
    const visible = Math.ceil((this.element.clientHeight || 600) / ROW_HEIGHT);
    const count = Math.min(this.rows.length, visible + 2 * OVERSCAN);
    const scrolled = Math.floor(this.element.scrollTop / ROW_HEIGHT) - OVERSCAN;
    const first = Math.max(0, Math.min(scrolled, this.rows.length - count));
    while (this.slots.length < count) this.addSlot();
    while (this.slots.length > count) this.slots.pop().element.remove();
    this.before.firstChild.style.height = `${first * ROW_HEIGHT}px`;
    this.after.firstChild.style.height = `${Math.max(0, this.rows.length - first - count) * ROW_HEIGHT}px`;
    this.rotate(first - (this.first ?? first));
    this.first = first;
    this.slots.forEach((slot, index) => this.fill(slot, this.rows[first + index], first + index));
    // A focus that scrolled away with its row must not stay on another row.
    const focused = this.slots.find((slot) => slot.element.contains(document.activeElement));
    if (focused && focused.row?.key !== this.cursor) this.element.focus({ preventScroll: true });
  }

  /** Rows that stay in sight keep their elements; those that left it are used at the other end. */
  rotate(by) {
    if (by > 0 && by < this.slots.length) {
      const moved = this.slots.splice(0, by);
      this.after.before(...moved.map((slot) => slot.element));
      this.slots.push(...moved);
    } else if (by < 0 && -by < this.slots.length) {
      const moved = this.slots.splice(by);
      this.before.after(...moved.map((slot) => slot.element));
      this.slots.unshift(...moved);
    }
  }

  addSlot() {
    const cells = this.columns.map((_, index) =>
      index === this.nameColumn() ? h("th", { scope: "row" }, h("a")) : h("td"),
    );
    const element = h("tr.row", cells);
    this.slots.push({ element, cells, texts: [] });
    this.after.before(element);
  }

  nameColumn() {
    return this.columns.findIndex((column) => column.isName);
  }

  fill(slot, row, index) {
    slot.row = row;
    slot.element.setAttribute("aria-rowindex", index + 2);
    const current = row.key === this.cursor;
    slot.element.classList.toggle("current", current);
    slot.element.classList.toggle("going", Boolean(row.deleted));
    this.columns.forEach((column, at) => {
      const text = String(column.text(row));
      if (slot.texts[at] === text && slot.key === row.key) return;
      slot.texts[at] = text;
      const cell = slot.cells[at];
      if (column.isName) {
        cell.firstChild.textContent = text;
        cell.firstChild.href = this.link(row);
      } else {
        const mood = tone(column.name, text);
        cell.textContent = text;
        cell.className = mood ? `tone ${mood}` : "";
      }
      cell.title = text.length > 24 ? text : "";
    });
    slot.key = row.key;
  }

  click(event) {
    if (event.target.closest("a") || getSelection().toString()) return;
    const slot = this.slots.find((candidate) => candidate.element.contains(event.target));
    if (slot) location.hash = this.link(slot.row).slice(1);
  }

  /** Moves the cursor by rows, and the focus with it. */
  move(by) {
    if (!this.rows.length) return;
    const at = this.rows.findIndex((row) => row.key === this.cursor);
    const next = at < 0 ? (by > 0 ? 0 : this.rows.length - 1) : Math.max(0, Math.min(this.rows.length - 1, at + by));
    this.cursor = this.rows[next].key;
    const top = next * ROW_HEIGHT;
    const room = this.element.clientHeight - 2 * ROW_HEIGHT;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top > this.element.scrollTop + room) this.element.scrollTop = top - room;
    this.draw();
    this.slots
      .find((slot) => slot.row.key === this.cursor)
      ?.element.querySelector("a")
      ?.focus({ preventScroll: true });
  }

  open() {
    const row = this.rows.find((candidate) => candidate.key === this.cursor);
    if (row) location.hash = this.link(row).slice(1);
  }
}
