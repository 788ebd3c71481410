// A terminal's screen: bytes of a program in, cells out. Pure.
// Enough of a VT100 and of xterm for shells, vi, less and top.
// Drawn by `terminal`.

const TAB_WIDTH = 8;
const SCROLLBACK_LINES_MAX = 2000;
const PARAMETERS_MAX = 32;
const STRING_CHARS_MAX = 4096;
/** The DEC special graphics set, from `_` to `~`. */
const LINE_DRAWING = " ◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·";

/** How many cells a character takes: 0 for marks, 2 for wide ones. */
export function width(code) {
  if (code < 0x300) return 1;
  if (code <= 0x36f || (code >= 0x200b && code <= 0x200f) || (code >= 0xfe00 && code <= 0xfe0f)) return 0;
  const wide =
    (code >= 0x1100 && code <= 0x115f) ||
    (code >= 0x2e80 && code <= 0xa4cf) ||
    (code >= 0xac00 && code <= 0xd7a3) ||
    (code >= 0xf900 && code <= 0xfaff) ||
    (code >= 0xfe30 && code <= 0xfe6f) ||
    (code >= 0xff00 && code <= 0xff60) ||
    (code >= 0x1f300 && code <= 0x1f64f) ||
    (code >= 0x1f900 && code <= 0x1f9ff) ||
    (code >= 0x20000 && code <= 0x3fffd);
  return wide ? 2 : 1;
}

const PLAIN = Object.freeze({
  fg: null,
  bg: null,
  bold: false,
  dim: false,
  italic: false,
  underline: false,
  inverse: false,
});

export class Screen {
  constructor(columns, rows, reply = () => {}) {
    /** Sends what the program asked for, such as the cursor's place. */
    this.reply = reply;
    this.columns = columns;
    this.rows = rows;
    this.decoder = new TextDecoder();
    this.reset();
  }

  reset() {
    this.style = PLAIN;
    this.scrollback = [];
    /** How many lines ever went into it. */
    this.scrolled = 0;
    this.main = this.blankLines();
    this.alternate = null;
    this.lines = this.main;
    this.cursor = { x: 0, y: 0 };
    this.saved = { x: 0, y: 0, style: PLAIN };
    this.top = 0;
    this.bottom = this.rows - 1;
    this.modes = {
      wrap: true,
      insert: false,
      origin: false,
      cursor: true,
      applicationKeys: false,
      bracketedPaste: false,
    };
    this.charsets = ["B", "B"];
    this.shift = 0;
    this.wrapNext = false;
    this.last = " ";
    this.title = "";
    this.state = "ground";
    this.text = "";
  }

  blankLine() {
    return Array.from({ length: this.columns }, () => ({ char: " ", style: this.style ? this.background() : PLAIN }));
  }

  blankLines() {
    return Array.from({ length: this.rows }, () => this.blankLine());
  }

  /** Erased cells keep the background colour. */
  background() {
    return this.style.bg === null ? PLAIN : { ...PLAIN, bg: this.style.bg };
  }

  resize(columns, rows) {
    if (columns === this.columns && rows === this.rows) return;
    const fit = (lines, scrolls) => {
      for (const line of lines) {
        while (line.length < columns) line.push({ char: " ", style: PLAIN });
        line.length = columns;
      }
      while (lines.length > rows) {
        if (scrolls && this.cursor.y >= rows) {
          this.scrollback.push(lines.shift());
          this.scrolled++;
          this.cursor.y--;
        } else lines.pop();
      }
      while (lines.length < rows) lines.push(Array.from({ length: columns }, () => ({ char: " ", style: PLAIN })));
    };
    [this.columns, this.rows] = [columns, rows];
    fit(this.main, this.lines === this.main);
    if (this.alternate) fit(this.alternate, false);
    this.top = 0;
    this.bottom = rows - 1;
    this.move(this.cursor.x, this.cursor.y);
  }

  write(bytes) {
    for (const char of this.decoder.decode(bytes, { stream: true })) this.step(char);
  }

  step(char) {
    const code = char.codePointAt(0);
    if (this.state === "string") return this.stringStep(char, code);
    if (code === 0x1b) return this.begin("escape");
    if (code === 0x18 || code === 0x1a) return this.begin("ground");
    if (code < 0x20) return this.control(code);
    if (this.state === "ground") return code === 0x7f ? undefined : this.print(char, code);
    if (this.state === "escape") return this.escape(char);
    if (this.state === "charset") {
      this.charsets[this.text === ")" ? 1 : 0] = char;
      return this.begin("ground");
    }
    if (this.state === "hash") {
      if (char === "8") this.lines.forEach((line) => line.forEach((cell) => (cell.char = "E")));
      return this.begin("ground");
    }
    // A control sequence: parameters, then one letter.
    if (code >= 0x40) {
      this.state = "ground";
      return this.sequence(char, this.text);
    }
    if (this.text.length < 256) this.text += char;
  }

  begin(state) {
    this.state = state;
    this.text = "";
  }

  stringStep(char, code) {
    if (code === 0x07 || code === 0x9c || (char === "\\" && this.text.endsWith("\x1b"))) {
      const match = /^\][02];(.*?)\x1b?$/s.exec(this.text);
      if (match) this.title = match[1];
      return this.begin("ground");
    }
    if (this.text.length < STRING_CHARS_MAX) this.text += char;
    else if (code === 0x1b) this.text = this.text.slice(0, -1) + char;
  }

  control(code) {
    const { cursor } = this;
    if (code === 0x08) this.move(cursor.x - 1, cursor.y);
    else if (code === 0x09)
      this.move(Math.min(this.columns - 1, (Math.floor(cursor.x / TAB_WIDTH) + 1) * TAB_WIDTH), cursor.y);
    else if (code >= 0x0a && code <= 0x0c) this.lineFeed();
    else if (code === 0x0d) this.move(0, cursor.y);
    else if (code === 0x0e || code === 0x0f) this.shift = code === 0x0e ? 1 : 0;
  }

  print(char, code) {
    if (this.charsets[this.shift] === "0" && code >= 0x5f && code <= 0x7e) char = LINE_DRAWING[code - 0x5f];
    const cells = width(code);
    const line = () => this.lines[this.cursor.y];
    if (cells === 0) {
      const before = line()[Math.max(0, this.cursor.x - (this.wrapNext ? 0 : 1))];
      if (before.char.length < 8) before.char += char;
      return;
    }
    if (this.wrapNext || this.cursor.x + cells > this.columns) {
      if (this.modes.wrap) {
        this.cursor.x = 0;
        this.lineFeed();
      } else this.cursor.x = this.columns - cells;
    }
    this.wrapNext = false;
    const at = this.cursor.x;
    if (this.modes.insert) {
      for (let i = 0; i < cells; i++) line().splice(at, 0, { char: " ", style: PLAIN });
      line().length = this.columns;
    }
    line()[at] = { char, style: this.style };
    if (cells === 2) line()[at + 1] = { char: "", style: this.style };
    this.last = char;
    if (at + cells >= this.columns) {
      this.cursor.x = this.columns - 1;
      this.wrapNext = true;
    } else this.cursor.x = at + cells;
  }

  move(x, y) {
    this.wrapNext = false;
    this.cursor.x = Math.max(0, Math.min(this.columns - 1, x));
    this.cursor.y = Math.max(0, Math.min(this.rows - 1, y));
  }

  lineFeed() {
    this.wrapNext = false;
    if (this.cursor.y === this.bottom) this.scrollUp(1);
    else if (this.cursor.y < this.rows - 1) this.cursor.y++;
  }

  scrollUp(count, from = this.top) {
    for (let i = 0; i < Math.min(count, this.rows); i++) {
      const [gone] = this.lines.splice(from, 1);
      this.lines.splice(this.bottom, 0, this.blankLine());
      if (from === 0 && this.lines === this.main && this.top === 0) {
        this.scrollback.push(gone);
        this.scrolled++;
        if (this.scrollback.length > SCROLLBACK_LINES_MAX) this.scrollback.shift();
      }
    }
  }

  scrollDown(count, from = this.top) {
    for (let i = 0; i < Math.min(count, this.rows); i++) {
      this.lines.splice(this.bottom, 1);
      this.lines.splice(from, 0, this.blankLine());
    }
  }

  escape(char) {
    this.begin("ground");
    const { cursor } = this;
    switch (char) {
      case "[":
        return this.begin("csi");
      case "]":
      case "P":
      case "X":
      case "^":
      case "_":
        this.begin("string");
        this.text = char;
        return;
      case "(":
      case ")":
        this.begin("charset");
        this.text = char;
        return;
      case "#":
        return this.begin("hash");
      case "7":
        return this.save();
      case "8":
        return this.restore();
      case "D":
        return this.lineFeed();
      case "E":
        cursor.x = 0;
        return this.lineFeed();
      case "M":
        return cursor.y === this.top ? this.scrollDown(1) : this.move(cursor.x, cursor.y - 1);
      case "c":
        return this.reset();
    }
  }

  save() {
    this.saved = { ...this.cursor, style: this.style };
  }

  restore() {
    this.style = this.saved.style;
    this.move(this.saved.x, this.saved.y);
  }

  sequence(final, text) {
    const mark = /^[?>=!]/.test(text) ? text[0] : "";
    const numbers = text
      .slice(mark.length)
      .split(/[;:]/, PARAMETERS_MAX)
      .map((part) => parseInt(part, 10) || 0);
    const n = Math.max(1, Math.min(numbers[0], 9999));
    const { x, y } = this.cursor;
    const offset = this.modes.origin ? this.top : 0;
    if (mark && !"hl".includes(final)) return final === "c" && mark === ">" ? this.reply("\x1b[>0;10;0c") : undefined;
    switch (final) {
      case "A":
        return this.move(x, Math.max(y >= this.top ? this.top : 0, y - n));
      case "B":
      case "e":
        return this.move(x, Math.min(y <= this.bottom ? this.bottom : this.rows - 1, y + n));
      case "C":
      case "a":
        return this.move(x + n, y);
      case "D":
        return this.move(x - n, y);
      case "E":
        return this.move(0, y + n);
      case "F":
        return this.move(0, y - n);
      case "G":
      case "`":
        return this.move(n - 1, y);
      case "H":
      case "f":
        return this.move((numbers[1] || 1) - 1, n - 1 + offset);
      case "d":
        return this.move(x, n - 1 + offset);
      case "I":
        return this.move((Math.floor(x / TAB_WIDTH) + n) * TAB_WIDTH, y);
      case "Z":
        return this.move((Math.ceil(x / TAB_WIDTH) - n) * TAB_WIDTH, y);
      case "J":
        return this.eraseDisplay(numbers[0]);
      case "K":
        return this.eraseLine(numbers[0]);
      case "L":
        return y >= this.top && y <= this.bottom ? this.scrollDown(n, y) : undefined;
      case "M":
        return y >= this.top && y <= this.bottom ? this.deleteLines(n, y) : undefined;
      case "P":
        return this.shiftCells(n, 0);
      case "@":
        return this.shiftCells(0, n);
      case "X":
        return this.erase(y, x, Math.min(this.columns, x + n));
      case "S":
        return this.scrollUp(n);
      case "T":
        return this.scrollDown(n);
      case "b":
        for (let i = 0; i < Math.min(n, this.columns); i++) this.print(this.last, this.last.codePointAt(0));
        return;
      case "r":
        return this.region(numbers);
      case "s":
        return this.save();
      case "u":
        return this.restore();
      case "m":
        return this.rendition(numbers);
      case "h":
      case "l":
        return numbers.forEach((number) => this.mode(mark, number, final === "h"));
      case "n":
        return this.report(numbers[0]);
      case "c":
        return this.reply("\x1b[?1;2c");
    }
  }

  deleteLines(count, from) {
    for (let i = 0; i < Math.min(count, this.rows); i++) {
      this.lines.splice(from, 1);
      this.lines.splice(this.bottom, 0, this.blankLine());
    }
  }

  shiftCells(removed, added) {
    const line = this.lines[this.cursor.y];
    const blank = () => ({ char: " ", style: this.background() });
    line.splice(this.cursor.x, Math.min(removed, this.columns));
    for (let i = 0; i < Math.min(added, this.columns); i++) line.splice(this.cursor.x, 0, blank());
    while (line.length < this.columns) line.push(blank());
    line.length = this.columns;
  }

  region(numbers) {
    const top = Math.max(1, numbers[0]) - 1;
    const bottom = Math.min(this.rows, numbers[1] || this.rows) - 1;
    if (top >= bottom) return;
    [this.top, this.bottom] = [top, bottom];
    this.move(0, this.modes.origin ? top : 0);
  }

  report(what) {
    if (what === 5) this.reply("\x1b[0n");
    if (what === 6) this.reply(`\x1b[${this.cursor.y + 1};${this.cursor.x + 1}R`);
  }

  erase(y, from, to) {
    for (let x = from; x < to; x++) this.lines[y][x] = { char: " ", style: this.background() };
  }

  eraseLine(what) {
    const { x, y } = this.cursor;
    this.erase(y, what === 0 ? x : 0, what === 1 ? x + 1 : this.columns);
  }

  eraseDisplay(what) {
    const { y } = this.cursor;
    if (what === 3) this.scrollback = [];
    if (what === 0 || what === 1) this.eraseLine(what);
    const [from, to] = what === 0 ? [y + 1, this.rows] : what === 1 ? [0, y] : what === 2 ? [0, this.rows] : [0, 0];
    for (let line = from; line < to; line++) this.erase(line, 0, this.columns);
  }

  mode(mark, number, on) {
    if (mark !== "?") {
      if (number === 4) this.modes.insert = on;
      return;
    }
    const names = { 1: "applicationKeys", 6: "origin", 7: "wrap", 25: "cursor", 2004: "bracketedPaste" };
    if (names[number]) this.modes[names[number]] = on;
    if (number === 6) this.move(0, on ? this.top : 0);
    if (number === 47 || number === 1047 || number === 1049) this.switchScreen(on, number === 1049);
    if (number === 1048) on ? this.save() : this.restore();
  }

  switchScreen(alternate, saves) {
    if (alternate === (this.lines !== this.main)) return;
    if (alternate) {
      if (saves) this.mainCursor = { ...this.cursor, style: this.style };
      this.alternate = this.blankLines();
      this.lines = this.alternate;
    } else {
      this.lines = this.main;
      this.alternate = null;
      if (saves && this.mainCursor) {
        this.style = this.mainCursor.style;
        this.move(this.mainCursor.x, this.mainCursor.y);
      }
    }
    [this.top, this.bottom] = [0, this.rows - 1];
  }

  rendition(numbers) {
    const style = { ...this.style };
    for (let i = 0; i < numbers.length; i++) {
      const n = numbers[i];
      if (n === 0) Object.assign(style, PLAIN);
      else if (n === 1) style.bold = true;
      else if (n === 2) style.dim = true;
      else if (n === 3) style.italic = true;
      else if (n === 4) style.underline = true;
      else if (n === 7) style.inverse = true;
      else if (n === 22) style.bold = style.dim = false;
      else if (n === 23) style.italic = false;
      else if (n === 24) style.underline = false;
      else if (n === 27) style.inverse = false;
      else if (n >= 30 && n <= 37) style.fg = n - 30;
      else if (n === 39) style.fg = null;
      else if (n >= 40 && n <= 47) style.bg = n - 40;
      else if (n === 49) style.bg = null;
      else if (n >= 90 && n <= 97) style.fg = n - 82;
      else if (n >= 100 && n <= 107) style.bg = n - 92;
      else if (n === 38 || n === 48) {
        const name = n === 38 ? "fg" : "bg";
        if (numbers[i + 1] === 5) {
          style[name] = Math.min(255, numbers[i + 2] ?? 0);
          i += 2;
        } else if (numbers[i + 1] === 2) {
          const channel = (k) => Math.min(255, numbers[i + k] ?? 0);
          style[name] = `rgb(${channel(2)}, ${channel(3)}, ${channel(4)})`;
          i += 4;
        }
      }
    }
    this.style = Object.freeze(style);
  }

  /** The text of a line, without what fills it up. */
  lineText(y) {
    return this.lines[y]
      .map((cell) => cell.char)
      .join("")
      .trimEnd();
  }
}

/** What a key sends; undefined if it is not the terminal's. */
export function keySequence(event, applicationKeys = false) {
  const { key, ctrlKey, altKey, shiftKey } = event;
  const modifiers = 1 + (shiftKey ? 1 : 0) + (altKey ? 2 : 0) + (ctrlKey ? 4 : 0);
  const arrows = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" };
  if (arrows[key]) {
    if (modifiers > 1) return `\x1b[1;${modifiers}${arrows[key]}`;
    return (applicationKeys ? "\x1bO" : "\x1b[") + arrows[key];
  }
  const named = {
    Enter: "\r",
    Backspace: "\x7f",
    Tab: shiftKey ? "\x1b[Z" : "\t",
    Escape: "\x1b",
    Delete: "\x1b[3~",
    Insert: "\x1b[2~",
    PageUp: "\x1b[5~",
    PageDown: "\x1b[6~",
    F1: "\x1bOP",
    F2: "\x1bOQ",
    F3: "\x1bOR",
    F4: "\x1bOS",
    F5: "\x1b[15~",
    F6: "\x1b[17~",
    F7: "\x1b[18~",
    F8: "\x1b[19~",
    F9: "\x1b[20~",
    F10: "\x1b[21~",
    F11: "\x1b[23~",
    F12: "\x1b[24~",
  };
  if (named[key]) return (altKey ? "\x1b" : "") + named[key];
  if (key.length === 1 && ctrlKey && !altKey) {
    const upper = key.toUpperCase();
    if (upper >= "@" && upper <= "_") return String.fromCharCode(upper.charCodeAt(0) - 64);
    if (key === " ") return "\0";
    return undefined;
  }
  if (key.length === 1 && altKey && !ctrlKey) return "\x1b" + key;
  return undefined;
}
