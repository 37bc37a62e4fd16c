// A thousand lost connections and restarts, from a seed: nothing is lost, nothing that was acknowledged comes again, and
// nothing is published twice.

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../dist/index.js";
import { FakeBroker } from "./fake_broker.mjs";

const CUTS = 1_000;

/** Numbers that look random, from a seed (a linear congruential generator). */
function randomOf(seed) {
  let state = BigInt(seed);
  return (below) => {
    state = (state * 6364136223846793005n + 1442695040888963407n) % 2n ** 64n;
    return Number((state >> 33n) % BigInt(below));
  };
}

for (const seed of [1, 2]) {
  test(`a session over ${CUTS} cuts and restarts, seed ${seed}`, async () => {
    const random = randomOf(seed);
    const broker = await new FakeBroker().start();
    const client = await connect(broker.url, { subscribe: "#", session: "board", backoff: { firstMs: 1, longestMs: 2 } });
    /** By payload: whether the broker has confirmed its acknowledgement. */
    const confirmed = new Set();
    const seen = new Map();
    const again = [];
    const acknowledgements = [];
    let last = 0;
    let restarts = 0;
    const reading = (async () => {
      for await (const message of client.messages) {
        const text = message.text();
        if (confirmed.has(text)) again.push(text);
        seen.set(text, (seen.get(text) ?? 0) + 1);
        const acknowledge = async () => {
          if (await message.ack()) confirmed.add(text);
        };
        // Some are slow, and some are late.
        if (random(3) === 0) await acknowledge();
        else acknowledgements.push(acknowledge());
      }
    })();
    const publications = [];
    let cuts = 0;
    // Cuts in the middle of everything: requests, answers, frames.
    broker.before = async (asked, response) => {
      if (cuts < CUTS && random(4) === 0) {
        cuts++;
        if (random(3) === 0) response.writeHead = () => response.destroy();
        else if (random(5) === 0) { restarts++; broker.restart(); }
        else broker.cut();
      }
      return false;
    };
    const busy = new Set();
    while (cuts < CUTS) {
      const published = client.publish("t", String(++last)).finally(() => busy.delete(published));
      busy.add(published);
      publications.push(published);
      if (busy.size > 8) await Promise.race(busy);
    }
    await Promise.all(publications);
    const count = (text) => seen.get(text) ?? 0;
    while (Array.from({ length: last }, (_, n) => String(n + 1)).some((text) => count(text) === 0)) await new Promise(setImmediate);
    await Promise.all(acknowledgements);
    await client.close();
    await reading;
    await broker.stop();
    assert.equal(broker.published.length, last, "each publication is made once");
    assert.equal(seen.size, last, "each message is handed over");
    assert.deepEqual(again, [], "what is confirmed does not come again");
    assert.ok(restarts > 20 && confirmed.size > last / 4, `${restarts} restarts, ${confirmed.size} of ${last} confirmed`);
  });
}
