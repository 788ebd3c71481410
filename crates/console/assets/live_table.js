// A table that follows the cluster: list in pages, then watch, then list again if the watch is too old.
// Fills a `TableModel`; shared by whoever shows the same resource.

import { ApiError, get, lines, query, request } from "./api.js";
import { TableModel } from "./table_model.js";

const ACCEPT = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const PAGE_ROWS = 1000;
const POLL_MS = 10000;
const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 15000;
/** Changes are shown together; large tables less often. */
const BATCH_MS = 60;
const BATCH_MS_LARGE = 300;
const LARGE_ROWS = 2000;

const wait = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()));
  });

export class LiveTable {
  /** `watches`: whether the resource can be watched; what can't is listed again and again. */
  constructor(path, selectors = {}, watches = true) {
    this.path = path;
    this.selectors = selectors;
    this.watches = watches;
    this.model = new TableModel();
    /** `loading`, `live`, `retrying` or `failed`. */
    this.state = "loading";
    this.error = undefined;
    this.listeners = new Set();
  }

  /** Begins with the first listener and ends with the last. Returns what ends it. */
  follow(listener) {
    this.listeners.add(listener);
    if (this.listeners.size === 1) this.start();
    else if (this.state !== "loading" || this.model.rows.size) queueMicrotask(() => listener(this));
    return () => {
      this.listeners.delete(listener);
      if (!this.listeners.size) this.controller?.abort();
    };
  }

  start() {
    this.controller = new AbortController();
    this.run(this.controller.signal);
  }

  /** Tries again at once. */
  retry() {
    this.controller?.abort();
    this.state = "loading";
    this.tell(true);
    this.start();
  }

  async run(signal) {
    let delay = RETRY_MS_MIN;
    let listed = false;
    while (!signal.aborted) {
      try {
        if (!listed) await this.list(signal);
        listed = true;
        this.error = undefined;
        this.setState("live");
        if (this.watches) await this.watch(signal);
        else {
          await wait(POLL_MS, signal);
          listed = false;
        }
        delay = RETRY_MS_MIN;
      } catch (error) {
        if (signal.aborted) return;
        this.error = error;
        // Too old, or the table is of another version by now.
        if (error.code === 410) {
          listed = false;
          continue;
        }
        if ([401, 403, 404, 405].includes(error.code)) return this.setState("failed");
        this.setState(listed || this.model.rows.size ? "retrying" : "failed");
        await wait(delay, signal);
        delay = Math.min(delay * 2, RETRY_MS_MAX);
      }
    }
  }

  async list(signal) {
    this.model.beginList();
    let next;
    do {
      const path = this.path + query({ ...this.selectors, limit: PAGE_ROWS, continue: next, pretty: "false" });
      const table = await get(path, { accept: ACCEPT, signal });
      this.model.page(table);
      next = table.metadata?.continue;
      this.tell();
    } while (next);
    this.model.endList();
  }

  async watch(signal) {
    const parameters = { ...this.selectors, watch: 1, allowWatchBookmarks: true, pretty: "false" };
    const path = this.path + query({ ...parameters, resourceVersion: this.model.resourceVersion });
    const response = await request("GET", path, { accept: ACCEPT, signal });
    for await (const batch of lines(response)) {
      let changed = false;
      for (const line of batch) {
        if (!line) continue;
        const event = JSON.parse(line);
        if (event.type === "ERROR") throw new ApiError(event.object?.code ?? 500, event.object ?? {});
        changed = this.model.event(event) || changed;
      }
      if (changed) this.tell();
    }
  }

  setState(state) {
    this.state = state;
    this.tell(true);
  }

  tell(now = false) {
    if (now) {
      clearTimeout(this.timer);
      this.timer = undefined;
      this.listeners.forEach((listener) => listener(this));
    } else {
      const pause = this.model.rows.size > LARGE_ROWS ? BATCH_MS_LARGE : BATCH_MS;
      this.timer ??= setTimeout(() => {
        this.timer = undefined;
        this.listeners.forEach((listener) => listener(this));
      }, pause);
    }
  }
}

/** One object as it is, and as it changes. Calls back with the object, or undefined once it is deleted. */
export async function followObject(collection, name, signal, listener) {
  const selector = { fieldSelector: `metadata.name=${name}` };
  for (let delay = RETRY_MS_MIN; !signal.aborted;) {
    try {
      const list = await get(collection + query({ ...selector, pretty: "false" }), { signal });
      const kind = { apiVersion: list.apiVersion, kind: list.kind?.replace(/List$/, "") };
      const found = list.items?.find((item) => item.metadata.name === name);
      listener(found && { ...kind, ...found });
      const resourceVersion = list.metadata.resourceVersion;
      const path = collection + query({ ...selector, watch: 1, resourceVersion, pretty: "false" });
      delay = RETRY_MS_MIN;
      for await (const batch of lines(await request("GET", path, { signal }))) {
        for (const line of batch.filter(Boolean)) {
          const { type, object } = JSON.parse(line);
          if (type === "ERROR") throw new ApiError(object?.code ?? 500, object ?? {});
          if (type !== "BOOKMARK") listener(type === "DELETED" ? undefined : object);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if ([401, 403, 404, 405].includes(error.code)) throw error;
      await wait(delay, signal);
      delay = Math.min(delay * 2, RETRY_MS_MAX);
    }
  }
}
