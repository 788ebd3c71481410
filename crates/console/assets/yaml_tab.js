// An object as YAML: read, edited, tried on the server, compared, applied.
// A tab of `object_page`. The server writes and reads the YAML; nothing is applied that was not shown as a difference.

import { request, text } from "./api.js";
import { announce, failure, h, loading, replace, toast } from "./dom.js";
import { diffLines, hunks } from "./diff.js";
import { colours, decided, ignoring, withoutManagedFields, withVersionOf } from "./yaml.js";

const YAML = "application/yaml";

export function yamlTab({ path, kind, startsEditing }) {
  const element = h("div.yaml");
  let current = "";
  let full = "";
  let showsManaged = false;
  let dirty = false;

  async function load(edit = false) {
    replace(element, loading());
    try {
      full = await text(path, { accept: YAML });
      current = withoutManagedFields(full);
      dirty = false;
      edit ? editor(current) : viewer();
    } catch (error) {
      replace(
        element,
        failure(error, () => load()),
      );
    }
  }

  function viewer() {
    const shown = showsManaged ? full : current;
    const editable = kind.verbs.includes("update");
    replace(
      element,
      h(
        "div.bar-row",
        editable && h("button.primary", { type: "button", onclick: () => load(true) }, "Edit"),
        h("button", { type: "button", onclick: copy }, "Copy"),
        h(
          "label.check",
          h("input", {
            type: "checkbox",
            checked: showsManaged,
            onchange: (event) => {
              showsManaged = event.target.checked;
              viewer();
            },
          }),
          "Show managed fields",
        ),
      ),
      h(
        "pre.code",
        { tabindex: "0", "aria-label": "YAML" },
        shown
          .trimEnd()
          .split("\n")
          .map((line) =>
            h(
              "div.line",
              colours(line).map(([name, part]) => (name ? h(`span.y-${name}`, part) : part)),
              "\n",
            ),
          ),
      ),
    );
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(showsManaged ? full : current);
      toast("Copied");
    } catch {
      toast("The browser does not let this page copy. Select the text instead.", "bad");
    }
  }

  function editor(value) {
    const input = h("textarea.code", {
      "aria-label": "YAML of the object",
      spellcheck: "false",
      autocapitalize: "off",
      wrap: "off",
      value,
      oninput: () => (dirty = input.value !== current),
      onkeydown: (event) => editKey(event, input),
    });
    const message = h("div");
    replace(
      element,
      h(
        "div.bar-row",
        h("button.primary", { type: "button", onclick: () => review(input.value, message) }, "Review changes"),
        h("button", { type: "button", onclick: () => ((dirty = false), viewer()) }, "Cancel"),
        h("span.muted", "Ctrl+Enter reviews, Esc leaves the field"),
      ),
      message,
      input,
    );
    input.focus();
    input.setSelectionRange(0, 0);
    input.scrollTop = 0;
  }

  function editKey(event, input) {
    if (event.key === "Escape") input.blur();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) element.querySelector(".primary").click();
    else if (event.key === "Tab" && !event.shiftKey) {
      event.preventDefault();
      input.setRangeText("  ", input.selectionStart, input.selectionEnd, "end");
    } else return;
    event.stopPropagation();
  }

  /** If only the status has changed since, that is nobody's decision: the newest version is taken and tried again. */
  async function put(body, dryRun, retries = 3) {
    const parameters = `fieldManager=minke-console&fieldValidation=Strict${dryRun ? "&dryRun=All" : ""}`;
    try {
      const response = await request("PUT", `${path}?${parameters}`, { body, type: YAML, accept: YAML });
      return { text: await response.text(), warning: response.headers.get("warning") };
    } catch (error) {
      if (error.code !== 409 || !retries) throw error;
      const newest = withoutManagedFields(await text(path, { accept: YAML }));
      if (decided(newest) !== decided(current)) throw error;
      current = newest;
      return put(withVersionOf(body, newest), dryRun, retries - 1);
    }
  }

  async function review(value, message) {
    replace(message, loading("Trying it on the server…"));
    try {
      const tried = await put(value, true);
      compare(value, withoutManagedFields(tried.text), tried.warning);
    } catch (error) {
      replace(message, refused(error, value));
    }
  }

  function refused(error, value) {
    const causes = error.causes.map((cause) => h("li", h("code", cause.field), " ", cause.message));
    if (error.code !== 409) {
      return h(
        "div.failure",
        { role: "alert" },
        h("p.empty-title", `Not accepted: ${error.reason || error.code}`),
        causes.length ? h("ul", causes) : h("p", error.message),
        h("p.muted", "Nothing was changed. Correct it here and review again."),
      );
    }
    return h(
      "div.failure",
      { role: "alert" },
      h("p.empty-title", "Somebody else changed it meanwhile"),
      h("p", error.message),
      h(
        "p.actions",
        h("button", { type: "button", onclick: () => rebase(value) }, "See what changed, keep my text"),
        h("button", { type: "button", onclick: () => load(true) }, "Start again from what is there"),
      ),
    );
  }

  /** What others changed since, and the own text on top of the newest version. */
  async function rebase(value) {
    const before = current;
    full = await text(path, { accept: YAML });
    current = withoutManagedFields(full);
    editor(withVersionOf(value, current));
    dirty = true;
    element
      .querySelector("textarea")
      .before(
        h(
          "details.note",
          { open: true },
          h("summary", "Changed by others; applying your text takes it back"),
          difference(before, current),
        ),
      );
  }

  function compare(value, result, warning) {
    const same = ignoring(current) === ignoring(result);
    const apply = h(
      "button.primary",
      {
        type: "button",
        disabled: same,
        autofocus: true,
        onclick: async () => {
          apply.disabled = true;
          try {
            const done = await put(value, false);
            toast("Applied", "good");
            if (done.warning) toast(done.warning.replace(/^299 - /, ""), "warn");
            full = done.text;
            current = withoutManagedFields(full);
            dirty = false;
            viewer();
          } catch (error) {
            editor(value);
            element.querySelector("textarea").before(refused(error, value));
          }
        },
      },
      "Apply",
    );
    replace(
      element,
      h(
        "div.bar-row",
        apply,
        h("button", { type: "button", onclick: () => (editor(value), (dirty = true)) }, "Back to editing"),
        h(
          "span.muted",
          same ? "The server would change nothing." : "What the server would make of it. Nothing is applied yet.",
        ),
      ),
      warning && h("p.note.warn", { role: "alert" }, warning.replace(/^299 - /, "")),
      same ? "" : difference(ignoring(current), ignoring(result)),
    );
    announce(same ? "No difference" : "Differences are shown; nothing is applied yet");
    apply.focus();
  }

  load(startsEditing);
  return { element, edit: () => load(true), isDirty: () => dirty, dispose() {} };
}

function difference(before, after) {
  const mark = { same: " ", old: "−", new: "+" };
  return h(
    "pre.code.diff",
    { tabindex: "0", "aria-label": "Difference" },
    hunks(diffLines(before.trimEnd(), after.trimEnd())).map((line) =>
      line.kind === "gap"
        ? h("div.line.gap", `··· ${line.count} unchanged lines`, "\n")
        : h(
            `div.line.${line.kind}`,
            h("span.mark", { "aria-label": { old: "removed", new: "added" }[line.kind] }, mark[line.kind]),
            line.text,
            "\n",
          ),
    ),
  );
}
