// YAML as far as the page needs it: kubeconfigs are read, manifests are coloured and trimmed. Pure.
// Used by `sign_in` and `yaml_tab`. Manifests themselves are written and read by the API server.

/** The value of a document in block style (maps, lists, scalars, `|` and `>`), with JSON for what is in brackets. */
export function parse(text) {
  const trimmed = text.trim();
  if (trimmed.startsWith("{") || trimmed.startsWith("[")) return JSON.parse(trimmed);
  const lines = [];
  text.split(/\r?\n/).forEach((raw, index) => {
    if (raw.includes("\t") && /^\s*\t/.test(raw)) throw new Error(`line ${index + 1}: tabs can't indent YAML`);
    lines.push({ raw, indent: raw.search(/\S|$/), text: raw.trim(), number: index + 1 });
  });
  const state = { lines, at: 0 };
  skip(state);
  const value = block(state, 0);
  skip(state);
  if (state.at < lines.length) throw new Error(`line ${lines[state.at].number}: can't be read`);
  return value;
}

function skip(state) {
  while (state.at < state.lines.length) {
    const { text, indent } = state.lines[state.at];
    if (text !== "" && !text.startsWith("#") && !(indent === 0 && /^(---|\.\.\.|%)/.test(text))) return;
    state.at++;
  }
}

function block(state, least) {
  skip(state);
  const first = state.lines[state.at];
  if (!first || first.indent < least) return null;
  return first.text === "-" || first.text.startsWith("- ")
    ? sequence(state, first.indent)
    : mapping(state, first.indent);
}

function sequence(state, indent) {
  const items = [];
  for (skip(state); ; skip(state)) {
    const line = state.lines[state.at];
    if (!line || line.indent !== indent || !(line.text === "-" || line.text.startsWith("- "))) return items;
    const rest = line.text.slice(1).trim();
    if (rest === "") {
      state.at++;
      items.push(block(state, indent + 1));
    } else if (keyOf(rest)) {
      const inner = indent + line.text.length - line.text.slice(1).trimStart().length;
      state.lines[state.at] = { ...line, indent: inner, text: rest };
      items.push(mapping(state, inner));
    } else {
      state.at++;
      items.push(scalar(rest, state, indent));
    }
  }
}

function mapping(state, indent) {
  const map = {};
  for (skip(state); ; skip(state)) {
    const line = state.lines[state.at];
    if (!line || line.indent !== indent) return map;
    const key = keyOf(line.text);
    if (!key) throw new Error(`line ${line.number}: expected "key: value"`);
    state.at++;
    if (key.rest !== "" && !key.rest.startsWith("#")) {
      map[key.name] = scalar(key.rest, state, indent);
      continue;
    }
    skip(state);
    const next = state.lines[state.at];
    const list = next && next.indent === indent && (next.text === "-" || next.text.startsWith("- "));
    map[key.name] = list ? sequence(state, indent) : block(state, indent + 1);
  }
}

function keyOf(text) {
  const quoted = /^("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')\s*:(?:\s+(.*))?$/.exec(text);
  if (!quoted && /^[{["'|>&*!%@`#]/.test(text)) return null;
  const match = quoted ?? /^(.*?)\s*:(?:\s+(.*))?$/.exec(text);
  return match && { name: String(plain(match[1])), rest: (match[2] ?? "").trim() };
}

function scalar(text, state, indent) {
  const style = /^([|>])([+-]?)\d*\s*(#.*)?$/.exec(text);
  if (!style) return plain(text);
  const lines = [];
  let inner;
  while (state.at < state.lines.length) {
    const line = state.lines[state.at];
    if (line.text !== "" && line.indent <= indent) break;
    if (line.text !== "") inner ??= line.indent;
    lines.push(line.raw.slice(inner ?? line.raw.length));
    state.at++;
  }
  while (lines.length && lines.at(-1) === "") lines.pop();
  return lines.join(style[1] === "|" ? "\n" : " ") + (style[2] === "-" ? "" : "\n");
}

function plain(text) {
  if (text.startsWith('"')) return JSON.parse(text.replace(/"\s+#.*$/, '"'));
  if (text.startsWith("'"))
    return text
      .replace(/'\s+#.*$/, "'")
      .slice(1, -1)
      .replaceAll("''", "'");
  if (text.startsWith("{") || text.startsWith("[")) return JSON.parse(text);
  const value = text.replace(/\s+#.*$/, "");
  if (/^(~|null|Null|NULL|)$/.test(value)) return null;
  if (/^(true|True|TRUE)$/.test(value)) return true;
  if (/^(false|False|FALSE)$/.test(value)) return false;
  return /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(value) ? Number(value) : value;
}

/** A manifest without `metadata.managedFields`, which people neither read nor write. */
export function withoutManagedFields(text) {
  const kept = [];
  let section = "";
  let dropping = false;
  for (const line of text.split("\n")) {
    if (/^\S/.test(line)) section = line;
    if (section === "metadata:" && line === "  managedFields:") {
      dropping = true;
      continue;
    }
    if (dropping && /^ {2}([ -])/.test(line)) continue;
    dropping = false;
    kept.push(line);
  }
  return kept.join("\n");
}

/** Without what the server counts up by itself. */
export const ignoring = (text) => text.replace(/^ {2}(resourceVersion|generation): .*\n/gm, "");

/** What people decide: without the status as well. */
export const decided = (text) => ignoring(text).replace(/^status:.*\n(?:[ -].*\n?)*/m, "");

const VERSION = /^ {2}resourceVersion: .*$/m;

/** A manifest as one of the version of another. */
export const withVersionOf = (text, other) => text.replace(VERSION, VERSION.exec(other)?.[0] ?? "");

/** A line in pieces: `[[class, text]]`. */
export function colours(line) {
  const comment = /^(\s*)(#.*)$/.exec(line);
  if (comment)
    return [
      ["", comment[1]],
      ["comment", comment[2]],
    ];
  const match = /^(\s*(?:- )*)((?:"[^"]*"|'[^']*'|[^\s:"'][^:]*):)(\s.*)?$/.exec(line);
  if (!match) return [["string", line]];
  return [
    ["", match[1]],
    ["key", match[2]],
    [kindOf((match[3] ?? "").trim()), match[3] ?? ""],
  ];
}

function kindOf(value) {
  if (value === "" || /^[|>{[]/.test(value)) return "";
  return /^(-?\d[\d.]*|true|false|null|~)$/.test(value) ? "literal" : "string";
}
