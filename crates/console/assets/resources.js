// Every kind that the server has, custom ones included, from discovery; and where each stands in the menu.
// Read by the menu, the router and `go_to`.

import { get } from "./api.js";

const AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/** Sections of the menu, in order; kinds that are in none are custom or under "All kinds". */
export const MENU = [
  ["Workloads", ["pods", "apps/deployments", "apps/statefulsets", "apps/daemonsets", "batch/jobs", "batch/cronjobs"]],
  [
    "Network",
    ["services", "networking.k8s.io/ingresses", "discovery.k8s.io/endpointslices", "networking.k8s.io/networkpolicies"],
  ],
  ["Configuration", ["configmaps", "secrets", "autoscaling/horizontalpodautoscalers", "resourcequotas"]],
  ["Storage", ["persistentvolumeclaims", "persistentvolumes", "storage.k8s.io/storageclasses"]],
  [
    "Access",
    [
      "serviceaccounts",
      "rbac.authorization.k8s.io/roles",
      "rbac.authorization.k8s.io/rolebindings",
      "rbac.authorization.k8s.io/clusterroles",
      "rbac.authorization.k8s.io/clusterrolebindings",
    ],
  ],
  ["Cluster", ["nodes", "namespaces", "events", "apiextensions.k8s.io/customresourcedefinitions"]],
];

export const kinds = { all: [], byId: new Map() };

/** `apps/deployments`, `pods`. */
export const idOf = (kind) => (kind.group ? `${kind.group}/${kind.resource}` : kind.resource);

/** `Ingress`, and `Ingresses`. */
export const title = (kind) => kind.kind;
export function titles({ kind }) {
  if (/(s|x|ch|sh)$/.test(kind)) return kind + (/ss$|x$|ch$|sh$/.test(kind) ? "es" : "");
  return /[^aeiou]y$/.test(kind) ? kind.slice(0, -1) + "ies" : kind + "s";
}

export async function discover() {
  const [core, groups] = await Promise.all(["/api", "/apis"].map((path) => get(path, { accept: AGGREGATED })));
  const found = [];
  for (const group of [...(core.items ?? []), ...(groups.items ?? [])]) {
    const seen = new Set();
    // The first version of a group is the one it prefers.
    for (const version of group.versions ?? []) {
      for (const resource of version.resources ?? []) {
        const verbs = resource.verbs ?? [];
        if (seen.has(resource.resource) || !verbs.includes("list")) continue;
        seen.add(resource.resource);
        found.push({
          group: group.metadata?.name ?? "",
          version: version.version,
          resource: resource.resource,
          kind: resource.responseKind?.kind ?? resource.resource,
          namespaced: resource.scope === "Namespaced",
          verbs,
          short: resource.shortNames ?? [],
          subresources: (resource.subresources ?? []).map((sub) => sub.subresource),
        });
      }
    }
  }
  kinds.all = found.filter((kind) => kind.group !== "metrics.k8s.io" && idOf(kind) !== "events.k8s.io/events");
  kinds.all.sort((a, b) => (a.kind < b.kind ? -1 : a.kind > b.kind ? 1 : 0));
  kinds.byId = new Map(kinds.all.map((kind) => [idOf(kind), kind]));
  kinds.metrics = found.some((kind) => kind.group === "metrics.k8s.io");
  return kinds;
}

const BUILT_IN = /(^$|^(apps|batch|autoscaling|policy|extensions)$|\.k8s\.io$)/;

/** Kinds that somebody added. */
export const customKinds = () =>
  kinds.all.filter((kind) => !BUILT_IN.test(kind.group) || /gateway|x-k8s/.test(kind.group));

/** The kind that an owner reference or an event's object names. */
export function kindOf(apiVersion, name) {
  const group = apiVersion?.includes("/") ? apiVersion.split("/")[0] : "";
  return kinds.all.find((kind) => kind.group === group && kind.kind === name);
}

export const listLink = (kind, parameters = "") => `#/l/${idOf(kind)}${parameters}`;

export function objectLink(kind, namespace, name, tab = "") {
  const place = [kind.group || "core", kind.resource, namespace || "-", name].map(encodeURIComponent).join("/");
  return `#/o/${place}${tab ? "/" + tab : ""}`;
}
