// The types as others compile against them: the page's TypeScript, in a browser's project and in one of Node, and run.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

import { FakeBroker } from "./fake_broker.mjs";
import { folder, tsc } from "./modules.mjs";

const place = join(folder, "build", "stranger");
rmSync(place, { recursive: true, force: true });
mkdirSync(join(place, "node_modules", "@sterna"), { recursive: true });
symlinkSync(folder, join(place, "node_modules", "@sterna", "client"));
writeFileSync(join(place, "package.json"), '{"type": "module"}');

const [, written] = /```ts\n(.*?)```/s.exec(readFileSync(join(folder, "README.md"), "utf8"));
const STRICT = ["--strict", "--exactOptionalPropertyTypes", "--module", "nodenext", "--target", "es2022"];

function compile(name, text, ...more) {
  writeFileSync(join(place, `${name}.ts`), text);
  tsc(...STRICT, ...more, join(place, `${name}.ts`));
}

test("the page's TypeScript compiles for Node and for browsers, and runs", async () => {
  compile("page", written, "--lib", "es2022,dom,esnext.disposable");
  // The address of the page is nobody's.
  compile("page", written.replace("https://broker.example", "${address}").replace('"${address}"', "process.env['BROKER'] ?? ''"),
    "--lib", "es2022,esnext.disposable", "--types", "node");
  const broker = await new FakeBroker().start();
  process.env.BROKER = broker.url;
  const { announce } = await import(pathToFileURL(join(place, "page.js")));
  await announce("a", "hello");
  assert.equal(broker.published[0].payload.toString(), "hello");
  await broker.stop();
});

test("types say what there is", () => {
  const use = `
    import { connect, PublishError, type Message } from "@sterna/client";
    import { http2Fetch } from "@sterna/client/http2";
    // @ts-expect-error
    void (() => connect("https://a", { qos: 3 }));
    // @ts-expect-error
    void (() => connect("https://a", { sesion: "a" }));
    // @ts-expect-error
    void (() => connect("https://a", { token: 1 }));
    // @ts-expect-error
    void (() => connect("https://a", { transports: ["mqtt"] }));
    export async function all(): Promise<void> {
      const client = await connect(new URL("https://a"), { subscribe: ["a"], session: "b", token: () => "t", fetch: http2Fetch({ ca: "x" }) });
      client.addEventListener("state", ({ state, error, retryMs }) => {
        const one: "connecting" | "open" | "closed" = state;
        const two: Error | undefined = error;
        const three: number = retryMs;
        void [one, two, three];
      });
      client.addEventListener("gap", () => {});
      for await (const message of client.messages) {
        const one: Message = message;
        const text: string = one.text();
        const bytes: Uint8Array = one.payload;
        const isDone: boolean = await one.ack();
        void [text, bytes, isDone];
      }
      try {
        await client.publish("a", new Uint8Array(1), { qos: 2, userProperties: [["a", "b"]] });
      } catch (error) {
        if (error instanceof PublishError) {
          const detail: string | undefined = error.problem?.detail;
          void [error.status, error.kind, detail];
        }
      }
    }`;
  compile("use", use, "--lib", "es2022,esnext.disposable", "--types", "node");
});
