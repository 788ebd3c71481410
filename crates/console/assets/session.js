// Who is signed in: a bearer token, kept for this tab only, or nobody if a proxy or certificate speaks for the browser.
// Read by `api` for every request; filled by `sign_in`.

const TOKEN_KEY = "minke-console-token";

export const session = { token: "", user: "", groups: [] };

/** The token of `#token=…` (as `minke console` prints it), else that of this tab. Takes it out of the address. */
export function restore() {
  const match = /^#token=([^&]+)/.exec(location.hash);
  if (match) {
    history.replaceState(null, "", location.pathname + "#/");
    keep(decodeURIComponent(match[1]));
    return;
  }
  session.token = sessionStorage.getItem(TOKEN_KEY) ?? "";
}

export function keep(token) {
  session.token = token;
  if (token) sessionStorage.setItem(TOKEN_KEY, token);
  else sessionStorage.removeItem(TOKEN_KEY);
}

export function signOut() {
  keep("");
  session.user = "";
  sessionStorage.clear();
}

/** A token as a WebSocket can carry it: browsers can't set headers there. */
export function tokenProtocol(token) {
  const bytes = new TextEncoder().encode(token);
  const base64 = btoa(String.fromCharCode(...bytes));
  return (
    "base64url.bearer.authorization.k8s.io." + base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")
  );
}
