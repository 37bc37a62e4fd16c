import assert from "node:assert/strict";
import { test } from "node:test";

import { frame, HEARTBEAT, varint } from "./fake_broker.mjs";
import { modules } from "./modules.mjs";

const load = await modules("frames");
const { FrameReader, FrameError, TooLargeError, acknowledgement, parse, parseAnswer, publication } = await load("frames");
const { Ledger } = await load("ledger");
const { Mailbox } = await load("mailbox");

const PROPERTIES = [
  1, 1, 2, 0, 0, 1, 44, 3, 0, 3, ...Buffer.from("a/b"), 8, 0, 1, ...Buffer.from("r"), 9, 0, 2, 0, 255,
  38, 0, 1, ...Buffer.from("k"), 0, 2, ...Buffer.from("é"), 38, 0, 1, ...Buffer.from("k"), 0, 0,
];

function pieces(bytes, sizes) {
  const found = [];
  for (let at = 0, i = 0; at < bytes.length; i++) {
    const size = sizes[i % sizes.length];
    found.push(new Uint8Array(bytes.subarray(at, at + size)));
    at += size;
  }
  return found;
}

function readAll(chunks, maximum = 1 << 24) {
  const reader = new FrameReader(maximum);
  const found = [];
  for (const chunk of chunks) {
    reader.push(chunk);
    for (let next; (next = reader.next()); ) found.push(next);
  }
  return found;
}

test("frames are read wherever the stream was cut", () => {
  const wanted = [
    { id: 1, topic: "a", payload: "one", properties: PROPERTIES },
    { id: 2 ** 40, topic: "b/ü", payload: "x".repeat(70_000), retain: true, redelivered: true, qos: 2 },
    { id: 0, qos: 0, topic: "c", payload: "" },
  ];
  const stream = Buffer.concat([frame(wanted[0]), HEARTBEAT, frame(wanted[1]), frame(wanted[2]), HEARTBEAT]);
  for (const sizes of [[1], [2], [3, 1], [7, 64, 1], [16_384], [stream.length]]) {
    const found = readAll(pieces(stream, sizes));
    assert.equal(found.length, 5, String(sizes));
    assert.deepEqual([found[1].length, found[4].length], [0, 0]);
    const [first, second, third] = [found[0], found[2], found[3]].map(parse);
    assert.equal(Buffer.from(first.payload).toString(), "one");
    assert.deepEqual([second.id, second.qos, second.retain, second.redelivered, second.topic], [2 ** 40, 2, true, true, "b/ü"]);
    assert.equal(second.payload.length, 70_000);
    assert.deepEqual([third.id, third.qos, third.topic, third.payload.length], [0, 0, "c", 0]);
  }
});

test("all properties are read", () => {
  const found = parse(readAll([frame({ id: 1, properties: PROPERTIES })])[0]);
  assert.equal(found.isText, true);
  assert.equal(found.expiryS, 300);
  assert.equal(found.contentType, "a/b");
  assert.equal(found.responseTopic, "r");
  assert.deepEqual([...found.correlationData], [0, 255]);
  assert.deepEqual(found.userProperties, [["k", "é"], ["k", ""]]);
});

test("what is written is read again", () => {
  const message = {
    id: 70_000, topic: "a/b", payload: new Uint8Array([1, 2]), qos: 1, retain: true, isText: true, expiryS: 2 ** 32 - 1,
    contentType: "x", responseTopic: "y", correlationData: new Uint8Array([3]), userProperties: [["k", "v"]],
  };
  const [bytes] = readAll([publication(message)]);
  const { redelivered, ...found } = parse(bytes);
  assert.deepEqual(found, message);
  assert.equal(redelivered, false);
  assert.deepEqual([...acknowledgement(300)], [3, ...varint(300), 0x80]);
  assert.deepEqual(parseAnswer(Buffer.concat([varint(9), varint(403)])), { id: 9, status: 403 });
});

test("what is no frame is refused", () => {
  const faults = [
    [], [1], [1, 16, 0, 0], [1, 3, 0, 0], [1, 1, 9, 0], [1, 1, 0, 9], [1, 1, 1, 255, 0], [1, 1, 0, 1, 99], [1, 1, 0, 2, 2, 0],
    [255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0],
  ];
  for (const fault of faults) assert.throws(() => parse(Uint8Array.from(fault)), FrameError, String(fault));
  assert.throws(() => readAll([varint(1025)], 1024), TooLargeError);
});

test("a payload does not keep what came with it", () => {
  const stream = Buffer.concat([frame({ id: 1, payload: "x" }), frame({ id: 2, payload: "y".repeat(9000) })]);
  assert.equal(parse(readAll([new Uint8Array(stream)])[0]).payload.buffer.byteLength, 1);
});

test("a message in the application's hands is not handed over again", async () => {
  const ledger = new Ledger();
  ledger.begin();
  const [first, second] = [ledger.receive(1, false), ledger.receive(2, false)];
  const done = ledger.acknowledge(first);
  assert.equal(ledger.acknowledge(first), done);
  const batch = ledger.batch();
  ledger.begin();
  // The answer is lost. The broker sends both again, and the acknowledgement is given again.
  ledger.putBack(batch);
  assert.equal(ledger.receive(1, true), undefined);
  assert.equal(ledger.receive(2, true), undefined);
  ledger.settle(ledger.batch(), true);
  assert.equal(await done, true);
  const other = ledger.acknowledge(second);
  ledger.settle(ledger.batch(), true);
  assert.equal(await other, true);
  assert.deepEqual(ledger.batch(), []);
});

test("a yes to an id of before a restart is none", async () => {
  const ledger = new Ledger();
  ledger.begin();
  const entry = ledger.receive(1, false);
  ledger.begin();
  const done = ledger.acknowledge(entry);
  ledger.settle(ledger.batch(), true);
  assert.equal(await done, false);
  // By its new id it is handed over.
  assert.ok(ledger.receive(16_385, true));
});

test("a repetition that was on its way when it was settled is not handed over", async () => {
  const ledger = new Ledger();
  ledger.begin();
  const done = ledger.acknowledge(ledger.receive(1, false));
  const batch = ledger.batch();
  ledger.begin();
  ledger.settle(batch, true);
  assert.equal(await done, false);
  assert.equal(ledger.receive(1, true), undefined);
  assert.ok(ledger.receive(2, false));
});

test("ids of a session that was made anew are new", async () => {
  const ledger = new Ledger();
  ledger.begin();
  const old = ledger.receive(1, false);
  ledger.begin();
  ledger.clear();
  assert.ok(ledger.receive(1, true));
  assert.equal(await ledger.acknowledge(old), false);
  assert.equal(ledger.batch().length, 0);
});

test("only a row without a gap is acknowledged up to an id", () => {
  const ledger = new Ledger();
  ledger.begin();
  const [first, second, third] = [1, 2, 3].map((id) => ledger.receive(id, false));
  ledger.acknowledge(second);
  assert.equal(ledger.takeDoneUpTo(), undefined);
  ledger.acknowledge(first);
  assert.equal(ledger.takeDoneUpTo(), 2);
  assert.equal(ledger.takeDoneUpTo(), undefined);
  ledger.acknowledge(third);
  assert.equal(ledger.takeDoneUpTo(), 3);
  // One of before a restart, which has come again by another id, does not hold the row up.
  ledger.receive(4, false);
  ledger.begin();
  ledger.acknowledge(ledger.receive(16_388, true));
  assert.equal(ledger.takeDoneUpTo(), 16_388);
  // One that comes again by its own id does.
  const [five, six] = [ledger.receive(16_389, true), ledger.receive(16_390, true)];
  ledger.begin();
  assert.equal(ledger.receive(16_389, true), undefined);
  assert.equal(ledger.receive(16_390, true), undefined);
  ledger.acknowledge(six);
  assert.equal(ledger.takeDoneUpTo(), undefined);
  ledger.acknowledge(five);
  assert.equal(ledger.takeDoneUpTo(), 16_390);
});

test("a mailbox is full at its bound, and lets in when it is read", async () => {
  const box = new Mailbox(10);
  box.put({ bytes: 6, n: 1 });
  assert.equal(box.isFull, false);
  box.put({ bytes: 6, n: 2 });
  assert.equal(box.isFull, true);
  let isIn = false;
  const room = box.room().then(() => { isIn = true; });
  assert.equal((await box.next()).value.n, 1);
  await room;
  assert.equal(isIn, true);
  box.end(new Error("over"));
  assert.equal((await box.next()).value.n, 2);
  await assert.rejects(box.next(), /over/);
});

test("readers of a mailbox end with it", async () => {
  const box = new Mailbox(10);
  const waiting = box.next();
  box.put({ bytes: 1, n: 1 });
  assert.equal((await waiting).value.n, 1);
  const last = box.next();
  box.end();
  assert.deepEqual(await last, { done: true, value: undefined });
  box.put({ bytes: 1 });
  assert.equal((await box.next()).done, true);
});
