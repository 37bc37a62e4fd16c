// The package @sterna/client in Chromium (headless, by puppeteer-core): `client_browser.mjs [--only TEXT]`.
//
// STERNA_BIN is the broker's program. NODE_PATH has puppeteer-core and the tools of the build.

import assert from "node:assert/strict";
import { once } from "node:events";
import fs from "node:fs";
import { createServer, request as forward } from "node:http";
import { createRequire } from "node:module";
import path from "node:path";

import { Broker, installPackage, recipes, Report, ROOT, temporaryFolder } from "./client_place.mjs";

const require = createRequire(import.meta.url);
const { makeCertificate, program, startBrowser } = require("./browser_place.cjs");

const report = new Report(process.argv[2] === "--only" ? process.argv[3] : "");
const folder = temporaryFolder();

/** Serves a page, the client, and the broker's interface as a reverse proxy does. */
async function serve(html, client, broker) {
  const server = createServer((request, response) => {
    if (request.url === "/") {
      response.writeHead(200, { "Content-Type": "text/html" }).end(html);
    } else if (request.url === "/client.js") {
      response.writeHead(200, { "Content-Type": "text/javascript" }).end(fs.readFileSync(client));
    } else if (request.url.startsWith("/v1/")) {
      const asked = forward(new URL(request.url, broker.http), { method: request.method, headers: { ...request.headers, host: new URL(broker.http).host } });
      asked.on("response", (answer) => { response.writeHead(answer.statusCode, answer.headers); answer.pipe(response); });
      asked.on("error", () => response.destroy());
      response.on("close", () => asked.destroy());
      request.pipe(asked);
    } else {
      response.writeHead(404).end();
    }
  }).listen(0, "localhost");
  await once(server, "listening");
  return { server, url: `http://localhost:${server.address().port}/` };
}

async function open(browser, url) {
  const page = await browser.newPage();
  page.complaints = [];
  page.on("pageerror", (error) => page.complaints.push(error.message));
  await page.goto(url);
  return page;
}

/** Functions of the page, for what is evaluated in it. */
async function prepare(page) {
  await page.evaluate(async () => {
    globalThis.sterna = await import("/client.js");
    globalThis.take = async (client, count) => {
      const taken = [];
      while (taken.length < count) {
        const { done, value } = await client.messages.next();
        if (done) throw new Error(`the messages end after ${taken.length}`);
        taken.push(value);
      }
      return taken;
    };
    globalThis.until = async (client, state) => {
      while (client.state !== state) await new Promise((resolve) => client.addEventListener("state", resolve, { once: true }));
    };
    globalThis.QUICK = { backoff: { firstMs: 20, longestMs: 200 } };
  });
}

let broker, trusting, knowing, site;
try {
  const chromium = program("chromium", "chromium-browser", "google-chrome");
  if (!chromium) throw new Error("chromium is not installed");
  const puppeteer = require(require.resolve("puppeteer-core", { paths: (process.env.NODE_PATH ?? "").split(":") }));
  installPackage(folder);
  const certificate = makeCertificate(folder);
  broker = await Broker.open(folder, certificate);
  const client = path.join(folder, "node_modules", "@sterna", "client", "dist", "index.js");
  site = await serve("<!doctype html><title>client</title>", client, broker);
  // The one trusts the certificate; the other knows nothing but what pages tell it.
  [trusting, knowing] = await Promise.all([
    startBrowser(puppeteer, chromium, folder, ["--enable-quic", "--webtransport-developer-mode",
      `--origin-to-force-quic-on=${new URL(broker.https).host}`, `--ignore-certificate-errors-spki-list=${certificate.spki}`]),
    startBrowser(puppeteer, chromium, folder, []),
  ]);
  const page = await open(knowing, site.url);
  await prepare(page);
  const given = { http: broker.http, https: broker.https, hash: certificate.hash };
  const within = (doing, more = {}) => page.evaluate(doing, { ...given, ...more });

  await report.step("fetch/messages", async () => {
    const found = await within(async ({ http }) => {
      const client = await sterna.connect(http, { subscribe: "page/f/#" });
      await client.publish("page/f/ü", "text", { contentType: "a/b", userProperties: [["k", "é"]], retain: true });
      await client.publish("page/f/b", new Uint8Array([0, 255]));
      const [first, second] = await take(client, 2);
      const refused = await client.publish("denied/a", "x").catch((error) => [error.name, error.status, error.kind]);
      const { transport, session } = client;
      await client.publish("page/f/ü", "", { retain: true });
      await client.close();
      return [first.topic, first.text(), first.contentType, first.userProperties, [...second.payload], refused, transport, session[0]];
    });
    assert.deepEqual(found, ["page/f/ü", "text", "a/b", [["k", "é"]], [0, 255], ["PublishError", 403, "forbidden"], "fetch", "~"]);
  });
  await report.step("fetch/session", async () => {
    const found = await within(async ({ http }) => {
      const first = await sterna.connect(http, { subscribe: "page/s", session: "page-s", transports: ["fetch"] });
      for (const text of ["1", "2", "3"]) await first.publish("page/s", text);
      const messages = await take(first, 3);
      const isDone = await messages[1].ack();
      await first.close();
      const second = await sterna.connect(http, { session: "page-s", transports: ["fetch"] });
      const again = await take(second, 2);
      await Promise.all(again.map((message) => message.ack()));
      await second.close();
      return [isDone, again.map((message) => [message.text(), message.redelivered])];
    });
    assert.deepEqual(found, [true, [["1", true], ["3", true]]]);
  });

  /** A page that publishes and reads while the broker is killed twice: nothing is lost, nothing is published twice. */
  async function killed(name, options) {
    await within(async ({ address, name, options, hash }) => {
      if (options.serverCertificateHashes) options.serverCertificateHashes = [{ algorithm: "sha-256", value: new Uint8Array(hash) }];
      const client = await sterna.connect(address, { ...QUICK, ...options, subscribe: `page/${name}`, session: `page-${name}` });
      const all = (globalThis.all = { handed: new Map(), published: 0, unknown: [], client });
      (async () => {
        for await (const message of client.messages) {
          const text = message.text();
          all.handed.set(text, (all.handed.get(text) ?? 0) + 1);
          await message.ack();
        }
      })();
      all.publishing = (async () => {
        for (let n = 0; n < 200; n++) {
          // A frame without an answer may be published or not, and the page is told so.
          await client.publish(`page/${name}`, String(n)).catch((error) => {
            if (error.status !== 0) throw error;
            all.unknown.push(String(n));
          });
          all.published++;
        }
      })();
    }, { address: options.serverCertificateHashes ? broker.https : broker.http, name, options });
    for (const part of [60, 120]) {
      while ((await within(() => all.published)) < part) await new Promise((resolve) => setTimeout(resolve, 5));
      await broker.end("SIGKILL");
      await broker.start();
    }
    return within(async () => {
      await all.publishing;
      const lost = () => Array.from({ length: 200 }, (_, n) => String(n)).filter((n) => !all.handed.has(n) && !all.unknown.includes(n));
      while (lost().length) await new Promise((resolve) => setTimeout(resolve, 5));
      await all.client.close();
      return { handed: all.handed.size, unknown: all.unknown.length };
    });
  }
  await report.step("fetch/broker-killed", async () => {
    const { handed, unknown } = await killed("killed", { transports: ["fetch"] });
    assert.deepEqual([handed, unknown], [200, 0]);
  });
  await report.step("fetch/offline", async () => {
    await within(async ({ http }) => {
      // The second delay is an hour, unless the event says that there is reason to hope.
      const backoff = { firstMs: 100, factor: 1e6, longestMs: 3_600_000 };
      globalThis.away = await sterna.connect(http, { subscribe: "page/o", session: "page-o", transports: ["fetch"], backoff });
      globalThis.waitsLong = new Promise((resolve) => away.addEventListener("state", ({ retryMs }) => retryMs > 1e6 && resolve()));
    });
    await page.setOfflineMode(true);
    // Chromium leaves open responses alone, so the broker's end takes them.
    await broker.end("SIGKILL");
    await within(() => waitsLong);
    await broker.start();
    await page.setOfflineMode(false);
    const found = await within(async () => {
      await until(away, "open");
      await away.publish("page/o", "back");
      const [message] = await take(away, 1);
      await away.close();
      return message.text();
    });
    assert.equal(found, "back");
  });
  await report.step("webtransport/pinned", async () => {
    const found = await within(async ({ https, hash }) => {
      const options = { session: "page-w", serverCertificateHashes: [{ algorithm: "sha-256", value: new Uint8Array(hash) }] };
      const first = await sterna.connect(https, { ...options, subscribe: "page/w/#" });
      await first.publish("page/w/ü", "text", { contentType: "a/b", userProperties: [["k", "é"]], correlationData: new Uint8Array([1]), qos: 2 });
      await first.publish("page/w/b", new Uint8Array(100_000).fill(7));
      await first.publish("page/w/c", "3");
      await first.publish("page/w/d", "small", { qos: 0 });
      const messages = await take(first, 4);
      const small = messages.find((message) => message.topic === "page/w/d");
      const [one, two] = messages.filter((message) => message !== small);
      const refused = await first.publish("denied/a", "x").catch((error) => [error.name, error.status, error.problem]);
      const key = await first.publish("a", "x", { key: "k" }).catch((error) => error.name);
      const { transport } = first;
      const isDone = await Promise.all([two.ack(), one.ack()]);
      await first.close();
      const second = await sterna.connect(https, options);
      const [again] = await take(second, 1);
      await again.ack();
      await second.close();
      return [transport, one.topic, one.text(), one.contentType, one.userProperties, [...one.correlationData], two.payload.length,
        [small.text(), small.qos, small.id], refused, key, isDone, [again.text(), again.redelivered]];
    });
    assert.deepEqual(found, ["webtransport", "page/w/ü", "text", "a/b", [["k", "é"]], [1], 100_000, ["small", 0, 0],
      ["PublishError", 403, null], "TypeError", [false, false], ["3", true]]);
  });
  await report.step("webtransport/broker-killed", async () => {
    const { handed, unknown } = await killed("pinned", { serverCertificateHashes: true });
    assert.ok(handed >= 200 - unknown && unknown < 20, `${handed} handed over, ${unknown} unknown`);
  });
  await report.step("webtransport/another-certificate", async () => {
    const found = await within(async ({ https, hash }) => {
      const wrong = new Uint8Array(hash);
      wrong[0] ^= 1;
      const serverCertificateHashes = [{ algorithm: "sha-256", value: wrong }];
      let trouble;
      const controller = new AbortController();
      const connected = sterna.connect(https, { subscribe: "#", serverCertificateHashes, signal: controller.signal });
      setTimeout(() => controller.abort(new Error("enough")), 500);
      await connected.catch((error) => { trouble = error.message; });
      return trouble;
    });
    assert.equal(found, "enough");
  });
  await report.step("webtransport/lacks", async () => {
    const found = await within(async ({ http, https }) => {
      const why = (address, options) => sterna.connect(address, options).then(() => "connected", (error) => `${error.name}: ${error.message}`);
      return [
        await why(http, { transports: ["webtransport"] }),
        await why(https, { transports: ["webtransport"], token: "t" }),
        await why(https, { transports: ["webtransport"], user: "u" }),
      ];
    });
    assert.match(found[0], /TypeError: no WebTransport: the address/);
    assert.match(found[1], /TypeError: .*tokenInAddress/);
    assert.match(found[2], /TypeError: .*passwords/);
  });
  await report.step("webtransport/with-requests", async () => {
    const other = await open(trusting, site.url);
    await prepare(other);
    const found = await other.evaluate(async ({ https }) => {
      const client = await sterna.connect(https, { subscribe: "page/r", session: "page-r" });
      await client.publish("page/r", "1");
      const [message] = await take(client, 1);
      const isDone = await message.ack();
      const refused = await client.publish("denied/a", "x").catch((error) => [error.status, error.kind]);
      const { transport } = client;
      await client.close();
      return [transport, message.text(), isDone, refused];
    }, given);
    assert.deepEqual(found, ["webtransport", "1", true, [403, "forbidden"]]);
    await other.close();
  });
  await report.step("webtransport/falls-back", async () => {
    const found = await within(async ({ http }) => {
      // A runtime whose WebTransport never works: UDP is blocked, or the listener has none.
      const own = globalThis.WebTransport;
      const tries = [];
      globalThis.WebTransport = class {
        constructor(url) { tries.push(String(url).split("?")[0].split("/").slice(3).join("/")); this.ready = Promise.reject(new Error("blocked")); this.closed = this.ready; this.closed.catch(() => {}); }
        close() {}
      };
      try {
        const fetch = (url, init) => globalThis.fetch(String(url).replace("https://nowhere.example/", `${http}/`), init);
        const client = await sterna.connect("https://nowhere.example/", { subscribe: "page/b", session: "page-b", fetch });
        const { transport } = client;
        await client.close();
        return [transport, tries];
      } finally {
        globalThis.WebTransport = own;
      }
    });
    assert.deepEqual(found, ["fetch", ["v1/topics"]]);
  });
  await report.step("page/recipe", async () => {
    const recipe = recipes(path.join(ROOT, "docs", "clients.md"), "html").find(({ heading }) => heading === "A page");
    assert.ok(recipe, "docs/clients.md has no page");
    const shown = await serve(recipe.code, client, broker);
    const other = await open(knowing, shown.url);
    await within(async ({ http }) => {
      const client = await sterna.connect(http);
      await client.publish("plant/boiler", "21.5", { retain: true });
      await client.publish("plant/fan", "on", { retain: true });
    });
    await other.waitForFunction(() => document.querySelectorAll("#values li").length === 2);
    await within(async ({ http }) => (await sterna.connect(http)).publish("plant/boiler", "22.5"));
    await other.waitForFunction(() => [...document.querySelectorAll("#values li")].some((row) => row.textContent === "plant/boiler: 22.5"));
    assert.deepEqual(other.complaints, []);
    await other.close();
    shown.server.close();
    shown.server.closeAllConnections();
  });
  await report.step("nothing-went-wrong", async () => assert.deepEqual(page.complaints, []));
} catch (error) {
  report.say("client", error.stack ?? error);
} finally {
  await Promise.all([trusting?.close(), knowing?.close()]);
  await broker?.end("SIGKILL");
  fs.rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
}
report.end();
