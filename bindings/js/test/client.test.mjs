// The client against a small broker of the test's own: sessions that go on, publications that are made once, refusals.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, afterEach, beforeEach, test } from "node:test";

import { connect, ConnectionError, PublishError, RequestError } from "../dist/index.js";
import { FakeBroker, frame, HEARTBEAT, problem, QUICK, state, take } from "./fake_broker.mjs";

let broker, clients;
beforeEach(async () => {
  broker = await new FakeBroker().start();
  clients = [];
});
afterEach(async () => {
  await Promise.all(clients.map((client) => client.close()));
  await broker.stop();
});

async function open(options = {}) {
  const client = await connect(broker.url, { ...QUICK, ...options });
  clients.push(client);
  return client;
}

function asked(method, path) {
  return broker.requests.filter((request) => request.method === method && request.path.startsWith(path));
}

const payloads = (messages) => messages.map((message) => message.text());

test("messages come with what is known of them", async () => {
  const client = await open({ subscribe: ["a/+", "b c/#"], qos: 2, retained: false });
  const [{ query }] = asked("GET", "/v1/topics");
  assert.deepEqual([query.getAll("filter"), query.get("qos"), query.get("retained")], [["a/+", "b c/#"], "2", "no"]);
  broker.publish({ topic: "a/x", payload: '{"n": 1}', retain: true, properties: [3, 0, 1, 106] });
  const [message] = await take(client, 1);
  assert.deepEqual([message.topic, message.qos, message.retain, message.redelivered, message.contentType], ["a/x", 1, true, false, "j"]);
  assert.deepEqual(message.json(), { n: 1 });
  assert.equal(await message.ack(), true);
  assert.equal(client.session, "~1");
  assert.equal(client.transport, "fetch");
});

test("a subscription goes on behind what has come", async () => {
  const client = await open({ subscribe: "#" });
  broker.publish({ payload: "1" });
  broker.publish({ payload: "2" });
  assert.deepEqual(payloads(await take(client, 2)), ["1", "2"]);
  const away = state(client, "connecting");
  broker.cut();
  await away;
  broker.publish({ payload: "3" });
  assert.deepEqual(payloads(await take(client, 1)), ["3"]);
  const { query } = asked("GET", "/v1/topics")[1];
  assert.deepEqual([query.get("session"), query.get("after")], ["~1", "2"]);
});

test("a session without a name that is gone is told as a gap", async () => {
  const client = await open({ subscribe: "#" });
  broker.publish({ payload: "1" });
  await take(client, 1);
  const gap = new Promise((resolve) => client.addEventListener("gap", resolve));
  broker.restart();
  await gap;
  assert.equal(client.session, "~2");
  await state(client, "open");
  broker.publish({ payload: "2" });
  assert.deepEqual(payloads(await take(client, 1)), ["2"]);
});

test("what is not acknowledged comes again to the next client, and not to this one", async () => {
  const first = await open({ subscribe: "#", session: "board" });
  for (const payload of ["1", "2", "3"]) broker.publish({ payload });
  const [one, two, three] = await take(first, 3);
  assert.equal(await two.ack(), true);
  const again = state(first, "connecting");
  broker.cut();
  await again;
  await state(first, "open");
  // Of the connection before, and sent again on this one.
  broker.publish({ payload: "4" });
  assert.deepEqual(payloads(await take(first, 1)), ["4"]);
  assert.equal(await one.ack(), true);
  assert.equal(await one.ack(), true);
  await first.close();
  const second = await open({ session: "board" });
  const found = await take(second, 2);
  assert.deepEqual(found.map((message) => [message.text(), message.redelivered]), [["3", true], ["4", true]]);
  assert.equal(await three.ack(), false);
});

test("acknowledgements of one turn are one request", async () => {
  const client = await open({ subscribe: "#", session: "board" });
  for (let n = 0; n < 300; n++) broker.publish({ payload: String(n) });
  const messages = await take(client, 300);
  const done = await Promise.all(messages.map((message) => message.ack()));
  assert.ok(done.every((is) => is === true));
  assert.equal(asked("POST", "/v1/sessions/board/ack").length, 2);
  assert.equal(broker.sessions.get("board").sent.size, 0);
});

test("an acknowledgement whose answer is lost is given again", async () => {
  const client = await open({ subscribe: "#", session: "board" });
  broker.publish({ payload: "1" });
  const [message] = await take(client, 1);
  let isFirst = true;
  broker.before = (request, response) => {
    if (!request.path.endsWith("/ack") || !isFirst) return false;
    isFirst = false;
    response.destroy();
    return true;
  };
  // The next answer may be of a broker that has begun anew, which means nothing by its yes.
  assert.equal(await message.ack(), false);
  assert.equal(broker.sessions.get("board").sent.size, 0);
});

test("a restart hands over again what was not acknowledged, and nothing else", async () => {
  // Nothing but the client's own diligence sends acknowledgements: another connection would, too.
  const client = await open({ subscribe: "#", session: "board", silenceMs: 3_600_000 });
  for (const payload of ["1", "2", "3"]) broker.publish({ payload });
  const [one, two] = await take(client, 3);
  assert.equal(await one.ack(), true);
  broker.restart();
  const found = await take(client, 2);
  assert.deepEqual(found.map((message) => [message.text(), message.redelivered]), [["2", true], ["3", true]]);
  assert.equal(await two.ack(), false);
  assert.deepEqual(await Promise.all(found.map((message) => message.ack())), [true, true]);
});

test("what was not read before a restart is there once", async () => {
  const client = await open({ subscribe: "#", session: "board" });
  for (const payload of ["1", "2", "3"]) broker.publish({ payload });
  await take(client, 1);
  const again = state(client, "connecting");
  broker.restart();
  await again;
  await state(client, "open");
  broker.publish({ payload: "4" });
  const found = await take(client, 4);
  assert.deepEqual(payloads(found), ["1", "2", "3", "4"]);
  assert.deepEqual(await Promise.all(found.map((message) => message.ack())), [true, true, true, true]);
});

test("what was not read of a session that is gone stays", async () => {
  const client = await open({ subscribe: "#", session: "board" });
  for (const payload of ["1", "2"]) broker.publish({ payload });
  await take(client, 1);
  const gap = new Promise((resolve) => client.addEventListener("gap", resolve));
  broker.sessions.clear();
  broker.cut();
  await gap;
  await state(client, "open");
  assert.deepEqual(payloads(await take(client, 1)), ["2"]);
});

test("a session with a name that is gone is told as a gap, and its ids mean nothing", async () => {
  const client = await open({ subscribe: "#", session: "board" });
  broker.publish({ payload: "old" });
  const [old] = await take(client, 1);
  const gap = new Promise((resolve) => client.addEventListener("gap", resolve));
  broker.sessions.clear();
  broker.cut();
  await gap;
  await state(client, "open");
  broker.publish({ payload: "new" });
  const [fresh] = await take(client, 1);
  assert.deepEqual([fresh.id, fresh.text()], [old.id, "new"]);
  assert.equal(await old.ack(), false);
  assert.equal(broker.sessions.get("board").sent.size, 1);
});

test("a message of QoS 0 has nothing to acknowledge", async () => {
  const client = await open({ subscribe: "#", session: "board", qos: 0 });
  broker.sessions.get("board").response.write(frame({ id: 0, qos: 0, payload: "x" }));
  const [message] = await take(client, 1);
  assert.equal(await message.ack(), true);
  assert.equal(asked("POST", "/v1/sessions").length, 0);
});

test("a publication has its fields", async () => {
  const client = await open();
  await client.publish("a/ü b/+", "text", {
    qos: 2, retain: true, contentType: "text/plain; charset=utf-8", expiryS: 60, responseTopic: "r/ü", isText: true,
    correlationData: new Uint8Array([0, 255]), userProperties: [["a,b", "c=d"], ["e", ""]], key: "mine",
  });
  await client.publish("a/../b", new Uint8Array([0, 1]));
  const [first, second] = asked("POST", "/v1/topics");
  assert.equal(first.path, "/v1/topics/a/%C3%BC%20b/%2B");
  const fields = Object.fromEntries(Object.entries(first.headers).filter(([name]) => /^sterna|^content-type|^idem/.test(name)));
  assert.deepEqual(fields, {
    "content-type": "text/plain; charset=utf-8", "idempotency-key": "mine", "sterna-correlation-data": "AP8=", "sterna-expiry": "60",
    "sterna-payload-format": "utf-8", "sterna-qos": "2", "sterna-response-topic": "r%2F%C3%BC", "sterna-retain": "?1",
    "sterna-user-property": "a%2Cb=c%3Dd, e=",
  });
  assert.equal(second.path, "/v1/topics/a%2F..%2Fb");
  assert.equal(second.headers["content-type"], undefined);
  assert.match(second.headers["idempotency-key"], /^[0-9a-f]{32}$/);
  assert.deepEqual([...second.content], [0, 1]);
});

test("a publication whose answer is lost is made once", async () => {
  const client = await open();
  let lost = 0;
  broker.before = (request, response) => {
    if (request.method !== "POST") return false;
    // The message is published, and the answer never leaves.
    if (lost++ < 3) response.writeHead = () => response.destroy();
    return false;
  };
  await client.publish("a", "1");
  assert.equal(broker.published.length, 1);
  assert.equal(new Set(asked("POST", "/v1/topics").map(({ headers }) => headers["idempotency-key"])).size, 1);
  assert.equal(lost, 4);
});

test("a refused publication has the status and the problem", async () => {
  const client = await open();
  broker.before = (request, response) => (problem(response, 403, "forbidden"), true);
  await assert.rejects(client.publish("a", "1"), (error) => {
    assert.ok(error instanceof PublishError && error instanceof RequestError);
    assert.deepEqual([error.status, error.kind, error.message], [403, "forbidden", "it is forbidden"]);
    assert.equal(error.problem.type, "urn:sterna:problem:forbidden");
    return true;
  });
  broker.before = (request, response) => (problem(response, 503, "queue-full", { "Retry-After": "3" }), true);
  await assert.rejects(client.publish("a", "1"), (error) => error.status === 503 && error.retryAfterMs === 3000);
  broker.before = (request, response) => (response.writeHead(500).end("<html>"), true);
  await assert.rejects(client.publish("a", "1"), (error) => error.status === 500 && error.problem === null);
  assert.equal(asked("POST", "/v1/topics").length, 3);
});

test("an answer that is soon another one is waited for", async () => {
  const client = await open();
  const answers = [[409, "key-in-use"], [503, "stopping"], [425, "too-early"]];
  broker.before = (request, response) => {
    const next = answers.shift();
    if (next) problem(response, ...next);
    return next !== undefined;
  };
  await client.publish("a", "1");
  assert.equal(broker.published.length, 1);
  assert.deepEqual(answers, []);
});

test("a publication without an answer ends at its limit, and says that nothing is known", async () => {
  const client = await open({ retryForMs: 0 });
  broker.before = (request, response) => (response.destroy(), true);
  await assert.rejects(client.publish("a", "1"), (error) => error instanceof PublishError && error.status === 0 && error.problem === null);
});

test("a refused subscription rejects, and one that is refused later ends", async () => {
  broker.before = (request, response) => (problem(response, 403, "forbidden"), true);
  await assert.rejects(open({ subscribe: "#" }), (error) => error instanceof RequestError && error.status === 403);
  broker.before = () => false;
  const client = await open({ subscribe: "#" });
  broker.before = (request, response) => (problem(response, 401, "unauthenticated"), true);
  const closed = state(client, "closed");
  broker.cut();
  assert.equal((await closed).error.status, 401);
  await assert.rejects(async () => {
    for await (const message of client.messages) assert.fail(message.text());
  }, RequestError);
  await assert.rejects(client.publish("a", ""), /closed/);
});

test("a broker that is busy is tried again when it says", async () => {
  let isBusy = true;
  broker.before = (request, response) => {
    if (isBusy) problem(response, 503, "busy", { "Retry-After": "0.01" });
    return isBusy;
  };
  const client = open({ subscribe: "#", backoff: { firstMs: 1, longestMs: 1 } });
  while (broker.requests.length < 3) await new Promise((resolve) => setTimeout(resolve, 1));
  isBusy = false;
  assert.equal((await client).state, "open");
});

test("tokens are asked for, kept, and replaced where they are refused", async () => {
  const accepted = new Set(["t1"]);
  let given = 0;
  broker.before = ({ headers }, response) => {
    const isRight = accepted.has(headers.authorization?.slice("Bearer ".length));
    if (!isRight) problem(response, 401, "unauthenticated", { "WWW-Authenticate": "Bearer" });
    return !isRight;
  };
  const client = await open({ subscribe: "#", token: async () => `t${++given}` });
  await client.publish("a", "1");
  assert.equal(given, 1);
  accepted.clear();
  accepted.add("t2");
  await Promise.all([client.publish("a", "2"), client.publish("a", "3")]);
  assert.equal(given, 2);
  accepted.clear();
  await assert.rejects(client.publish("a", "4"), (error) => error.status === 401);
  await assert.rejects(open({ subscribe: "#", token: "wrong" }), (error) => error.status === 401);
});

test("a function for tokens that fails is asked again", async () => {
  let asks = 0;
  const client = await open({ subscribe: "#", token: () => { if (++asks < 3) throw new Error("no net"); return "t"; } });
  assert.equal(asks, 3);
  assert.equal(client.state, "open");
});

test("users have a password", async () => {
  const client = await open({ user: "ü", password: "p:w" });
  await client.publish("a", "");
  assert.equal(broker.requests[0].headers.authorization, `Basic ${Buffer.from("ü:p:w").toString("base64")}`);
});

test("states are told, with reason and delay", async () => {
  const client = await open({ subscribe: "#" });
  const told = [];
  client.addEventListener("state", ({ state, error, retryMs }) => told.push([state, error?.name, retryMs >= 0]));
  broker.cut();
  await state(client, "connecting");
  await state(client, "open");
  await client.close();
  assert.equal(client.state, "closed");
  assert.deepEqual(told, [["connecting", "ConnectionError", true], ["open", undefined, true], ["closed", undefined, true]]);
});

test("delays grow, up to the longest, and are partly left to chance", async () => {
  broker.before = (request, response) => (response.destroy(), true);
  const delays = [];
  const client = await open();
  await client.close();
  const { modules } = await import("./modules.mjs");
  const { delayMs, BACKOFF } = await (await modules("client"))("signals");
  for (let failures = 1; failures < 12; failures++) delays.push(delayMs({ ...BACKOFF, jitter: 0 }, failures));
  assert.deepEqual(delays.slice(0, 4), [250, 500, 1000, 2000]);
  assert.equal(delays.at(-1), 15_000);
  const jittered = Array.from({ length: 200 }, () => delayMs(BACKOFF, 1));
  assert.ok(jittered.every((ms) => ms > 125 && ms <= 250) && new Set(jittered).size > 100);
});

test("a network that comes back, and a page that is shown, connect at once", async () => {
  const page = new EventTarget();
  const document = Object.assign(new EventTarget(), { visibilityState: "hidden" });
  globalThis.addEventListener = page.addEventListener.bind(page);
  globalThis.removeEventListener = page.removeEventListener.bind(page);
  globalThis.document = document;
  after(() => {
    delete globalThis.addEventListener;
    delete globalThis.removeEventListener;
    delete globalThis.document;
  });
  // Without the events, the next try is in an hour.
  const client = await open({ subscribe: "#", backoff: { firstMs: 3_600_000, longestMs: 3_600_000 } });
  for (const event of [() => page.dispatchEvent(new Event("online")), () => document.dispatchEvent(new Event("visibilitychange"))]) {
    broker.cut();
    await state(client, "connecting");
    document.visibilityState = "visible";
    event();
    await state(client, "open");
  }
  // An open connection is replaced: the old network has taken it along.
  const renewed = state(client, "connecting");
  page.dispatchEvent(new Event("online"));
  await renewed;
  await state(client, "open");
  // A publication that waits is tried, too.
  broker.before = (request, response) => (response.destroy(), true);
  const published = client.publish("a", "1");
  while (asked("POST", "/v1/topics").length === 0) await new Promise((resolve) => setTimeout(resolve, 1));
  await new Promise((resolve) => setTimeout(resolve, 20));
  broker.before = () => false;
  page.dispatchEvent(new Event("online"));
  await published;
  await client.close();
});

test("a connection on which nothing is heard is given up", async () => {
  const client = await open({ subscribe: "#", silenceMs: 60 });
  const { error } = await state(client, "connecting");
  assert.ok(error instanceof ConnectionError);
  assert.match(error.message, /nothing was heard/);
  await state(client, "open");
  // Heartbeats are signs of life.
  const beats = setInterval(() => broker.sessions.get("~1").response?.write(HEARTBEAT), 5);
  const before = asked("GET", "/v1/topics").length;
  await new Promise((resolve) => setTimeout(resolve, 200));
  clearInterval(beats);
  assert.ok(asked("GET", "/v1/topics").length <= before + 1);
});

test("a request on which nothing is heard is given up, and made again", async () => {
  const client = await open({ silenceMs: 40 });
  let isFirst = true;
  broker.before = () => isFirst && !(isFirst = false);
  await client.publish("a", "1");
  assert.equal(asked("POST", "/v1/topics").length, 2);
});

test("the client stops reading at its bound, and goes on where it is read", async () => {
  const client = await open({ subscribe: "#", maximumWaitingBytes: 64 * 1024 });
  const payload = "x".repeat(64 * 1024);
  const { response } = broker.sessions.get("~1");
  let sent = 0;
  // Far more than sockets hold: writing ends where nobody reads.
  while (!response.writableNeedDrain || response.writableLength < 16 * 1024 * 1024) {
    broker.publish({ payload });
    sent++;
  }
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.ok(response.writableLength > 1024 * 1024, `${response.writableLength} bytes wait at the broker`);
  const found = await take(client, sent);
  assert.equal(found.length, sent);
});

test("a message above the limit ends the client with a reason", async () => {
  const client = await open({ subscribe: "#", maximumMessageBytes: 100 });
  const closed = state(client, "closed");
  broker.publish({ payload: "x".repeat(200) });
  assert.match((await closed).error.message, /maximumMessageBytes is 100/);
});

test("bytes that are no frames end the connection alone", async () => {
  const client = await open({ subscribe: "#" });
  const lost = state(client, "connecting");
  broker.sessions.get("~1").response.write(Buffer.from([3, 1, 77, 0]));
  assert.match((await lost).error.cause?.message ?? (await lost).error.message, /flags 77/);
  await state(client, "open");
});

test("an answer of something else than a broker is not read", async () => {
  let count = 0;
  broker.before = (request, response) => {
    if (count++) return false;
    response.writeHead(200, { "Content-Type": "text/html" }).end("<h1>Welcome to our hotel</h1>");
    return true;
  };
  const client = await open({ subscribe: "#" });
  assert.equal(client.state, "open");
  assert.equal(count, 2);
});

test("an end in order is followed by another try", async () => {
  const client = await open({ subscribe: "#" });
  const away = state(client, "connecting");
  broker.sessions.get("~1").response.end();
  assert.match((await away).error.message, /subscription was ended/);
  await state(client, "open");
});

test("loops may end and begin again", async () => {
  const client = await open({ subscribe: "#" });
  for (const payload of ["1", "2", "3"]) broker.publish({ payload });
  for await (const message of client.messages) {
    assert.equal(message.text(), "1");
    break;
  }
  assert.deepEqual(payloads(await take(client, 2)), ["2", "3"]);
  setTimeout(() => client.close(), 5);
  for await (const message of client.messages) assert.fail(message.text());
});

test("an end sends acknowledgements first, and ends a session without a name", async () => {
  const named = await open({ subscribe: "#", session: "board" });
  broker.publish({ payload: "1" });
  const [message] = await take(named, 1);
  const done = message.ack();
  await named.close();
  assert.equal(await done, true);
  assert.deepEqual([...broker.sessions.keys()], ["board"]);
  const nameless = await open({ subscribe: "#" });
  assert.equal(broker.sessions.size, 2);
  await nameless.close();
  await nameless.close();
  assert.deepEqual([...broker.sessions.keys()], ["board"]);
});

test("what cannot be had is said at the call", async () => {
  const wrong = [
    ["ftp://a", {}, /https:\/\//], ["https://u:p@a", {}, /user/], [broker.url, { subscribe: "" }, /filter/],
    [broker.url, { session: "a b" }, /session/], [broker.url, { qos: 3 }, /qos/], [broker.url, { sesion: "x" }, /no option sesion/],
    [broker.url, { transports: ["webtransport"] }, /no WebTransport/], [broker.url, { transports: ["mqtt"] }, /transports/],
    [broker.url, { token: "t", user: "u" }, /either/],
  ];
  for (const [address, options, why] of wrong) await assert.rejects(connect(address, options), why);
  const client = await open();
  for (const [topic, payload, options, why] of [
    ["", "x", {}, /topic/], ["a", { n: 1 }, {}, /payload/], ["a", "x", { qos: 4 }, /qos/], ["a", "x", { retained: true }, /no option/],
    ["a", "x", { key: "a b" }, /key/],
  ]) await assert.rejects(client.publish(topic, payload, options), why);
  assert.equal(broker.requests.length, 0);
});

test("a path of the address is kept", async () => {
  const paths = [];
  const proxy = createServer((request, response) => {
    paths.push(request.url);
    response.writeHead(204).end();
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  const client = await connect(`http://127.0.0.1:${proxy.address().port}/broker`, QUICK);
  await client.publish("a", "1");
  await client.close();
  proxy.close();
  assert.deepEqual(paths, ["/broker/v1/topics/a"]);
});
