// What leads where: Ingress → Service → Pod → Node, placed in columns. Pure.
// Fed with objects and drawn by `topology`.

/** Pods of one owner beyond these are one box. */
const PODS_SHOWN_MAX = 8;
export const ROW_HEIGHT = 44;
export const COLUMN_WIDTH = 270;
export const BOX_WIDTH = 206;

export function matches(selector, labels) {
  const wanted = Object.entries(selector ?? {});
  return wanted.length > 0 && wanted.every(([key, value]) => labels?.[key] === value);
}

function backends(ingress) {
  const rules = (ingress.spec?.rules ?? []).flatMap((rule) =>
    (rule.http?.paths ?? []).map((path) => ({
      service: path.backend?.service?.name,
      at: (rule.host ?? "*") + (path.path ?? ""),
    })),
  );
  const fallback = ingress.spec?.defaultBackend?.service?.name;
  return fallback ? [...rules, { service: fallback, at: "*" }] : rules;
}

export function podTone(pod) {
  if (pod.metadata.deletionTimestamp) return "warn";
  if (pod.status?.phase === "Succeeded") return "";
  const ready = (pod.status?.conditions ?? []).some((c) => c.type === "Ready" && c.status === "True");
  if (ready) return "good";
  const waiting = (pod.status?.containerStatuses ?? []).some((c) => /BackOff|Err/.test(c.state?.waiting?.reason ?? ""));
  return waiting || pod.status?.phase === "Failed" ? "bad" : "warn";
}

function nodeTone(node) {
  return (node?.status?.conditions ?? []).some((c) => c.type === "Ready" && c.status === "True") ? "good" : "bad";
}

/** Boxes with their column and links between them, nothing placed yet. */
export function graph({ ingresses = [], services = [], pods = [], nodes = [] }) {
  const boxes = new Map();
  const links = new Map();
  const box = (column, resource, meta, more = {}) => {
    const id = `${resource}/${meta.namespace ?? ""}/${meta.name}`;
    if (!boxes.has(id))
      boxes.set(id, {
        id,
        column,
        resource,
        namespace: meta.namespace,
        name: meta.name,
        tone: "",
        detail: "",
        ...more,
      });
    return id;
  };
  const link = (from, to, detail = "", tone = "") => links.set(`${from} ${to}`, { from, to, detail, tone });
  const owner = (pod) => pod.metadata.ownerReferences?.find((reference) => reference.controller)?.name ?? "";
  const live = pods.filter((pod) => !["Succeeded", "Failed"].includes(pod.status?.phase));
  const siblings = new Map();
  live.forEach((pod) => siblings.set(owner(pod), (siblings.get(owner(pod)) ?? 0) + 1));
  const podBox = new Map();
  for (const pod of live) {
    const group = owner(pod);
    const crowded = group && siblings.get(group) > PODS_SHOWN_MAX;
    const tone = podTone(pod);
    const id = crowded
      ? box(
          2,
          "pods",
          { namespace: pod.metadata.namespace, name: group },
          { group: true, count: 0, ready: 0, tone: "good" },
        )
      : box(2, "pods", pod.metadata, { tone, detail: pod.status?.podIP ?? pod.status?.phase ?? "" });
    podBox.set(pod, id);
    if (crowded) {
      const of = boxes.get(id);
      of.count++;
      of.ready += tone === "good" ? 1 : 0;
      of.detail = `${of.count} pods, ${of.ready} ready`;
      if (tone === "bad" || (tone === "warn" && of.tone === "good")) of.tone = tone;
    }
    if (pod.spec?.nodeName) {
      const node = nodes.find((candidate) => candidate.metadata.name === pod.spec.nodeName);
      link(id, box(3, "nodes", { name: pod.spec.nodeName }, node ? { tone: nodeTone(node) } : {}));
    }
  }
  for (const service of services) {
    const selected = live.filter(
      (pod) =>
        pod.metadata.namespace === service.metadata.namespace && matches(service.spec?.selector, pod.metadata.labels),
    );
    const ports = (service.spec?.ports ?? []).map((port) => port.port).join(", ");
    const id = box(1, "services", service.metadata, {
      detail: [service.spec?.type, ports].filter(Boolean).join(" · "),
      tone: service.spec?.selector && !selected.some((pod) => podTone(pod) === "good") ? "bad" : "",
    });
    for (const pod of selected) link(id, podBox.get(pod), "", podTone(pod) === "good" ? "" : "broken");
  }
  for (const ingress of ingresses) {
    const id = box(0, "ingresses", ingress.metadata, {
      detail: [...new Set(backends(ingress).map((b) => b.at))].slice(0, 2).join(" "),
    });
    for (const { service, at } of backends(ingress)) {
      const to = `services/${ingress.metadata.namespace}/${service}`;
      const known = boxes.has(to);
      if (!known)
        box(
          1,
          "services",
          { namespace: ingress.metadata.namespace, name: service },
          { tone: "bad", detail: "does not exist" },
        );
      link(id, to, at, known ? "" : "broken");
    }
  }
  return { boxes: [...boxes.values()], links: [...links.values()] };
}

/** Gives every box a place: in its column, near what it is linked with. */
export function place({ boxes, links }) {
  const used = [0, 1, 2, 3].filter((column) => boxes.some((box) => box.column === column));
  const order = new Map();
  const previous = (id) =>
    links
      .filter((link) => link.to === id)
      .map((link) => order.get(link.from))
      .filter((at) => at !== undefined);
  let height = 0;
  for (const [position, column] of used.entries()) {
    const mean = (list) =>
      list.length ? list.reduce((sum, at) => sum + at, 0) / list.length : Number.MAX_SAFE_INTEGER;
    const here = boxes.filter((box) => box.column === column).map((box) => ({ box, weight: mean(previous(box.id)) }));
    here.sort((a, b) => a.weight - b.weight || (a.box.id < b.box.id ? -1 : 1));
    here.forEach(({ box }, row) => {
      box.x = position * COLUMN_WIDTH;
      box.y = row * ROW_HEIGHT;
      order.set(box.id, row);
    });
    height = Math.max(height, here.length * ROW_HEIGHT);
  }
  for (const column of used) {
    const here = boxes.filter((box) => box.column === column);
    const shift = (height - here.length * ROW_HEIGHT) / 2;
    here.forEach((box) => (box.y += shift));
  }
  return { boxes, links, columns: used, width: Math.max(0, used.length - 1) * COLUMN_WIDTH + BOX_WIDTH, height };
}
