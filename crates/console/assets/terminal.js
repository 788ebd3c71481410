// A terminal into a container: `kubectl exec -it` over a WebSocket, drawn from the screen of `vt`.
// A tab of a pod's page.

import { query } from "./api.js";
import { h, replace } from "./dom.js";
import { containersOf } from "./logs.js";
import { session, tokenProtocol } from "./session.js";
import { keySequence, Screen } from "./vt.js";

const STDIN = 0;
const ERROR = 3;
const RESIZE = 4;
/** A shell, the best there is; programs are told what terminal this is. */
const SHELL = "TERM=xterm-256color; export TERM; exec $(command -v bash || command -v ash || command -v sh)";

export function terminalTab({ pod }) {
  const screenElement = h("div.terminal-screen");
  const input = h("textarea.terminal-input", {
    "aria-label": "Terminal input. Control and right bracket leaves the terminal.",
    autocapitalize: "off",
    autocomplete: "off",
    autocorrect: "off",
    spellcheck: "false",
    rows: 1,
  });
  const status = h("p.state", { role: "status" });
  const containerChoice = h(
    "select",
    { "aria-label": "Container" },
    containersOf(pod)
      .filter(([, text]) => !text.endsWith("(init)"))
      .map(([value, text]) => h("option", { value }, text)),
  );
  const usual = pod.metadata.annotations?.["kubectl.kubernetes.io/default-container"] ?? pod.spec.containers[0]?.name;
  containerChoice.value = usual ?? "";
  const again = h("button", { type: "button", onclick: () => connect() }, "Connect again");
  const box = h("div.terminal", { role: "region", "aria-label": "Terminal" }, screenElement, input);
  const element = h(
    "div.terminal-tab",
    h("div.bar-row", containerChoice, again, status, h("span.muted", "Ctrl+] leaves the terminal")),
    box,
  );
  let socket;
  let screen;
  let sized = false;

  containerChoice.addEventListener("change", () => connect());
  box.addEventListener("click", () => !getSelection().toString() && input.focus());
  box.addEventListener("focusin", () => box.classList.add("focused"));
  box.addEventListener("focusout", () => box.classList.remove("focused"));

  function cellSize() {
    const probe = h("span", "M".repeat(20));
    const line = h("div.terminal-line", probe);
    present.append(line);
    const { width } = probe.getBoundingClientRect();
    const { height } = line.getBoundingClientRect();
    line.remove();
    return { width: width / 20 || 8, height: height || 17 };
  }

  function dimensions() {
    const { width, height } = cellSize();
    const room = box.getBoundingClientRect();
    const limit = (value, most) => Math.max(2, Math.min(most, Math.floor(value)));
    return { columns: limit((room.width - 24) / width, 400), rows: limit((room.height - 16) / height, 150) };
  }

  function connect() {
    socket?.close();
    const { columns, rows } = dimensions();
    screen = new Screen(columns, rows, (text) => send(text));
    scrolled = 0;
    past.replaceChildren();
    sized = true;
    draw();
    const { namespace, name } = pod.metadata;
    const parameters = query({ container: containerChoice.value, stdin: true, stdout: true, tty: true });
    const command = ["sh", "-c", SHELL].map((word) => `&command=${encodeURIComponent(word)}`).join("");
    const url = new URL(`/api/v1/namespaces/${namespace}/pods/${name}/exec${parameters}${command}`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const protocols = ["v5.channel.k8s.io", ...(session.token ? [tokenProtocol(session.token)] : [])];
    const mine = new WebSocket(url, protocols);
    socket = mine;
    mine.binaryType = "arraybuffer";
    status.textContent = "Connecting…";
    mine.onopen = () => {
      status.textContent = "Connected";
      resize(true);
      input.focus();
    };
    mine.onmessage = ({ data }) => mine === socket && receive(new Uint8Array(data));
    mine.onclose = (event) => {
      if (mine !== socket) return;
      if (status.textContent === "Connecting…") {
        status.textContent = "Refused: you may not be allowed to exec here, or the container does not run.";
      } else if (status.textContent === "Connected")
        status.textContent = event.wasClean ? "Ended" : "The connection was lost";
    };
  }

  function receive(frame) {
    const [channel] = frame;
    const content = frame.subarray(1);
    if (channel === 1 || channel === 2) {
      screen.write(content);
      schedule();
    } else if (channel === ERROR) ended(new TextDecoder().decode(content));
  }

  function ended(text) {
    try {
      const result = JSON.parse(text);
      status.textContent = result.status === "Success" ? "Ended" : result.message || "Ended";
    } catch {
      status.textContent = text;
    }
  }

  function sendFrame(channel, content) {
    if (socket?.readyState !== WebSocket.OPEN) return;
    const frame = new Uint8Array(content.length + 1);
    frame[0] = channel;
    frame.set(content, 1);
    socket.send(frame);
  }

  const send = (text) => sendFrame(STDIN, new TextEncoder().encode(text));

  function resize(always = false) {
    if (!sized) return;
    const { columns, rows } = dimensions();
    if (!always && columns === screen.columns && rows === screen.rows) return;
    screen.resize(columns, rows);
    sendFrame(RESIZE, new TextEncoder().encode(JSON.stringify({ Width: columns, Height: rows })));
    schedule();
  }

  let frame;
  const schedule = () => (frame ??= requestAnimationFrame(() => ((frame = undefined), draw())));

  const past = h("div");
  const present = h("div");
  replace(screenElement, past, present);
  const drawn = [];
  let scrolled = 0;
  function draw() {
    const atEnd = screenElement.scrollHeight - screenElement.scrollTop - screenElement.clientHeight < 30;
    // Lines that went up stay as they were drawn.
    const fresh = Math.min(screen.scrolled - scrolled, screen.scrollback.length);
    if (fresh > 0) past.append(...screen.scrollback.slice(-fresh).map((line) => lineElement(line, -1)));
    scrolled = screen.scrolled;
    while (past.children.length > screen.scrollback.length) past.firstChild.remove();
    past.hidden = screen.lines !== screen.main;
    while (drawn.length > screen.rows) drawn.pop().element.remove();
    for (let y = 0; y < screen.rows; y++) {
      const cursor = screen.modes.cursor && y === screen.cursor.y ? screen.cursor.x : -1;
      const key = lineKey(screen.lines[y], cursor);
      if (drawn[y]?.key === key) continue;
      const line = lineElement(screen.lines[y], cursor);
      if (drawn[y]) drawn[y].element.replaceWith(line);
      else present.append(line);
      drawn[y] = { key, element: line };
    }
    if (atEnd) screenElement.scrollTop = screenElement.scrollHeight;
  }

  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.ctrlKey && event.key === "]") return (input.blur(), containerChoice.focus());
    if (event.isComposing) return;
    // Copy and paste are the browser's.
    if (event.metaKey || (event.ctrlKey && event.shiftKey)) return;
    if (event.ctrlKey && event.key === "c" && getSelection().toString()) return;
    if (event.ctrlKey && event.key === "v") return;
    const sequence = keySequence(event, screen.modes.applicationKeys);
    if (sequence === undefined) return;
    event.preventDefault();
    send(sequence);
  });
  input.addEventListener("input", (event) => {
    if (event.isComposing) return;
    if (input.value) send(input.value);
    input.value = "";
  });
  input.addEventListener("compositionend", () => {
    send(input.value);
    input.value = "";
  });
  input.addEventListener("paste", (event) => {
    event.preventDefault();
    const text = event.clipboardData.getData("text").replace(/\r?\n/g, "\r").replaceAll("\x1b", "");
    send(screen.modes.bracketedPaste ? `\x1b[200~${text}\x1b[201~` : text);
  });

  const observer = new ResizeObserver(() => resize());
  // Once it is on the page, and has a size.
  requestAnimationFrame(() => {
    observer.observe(box);
    connect();
  });
  return {
    element,
    keys: {},
    dispose() {
      observer.disconnect();
      cancelAnimationFrame(frame);
      socket?.close();
    },
  };
}

const styleKey = ({ fg, bg, bold, dim, italic, underline, inverse }) =>
  `${fg}/${bg}/${+bold}${+dim}${+italic}${+underline}${+inverse}`;

function lineKey(line, cursor) {
  let key = `${cursor}|`;
  for (const cell of line) key += cell.char + styleKey(cell.style);
  return key;
}

const LEVELS = [0, 95, 135, 175, 215, 255];

/** One of 256 colours; the first 16 are the page's own. */
export function colour(value) {
  if (typeof value === "string") return value;
  if (value < 16) return `var(--ansi-${value})`;
  if (value >= 232)
    return `rgb(${Array(3)
      .fill(8 + (value - 232) * 10)
      .join(", ")})`;
  const cube = value - 16;
  return `rgb(${LEVELS[Math.floor(cube / 36)]}, ${LEVELS[Math.floor(cube / 6) % 6]}, ${LEVELS[cube % 6]})`;
}

function lineElement(line, cursor) {
  const element = h("div.terminal-line");
  let run;
  let end = line.length;
  while (
    end > 0 &&
    end - 1 !== cursor &&
    line[end - 1].char === " " &&
    line[end - 1].style.bg === null &&
    !line[end - 1].style.inverse
  )
    end--;
  for (let x = 0; x < end; x++) {
    const cell = line[x];
    const key = styleKey(cell.style) + (x === cursor ? "c" : "");
    if (run?.key !== key) {
      run = { key, element: h("span") };
      paint(run.element, cell.style, x === cursor);
      element.append(run.element);
    }
    run.element.textContent += cell.char;
  }
  if (!end) replace(element, "\u00a0");
  return element;
}

function paint(element, style, isCursor) {
  const fg = style.fg === null ? "var(--terminal-fg)" : colour(style.bold && style.fg < 8 ? style.fg + 8 : style.fg);
  const bg = style.bg === null ? "var(--terminal-bg)" : colour(style.bg);
  if (style.fg !== null || style.inverse) element.style.color = style.inverse ? bg : fg;
  if (style.bg !== null || style.inverse) element.style.backgroundColor = style.inverse ? fg : bg;
  const classes = [
    isCursor && "cursor",
    style.bold && "bold",
    style.dim && "dim",
    style.italic && "italic",
    style.underline && "underline",
  ];
  element.className = classes.filter(Boolean).join(" ");
}
