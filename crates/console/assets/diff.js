// The difference of two texts, line by line: Myers' shortest edit script. Pure.
// Used by `yaml_tab` before anything is applied.

/** `[{ kind: "same" | "old" | "new", text, old, new }]`, with line numbers from 1. */
export function diffLines(before, after) {
  const a = before.split("\n");
  const b = after.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const middle = myers(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  const kinds = [...Array(head).fill("same"), ...middle, ...Array(tail).fill("same")];
  let i = 0;
  let j = 0;
  return kinds.map((kind) => {
    const line = { kind, text: kind === "new" ? b[j] : a[i] };
    if (kind !== "new") line.old = ++i;
    if (kind !== "old") line.new = ++j;
    return line;
  });
}

function myers(a, b) {
  const max = a.length + b.length;
  const reach = new Map([[1, 0]]);
  const trace = [];
  for (let d = 0; d <= max; d++) {
    trace.push(new Map(reach));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
      let x = down ? reach.get(k + 1) : reach.get(k - 1) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      reach.set(k, x);
      if (x >= a.length && x - k >= b.length) return path(trace, a.length, b.length);
    }
  }
  return [];
}

function path(trace, x, y) {
  const kinds = [];
  for (let d = trace.length - 1; d >= 0; d--) {
    const reach = trace[d];
    const k = x - y;
    const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
    const from = down ? k + 1 : k - 1;
    const fromX = reach.get(from);
    const fromY = fromX - from;
    while (x > Math.max(fromX, 0) && y > Math.max(fromY, 0)) {
      kinds.push("same");
      x--;
      y--;
    }
    if (d > 0) kinds.push(down ? "new" : "old");
    [x, y] = [fromX, fromY];
  }
  return kinds.reverse();
}

/** Only what changed, with `context` lines around it; `{ kind: "gap", count }` stands for what is left out. */
export function hunks(lines, context = 3) {
  const near = lines.map(() => false);
  lines.forEach((line, index) => {
    if (line.kind === "same") return;
    for (let i = Math.max(0, index - context); i <= Math.min(lines.length - 1, index + context); i++) near[i] = true;
  });
  const shown = [];
  lines.forEach((line, index) => {
    if (near[index]) return shown.push(line);
    const last = shown.at(-1);
    if (last?.kind === "gap") last.count++;
    else shown.push({ kind: "gap", count: 1 });
  });
  return shown;
}
