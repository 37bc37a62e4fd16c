// Giving up, at every place where the client waits.

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { connect } from "../dist/index.js";
import { FakeBroker, problem, QUICK, take } from "./fake_broker.mjs";

const NEVER = new Promise(() => {});
const HOUR = { firstMs: 3_600_000, longestMs: 3_600_000 };
let broker;
const unhandled = [];
process.on("unhandledRejection", (error) => unhandled.push(error));

beforeEach(async () => {
  broker = await new FakeBroker().start();
});
afterEach(async () => {
  await broker.stop();
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(unhandled, []);
});

/** Places where the client waits, and the way in which the test knows that it does. */
const PLACES = {
  token: () => ({ options: { token: () => NEVER }, waits: async () => {} }),
  "the head of an answer": () => {
    broker.before = () => true;
    return { options: {}, waits: async () => { while (broker.requests.length === 0) await new Promise(setImmediate); } };
  },
  "the content of a problem": () => {
    let isThere;
    const there = new Promise((resolve) => { isThere = resolve; });
    broker.before = (request, response) => {
      response.writeHead(403, { "Content-Type": "application/problem+json" });
      response.write('{"type":');
      isThere();
      return true;
    };
    return { options: {}, waits: async () => { await there; await new Promise((resolve) => setTimeout(resolve, 20)); } };
  },
  "the next try": () => {
    broker.before = (request, response) => (problem(response, 503, "stopping"), true);
    return {
      options: { backoff: HOUR },
      waits: async () => {
        while (broker.requests.length === 0) await new Promise(setImmediate);
        await new Promise((resolve) => setTimeout(resolve, 20));
      },
    };
  },
};

for (const [place, prepare] of Object.entries(PLACES)) {
  test(`publishing is given up while it waits for ${place}`, async () => {
    const { options, waits } = prepare();
    const client = await connect(broker.url, { ...QUICK, ...options });
    const controller = new AbortController();
    const published = client.publish("a", "1", { signal: controller.signal });
    await waits();
    controller.abort(new Error("enough"));
    await assert.rejects(published, /^Error: enough$/);
    // An end gives up as well.
    const other = client.publish("a", "2");
    await waits();
    await client.close();
    await assert.rejects(other, (error) => error.name === "PublishError" && error.status === 0);
  });

  test(`connecting is given up while it waits for ${place}`, async () => {
    const { options, waits } = prepare();
    const controller = new AbortController();
    const connected = connect(broker.url, { ...QUICK, ...options, subscribe: "#", signal: controller.signal });
    await waits();
    controller.abort(new Error("enough"));
    await assert.rejects(connected, /^Error: enough$/);
    const asked = broker.requests.length;
    await new Promise((resolve) => setTimeout(resolve, 30));
    assert.equal(broker.requests.length, asked, "it is not tried again");
  });
}

test("an acknowledgement that waits ends with the client", async () => {
  const client = await connect(broker.url, { ...QUICK, subscribe: "#", session: "board" });
  broker.publish({ payload: "1" });
  const [message] = await take(client, 1);
  broker.before = (request) => request.path.endsWith("/ack");
  const done = message.ack();
  await client.close();
  assert.equal(await done, false);
});

test("a read that waits ends with the client", async () => {
  const client = await connect(broker.url, { ...QUICK, subscribe: "#" });
  const next = client.messages.next();
  await client.close();
  assert.equal((await next).done, true);
});

test("a signal that was aborted before sends nothing", async () => {
  const signal = AbortSignal.abort(new Error("enough"));
  await assert.rejects(connect(broker.url, { subscribe: "#", signal }), /enough/);
  const client = await connect(broker.url, QUICK);
  await assert.rejects(client.publish("a", "1", { signal }), /enough/);
  assert.equal(broker.requests.length, 0);
});

test("a signal of one publication that is aborted later changes nothing", async () => {
  const client = await connect(broker.url, QUICK);
  const controller = new AbortController();
  await client.publish("a", "1", { signal: controller.signal });
  controller.abort();
  await client.publish("a", "2");
  await client.close();
  assert.equal(broker.published.length, 2);
});

test("publications that are given up after any number of turns leave a client that works", async () => {
  const client = await connect(broker.url, { ...QUICK, subscribe: "#", session: "board" });
  let resolved = 0;
  for (let turns = 0; turns < 60; turns++) {
    const controller = new AbortController();
    const published = client.publish("a", String(turns), { signal: controller.signal });
    const fate = published.then(() => "published", (error) => error);
    for (let turn = 0; turn < turns; turn++) await new Promise(setImmediate);
    controller.abort(new Error("enough"));
    const outcome = await fate;
    assert.ok(outcome === "published" || outcome.message === "enough", String(outcome));
    resolved += outcome === "published" ? 1 : 0;
    await client.publish("b", String(turns));
  }
  const last = broker.published.filter(({ topic }) => topic === "b");
  assert.equal(last.length, 60);
  assert.ok(broker.published.length >= 60 + resolved && broker.published.length <= 120);
  await client.close();
});

test("a client lets go of what it has listened to", async () => {
  const controller = new AbortController();
  let listeners = 0;
  const { signal } = controller;
  const [add, remove] = [signal.addEventListener.bind(signal), signal.removeEventListener.bind(signal)];
  signal.addEventListener = (...given) => (listeners++, add(...given));
  signal.removeEventListener = (...given) => (listeners--, remove(...given));
  const client = await connect(broker.url, { ...QUICK, subscribe: "#", signal });
  for (let n = 0; n < 20; n++) await client.publish("a", String(n), { signal });
  assert.equal(listeners, 0);
  await client.close();
});
