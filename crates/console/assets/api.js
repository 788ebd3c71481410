// Requests to the API server, as whoever is signed in. Errors are the Status that the server answers.
// Used by every page; lists that live are in `live_table`.

import { session } from "./session.js";
import { parse } from "./yaml.js";

export class ApiError extends Error {
  constructor(code, status) {
    super(status.message || `the server answered ${code}`);
    this.code = code;
    this.reason = status.reason ?? "";
    this.causes = status.details?.causes ?? [];
  }
}

const lost = new Set();
/** Calls back when the server no longer knows who we are. */
export const onSignedOut = (callback) => lost.add(callback);

/** A request whose answer is good; anything else is an ApiError. */
export async function request(method, path, { body, type, accept = "application/json", signal } = {}) {
  const headers = { accept };
  if (session.token) headers.authorization = `Bearer ${session.token}`;
  if (body !== undefined) headers["content-type"] = type ?? "application/json";
  const text = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: text,
      signal,
      cache: "no-store",
      credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "No answer: the connection failed." });
  }
  if (response.ok) return response;
  const status = await statusOf(response);
  if (response.status === 401 && session.user) lost.forEach((callback) => callback());
  throw new ApiError(response.status, status);
}

/** The Status of an error, in whichever form it came. */
async function statusOf(response) {
  const answer = await response.text();
  try {
    return parse(answer) ?? {};
  } catch {
    return { message: answer.slice(0, 500) };
  }
}

export const get = async (path, options) => (await request("GET", path, options)).json();
export const text = async (path, options) => (await request("GET", path, options)).text();
export const post = async (path, body, options) => (await request("POST", path, { body, ...options })).json();

export async function patch(path, body, type = "application/merge-patch+json") {
  return (await request("PATCH", path, { body, type })).json();
}

/** The lines of an answer that does not end, as they come. */
export async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield parts;
    }
    if (rest) yield [rest];
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** `?a=b`, without what is empty. */
export function query(parameters) {
  const given = Object.entries(parameters).filter(
    ([, value]) => value !== undefined && value !== "" && value !== false,
  );
  return given.length ? "?" + new URLSearchParams(given.map(([key, value]) => [key, String(value)])) : "";
}

/** The path of a resource: `{ group, version, resource }`, in a namespace, of a name. */
export function pathOf({ group, version, resource }, namespace, name) {
  const root = group ? `/apis/${group}/${version}` : `/api/${version}`;
  const scope = namespace ? `/namespaces/${encodeURIComponent(namespace)}` : "";
  return `${root}${scope}/${resource}${name ? "/" + encodeURIComponent(name) : ""}`;
}

export async function whoAmI() {
  const review = { apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" };
  const { status } = await post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review);
  return status.userInfo ?? {};
}

/** What `minke why` or `minke timeline` says of an object. */
export function explain(topic, kind, namespace, name, signal) {
  const apiVersion = kind.group ? `${kind.group}/${kind.version}` : kind.version;
  return get(`/console/${topic}` + query({ apiVersion, resource: kind.resource, namespace, name }), { signal });
}
