// What of the console needs no browser: tables, YAML, differences, the terminal's screen, problems, topology.
// Run by `tests/logic.rs` with `node --test`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { diffLines, hunks } from "../../assets/diff.js";
import { bytes, cores, duration, parseDuration, quantity, tone } from "../../assets/format.js";
import { problems } from "../../assets/problems.js";
import { compare, sortKey, TableModel } from "../../assets/table_model.js";
import { graph, place } from "../../assets/topology_model.js";
import { keySequence, Screen } from "../../assets/vt.js";
import { colours, decided, parse, withoutManagedFields, withVersionOf } from "../../assets/yaml.js";

test("quantities, ages and tones", () => {
  const check = (actual, expected) => assert.deepEqual(actual, expected);
  check(quantity("250m"), 0.25);
  check(quantity("2Gi"), 2 * 1024 ** 3);
  check(quantity("1500000n"), 0.0015);
  check(quantity("1e3"), 1000);
  check(Number.isNaN(quantity("x")), true);
  check(bytes(1536), "1.5 Ki");
  check(cores(0.25), "250m");
  check(cores(2), "2");
  check([5, 119, 200, 3600, 4 * 3600 + 60, 86400 * 3, 86400 * 800, -1].map(duration), [
    "5s",
    "119s",
    "3m20s",
    "60m",
    "4h1m",
    "3d",
    "2y70d",
    "0s",
  ]);
  check(parseDuration("3m20s"), 200);
  check(parseDuration("web"), undefined);
  check(
    ["Running", "CrashLoopBackOff", "Pending", "Completed", "Error", "NotReady"].map((text) => tone("Status", text)),
    ["good", "bad", "warn", "", "bad", "bad"],
  );
  check(tone("Ready", "1/2"), "warn");
});

function table(names, rows, resourceVersion = "1") {
  const columnDefinitions = names.map((name) => ({ name, priority: 0 }));
  return { metadata: { resourceVersion }, columnDefinitions, rows: rows.map((cells) => row(cells)) };
}

const row = (cells, more = {}) => ({
  cells,
  object: {
    metadata: { name: String(cells[0]), namespace: "default", creationTimestamp: "2026-01-01T00:00:00Z", ...more },
  },
});

function filled(names, rows) {
  const model = new TableModel();
  model.beginList();
  model.page(table(names, rows));
  model.endList();
  return model;
}

test("a table follows its list and watch", () => {
  const model = filled(
    ["Name", "Restarts"],
    [
      ["b", "2 (5m ago)"],
      ["a", "10"],
      ["c", "0"],
    ],
  );
  const names = (options) =>
    model
      .view(options)
      .map((each) => each.name)
      .join("");
  assert.equal(names({}), "abc");
  assert.equal(names({ sort: "Restarts" }), "cba");
  assert.equal(names({ sort: "Restarts", descending: true }), "abc");
  assert.equal(names({ filter: "!10" }), "bc");
  model.event({ type: "ADDED", object: { rows: [row(["d", "1"], { resourceVersion: "7", labels: { app: "web" } })] } });
  assert.equal(names({ filter: "app=web" }), "d");
  assert.equal(model.resourceVersion, "7");
  model.event({ type: "DELETED", object: { rows: [row(["a", "10"])] } });
  assert.equal(names({}), "bcd");
  assert.equal(model.event({ type: "BOOKMARK", object: { metadata: { resourceVersion: "9" }, rows: [] } }), false);
  assert.equal(model.resourceVersion, "9");
  // A new list shows only when it is whole.
  model.beginList();
  model.page(table(["Name"], [["z"]]));
  assert.equal(names({}), "bcd");
  model.endList();
  assert.equal(names({}), "z");
});

test("cells are ordered as people expect", () => {
  const sorted = (values) =>
    values
      .map((value) => [sortKey(value), value])
      .sort((a, b) => compare(a[0], b[0]))
      .map(([, value]) => value);
  assert.deepEqual(sorted(["3m20s", "45s", "2d"]), ["45s", "3m20s", "2d"]);
  assert.deepEqual(sorted(["10", "9", "web", "<none>"]), ["9", "10", "<none>", "web"]);
  assert.deepEqual(sorted(["10.0.0.9", "1.2.3.4"]), ["1.2.3.4", "10.0.0.9"]);
});

test("ten thousand rows are ordered within a frame or two", () => {
  const rows = Array.from({ length: 10000 }, (_, i) => [`pod-${(i * 7919) % 10000}`, "Running", i % 7]);
  const model = filled(["Name", "Status", "Restarts"], rows);
  model.view({ sort: "Restarts", filter: "pod" });
  const start = performance.now();
  const shown = model.view({ sort: "Restarts", filter: "pod-1" });
  assert.equal(shown.length, 1111);
  assert.ok(performance.now() - start < 2000);
});

test("differences are shortest and keep their lines", () => {
  const check = (before, after, expected) => {
    const lines = diffLines(before, after);
    assert.equal(lines.map(({ kind, text }) => ({ same: " ", old: "-", new: "+" })[kind] + text).join("\n"), expected);
    assert.equal(
      lines
        .filter((line) => line.kind !== "new")
        .map((line) => line.text)
        .join("\n"),
      before,
    );
    assert.equal(
      lines
        .filter((line) => line.kind !== "old")
        .map((line) => line.text)
        .join("\n"),
      after,
    );
  };
  check("a\nb\nc", "a\nb\nc", " a\n b\n c");
  check("a\nb\nc", "a\nx\nc", " a\n-b\n+x\n c");
  check("a", "a\nb", " a\n+b");
  check("a\nb", "b", "-a\n b");
  check("a\nb\nc\na\nb\nb\na", "c\nb\na\nb\na\nc", "-a\n-b\n c\n+b\n a\n b\n-b\n a\n+c");
  const lines = diffLines(
    Array.from({ length: 50 }, (_, i) => i).join("\n"),
    Array.from({ length: 50 }, (_, i) => (i === 25 ? "x" : i)).join("\n"),
  );
  assert.deepEqual(
    hunks(lines)
      .filter((line) => line.kind === "gap")
      .map((line) => line.count),
    [22, 21],
  );
});

test("kubeconfigs are read", () => {
  const text = `# made by hand
apiVersion: v1
current-context: "a"
contexts:
- context:
    cluster: c
    user: 'it''s me'
  name: a
users:
  - name: it's me
    user:
      token: abc.def:ghi # secret
      n: 5
      on: true
      none: ~
      flow: {"x": [1, 2]}
      text: |
        one
          two
      folded: >-
        three
        four
`;
  const config = parse(text);
  assert.equal(config.contexts[0].context.user, "it's me");
  assert.deepEqual(config.users[0].user, {
    token: "abc.def:ghi",
    n: 5,
    on: true,
    none: null,
    flow: { x: [1, 2] },
    text: "one\n  two\n",
    folded: "three four",
  });
  assert.equal(parse('{"a": 1}').a, 1);
  assert.throws(() => parse("a: 1\n\tb: 2"), /line 2/);
  assert.throws(() => parse("just words\nand more"), /line 1/);
});

test("managed fields are left out, lines are coloured", () => {
  const text =
    "apiVersion: v1\nmetadata:\n  labels:\n    managedFields: x\n  managedFields:\n  - apiVersion: v1\n    manager: m\n" +
    "  name: a\nspec:\n  managedFields:\n  - b\n";
  assert.equal(
    withoutManagedFields(text),
    "apiVersion: v1\nmetadata:\n  labels:\n    managedFields: x\n  name: a\nspec:\n  managedFields:\n  - b\n",
  );
  const manifest = (version, replicas, ready) =>
    `metadata:\n  generation: ${version}\n  resourceVersion: "${version}"\n` +
    `spec:\n  replicas: ${replicas}\nstatus:\n  ready: ${ready}\n`;
  assert.equal(decided(manifest(1, 3, 0)), decided(manifest(2, 3, 3)));
  assert.notEqual(decided(manifest(1, 3, 0)), decided(manifest(1, 4, 0)));
  assert.equal(withVersionOf(manifest(1, 3, 0), manifest(7, 9, 9)), manifest(1, 3, 0).replace('"1"', '"7"'));
  assert.deepEqual(colours("  - name: web"), [
    ["", "  - "],
    ["key", "name:"],
    ["string", " web"],
  ]);
  assert.deepEqual(colours("replicas: 3").at(-1), ["literal", " 3"]);
  for (const line of ["a: b", "- x", "  # c", "", "http://a:80", '"a": 1'])
    assert.equal(
      colours(line)
        .map(([, part]) => part)
        .join(""),
      line,
    );
});

function screen(text, columns = 10, rows = 4) {
  const made = new Screen(columns, rows, (reply) => made.replies.push(reply));
  made.replies = [];
  made.write(new TextEncoder().encode(text));
  return made;
}

test("the terminal's screen", () => {
  const check = (text, expected, cursor) => {
    const made = screen(text);
    assert.deepEqual(
      Array.from({ length: 4 }, (_, y) => made.lineText(y)),
      expected,
      JSON.stringify(text),
    );
    if (cursor) assert.deepEqual([made.cursor.x, made.cursor.y], cursor, JSON.stringify(text));
  };
  check("hi\r\nyou", ["hi", "you", "", ""], [3, 1]);
  check("0123456789ab", ["0123456789", "ab", "", ""], [2, 1]);
  check("0123456789\r\nx", ["0123456789", "x", "", ""], [1, 1]);
  check("a\r\nb\r\nc\r\nd\r\ne", ["b", "c", "d", "e"]);
  check("ab\x1b[1;1HX\x1b[3;5HY", ["Xb", "", "    Y", ""], [5, 2]);
  check("hello\x1b[2D\x1b[K", ["hel", "", "", ""]);
  check("a\r\nb\r\nc\x1b[2;1H\x1b[J", ["a", "", "", ""]);
  check("abc\x1b[1;2H\x1b[P", ["ac", "", "", ""]);
  check("abc\x1b[1;2H\x1b[2@", ["a  bc", "", "", ""]);
  check("1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[3;1H\n", ["1", "3", "", "4"]);
  check("1\r\n2\r\n3\r\n4\x1b[2;1H\x1b[L", ["1", "", "2", "3"]);
  check("1\r\n2\r\n3\r\n4\x1b[2;1H\x1b[M", ["1", "3", "4", ""]);
  check("main\x1b[?1049h\x1b[Hvi\x1b[?1049l!", ["main!", "", "", ""]);
  check("\x1b(0lqk\x1b(B", ["┌─┐", "", "", ""]);
  check("\x1b]0;a title\x07ok", ["ok", "", "", ""]);
  check("\x1b]8;;http://x\x1b\\ok", ["ok", "", "", ""]);
  check("a\tb", ["a       b", "", "", ""]);
  check("ab\x08\x08X", ["Xb", "", "", ""]);
  check("日本", ["日本", "", "", ""], [4, 0]);
  check("e\u0301x", ["e\u0301x", "", "", ""], [2, 0]);
  check("\x1b[999;999Hx\x1b[999Ay", ["         y", "", "", "         x"]);
  check("\x1b[5Sx\x1b[99999999Xy\x1b[;;;;;m", ["xy", "", "", ""]);
  check("\x1b7abc\x1b8X", ["Xbc", "", "", ""]);
});

test("the terminal answers, colours and keeps what scrolled away", () => {
  assert.deepEqual(screen("ab\x1b[6n\x1b[c").replies, ["\x1b[1;3R", "\x1b[?1;2c"]);
  const made = screen("\x1b[1;31mr\x1b[0m\x1b[38;5;200mp\x1b[48;2;1;2;3mq");
  assert.deepEqual(
    [0, 1, 2].map((x) => [made.lines[0][x].style.fg, made.lines[0][x].style.bg]),
    [
      [1, null],
      [200, null],
      [200, "rgb(1, 2, 3)"],
    ],
  );
  assert.equal(made.lines[0][0].style.bold, true);
  const long = screen(Array.from({ length: 3000 }, (_, i) => `${i}\r\n`).join(""));
  assert.equal(long.scrollback.length, 2000);
  long.resize(20, 6);
  assert.equal(long.lines.length, 6);
  assert.ok(long.lines.every((line) => line.length === 20));
  // Whatever comes in, the screen keeps its shape.
  let seed = 1;
  const noise = Uint8Array.from(
    { length: 20000 },
    () => (
      (seed = (seed * 1103515245 + 12345) % 2147483648),
      [27, 91, 59, 63, 48 + (seed % 10), 64 + (seed % 60), seed % 256][seed % 7]
    ),
  );
  const tried = screen("", 12, 5);
  tried.write(noise);
  assert.equal(tried.lines.length, 5);
  assert.ok(tried.lines.every((line) => line.length === 12));
  assert.ok(tried.cursor.x < 12 && tried.cursor.y < 5);
});

test("keys of the terminal", () => {
  const key = (name, more = {}) =>
    keySequence({ key: name, ctrlKey: false, altKey: false, shiftKey: false, ...more }, more.application);
  assert.deepEqual(
    [key("ArrowUp"), key("ArrowUp", { application: true }), key("ArrowLeft", { ctrlKey: true })],
    ["\x1b[A", "\x1bOA", "\x1b[1;5D"],
  );
  assert.deepEqual(
    [key("c", { ctrlKey: true }), key("Enter"), key("Backspace"), key("b", { altKey: true }), key("a")],
    ["\x03", "\r", "\x7f", "\x1bb", undefined],
  );
});

test("problems come worst first", () => {
  const old = { creationTimestamp: "2026-01-01T00:00:00Z" };
  const pods = filled(
    ["Name", "Ready", "Status"],
    [
      ["ok", "1/1", "Running"],
      ["half", "1/2", "Running"],
      ["crash", "0/1", "CrashLoopBackOff"],
      ["done", "0/1", "Completed"],
    ],
  );
  const nodes = filled(
    ["Name", "Status"],
    [
      ["a", "Ready"],
      ["b", "NotReady"],
      ["c", "Ready,SchedulingDisabled"],
    ],
  );
  const deployments = filled(
    ["Name", "Ready"],
    [
      ["web", "3/3"],
      ["api", "0/2"],
    ],
  );
  const daemonsets = filled(
    ["Name", "Desired", "Ready"],
    [
      ["d", 3, 3],
      ["e", 3, 1],
    ],
  );
  const found = problems({ pods, nodes, deployments, daemonsets }, Date.parse(old.creationTimestamp) + 60000);
  assert.deepEqual(
    found.map(({ row: { name }, tone: mood }) => `${name} ${mood}`),
    ["b bad", "api bad", "crash bad", "c warn", "e warn", "half warn"],
  );
});

test("topology links what leads where", () => {
  const meta = (name, more) => ({ metadata: { name, namespace: "default", ...more } });
  const ready = { phase: "Running", conditions: [{ type: "Ready", status: "True" }] };
  const pods = Array.from({ length: 3 }, (_, i) => ({
    ...meta(`web-${i}`, { labels: { app: "web" } }),
    spec: { nodeName: "n1" },
    status: ready,
  }));
  const services = [
    { ...meta("web"), spec: { selector: { app: "web" }, ports: [{ port: 80 }] } },
    { ...meta("lonely"), spec: { selector: { app: "no" } } },
  ];
  const backend = (name) => ({ path: "/", backend: { service: { name } } });
  const ingresses = [
    { ...meta("front"), spec: { rules: [{ host: "a.b", http: { paths: [backend("web"), backend("gone")] } }] } },
  ];
  const { boxes, links } = graph({ ingresses, services, pods, nodes: [] });
  const linked = links.map(({ from, to, tone: mood }) => `${from} ${to} ${mood}`).sort();
  assert.equal(linked.filter((text) => text.startsWith("services/default/web pods/")).length, 3);
  assert.ok(linked.includes("ingresses/default/front services/default/gone broken"));
  assert.equal(boxes.find((box) => box.name === "lonely").tone, "bad");
  const placed = place({ boxes, links });
  assert.deepEqual(placed.columns, [0, 1, 2, 3]);
  assert.equal(
    new Set(placed.boxes.map((box) => `${box.x},${box.y}`)).size,
    placed.boxes.length,
    "no two boxes in one place",
  );
  const crowd = Array.from({ length: 40 }, (_, i) => ({
    ...meta(`many-${i}`, { ownerReferences: [{ controller: true, name: "many" }] }),
    spec: {},
    status: ready,
  }));
  assert.equal(graph({ pods: crowd }).boxes[0].detail, "40 pods, 40 ready");
});
