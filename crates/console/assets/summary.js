// What an object is and how it stands, for people: the verdict, progress, conditions, containers, labels, events.
// The first tab of `object_page`.

import { h } from "./dom.js";
import { age, plural, tone } from "./format.js";
import { kindOf, kinds, listLink, objectLink } from "./resources.js";

const LABELS_SHOWN_MAX = 40;
const TEXT_CHARS_MAX = 400;
/** The YAML has it all over again. */
const LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration";

export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  return shown.length
    ? h(
        "dl.facts",
        shown.map(([name, value]) => h("div", h("dt", name), h("dd", value))),
      )
    : "";
}

export function card(name, ...content) {
  const filled = content.flat(Infinity).filter(Boolean);
  return filled.length ? h("section.panel", h("h2", name), filled) : "";
}

function status(text) {
  const mood = tone("Status", text);
  return h(`span.tone${mood ? "." + mood : ""}`, text);
}

export function verdictBox(verdict) {
  const mood = verdict.wrong ? "bad" : "good";
  return h(
    `section.verdict.${mood}`,
    { "aria-label": "Why" },
    h("p.cause", h(`span.dot.${mood}`), h("span", verdict.cause)),
    verdict.evidence.length
      ? h(
          "details",
          { open: verdict.wrong },
          h("summary", "Evidence"),
          h(
            "ul",
            verdict.evidence.map((line) => h("li", line)),
          ),
        )
      : "",
    verdict.wrong && verdict.commands.length
      ? h(
          "div.try",
          h("span.muted", "Try"),
          verdict.commands.map((command) => h("code", command)),
        )
      : "",
  );
}

/** Desired, updated, ready, available: how far a rollout is. */
export function rollout(object) {
  const { spec = {}, status: now = {} } = object;
  const wanted = object.kind === "DaemonSet" ? (now.desiredNumberScheduled ?? 0) : (spec.replicas ?? 1);
  const known = {
    Deployment: now.updatedReplicas,
    StatefulSet: now.updatedReplicas ?? now.currentReplicas,
    ReplicaSet: now.replicas,
    DaemonSet: now.updatedNumberScheduled,
  };
  if (!(object.kind in known)) return undefined;
  const ready = object.kind === "DaemonSet" ? (now.numberReady ?? 0) : (now.readyReplicas ?? 0);
  const available = object.kind === "DaemonSet" ? (now.numberAvailable ?? 0) : (now.availableReplicas ?? 0);
  const updated = known[object.kind] ?? 0;
  const observed = (now.observedGeneration ?? 0) >= (object.metadata.generation ?? 0);
  const total = object.kind === "DaemonSet" ? (now.currentNumberScheduled ?? 0) : (now.replicas ?? 0);
  const done = observed && updated >= wanted && available >= wanted && total <= wanted;
  return { wanted, updated, ready, available, total, done, old: Math.max(0, total - updated) };
}

function rolloutCard(object) {
  const progress = rollout(object);
  if (!progress) return "";
  const step = (name, value) => {
    const fill = h(`span.fill${value >= progress.wanted ? ".good" : ".busy"}`);
    fill.style.width = `${progress.wanted ? Math.min(100, (100 * value) / progress.wanted) : 100}%`;
    return h(
      "div.meter",
      { role: "img", "aria-label": `${value} of ${progress.wanted} ${name.toLowerCase()}` },
      h("span.meter-label", name),
      h("span.bar", fill),
      h("span.meter-text", `${value} of ${progress.wanted}`),
    );
  };
  const word = progress.done ? "Complete" : object.spec?.paused ? "Paused" : "In progress";
  return card(
    "Rollout",
    h(
      "p",
      { role: "status" },
      h(`span.tone.${progress.done ? "good" : "warn"}`, word),
      progress.old ? h("span.muted", ` ${plural(progress.old, "old replica")} left`) : "",
      object.metadata.annotations?.["deployment.kubernetes.io/revision"]
        ? h("span.muted", ` Revision ${object.metadata.annotations["deployment.kubernetes.io/revision"]}`)
        : "",
    ),
    step("Updated", progress.updated),
    step("Ready", progress.ready),
    step("Available", progress.available),
  );
}

function conditionsCard(object) {
  const conditions = object.status?.conditions ?? [];
  if (!conditions.length) return "";
  const negative = /Pressure|Unavailable|Failure|Failed|Dangling|Suspended|DisruptionTarget/;
  const mood = (c) =>
    c.status === "Unknown" ? "warn" : (c.status === "True") !== negative.test(c.type) ? "good" : "warn";
  return card(
    "Conditions",
    h(
      "ul.conditions",
      conditions.map((c) =>
        h(
          "li",
          h(`span.dot.${mood(c)}`, { title: c.status }),
          h(
            "div",
            h("strong", c.type),
            h("span.muted", ` ${c.status}${c.reason ? ", " + c.reason : ""}`),
            c.message && h("div.condition-text", c.message),
          ),
          h("span.muted", age(c.lastTransitionTime)),
        ),
      ),
    ),
  );
}

function containerState(state) {
  if (state?.running) return [status("Running"), `for ${age(state.running.startedAt)}`];
  if (state?.waiting) return [status(state.waiting.reason ?? "Waiting"), state.waiting.message ?? ""];
  if (state?.terminated) {
    const { reason, exitCode, finishedAt } = state.terminated;
    return [status(reason ?? "Terminated"), `exit code ${exitCode}, ${age(finishedAt)} ago`];
  }
  return [h("span.muted", "not started"), ""];
}

function restarts(now) {
  const last = now?.lastState?.terminated;
  if (!now?.restartCount) return "";
  return `${now.restartCount}${last ? `, last ended ${last.reason} ${age(last.finishedAt)} ago` : ""}`;
}

function containersCard(pod) {
  const list = (field, statuses, word) =>
    (pod.spec?.[field] ?? []).map((container) => ({
      container,
      word,
      now: (pod.status?.[statuses] ?? []).find((s) => s.name === container.name),
    }));
  const all = [
    ...list("initContainers", "initContainerStatuses", "init"),
    ...list("containers", "containerStatuses", ""),
    ...list("ephemeralContainers", "ephemeralContainerStatuses", "ephemeral"),
  ];
  const amounts = (map) =>
    Object.entries(map ?? {})
      .map(([name, value]) => `${name} ${value}`)
      .join(", ");
  return card(
    "Containers",
    h(
      "div.containers",
      all.map(({ container, word, now }) => {
        const [state, more] = containerState(now?.state);
        return h(
          "div.container",
          h(
            "div.container-head",
            h("strong", container.name),
            word && h("span.tag", word),
            state,
            h("span.muted", more),
          ),
          facts([
            ["Image", h("code", container.image)],
            ["Restarts", restarts(now)],
            [
              "Ports",
              (container.ports ?? []).map((port) => `${port.containerPort}/${port.protocol ?? "TCP"}`).join(", "),
            ],
            ["Requests", amounts(container.resources?.requests)],
            ["Limits", amounts(container.resources?.limits)],
          ]),
        );
      }),
    ),
  );
}

const link = (kind, namespace, name) =>
  kind && name ? h("a", { href: objectLink(kind, namespace, name) }, name) : name;

/** Facts by kind, beyond those that all have. */
const FACTS = {
  Pod: ({ spec, status: now, metadata }) => [
    ["Node", link(kinds.byId.get("nodes"), "", spec.nodeName)],
    ["Pod IP", now?.podIP],
    ["Phase", status(now?.phase ?? "")],
    ["QoS class", now?.qosClass],
    ["Service account", link(kinds.byId.get("serviceaccounts"), metadata.namespace, spec.serviceAccountName)],
    ["Restart policy", spec.restartPolicy],
    ["Priority", spec.priorityClassName],
  ],
  Service: ({ spec, status: now }) => [
    ["Type", spec.type],
    ["Cluster IP", spec.clusterIPs?.join(", ") ?? spec.clusterIP],
    ["External IP", now?.loadBalancer?.ingress?.map((at) => at.ip ?? at.hostname).join(", ")],
    [
      "Ports",
      (spec.ports ?? [])
        .map((port) =>
          [port.name, `${port.port}${port.nodePort ? ":" + port.nodePort : ""}/${port.protocol}`]
            .filter(Boolean)
            .join(" "),
        )
        .join(", "),
    ],
    ["Selector", labelText(spec.selector)],
  ],
  Deployment: ({ spec }) => [
    ["Strategy", spec.strategy?.type],
    ["Selector", labelText(spec.selector?.matchLabels)],
    ["Images", images(spec.template)],
  ],
  StatefulSet: ({ spec }) => [
    ["Service", spec.serviceName],
    ["Selector", labelText(spec.selector?.matchLabels)],
    ["Images", images(spec.template)],
  ],
  DaemonSet: ({ spec }) => [
    ["Selector", labelText(spec.selector?.matchLabels)],
    ["Images", images(spec.template)],
  ],
  Job: ({ spec, status: now }) => [
    ["Completions", `${now?.succeeded ?? 0} of ${spec.completions ?? 1}`],
    ["Failed", now?.failed],
    ["Images", images(spec.template)],
  ],
  CronJob: ({ spec, status: now }) => [
    ["Schedule", spec.schedule],
    ["Last run", now?.lastScheduleTime && `${age(now.lastScheduleTime)} ago`],
  ],
  Node: ({ status: now, spec }) => [
    ["Addresses", (now?.addresses ?? []).map((at) => at.address).join(", ")],
    ["Kubelet", now?.nodeInfo?.kubeletVersion],
    ["Runtime", now?.nodeInfo?.containerRuntimeVersion],
    ["System", now?.nodeInfo && `${now.nodeInfo.osImage}, ${now.nodeInfo.kernelVersion}, ${now.nodeInfo.architecture}`],
    ["Pod CIDR", spec.podCIDRs?.join(", ")],
    ["Taints", (spec.taints ?? []).map((taint) => `${taint.key}:${taint.effect}`).join(", ")],
  ],
  Ingress: ({ spec, status: now }) => [
    ["Class", spec.ingressClassName],
    ["Hosts", (spec.rules ?? []).map((rule) => rule.host ?? "*").join(", ")],
    ["Address", now?.loadBalancer?.ingress?.map((at) => at.ip ?? at.hostname).join(", ")],
  ],
  PersistentVolumeClaim: ({ spec, status: now }) => [
    ["Phase", status(now?.phase ?? "")],
    ["Capacity", now?.capacity?.storage ?? spec.resources?.requests?.storage],
    ["Storage class", spec.storageClassName],
    ["Volume", link(kinds.byId.get("persistentvolumes"), "", spec.volumeName)],
  ],
  Event: ({ reason, message, involvedObject: of, count, lastTimestamp, eventTime }) => [
    ["Reason", reason],
    ["Message", message],
    ["Object", of && link(kindOf(of.apiVersion, of.kind), of.namespace, of.name)],
    ["Count", count],
    ["Last seen", `${age(lastTimestamp ?? eventTime)} ago`],
  ],
  Namespace: ({ status: now }) => [["Phase", status(now?.phase ?? "")]],
};

const labelText = (labels) =>
  Object.entries(labels ?? {})
    .map(([key, value]) => `${key}=${value}`)
    .join(", ");
const images = (template) => (template?.spec?.containers ?? []).map((container) => container.image).join(", ");

function dataCard(object) {
  const entries = Object.entries(object.kind === "ConfigMap" ? (object.data ?? {}) : {});
  if (object.kind === "Secret") {
    const names = Object.entries(object.data ?? {}).map(([name, value]) => [
      name,
      `${Math.floor((value.length * 3) / 4)} bytes, shown in the YAML only`,
    ]);
    return card("Data", facts(names));
  }
  return card(
    "Data",
    entries.length
      ? h(
          "div.data",
          entries.map(([name, value]) =>
            h("details", { open: entries.length < 4 }, h("summary", name), h("pre.code", value)),
          ),
        )
      : "",
  );
}

export function summary({ object, more }) {
  const { metadata } = object;
  const owners = (metadata.ownerReferences ?? []).map((owner) => [
    `${owner.kind} `,
    link(kindOf(owner.apiVersion, owner.kind), metadata.namespace, owner.name),
  ]);
  const short = (text) => (text.length > TEXT_CHARS_MAX ? text.slice(0, TEXT_CHARS_MAX) + "…" : text);
  const pairs = (map) =>
    Object.entries(map ?? {})
      .filter(([key]) => key !== LAST_APPLIED)
      .slice(0, LABELS_SHOWN_MAX)
      .map(([key, value]) => h("span.label", { title: key }, h("span.muted", key), value && `=${short(value)}`));
  const special = FACTS[object.kind]?.(object) ?? [];
  return h(
    "div.summary",
    more.verdict,
    h(
      "div.columns",
      h(
        "div.column",
        card(
          "Details",
          facts([
            ...special,
            [
              "Created",
              metadata.creationTimestamp &&
                h(
                  "time",
                  { datetime: metadata.creationTimestamp, title: metadata.creationTimestamp },
                  `${age(metadata.creationTimestamp)} ago`,
                ),
            ],
            ["Being deleted", metadata.deletionTimestamp && `since ${age(metadata.deletionTimestamp)}`],
            ["Controlled by", owners.length ? h("span", owners) : ""],
            ["Finalizers", (metadata.finalizers ?? []).join(", ")],
          ]),
        ),
        rolloutCard(object),
        object.kind === "Pod" && containersCard(object),
        dataCard(object),
        more.pods,
      ),
      h(
        "div.column",
        more.charts && card("Usage", more.charts),
        conditionsCard(object),
        card("Events", more.events),
        card("Labels", pairs(metadata.labels).length ? h("div.labels", pairs(metadata.labels)) : ""),
        card("Annotations", pairs(metadata.annotations).length ? h("div.labels", pairs(metadata.annotations)) : ""),
      ),
    ),
  );
}

const phase = (pod) => (pod.metadata.deletionTimestamp ? "Terminating" : pod.status?.phase);

export function podsCard(pods, selectorQuery) {
  const kind = kinds.byId.get("pods");
  if (!pods) return "";
  const ready = (pod) => (pod.status?.conditions ?? []).some((c) => c.type === "Ready" && c.status === "True");
  const shown = pods.slice(0, 12);
  return card(
    "Pods",
    shown.length
      ? h(
          "ul.pods",
          shown.map((pod) =>
            h(
              "li",
              h(`span.dot.${ready(pod) ? "good" : "warn"}`),
              link(kind, pod.metadata.namespace, pod.metadata.name),
              h("span.muted", ` ${phase(pod)}, ${age(pod.metadata.creationTimestamp)}`),
            ),
          ),
        )
      : h("p.muted", "No pods"),
    pods.length > shown.length &&
      h("p", h("a", { href: listLink(kind, `?q=${encodeURIComponent(selectorQuery)}`) }, `All ${pods.length} pods`)),
  );
}

export function eventsList(events) {
  if (!events) return h("p.muted", "Loading…");
  if (!events.length) return h("p.muted", "Nothing was reported in the last hour.");
  const time = (event) =>
    event.series?.lastObservedTime ?? event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp;
  const sorted = [...events].sort((a, b) => Date.parse(time(b)) - Date.parse(time(a)));
  return h(
    "ul.events",
    sorted.slice(0, 30).map((event) => {
      const count = event.series?.count ?? event.count ?? 1;
      return h(
        "li",
        h("span.event-age.muted", age(time(event))),
        h(
          "div",
          h(`strong${event.type === "Warning" ? ".warn-text" : ""}`, event.reason),
          count > 1 && h("span.muted", ` ×${count}`),
          h("div.event-text", event.message),
        ),
      );
    }),
  );
}
