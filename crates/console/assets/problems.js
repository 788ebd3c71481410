// What is wrong in the cluster, from the tables of its kinds. Pure.
// Shown first on the overview.

import { tone } from "./format.js";

/** A young object is not yet a problem. */
const SETTLING_SECONDS = 15;

function fraction(text) {
  const match = /^(\d+)\/(\d+)$/.exec(String(text));
  return match && { ready: Number(match[1]), wanted: Number(match[2]) };
}

const RULES = {
  nodes: (cell) => {
    const status = String(cell("Status"));
    if (!status.startsWith("Ready")) return ["bad", `is ${status}`];
    return status.includes("SchedulingDisabled") ? ["warn", "takes no new pods (cordoned)"] : undefined;
  },
  pods: (cell, row) => {
    const status = String(cell("Status"));
    if (row.deleted) return undefined;
    const mood = tone("Status", status);
    if (mood === "bad") return ["bad", status];
    if (mood === "warn") return ["warn", status];
    const containers = fraction(cell("Ready"));
    const unready = status === "Running" && containers && containers.ready < containers.wanted;
    return unready ? ["warn", `${containers.ready} of ${containers.wanted} containers ready`] : undefined;
  },
  workloads: (cell) => {
    const replicas = fraction(cell("Ready"));
    if (replicas) {
      if (replicas.ready >= replicas.wanted) return undefined;
      return [replicas.ready ? "warn" : "bad", `${replicas.ready} of ${replicas.wanted} replicas ready`];
    }
    const [desired, ready] = [Number(cell("Desired")), Number(cell("Ready"))];
    return ready < desired ? [ready ? "warn" : "bad", `${ready} of ${desired} pods ready`] : undefined;
  },
  jobs: (cell) => (String(cell("Status")) === "Failed" ? ["bad", "failed"] : undefined),
  persistentvolumeclaims: (cell) => {
    const status = String(cell("Status"));
    return status === "Bound" ? undefined : [status === "Lost" ? "bad" : "warn", `is ${status}`];
  },
};

const RULE_OF = { deployments: "workloads", statefulsets: "workloads", daemonsets: "workloads" };
const RANK = { bad: 0, warn: 1 };
const ORDER = ["nodes", "deployments", "statefulsets", "daemonsets", "jobs", "persistentvolumeclaims", "pods"];

/** `[{ resource, row, tone, text }]`, the worst first. `tables`: a TableModel by resource. */
export function problems(tables, now = Date.now()) {
  const found = [];
  for (const [resource, model] of Object.entries(tables)) {
    const rule = RULES[RULE_OF[resource] ?? resource];
    for (const row of model.rows.values()) {
      const cell = (name) => row.cells[model.index(name)];
      const verdict = rule(cell, row);
      if (!verdict) continue;
      if (verdict[0] === "warn" && now - Date.parse(row.created) < SETTLING_SECONDS * 1000) continue;
      found.push({ resource, row, tone: verdict[0], text: verdict[1] });
    }
  }
  const order = (problem) => RANK[problem.tone] * 10 + ORDER.indexOf(problem.resource);
  return found.sort((a, b) => order(a) - order(b) || Date.parse(b.row.created) - Date.parse(a.row.created));
}
