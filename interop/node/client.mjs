// The package @sterna/client in Node: its own tests, its pages as they are written, and a broker that is killed.
//
//   client.mjs [--only TEXT]
//
// STERNA_BIN is the broker's program. NODE_PATH has the tools of the build.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import fs from "node:fs";
import { createServer } from "node:http";
import path from "node:path";
import { run } from "node:test";
import { pathToFileURL } from "node:url";

import { Broker, installPackage, PACKAGE, recipes, Report, ROOT, temporaryFolder, TOKEN, USER } from "./client_place.mjs";

const report = new Report(process.argv[2] === "--only" ? process.argv[3] : "");
const folder = temporaryFolder();
const QUICK = { backoff: { firstMs: 20, longestMs: 200 } };

async function take(client, count) {
  const taken = [];
  while (taken.length < count) {
    const { done, value } = await client.messages.next();
    assert.ok(!done, `the messages end after ${taken.length}`);
    taken.push(value);
  }
  return taken;
}

function seen(messages) {
  return messages.map((message) => message.text());
}

/** The package's own tests, each a line. */
async function ownTests() {
  const directory = path.join(PACKAGE, "test");
  const files = fs.readdirSync(directory).filter((name) => name.endsWith(".test.mjs")).map((name) => path.join(directory, name));
  const results = run({ files, concurrency: 1, timeout: 240_000 });
  const name = ({ file, name }) => `unit/${path.basename(file ?? "", ".test.mjs")}/${name.replace(/\W+/g, "-")}`;
  results.on("test:pass", (event) => event.details.type !== "suite" && !files.includes(event.name) && report.say(name(event)));
  results.on("test:fail", (event) => report.say(name(event), event.details.error?.cause ?? event.details.error));
  results.resume();
  await once(results, "end");
}

async function steps(name, address, broker, { connect, PublishError }, more) {
  const root = `js/${name}`;
  const open = (options = {}) => connect(address, { ...QUICK, ...more(), ...options });

  await report.step(`${name}/messages`, async () => {
    const client = await open({ subscribe: `${root}/m/#`, qos: 2 });
    await client.publish(`${root}/m/ü +#`.replace(/[+#]/g, ""), "text", {
      qos: 2, contentType: "text/plain", expiryS: 3600, responseTopic: "answers/ü", correlationData: new Uint8Array([0, 255]),
      userProperties: [["k,1", "v=1"], ["k,1", "é"]], isText: true,
    });
    await client.publish(`${root}/m/../b`, new Uint8Array([0, 255, 1]));
    await client.publish(`${root}/m/empty`, "", { qos: 0 });
    const [first, second, third] = await take(client, 3);
    assert.deepEqual([first.topic, first.text(), first.qos, first.retain, first.redelivered], [`${root}/m/ü `, "text", 2, false, false]);
    assert.deepEqual([first.contentType, first.responseTopic, first.isText], ["text/plain", "answers/ü", true]);
    assert.ok(first.expiryS > 3000 && first.expiryS <= 3600);
    assert.deepEqual([...first.correlationData], [0, 255]);
    assert.deepEqual(first.userProperties, [["k,1", "v=1"], ["k,1", "é"]]);
    assert.deepEqual([second.topic, [...second.payload]], [`${root}/m/../b`, [0, 255, 1]]);
    assert.deepEqual([third.payload.length, third.qos, third.id], [0, 0, 0]);
    await client.close();
  });
  await report.step(`${name}/retained`, async () => {
    const client = await open();
    await client.publish(`${root}/r`, "kept", { retain: true });
    const [reader, other] = [await open({ subscribe: `${root}/r` }), await open({ subscribe: `${root}/r`, retained: false })];
    const [message] = await take(reader, 1);
    assert.deepEqual([message.text(), message.retain], ["kept", true]);
    await client.publish(`${root}/r`, "", { retain: true });
    assert.deepEqual(seen(await take(other, 1)), [""]);
    await Promise.all([client, reader, other].map((one) => one.close()));
  });
  await report.step(`${name}/large`, async () => {
    const client = await open({ subscribe: `${root}/l`, maximumWaitingBytes: 100_000 });
    const payload = new Uint8Array(1_500_000).map((_, index) => index % 251);
    for (let n = 0; n < 8; n++) await client.publish(`${root}/l`, payload);
    for (const message of await take(client, 8)) assert.ok(Buffer.from(payload).equals(Buffer.from(message.payload)));
    await client.close();
  });
  await report.step(`${name}/refused`, async () => {
    const client = await open();
    await assert.rejects(client.publish("denied/a", "x"), (error) => {
      assert.ok(error instanceof PublishError);
      assert.deepEqual([error.status, error.kind], [403, "forbidden"]);
      assert.match(error.message, /rules/);
      return true;
    });
    await assert.rejects(client.publish("a/+", "x"), (error) => error.status === 400 && error.kind === "invalid-topic");
    await assert.rejects(open({ subscribe: "denied/#" }), (error) => error.status === 403);
    await assert.rejects(open({ subscribe: "a#" }), (error) => error.status === 400 && error.kind === "invalid-filter");
    await client.close();
  });
  await report.step(`${name}/session`, async () => {
    const session = `s-${name}-${process.pid}`;
    const first = await open({ subscribe: `${root}/s`, session });
    for (let n = 1; n <= 5; n++) await first.publish(`${root}/s`, String(n));
    const messages = await take(first, 5);
    assert.equal(await messages[1].ack(), true);
    assert.equal(await messages[3].ack(), true);
    await first.close();
    await (await open()).publish(`${root}/s`, "6");
    const second = await open({ session });
    const found = await take(second, 4);
    assert.deepEqual(found.map((message) => [message.text(), message.redelivered]), [["1", true], ["3", true], ["5", true], ["6", false]]);
    assert.deepEqual(await Promise.all(found.map((message) => message.ack())), [true, true, true, true]);
    await second.close();
    const third = await open({ session });
    await third.publish(`${root}/s`, "7");
    assert.deepEqual(seen(await take(third, 1)), ["7"]);
    await third.close();
  });
  await report.step(`${name}/shared`, async () => {
    const members = [await open({ subscribe: `$share/g/${root}/g` }), await open({ subscribe: `$share/g/${root}/g` })];
    const all = [];
    let enough;
    const complete = new Promise((resolve) => { enough = resolve; });
    const reading = members.map(async (member) => {
      for await (const message of member.messages) {
        all.push(message.text());
        await message.ack();
        if (all.length === 40) enough();
      }
    });
    for (let n = 0; n < 40; n++) await members[0].publish(`${root}/g`, String(n));
    await complete;
    assert.equal(new Set(all).size, 40);
    await Promise.all(members.map((member) => member.close()));
    await Promise.all(reading);
  });
  await report.step(`${name}/published-once`, async () => {
    const client = await open({ subscribe: `${root}/k` });
    const key = randomUUID();
    await client.publish(`${root}/k`, "once", { key });
    await client.publish(`${root}/k`, "once", { key });
    await client.publish(`${root}/k`, "end");
    assert.deepEqual(seen(await take(client, 2)), ["once", "end"]);
    await assert.rejects(client.publish(`${root}/k`, "other", { key }), (error) => error.status === 422 && error.kind === "key-reused");
    await client.close();
  });
  await report.step(`${name}/taken-over`, async () => {
    const session = `t-${name}-${process.pid}`;
    const first = await open({ subscribe: `${root}/t`, session });
    const away = new Promise((resolve) => first.addEventListener("state", resolve, { once: true }));
    const second = await open({ session });
    assert.equal((await away).state, "connecting");
    await first.close();
    // The first may have taken it back meanwhile.
    await second.publish(`${root}/t`, "x");
    assert.deepEqual(seen(await take(second, 1)), ["x"]);
    await second.close();
  });
  for (const [verb, signal] of [["killed", "SIGKILL"], ["stopped", "SIGTERM"]]) {
    await report.step(`${name}/broker-${verb}`, () => ended(`${root}/${verb}`, `${name}-${verb}`, broker, open, signal));
  }
}

/**
 * A broker that ends three times under load: all is handed over, and nothing is published twice. Nothing that was confirmed comes
 * again after a stop. After a kill, what was settled less than `store.cursor_interval_ms` before may, as docs/durability.md says.
 */
async function ended(topic, name, broker, open, signal) {
  const COUNT = 600;
  // A second session reads nothing until the end, and shows what was published.
  const audit = `audit-${name}-${process.pid}`;
  await (await open({ subscribe: topic, session: audit })).close();
  const client = await open({ subscribe: topic, session: `k-${name}-${process.pid}` });
  // By text: the life of the broker in which it was confirmed last.
  const confirmed = new Map();
  const handed = new Set();
  const wrong = [];
  let life = 0;
  let freshIn = -1;
  let complete;
  const all = new Promise((resolve) => { complete = resolve; });
  const reading = (async () => {
    for await (const message of client.messages) {
      const text = message.text();
      const acknowledge = async () => {
        if (await message.ack()) confirmed.set(text, life);
      };
      const isExcused = signal === "SIGKILL" && message.redelivered && confirmed.get(text) >= life - 1;
      if (confirmed.has(text) && !isExcused) wrong.push(`${text} of life ${confirmed.get(text)} in life ${life}`);
      confirmed.delete(text);
      handed.add(text);
      if (Number(text) % 3 === 0) acknowledge();
      else await acknowledge();
      // Repetitions come first, so none of before is left.
      if (!message.redelivered) freshIn = life;
      if (handed.size === COUNT) complete();
    }
  })();
  const publisher = await open();
  const published = [];
  const publishing = (async () => {
    // Until the last end, there is always something new, and never far ahead of the reader.
    for (let n = 0; n < COUNT || life < 3; n++) {
      while (n - handed.size > 40) await new Promise((resolve) => setTimeout(resolve, 1));
      published.push(publisher.publish(topic, String(n)));
      if (n % 8 === 7) await Promise.all(published);
    }
    await Promise.all(published);
  })();
  for (let ends = 0; ends < 3; ends++) {
    while (freshIn < life || handed.size < ((ends + 1) * COUNT) / 4) await new Promise((resolve) => setTimeout(resolve, 1));
    life++;
    await broker.end(signal);
    await broker.start();
  }
  await publishing;
  await all;
  while (handed.size < published.length) await new Promise((resolve) => setTimeout(resolve, 1));
  await client.close();
  await reading;
  await publisher.close();
  assert.deepEqual(wrong, [], "what was confirmed came again");
  assert.ok(confirmed.size > COUNT / 2, `${confirmed.size} of ${published.length} are confirmed`);
  const auditor = await open({ session: audit });
  const found = [];
  while (found.length < published.length) {
    const [message] = await take(auditor, 1);
    found.push(message.text());
    message.ack();
  }
  assert.equal(new Set(found).size, published.length, "a publication was made twice");
  await auditor.publish(topic, "end");
  assert.deepEqual(seen(await take(auditor, 1)), ["end"]);
  await auditor.close();
}

/** Runs a program of a page with these addresses in place of the written ones, until it prints a line or ends. */
async function program(code, addresses, line) {
  let written = code;
  for (const [before, after] of Object.entries(addresses)) {
    if (written.includes(before)) written = written.replaceAll(before, after);
  }
  const file = path.join(folder, "program.mjs");
  fs.writeFileSync(file, written);
  const child = spawn(process.execPath, [file], { cwd: folder, stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  let onLine = () => {};
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding("utf8").on("data", (text) => {
      said += text;
      if (said.includes(line)) onLine();
    });
  }
  const printed = new Promise((resolve) => { onLine = resolve; });
  const exited = once(child, "exit");
  return { child, exited, printed: Promise.race([printed, exited]), said: () => said };
}

async function finishes(code, addresses, line) {
  const { exited, said } = await program(code, addresses, line);
  const [status] = await exited;
  assert.deepEqual([status, said().trimEnd().split("\n").at(-1)], [0, line], said());
}

async function pages(broker, { connect }, http2Fetch) {
  const addresses = { "http://localhost:8080": broker.http, "https://localhost:8443": broker.https };
  const [readme] = recipes(path.join(PACKAGE, "README.md"), "js");
  await report.step("page/readme", () => finishes(readme.code, addresses, "plant/boiler 21.5"));
  const found = new Map(recipes(path.join(ROOT, "docs", "clients.md"), "js").map(({ heading, code }) => [heading, code]));
  const recipe = (heading) => {
    assert.ok(found.has(heading), `no recipe "${heading}" among ${[...found.keys()]}`);
    return found.get(heading);
  };
  await report.step("page/service", async () => {
    const { child, exited, printed, said } = await program(recipe("A service that loses nothing"), addresses, "orders/1 { n: 1 } false");
    const client = await connect(broker.http);
    while (!said().includes("orders/1") && child.exitCode === null) {
      await client.publish("orders/1", '{"n":1}');
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    await printed;
    await broker.end("SIGKILL");
    await broker.start();
    await client.publish("orders/2", '{"n":2}');
    while (!said().includes("orders/2 { n: 2 }") && child.exitCode === null) await new Promise((resolve) => setTimeout(resolve, 20));
    assert.match(said(), /connecting the connection was lost/);
    child.kill();
    await exited;
    await client.close();
  });
  await report.step("page/deadline", async () => {
    const code = recipe("A deadline, and what the broker says");
    await finishes(code, addresses, "published");
    await finishes(code.replace("plant/valve", "denied/valve"), addresses, "403 forbidden the rules forbid to publish to this topic");
  });
  await report.step("page/tokens", async () => {
    let given = 0;
    const issuer = createServer((request, response) => {
      given++;
      response.end(JSON.stringify({ access_token: given === 1 ? "one-that-has-ended" : TOKEN }));
    }).listen(0, "127.0.0.1");
    await once(issuer, "listening");
    const where = { ...addresses, "http://localhost:8080": broker.asking, "http://localhost:8090": `http://127.0.0.1:${issuer.address().port}` };
    await finishes(recipe("Tokens that end"), where, "published");
    assert.equal(given, 2);
    issuer.close();
  });
  await report.step("page/http2", async () => {
    fs.copyFileSync(broker.certificate, path.join(folder, "development-ca.pem"));
    await finishes(recipe("HTTP/2, and an authority of your own"), addresses, "hall/lamp on");
  });
  await report.step("page/untrusted", async () => {
    const isTold = (error) => error.name === "ConnectionError" && /certificate/.test(error.message);
    for (const fetch of [undefined, http2Fetch()]) {
      const more = fetch ? { fetch } : {};
      await assert.rejects(connect(broker.https, { ...more, subscribe: "a" }), isTold);
      const client = await connect(broker.https, more);
      await assert.rejects(client.publish("a", "x"), isTold);
      await client.close();
    }
  });
  await report.step("page/users", async () => {
    const client = await connect(broker.asking, { ...USER, subscribe: "js/users" });
    await client.publish("js/users", "known");
    assert.deepEqual(seen(await take(client, 1)), ["known"]);
    await client.close();
    await assert.rejects(connect(broker.asking, { subscribe: "js/users" }), (error) => error.status === 401);
  });
}

let broker;
try {
  const built = installPackage(folder);
  await report.step("package/size", async () => assert.match(built, /^dist\/index.js: \d+ bytes/));
  const installed = path.join(folder, "node_modules", "@sterna", "client", "dist");
  const client = await import(pathToFileURL(path.join(installed, "index.js")));
  const { http2Fetch } = await import(pathToFileURL(path.join(installed, "http2.js")));
  if (report.wants("unit/")) await ownTests();
  broker = await Broker.open(folder);
  await steps("fetch", broker.http, broker, client, () => ({}));
  const fetch = http2Fetch({ ca: fs.readFileSync(broker.certificate) });
  await steps("http2", broker.https, broker, client, () => ({ fetch }));
  fetch.close();
  await pages(broker, client, http2Fetch);
} catch (error) {
  report.say("client", error.stack ?? error);
} finally {
  await broker?.end("SIGKILL");
  fs.rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
}
report.end();
