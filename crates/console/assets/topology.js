// The picture of a namespace: Ingress → Service → Pod → Node, as SVG.
// Placed by `topology_model`; also a tab of objects that are part of it.

import { get } from "./api.js";
import { empty, failure, h, loading, replace, s } from "./dom.js";
import { kinds, objectLink, titles } from "./resources.js";
import { BOX_WIDTH, COLUMN_WIDTH, graph, place, ROW_HEIGHT } from "./topology_model.js";

const INTERVAL_MS = 5000;
const BOX_HEIGHT = 34;
const MARGIN = 12;
const HEAD = 28;
const IDS = ["networking.k8s.io/ingresses", "services", "pods", "nodes"];

async function load(namespace) {
  const inside = namespace ? `/namespaces/${encodeURIComponent(namespace)}` : "";
  const list = (path) => get(`${path}?limit=2000&pretty=false`).then((answer) => answer.items);
  const optional = (path) => list(path).catch(() => []);
  const [ingresses, services, pods, nodes] = await Promise.all([
    optional(`/apis/networking.k8s.io/v1${inside}/ingresses`),
    optional(`/api/v1${inside}/services`),
    list(`/api/v1${inside}/pods`),
    optional("/api/v1/nodes"),
  ]);
  return { ingresses, services, pods, nodes };
}

/** Only what is linked with `id`, in either direction. */
function around(all, id) {
  const kept = new Set([id]);
  const spread = (from, to) => {
    for (let size = -1; size !== kept.size;) {
      size = kept.size;
      all.links.forEach((link) => kept.has(link[from]) && kept.add(link[to]));
    }
  };
  spread("from", "to");
  const forward = new Set(kept);
  kept.clear();
  kept.add(id);
  spread("to", "from");
  forward.forEach((member) => kept.add(member));
  return {
    boxes: all.boxes.filter((box) => kept.has(box.id)),
    links: all.links.filter((link) => kept.has(link.from) && kept.has(link.to)),
  };
}

/** The ends of names tell pods apart, so the middle is left out. */
const fit = (text, chars) => (text.length > chars ? `${text.slice(0, chars - 8)}…${text.slice(-7)}` : text);

function picture(placed) {
  const at = new Map(placed.boxes.map((box) => [box.id, box]));
  const [width, height] = [placed.width + 2 * MARGIN, placed.height + 2 * MARGIN + HEAD];
  const drawing = s("svg.topology", {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "group",
    "aria-label": `${placed.boxes.length} objects and how they are linked`,
  });
  placed.columns.forEach((column, index) => {
    const kind = kinds.byId.get(IDS[column]);
    drawing.append(
      s("text.column", { x: MARGIN + index * COLUMN_WIDTH, y: MARGIN + 8 }, kind ? titles(kind) : IDS[column]),
    );
  });
  const y = (box) => box.y + MARGIN + HEAD + ROW_HEIGHT / 2;
  for (const link of placed.links) {
    const [from, to] = [at.get(link.from), at.get(link.to)];
    if (!from || !to) continue;
    const [x1, x2] = [from.x + MARGIN + BOX_WIDTH, to.x + MARGIN];
    const bend = Math.max(20, (x2 - x1) / 2);
    drawing.append(
      s(
        `path.link${link.tone ? "." + link.tone : ""}`,
        { d: `M${x1},${y(from)} C${x1 + bend},${y(from)} ${x2 - bend},${y(to)} ${x2},${y(to)}` },
        link.detail && s("title", {}, link.detail),
      ),
    );
  }
  for (const box of placed.boxes) {
    const kind = kinds.byId.get(IDS.find((id) => id.endsWith(box.resource)));
    const top = y(box) - BOX_HEIGHT / 2;
    const href = box.group ? `#/l/pods?q=${encodeURIComponent(box.name)}` : objectLink(kind, box.namespace, box.name);
    drawing.append(
      s(
        "a",
        { href, "aria-label": `${kind.kind} ${box.name}${box.detail ? ", " + box.detail : ""}` },
        s(`rect.box${box.tone ? "." + box.tone : ""}`, {
          x: box.x + MARGIN,
          y: top,
          width: BOX_WIDTH,
          height: BOX_HEIGHT,
          rx: 6,
        }),
        s(`circle.mark${box.tone ? "." + box.tone : ""}`, { cx: box.x + MARGIN + 12, cy: y(box), r: 4 }),
        s("text.name", { x: box.x + MARGIN + 24, y: box.detail ? y(box) - 2 : y(box) + 4 }, fit(box.name, 24)),
        box.detail && s("text.detail", { x: box.x + MARGIN + 24, y: y(box) + 11 }, fit(box.detail, 30)),
        s("title", {}, `${box.namespace ? box.namespace + "/" : ""}${box.name}`),
      ),
    );
  }
  return drawing;
}

/** `focus`: the id of the box around which to draw; everything without. */
export function topologyView({ namespace, focus }) {
  const element = h("div.topology-scroll", { tabindex: "0", "aria-label": "Topology" }, loading());
  let stopped = false;
  let timer;
  let shown = "";
  async function draw() {
    try {
      const all = graph(await load(namespace));
      const part = focus ? around(all, focus) : all;
      if (stopped) return;
      const key = JSON.stringify(part);
      if (key !== shown) {
        shown = key;
        replace(
          element,
          part.boxes.length > (focus ? 1 : 0)
            ? picture(place(part))
            : empty(
                "Nothing leads here",
                "Pods, the Services that select them and the Ingresses in front appear here by themselves.",
              ),
        );
      }
    } catch (error) {
      if (!stopped) replace(element, failure(error, draw));
    }
    if (!stopped) timer = setTimeout(draw, INTERVAL_MS);
  }
  draw();
  return {
    element,
    keys: {},
    dispose() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}

export function topologyPage({ namespace }) {
  const view = topologyView({ namespace });
  const element = h(
    "section.page",
    h("header.page-head", h("h1", "Topology"), h("p.state", namespace ? `Namespace ${namespace}` : "All namespaces")),
    view.element,
  );
  return { ...view, element, title: "Topology" };
}
