// The console in a real browser, against a real cluster with the demo. Run by `tools/test-console`.
//   CONSOLE_URL  what `minke console` printed     CHROMIUM  the browser     SHOTS  where screenshots go, if anywhere

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

const { chromium } = createRequire(process.env.PLAYWRIGHT)("playwright-core");
const url = new URL(process.env.CONSOLE_URL);
const FLAGS =
  "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking " +
  "--disable-component-update --disable-sync";
const WAIT = { timeout: 30000 };
/** On loopback, with everything in the cache of nobody. */
const FIRST_PAINT_MS_MAX = Number(process.env.FIRST_PAINT_MS_MAX ?? 300);

async function open(options = {}) {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: FLAGS.split(" ") });
  const context = await browser.newContext({
    ignoreHTTPSErrors: true,
    viewport: { width: 1280, height: 800 },
    ...options,
  });
  const page = await context.newPage();
  const complaints = [];
  // The first question, before anybody has signed in, is refused: that is its answer.
  const expected = /status of 40[13]/;
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(error.stack));
  const check = () =>
    assert.deepEqual(
      complaints.filter((text) => !expected.test(text)),
      [],
    );
  return { browser, page, check };
}

async function signedIn(options) {
  const opened = await open(options);
  await opened.page.goto(url.href);
  await opened.page.waitForSelector("body.signed-in", WAIT);
  assert.ok(!opened.page.url().includes("token"), "the token is taken out of the address");
  return opened;
}

const go = async (page, hash, selector) => {
  await page.evaluate((next) => (location.hash = next), hash);
  await page.waitForSelector(selector, WAIT);
};
const shot = (page, name) => process.env.SHOTS && page.screenshot({ path: `${process.env.SHOTS}/${name}.png` });
const text = (page, selector) => page.locator(selector).first().innerText();

test("the page is small, quick and says how to sign in", async () => {
  const { browser, page } = await open();
  let bytes = 0;
  const session = await page.context().newCDPSession(page);
  await session.send("Network.enable");
  session.on("Network.loadingFinished", ({ encodedDataLength }) => (bytes += encodedDataLength));
  await page.goto(url.origin + url.pathname);
  await page.waitForSelector(".sign-in-box", WAIT);
  assert.ok(bytes < 120 * 1024, `${bytes} bytes`);
  const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
  console.log(`first paint ${Math.round(paint)} ms, ${bytes} bytes`);
  assert.ok(paint < FIRST_PAINT_MS_MAX, `first paint after ${paint} ms`);
  await page.fill("#token", "not.a.token");
  await page.click("text=Sign in >> nth=-1");
  await page.waitForSelector(".note.bad", WAIT);
  const kubeconfig =
    "users:\n- name: a\n  user:\n    client-certificate-data: eA==\ncontexts:\n- name: a\n  context: {user: a}\n";
  const file = {
    name: "config",
    mimeType: "text/yaml",
    buffer: Buffer.from(kubeconfig.replace("{user: a}", '{"user": "a"}')),
  };
  await page.setInputFiles("#kubeconfig", file);
  await page.waitForFunction(
    () => /client certificate/.test(document.querySelector(".note.bad")?.textContent),
    null,
    WAIT,
  );
  await shot(page, "sign-in");
  await browser.close();
});

test("overview, tables, keys", async () => {
  const { browser, page, check } = await signedIn();
  await page.waitForSelector(".node", WAIT);
  await page.waitForFunction(() => /[1-9]/.test(document.querySelector(".stat-number")?.textContent), null, WAIT);
  await shot(page, "overview");
  await page.keyboard.press("g");
  await page.keyboard.press("p");
  await page.waitForSelector(".row", WAIT);
  await page.keyboard.press("/");
  await page.keyboard.type("app=demo");
  await page.waitForFunction(() => document.querySelectorAll(".row").length === 3, null, WAIT);
  await page.keyboard.press("Enter");
  await page.keyboard.press("j");
  const name = await page.evaluate(() => document.activeElement.textContent);
  await page.keyboard.press("Enter");
  await page.waitForSelector(".verdict", WAIT);
  assert.equal(await text(page, "h1"), name);
  await shot(page, "pod");
  await page.keyboard.press("t");
  await page.waitForSelector(".station", WAIT);
  await page.keyboard.press("?");
  await page.waitForSelector("dialog[open] kbd", WAIT);
  await page.keyboard.press("Escape");
  await page.keyboard.press(":");
  await page.keyboard.type("crd");
  await page.keyboard.press("Enter");
  await page.waitForFunction(
    () => document.querySelector("h1").textContent === "CustomResourceDefinitions",
    null,
    WAIT,
  );
  check();
  await browser.close();
});

test("an object is edited, scaled and followed", async () => {
  const { browser, page } = await signedIn();
  await go(page, "#/o/apps/deployments/default/demo", ".verdict");
  await page.keyboard.press("e");
  await page.waitForSelector("textarea.code", WAIT);
  const before = await page.inputValue("textarea.code");
  await page.fill("textarea.code", before.replace(/^ {2}replicas: \d+$/m, "  replicas: -1"));
  await page.keyboard.press("Control+Enter");
  await page.waitForFunction(() => /spec.replicas/.test(document.querySelector(".failure")?.textContent), null, WAIT);
  const wanted = /^ {2}replicas: 4$/m.test(before) ? 5 : 4;
  await page.fill("textarea.code", before.replace(/^ {2}replicas: \d+$/m, `  replicas: ${wanted}`));
  await page.keyboard.press("Control+Enter");
  await page.waitForSelector(".diff .new", WAIT);
  assert.match(await text(page, ".diff .new"), new RegExp(`replicas: ${wanted}`));
  await shot(page, "diff");
  await page.click("button:text-is('Apply')");
  await page.waitForSelector(".toast.good", WAIT);
  // Somebody else is quicker.
  await page.click("text=Edit >> nth=-1");
  await page.waitForSelector("textarea.code", WAIT);
  const mine = (await page.inputValue("textarea.code")).replace(`replicas: ${wanted}`, "replicas: 3");
  await page.evaluate(async () => {
    const headers = {
      authorization: `Bearer ${sessionStorage.getItem("minke-console-token")}`,
      "content-type": "application/merge-patch+json",
    };
    const body = JSON.stringify({ spec: { revisionHistoryLimit: Math.floor(Math.random() * 1000) } });
    await fetch("/apis/apps/v1/namespaces/default/deployments/demo", { method: "PATCH", headers, body });
  });
  await page.fill("textarea.code", mine);
  await page.keyboard.press("Control+Enter");
  await page.waitForSelector("text=Somebody else changed it meanwhile", WAIT);
  await page.click("button:has-text('See what changed')");
  await page.keyboard.press("Control+Enter");
  await page.waitForSelector(".diff .new", WAIT);
  await page.click("button:text-is('Apply')");
  await page.waitForFunction(() => document.querySelectorAll(".toast.good").length > 0, null, WAIT);
  await page.click("#tab-summary");
  await page.waitForFunction(() => /Complete/.test(document.querySelector(".summary")?.textContent), null, WAIT);
  await browser.close();
});

test("logs and a terminal", async () => {
  const { browser, page } = await signedIn();
  await go(page, "#/l/pods?q=app=demo", ".row a");
  await page.locator(".row a").first().click();
  await page.waitForSelector(".summary", WAIT);
  await page.keyboard.press("l");
  await page.waitForSelector(".log", WAIT);
  await page.keyboard.press("s");
  await page.waitForFunction(
    () => document.querySelector(".terminal-tab .state")?.textContent === "Connected",
    null,
    WAIT,
  );
  const screen = (pattern) =>
    page.waitForFunction(
      (source) => new RegExp(source, "m").test(document.querySelector(".terminal-screen").innerText),
      pattern,
      WAIT,
    );
  await screen("[#$]\\s*$");
  await page.keyboard.type("echo $((6*7)) $TERM\r");
  await screen("^42 xterm-256color");
  await page.keyboard.type("vi /etc/hosts\r");
  await screen("/etc/hosts 1/");
  await shot(page, "vi");
  await page.keyboard.type(":q\r");
  await screen("^42 xterm-256color");
  await page.keyboard.type("exit 3\r");
  await page.waitForFunction(
    () => /exit code 3|Ended/.test(document.querySelector(".terminal-tab .state").textContent),
    null,
    WAIT,
  );
  await browser.close();
});

test("a phone, at night, and the way out", async () => {
  const { browser, page, check } = await signedIn({
    viewport: { width: 390, height: 844 },
    isMobile: true,
    hasTouch: true,
    colorScheme: "dark",
  });
  await page.waitForSelector(".node", WAIT);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(overflow <= 0, `the page is ${overflow} pixels too wide`);
  await page.click("#menu-button");
  await page.click("#menu >> text=Topology");
  await page.waitForSelector("svg.topology", WAIT);
  await shot(page, "phone");
  check();
  await page.click("#sign-out");
  await page.waitForSelector(".sign-in-box", WAIT);
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  await browser.close();
});

test("every control has a name, every page one heading and its landmarks", async () => {
  const { browser, page } = await signedIn();
  for (const hash of ["#/", "#/l/pods", "#/o/apps/deployments/default/demo", "#/topology", "#/kinds"]) {
    await go(page, hash, "h1");
    await page.waitForTimeout(500);
    const found = await page.evaluate(() => ({
      headings: document.querySelectorAll("h1").length,
      landmarks: ["header", "nav", "[role=main]"].filter((name) => !document.querySelector(name)),
      nameless: [...document.querySelectorAll("button, a[href], input, select, textarea")]
        .filter((element) => element.checkVisibility())
        .filter(
          (element) =>
            !(
              element.innerText?.trim() ||
              element.getAttribute("aria-label") ||
              element.labels?.length ||
              element.textContent.trim()
            ),
        )
        .map((element) => element.cloneNode(false).className || element.tagName),
    }));
    assert.deepEqual(found, { headings: 1, landmarks: [], nameless: [] }, hash);
  }
  await browser.close();
});
