// Elements from data: the one place where the page's markup is made.
// Used by every page. Text is always set as text; nothing of the cluster is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "selected")
      element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    element.append(child);
  }
}

/** `h("a.link", { href }, "text")`: an element with classes, attributes, listeners (`onclick`) and children. */
export function h(tag, attributes, ...children) {
  if (attributes instanceof Node || typeof attributes === "string" || Array.isArray(attributes)) {
    children.unshift(attributes);
    attributes = undefined;
  }
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  return fill(element, attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElementNS(SVG, name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  return fill(element, attributes, children);
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

const FOCUSABLE = "a[href], button, summary, input, select, textarea";

/** Replaces what changed by itself: keeps the focus and what is folded open, and waits while somebody selects text. */
export function redraw(element, ...children) {
  const selection = getSelection();
  if (!selection.isCollapsed && element.contains(selection.anchorNode)) return;
  const before = [...element.querySelectorAll(FOCUSABLE)];
  const at = before.indexOf(document.activeElement);
  const folded = [...element.querySelectorAll("details")].map((details) => details.open);
  replace(element, ...children);
  const details = [...element.querySelectorAll("details")];
  if (details.length === folded.length) details.forEach((each, index) => (each.open = folded[index]));
  if (at < 0) return;
  const after = [...element.querySelectorAll(FOCUSABLE)];
  const same = after.find((each) => each.href === before[at].href && each.textContent === before[at].textContent);
  (same ?? after[Math.min(at, after.length - 1)])?.focus({ preventScroll: true });
}

export const by = (id) => document.getElementById(id);

/** Tells screen readers without moving anything. */
export function announce(text) {
  const region = by("announcer");
  region.textContent = "";
  setTimeout(() => (region.textContent = text), 50);
}

/** A short message at the edge of the page. */
export function toast(text, tone = "") {
  const message = h(`div.toast${tone ? "." + tone : ""}`, { role: tone === "bad" ? "alert" : "status" }, text);
  by("toasts").append(message);
  setTimeout(() => message.remove(), tone === "bad" ? 9000 : 5000);
}

/** A modal dialog; resolves with what `done` is called with, undefined if it is left. */
export function dialog(title, build, options = {}) {
  return new Promise((resolve) => {
    let result;
    const element = h(`dialog${options.wide ? ".wide" : ""}`, { "aria-labelledby": "dialog-title" });
    const done = (value) => {
      result = value;
      element.close();
    };
    append(element, [h("h2", { id: "dialog-title" }, title), build(done)]);
    element.addEventListener("close", () => {
      element.remove();
      resolve(result);
    });
    element.addEventListener("click", (event) => event.target === element && element.close());
    document.body.append(element);
    element.showModal();
    (element.querySelector("[autofocus]") ?? element.querySelector("input, button"))?.focus();
  });
}

/** What is shown where there is nothing to show. */
export function empty(title, hint, ...actions) {
  return h("div.empty", h("p.empty-title", title), hint && h("p", hint), actions.length ? h("p.actions", actions) : "");
}

/** An error with what to do next. */
export function failure(error, retry) {
  const hint = {
    401: "Your token may have expired. Sign in again.",
    403: "Ask an administrator for a Role that allows it, or sign in as somebody else.",
    404: "It may have been deleted meanwhile, or its kind is no longer served.",
    429: "The API server is busy. Try again in a moment.",
  }[error.code];
  return h(
    "div.failure",
    { role: "alert" },
    h("p.empty-title", error.code ? `${error.reason || "Error"} (${error.code})` : "The API server can't be reached"),
    h("p", error.message),
    h("p.muted", hint ?? (error.code ? "" : "Check that it runs and that this page may reach it.")),
    retry && h("p.actions", h("button", { type: "button", onclick: retry }, "Try again")),
  );
}

export const loading = (text = "Loading…") => h("div.loading", { role: "status" }, h("span.spinner"), text);
