// Quantities, ages and words as people read them. Pure.
// Used by every page; kubectl's forms where it has one.

const BINARY = { Ki: 1024, Mi: 1024 ** 2, Gi: 1024 ** 3, Ti: 1024 ** 4, Pi: 1024 ** 5, Ei: 1024 ** 6 };
const DECIMAL = { n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };

/** A Kubernetes quantity as a number; NaN if it is none. */
export function quantity(text) {
  if (typeof text === "number") return text;
  const match = /^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]|[KMGTPE]i)?$/.exec(text ?? "");
  if (!match) return NaN;
  const suffix = match[2] ?? "";
  return Number(match[1]) * (BINARY[suffix] ?? DECIMAL[suffix]);
}

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  let unit = "B";
  for (const [name, size] of Object.entries(BINARY)) {
    if (value >= size) unit = name;
  }
  if (unit === "B") return `${Math.round(value)} B`;
  const scaled = value / BINARY[unit];
  return `${scaled >= 100 ? Math.round(scaled) : scaled.toFixed(1).replace(/\.0$/, "")} ${unit}`;
}

export function cores(value) {
  if (!Number.isFinite(value)) return "–";
  return value < 1 ? `${Math.round(value * 1000)}m` : value.toFixed(value < 10 ? 2 : 1).replace(/\.?0+$/, "");
}

/** As kubectl shows ages: `45s`, `3m20s`, `5h`, `2d3h`, `400d`, `3y20d`. */
export function duration(seconds) {
  const whole = Math.floor(seconds);
  if (!Number.isFinite(whole)) return "<unknown>";
  if (whole < 0) return "0s";
  const two = (large, unit, small, lesser) => (small ? `${large}${unit}${small}${lesser}` : `${large}${unit}`);
  const minutes = Math.floor(whole / 60);
  const hours = Math.floor(minutes / 60);
  const days = Math.floor(hours / 24);
  if (whole < 120) return `${whole}s`;
  if (minutes < 10) return two(minutes, "m", whole % 60, "s");
  if (hours < 3) return `${minutes}m`;
  if (hours < 8) return two(hours, "h", minutes % 60, "m");
  if (hours < 48) return `${hours}h`;
  if (hours < 192) return two(days, "d", hours % 24, "h");
  if (days < 730) return `${days}d`;
  return days < 2920 ? two(Math.floor(days / 365), "y", days % 365, "d") : `${Math.floor(days / 365)}y`;
}

const UNITS = { s: 1, m: 60, h: 3600, d: 86400, y: 365 * 86400 };

/** The seconds of `3m20s`; undefined if it is no age. */
export function parseDuration(text) {
  if (!/^(\d+[smhdy])+$/.test(text)) return undefined;
  let total = 0;
  for (const [, count, unit] of text.matchAll(/(\d+)([smhdy])/g)) total += Number(count) * UNITS[unit];
  return total;
}

export const age = (time, now = Date.now()) => (time ? duration((now - Date.parse(time)) / 1000) : "");

/** The tone of a word in a STATUS or READY column: `good`, `warn`, `bad`, or none. */
export function tone(column, value) {
  const text = String(value ?? "");
  const name = column.toLowerCase();
  if (name === "ready" || name === "completions") {
    const match = /^(\d+)\/(\d+)$/.exec(text);
    return match && Number(match[1]) < Number(match[2]) ? "warn" : "";
  }
  if (name === "available" || name === "established") return text === "False" ? "bad" : "";
  if (name === "type") return text === "Warning" ? "warn" : "";
  if (name !== "status" && name !== "phase") return "";
  if (/^(Running|Ready|Active|Bound|Available|Approved.*|Complete|Deployed|Healthy|True)$/.test(text)) return "good";
  if (/^(Completed|Succeeded|Ready,SchedulingDisabled)$/.test(text)) return "";
  if (/^(Pending|ContainerCreating|PodInitializing|Terminating|Released|Unknown|Init:\d.*|NotReady)$/.test(text)) {
    return text === "NotReady" ? "bad" : "warn";
  }
  return /Error|BackOff|Fail|Evicted|OOM|Invalid|NotReady|Lost|Denied|Never|CrashLoop|Unschedulable|False|Err/.test(
    text,
  )
    ? "bad"
    : "";
}

export const plural = (count, one, many = one + "s") => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
