// Keys: single ones of the page, two-key ways to places (`g p`), and the table that `?` shows.
// Wired by `main`; pages add their own in `keys`.

import { dialog, h } from "./dom.js";

const CHORD_MS = 1200;

/** Where `g` and a letter lead. */
export const PLACES = [
  ["o", "Overview", "#/"],
  ["p", "Pods", "#/l/pods"],
  ["d", "Deployments", "#/l/apps/deployments"],
  ["s", "Services", "#/l/services"],
  ["i", "Ingresses", "#/l/networking.k8s.io/ingresses"],
  ["j", "Jobs", "#/l/batch/jobs"],
  ["c", "ConfigMaps", "#/l/configmaps"],
  ["v", "Volume claims", "#/l/persistentvolumeclaims"],
  ["n", "Nodes", "#/l/nodes"],
  ["e", "Events", "#/l/events"],
  ["t", "Topology", "#/topology"],
  ["a", "All kinds", "#/kinds"],
];

const HELP = [
  [
    "Anywhere",
    [
      ["?", "These keys"],
      [":", "Go to any kind"],
      ["n", "Choose a namespace"],
      ["/", "Filter"],
      ["Esc", "Close, clear, back"],
    ],
  ],
  [
    "In a table",
    [
      ["j  k", "Down and up"],
      ["Enter", "Open"],
      ["G", "To the end"],
    ],
  ],
  [
    "On an object",
    [
      ["1", "Summary"],
      ["y", "YAML"],
      ["e", "Edit"],
      ["t", "Timeline"],
      ["l", "Logs"],
      ["s", "Terminal"],
      ["p", "Topology"],
      ["D", "Delete"],
      ["u", "Back to the table"],
    ],
  ],
];

export function showHelp() {
  const list = (rows) =>
    h(
      "dl.keys",
      rows.map(([keys, text]) =>
        h(
          "div",
          h(
            "dt",
            keys.split("  ").map((key) => h("kbd", key)),
          ),
          h("dd", text),
        ),
      ),
    );
  return dialog(
    "Keys",
    (done) =>
      h(
        "div",
        h(
          "div.help",
          HELP.map(([name, rows]) => h("section", h("h3", name), list(rows))),
          h("section", h("h3", "Go to"), list(PLACES.map(([key, text]) => [`g  ${key}`, text]))),
        ),
        h("p.actions", h("button", { type: "button", autofocus: true, onclick: () => done() }, "Close")),
      ),
    { wide: true },
  );
}

const typing = (element) => element?.matches?.("input:not([type=checkbox]), textarea, select, [contenteditable]");

/** `keysOf()` are the keys of the page that is open. */
export function listen(keysOf) {
  let chord = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (document.querySelector("dialog[open]")) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (chord && Date.now() - chord < CHORD_MS) {
      chord = 0;
      const place = PLACES.find(([key]) => key === event.key);
      if (place) {
        event.preventDefault();
        location.hash = place[2].slice(1);
      }
      return;
    }
    if (event.key === "g") return (chord = Date.now());
    // A focused link or button keeps what these keys mean to it.
    if (event.key === "Enter" && event.target.closest?.("a, button, summary")) return;
    const action = keysOf()[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
