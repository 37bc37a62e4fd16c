// `http2Fetch` against a server of Node's own, and the client with it.

import assert from "node:assert/strict";
import { createServer } from "node:http2";
import { test } from "node:test";

import { http2Fetch } from "../dist/http2.js";
import { connect } from "../dist/index.js";
import { frame, problem, QUICK, state, take } from "./fake_broker.mjs";

async function serve(answer) {
  const sessions = new Set();
  const server = createServer(answer);
  server.on("session", (session) => sessions.add(session));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, sessions, url: `http://127.0.0.1:${server.address().port}`, cut: () => sessions.forEach((one) => one.destroy()) };
}

test("one connection has everything, and is replaced where it is lost", async () => {
  const posts = [];
  let stream;
  const place = await serve((request, response) => {
    if (request.method === "GET") {
      response.writeHead(200, { "Content-Type": "application/vnd.sterna.stream", "Sterna-Session": "~1" });
      response.flushHeaders?.();
      response.write(frame({ id: 1, payload: "from the broker" }));
      stream = response;
      return;
    }
    const pieces = [];
    request.on("data", (piece) => pieces.push(piece)).on("end", () => {
      if (request.method === "POST") posts.push([request.url, request.headers["sterna-qos"], Buffer.concat(pieces).toString()]);
      response.writeHead(204).end();
    });
  });
  const fetch = http2Fetch();
  const client = await connect(place.url, { ...QUICK, subscribe: "#", fetch });
  assert.equal((await take(client, 1))[0].text(), "from the broker");
  await client.publish("a b", "1", { qos: 2 });
  await client.publish("c", "");
  assert.deepEqual(posts, [["/v1/topics/a%20b", "2", "1"], ["/v1/topics/c", "1", ""]]);
  assert.equal(place.sessions.size, 1);
  const lost = state(client, "connecting");
  place.cut();
  await lost;
  await state(client, "open");
  assert.equal(place.sessions.size, 2);
  assert.ok(stream);
  await client.close();
  fetch.close();
  place.server.close();
});

test("refusals, ends and signals are those of fetch", async () => {
  const place = await serve((request, response) => {
    if (request.url === "/no") problem(response, 403, "forbidden");
    else if (request.url === "/cut") { response.write("a"); setImmediate(() => response.stream.destroy(new Error("cut"))); }
    else if (request.url === "/content") response.end("whole");
  });
  const fetch = http2Fetch();
  const refused = await fetch(`${place.url}/no`);
  assert.deepEqual([refused.status, (await refused.json()).title], [403, "forbidden"]);
  assert.equal(await (await fetch(`${place.url}/content`)).text(), "whole");
  await assert.rejects((await fetch(`${place.url}/cut`)).text());
  const controller = new AbortController();
  const never = fetch(`${place.url}/never`, { signal: controller.signal });
  controller.abort(new Error("enough"));
  await assert.rejects(never, /enough/);
  await assert.rejects(fetch(`${place.url}/never`, { signal: controller.signal }), /enough/);
  await assert.rejects(fetch("http://127.0.0.1:1/"));
  fetch.close();
  place.server.close();
});

test("a connection on which nothing is heard is replaced", async () => {
  let count = 0;
  const place = await serve((request, response) => {
    if (++count > 1) response.writeHead(204).end();
  });
  const fetch = http2Fetch();
  const client = await connect(place.url, { ...QUICK, silenceMs: 40, fetch });
  await client.publish("a", "1");
  assert.equal(place.sessions.size, 2);
  await client.close();
  fetch.close();
  place.server.close();
});
