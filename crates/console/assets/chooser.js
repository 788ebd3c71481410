// Choosing from a list by typing: a kind to go to, a namespace to look at.
// Opened by `main`; arrows and Enter work while one types.

import { dialog, h, replace } from "./dom.js";
import { customKinds, kinds, listLink, titles } from "./resources.js";

const SHOWN_MAX = 200;

/** `items`: `[{ text, note, words, value }]`. Resolves with a value; with `own` also with what is typed. */
function choose(title, placeholder, items, own = false) {
  return dialog(title, (done) => {
    let at = 0;
    let found = items;
    const list = h("ul.choices", { role: "listbox", id: "choices", "aria-label": title });
    const input = h("input", {
      type: "search",
      placeholder,
      "aria-label": title,
      role: "combobox",
      "aria-expanded": "true",
      "aria-controls": "choices",
      autocomplete: "off",
      spellcheck: "false",
      autofocus: true,
    });
    function draw() {
      const words = input.value.toLowerCase().trim();
      // The very name, then what begins like it, then what has it inside.
      const rank = (item) =>
        item.words.includes(words) ? 0 : item.words.some((word) => word.startsWith(words)) ? 1 : 2;
      found = items.filter((item) => item.words.some((word) => word.includes(words)));
      if (words) found.sort((a, b) => rank(a) - rank(b) || a.text.length - b.text.length);
      if (own && words && !found.some((item) => item.value === words))
        found.push({ text: `Use “${words}”`, value: words });
      found = found.slice(0, SHOWN_MAX);
      at = Math.max(0, Math.min(at, found.length - 1));
      replace(
        list,
        found.length
          ? found.map((item, index) =>
              h(
                "li",
                {
                  role: "option",
                  id: `choice-${index}`,
                  "aria-selected": String(index === at),
                  onclick: () => done(item.value),
                },
                item.text,
                item.note && h("span.muted", ` ${item.note}`),
              ),
            )
          : h("li.muted", "Nothing has this name."),
      );
      input.setAttribute("aria-activedescendant", found.length ? `choice-${at}` : "");
      list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
    }
    input.addEventListener("input", () => ((at = 0), draw()));
    input.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by) (event.preventDefault(), (at += by), draw());
      if (event.key === "Enter" && found[at]) (event.preventDefault(), done(found[at].value));
    });
    draw();
    return h("div.chooser", input, list);
  });
}

export async function goTo() {
  const items = kinds.all.map((kind) => ({
    text: titles(kind),
    note: kind.group,
    words: [...kind.short, kind.resource, titles(kind).toLowerCase(), kind.group],
    value: listLink(kind),
  }));
  const link = await choose("Go to", "Kind or short name", items);
  if (link) location.hash = link.slice(1);
}

export function chooseNamespace(names) {
  const items = [
    { text: "All namespaces", words: ["all", "all namespaces"], value: "*" },
    ...names.map((name) => ({ text: name, words: [name], value: name })),
  ];
  // Who may not list namespaces still knows their own.
  return choose("Namespace", "Name", items, true);
}

/** Every kind there is, by group. */
export function kindsPage() {
  const custom = new Set(customKinds());
  const groups = new Map();
  for (const kind of kinds.all) {
    const group = kind.group || "core";
    groups.set(group, [...(groups.get(group) ?? []), kind]);
  }
  const order = [...groups].sort(
    ([a, x], [b, y]) => custom.has(y[0]) - custom.has(x[0]) || (a === "core" ? -1 : b === "core" ? 1 : a < b ? -1 : 1),
  );
  const element = h(
    "section.page",
    h("header.page-head", h("h1", "All kinds"), h("p.state", `${kinds.all.length} kinds in ${groups.size} groups`)),
    h(
      "div.kinds",
      order.map(([group, members]) =>
        h(
          "section.panel",
          h("h2", group, custom.has(members[0]) && h("span.tag", "custom")),
          h(
            "ul",
            members.map((kind) =>
              h(
                "li",
                h("a", { href: listLink(kind) }, titles(kind)),
                kind.short.length ? h("span.muted", ` ${kind.short.join(", ")}`) : "",
              ),
            ),
          ),
        ),
      ),
    ),
  );
  return { element, title: "All kinds", keys: {}, dispose() {} };
}
