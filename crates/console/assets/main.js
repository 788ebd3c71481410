// Starts the page: who is signed in, what the server has, which page is open.
// Routes are fragments: `#/`, `#/l/KIND?q=…`, `#/o/GROUP/RESOURCE/NAMESPACE/NAME/TAB`, `#/topology`, `#/kinds`.

import { onSignedOut } from "./api.js";
import { chooseNamespace, goTo, kindsPage } from "./chooser.js";
import { announce, by, empty, failure, h, loading, replace } from "./dom.js";
import { listen, showHelp } from "./keyboard.js";
import { listPage } from "./list_page.js";
import { LiveTable } from "./live_table.js";
import { objectPage } from "./object_page.js";
import { overviewPage } from "./overview.js";
import { customKinds, discover, kinds, listLink, MENU, titles } from "./resources.js";
import { restore, session, signOut } from "./session.js";
import { alreadySignedIn, signInPage } from "./sign_in.js";
import { topologyPage } from "./topology.js";

const NAMESPACE_KEY = "minke-console-namespace";
const CUSTOM_SHOWN_MAX = 12;

let page;
let namespaces;
let stopNamespaces;
let namespace = sessionStorage.getItem(NAMESPACE_KEY) ?? "";
let route = "";

function show(next) {
  page?.dispose?.();
  page = next;
  replace(by("main"), page.element);
  document.title = `${page.title} · Minke`;
  if (!session.user) return;
  announce(page.title);
  by("main").focus({ preventScroll: true });
}

function parameters() {
  return new URLSearchParams(location.hash.split("?")[1] ?? "");
}

/** Changes what stands behind the question mark, without opening the page anew. */
function setParameters(all, changes) {
  for (const [name, value] of Object.entries(changes)) value ? all.set(name, value) : all.delete(name);
  const text = all.toString();
  history.replaceState(null, "", location.hash.split("?")[0] + (text ? `?${text}` : ""));
}

function setNamespace(name) {
  namespace = name;
  sessionStorage.setItem(NAMESPACE_KEY, name);
  drawNamespace();
  if (/^#\/o\//.test(location.hash)) {
    const kind = kinds.byId.get(idOfRoute(location.hash));
    location.hash = kind ? listLink(kind) : "#/";
  } else open();
}

function idOfRoute(hash) {
  const [, , group, resource] = hash.split("?")[0].split("/").map(decodeURIComponent);
  return group === "core" ? resource : `${group}/${resource}`;
}

function open() {
  const path = location.hash.split("?")[0] || "#/";
  if (page?.mayLeave && path !== route && !page.mayLeave()) return history.replaceState(null, "", route);
  route = path;
  const [, first, ...rest] = path.split("/").map(decodeURIComponent);
  const next = {
    "": () => overviewPage({ namespace }),
    l: () => openList(rest.join("/")),
    o: () => openObject(rest),
    topology: () => topologyPage({ namespace }),
    kinds: kindsPage,
  }[first ?? ""];
  try {
    show(next ? next() : unknown());
  } catch (error) {
    show({
      element: h("section.page", failure(Object.assign(error, { reason: "Error" }), open)),
      title: "Error",
      keys: {},
    });
    throw error;
  }
  by("menu").classList.remove("open");
  by("menu-button").setAttribute("aria-expanded", "false");
  for (const link of by("menu").querySelectorAll("a")) {
    const here =
      link.getAttribute("href") === path || (first === "o" && link.getAttribute("href") === `#/l/${idOfRoute(path)}`);
    link.toggleAttribute("aria-current", here);
    if (here) link.setAttribute("aria-current", "page");
  }
}

function unknown() {
  return {
    element: h(
      "section.page",
      empty(
        "There is no such page",
        "The address may be of an older version.",
        h("a.button", { href: "#/" }, "Overview"),
      ),
    ),
    title: "Not found",
    keys: {},
  };
}

function openList(id) {
  const kind = kinds.byId.get(id);
  if (!kind) return unknown();
  const given = parameters();
  return listPage({
    kind,
    namespace,
    parameters: given,
    setParameters: (changes) => setParameters(given, changes),
    setNamespace,
  });
}

function openObject([group, resource, place, name, tab]) {
  const kind = kinds.byId.get(group === "core" ? resource : `${group}/${resource}`);
  if (!kind || !name) return unknown();
  const base = location.hash.split("?")[0].split("/").slice(0, 6).join("/");
  return objectPage({
    kind,
    namespace: place === "-" ? undefined : place,
    name,
    tab,
    isEditing: false,
    setTab: (next) => {
      route = next ? `${base}/${next}` : base;
      history.replaceState(null, "", route);
    },
  });
}

function drawMenu() {
  const link = (kind) => h("li", h("a", { href: listLink(kind) }, titles(kind)));
  const custom = customKinds();
  replace(
    by("menu"),
    h("ul", h("li", h("a", { href: "#/" }, "Overview")), h("li", h("a", { href: "#/topology" }, "Topology"))),
    MENU.map(([name, ids]) => [
      h("h2", name),
      h(
        "ul",
        ids
          .map((id) => kinds.byId.get(id))
          .filter(Boolean)
          .map(link),
      ),
    ]),
    custom.length ? [h("h2", "Custom"), h("ul", custom.slice(0, CUSTOM_SHOWN_MAX).map(link))] : "",
    h("ul", h("li", h("a", { href: "#/kinds" }, "All kinds"))),
  );
}

function drawNamespace() {
  by("namespace").textContent = namespace || "All namespaces";
}

async function pickNamespace() {
  const names = namespaces.state === "failed" ? [] : namespaces.model.view().map((row) => row.name);
  const chosen = await chooseNamespace([...new Set([...names, ...(namespace ? [namespace] : [])])]);
  if (chosen !== undefined) setNamespace(chosen === "*" ? "" : chosen);
}

function drawShell() {
  document.body.classList.add("signed-in");
  by("user").textContent = session.user.replace(/^system:serviceaccount:/, "");
  by("user").title = [session.user, ...session.groups].join("\n");
  drawMenu();
  drawNamespace();
}

async function enter(user) {
  session.user = user.username;
  session.groups = user.groups ?? [];
  replace(by("main"), loading("Reading what the cluster has…"));
  try {
    await discover();
  } catch (error) {
    return replace(
      by("main"),
      failure(error, () => enter(user)),
    );
  }
  namespaces = new LiveTable("/api/v1/namespaces");
  stopNamespaces = namespaces.follow(() => {});
  drawShell();
  open();
}

function leave(notice) {
  signOut();
  stopNamespaces?.();
  namespace = "";
  document.body.classList.remove("signed-in");
  const next = signInPage(enter, notice);
  show({ ...next, element: next.element, keys: {} });
  next.focus();
}

const common = { "?": showHelp, ":": goTo, n: pickNamespace };

async function start() {
  restore();
  listen(() => (session.user ? { ...common, ...page?.keys } : {}));
  onSignedOut(() => session.user && leave("You were signed out: the token is no longer good."));
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#token=")) return location.reload();
    if (session.user) open();
  });
  by("sign-out").addEventListener("click", () => leave());
  by("help").addEventListener("click", showHelp);
  by("namespace").addEventListener("click", pickNamespace);
  by("go-to").addEventListener("click", goTo);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    by("main").focus();
  });
  by("menu-button").addEventListener("click", () => {
    const opened = by("menu").classList.toggle("open");
    by("menu-button").setAttribute("aria-expanded", String(opened));
  });
  const user = await alreadySignedIn();
  user ? enter(user) : leave();
}

start();
