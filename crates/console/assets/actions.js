// What can be done to an object besides editing it: delete, scale, restart, cordon. Each asks first.
// Buttons of `object_page`.

import { patch, pathOf, request } from "./api.js";
import { dialog, h, toast } from "./dom.js";
import { title } from "./resources.js";

/** Kinds whose loss takes others along: their name has to be typed. */
const GRAVE = ["Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim", "CustomResourceDefinition"];
const RESTARTABLE = ["Deployment", "StatefulSet", "DaemonSet"];

async function attempt(what, done) {
  try {
    await what();
    toast(done, "good");
    return true;
  } catch (error) {
    toast(`${error.reason || "Error"}: ${error.message}`, "bad");
    return false;
  }
}

function confirm(question, explanation, verb, word = "") {
  return dialog(question, (done) => {
    const go = h("button.danger", { type: "submit", disabled: Boolean(word) }, verb);
    const typed =
      word &&
      h("input", {
        "aria-label": `Type ${word}`,
        autocomplete: "off",
        spellcheck: "false",
        autofocus: true,
        oninput: (event) => (go.disabled = event.target.value !== word),
      });
    return h(
      "form",
      { onsubmit: (event) => (event.preventDefault(), done(true)) },
      h("p", explanation),
      typed && h("label.stacked", "Type ", h("code", word), " to go on", typed),
      h("p.actions", go, h("button", { type: "button", autofocus: !word, onclick: () => done() }, "Cancel")),
    );
  });
}

export async function remove(kind, object) {
  const { namespace, name } = object.metadata;
  const grave = GRAVE.includes(kind.kind) ? name : "";
  const place = namespace ? ` in namespace ${namespace}` : "";
  const after =
    {
      Namespace: "Everything in it is deleted as well.",
      PersistentVolumeClaim: "Its data may be gone for good.",
      CustomResourceDefinition: "All objects of its kind are deleted as well.",
    }[kind.kind] ??
    (object.metadata.ownerReferences?.length
      ? "What controls it will probably make another."
      : "What it controls is deleted as well.");
  if (!(await confirm(`Delete ${title(kind)} ${name}?`, `${name}${place} will be deleted. ${after}`, "Delete", grave)))
    return false;
  const options = {
    apiVersion: "v1",
    kind: "DeleteOptions",
    propagationPolicy: "Background",
    preconditions: { uid: object.metadata.uid },
  };
  return attempt(() => request("DELETE", pathOf(kind, namespace, name), { body: options }), `${name} is being deleted`);
}

async function scale(kind, object) {
  const { namespace, name } = object.metadata;
  const now = object.spec.replicas ?? 1;
  const wanted = await dialog(`Scale ${name}`, (done) => {
    const input = h("input", { type: "number", min: 0, max: 10000, value: now, autofocus: true, required: true });
    return h(
      "form",
      { onsubmit: (event) => (event.preventDefault(), done(input.valueAsNumber)) },
      h("label.stacked", "Replicas", input),
      h(
        "p.actions",
        h("button.primary", { type: "submit" }, "Scale"),
        h("button", { type: "button", onclick: () => done() }, "Cancel"),
      ),
    );
  });
  if (!Number.isInteger(wanted) || wanted === now) return;
  await attempt(
    () => patch(pathOf(kind, namespace, name) + "/scale", { spec: { replicas: wanted } }),
    `Scaled to ${wanted}`,
  );
}

async function restart(kind, object) {
  const { namespace, name } = object.metadata;
  if (!(await confirm(`Restart ${name}?`, "Its pods are replaced by new ones, by its own update strategy.", "Restart")))
    return;
  const annotations = { "kubectl.kubernetes.io/restartedAt": new Date().toISOString() };
  await attempt(
    () => patch(pathOf(kind, namespace, name), { spec: { template: { metadata: { annotations } } } }),
    `${name} restarts`,
  );
}

async function cordon(kind, object) {
  const { name } = object.metadata;
  const unschedulable = !object.spec.unschedulable;
  const question = unschedulable ? `Cordon ${name}?` : `Uncordon ${name}?`;
  const explanation = unschedulable ? "It takes no new pods; those that run stay." : "It takes new pods again.";
  if (!(await confirm(question, explanation, unschedulable ? "Cordon" : "Uncordon"))) return;
  await attempt(
    () => patch(pathOf(kind, "", name), { spec: { unschedulable } }),
    unschedulable ? "Cordoned" : "Uncordoned",
  );
}

/** `[{ name, key, run }]` for this object. */
export function actionsOf(kind, object) {
  const builtIn = ["apps", ""].includes(kind.group);
  const all = [
    kind.subresources.includes("scale") &&
      object.spec?.replicas !== undefined && { name: "Scale", run: () => scale(kind, object) },
    builtIn && RESTARTABLE.includes(kind.kind) && { name: "Restart", run: () => restart(kind, object) },
    builtIn &&
      kind.kind === "Node" && {
        name: object.spec?.unschedulable ? "Uncordon" : "Cordon",
        run: () => cordon(kind, object),
      },
  ];
  return all.filter(Boolean);
}
