// The way in: a token, or a kubeconfig that holds one. Says what else helps where a page can't.
// Shown by `main` when nobody is signed in.

import { whoAmI } from "./api.js";
import { h, replace } from "./dom.js";
import { keep, session } from "./session.js";
import { parse } from "./yaml.js";

/** What a kubeconfig's current user can sign in with: `{ token }`, or `{ problem }` and what to do. */
export function credentials(text) {
  let config;
  try {
    config = parse(text);
  } catch (error) {
    return { problem: `This file can't be read as a kubeconfig: ${error.message}.` };
  }
  const contexts = config?.contexts ?? [];
  const context = contexts.find((entry) => entry.name === config["current-context"]) ?? contexts[0];
  const user = (config?.users ?? []).find((entry) => entry.name === context?.context?.user)?.user;
  if (!user) return { problem: "This file names no user: it is no kubeconfig, or its current context is missing." };
  if (user.token) return { token: user.token };
  const other =
    user["client-certificate-data"] || user["client-certificate"]
      ? "a client certificate"
      : user.exec
        ? "a program (exec)"
        : user.tokenFile
          ? "a token file"
          : user.username
            ? "a password"
            : "nothing that is known here";
  return { problem: `This kubeconfig signs in with ${other}, which a page can't use.`, needsToken: true };
}

export function signInPage(done, notice = "") {
  const message = h("div", { role: "alert" }, notice && h("p.note.warn", notice));
  const token = h("textarea", {
    id: "token",
    rows: 3,
    autocomplete: "off",
    spellcheck: "false",
    autocapitalize: "off",
    required: true,
    autofocus: true,
    placeholder: "eyJhbGciOi…",
    onkeydown: (event) => event.key === "Enter" && (event.preventDefault(), form.requestSubmit()),
  });
  const button = h("button.primary", { type: "submit" }, "Sign in");
  const file = h("input", {
    type: "file",
    id: "kubeconfig",
    accept: ".yaml,.yml,.conf,.config,.kubeconfig,*/*",
    onchange: async () => {
      const [chosen] = file.files;
      if (chosen) await take(credentials(await chosen.text()));
      file.value = "";
    },
  });
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        take({ token: token.value.trim().replace(/^Bearer\s+/i, "") });
      },
    },
    h("label", { for: "token" }, "Token"),
    token,
    button,
  );

  async function take({ token: value, problem, needsToken }) {
    if (problem)
      return replace(
        message,
        h("div.note.bad", h("p", problem), needsToken && h("p", "Make a token with it, as below, and paste that.")),
      );
    button.disabled = true;
    replace(message, h("p.muted", { role: "status" }, "Signing in…"));
    keep(value);
    try {
      const user = await whoAmI();
      if (user.username === "system:anonymous")
        throw Object.assign(new Error("The token names nobody."), { code: 401 });
      done(user);
    } catch (error) {
      keep("");
      const text =
        error.code === 401
          ? "The API server does not know this token. It may have expired, or be of another cluster."
          : error.message;
      replace(message, h("div.note.bad", h("p", text)));
      token.focus();
    } finally {
      button.disabled = false;
    }
  }

  const element = h(
    "div.sign-in",
    h(
      "div.sign-in-box",
      h("img", { src: "icon.svg", alt: "", width: 44, height: 44 }),
      h("h1", "Minke Console"),
      h("p.muted", `Sign in to the cluster at ${location.host}. What you may see and do is what the API lets you.`),
      message,
      form,
      h("div.or", h("span", "or")),
      h("label.button.wide", { for: "kubeconfig" }, "Choose a kubeconfig file"),
      file,
      h(
        "details",
        h("summary", "Where do I get a token?"),
        h("p", "On the machine that runs the cluster, this prints an address that signs you in for an hour:"),
        h("pre.code", "minke console"),
        h("p", "Anywhere else, for a ServiceAccount that has the rights you need:"),
        h("pre.code", "kubectl create token NAME -n NAMESPACE"),
        h(
          "p.muted",
          "Tokens stay in this tab and are forgotten when it closes. Client certificates can't be read by a page; ",
          "one that the browser itself presents works without a token, and so does ",
          h("code", "kubectl proxy"),
          ".",
        ),
      ),
    ),
  );
  return { element, title: "Sign in", focus: () => token.focus() };
}

/** Whoever the browser already is, by a certificate or a proxy; undefined if nobody. */
export async function alreadySignedIn() {
  try {
    const user = await whoAmI();
    return user.username && user.username !== "system:anonymous" ? user : undefined;
  } catch (error) {
    if (session.token && error.code === 401) keep("");
    return undefined;
  }
}
