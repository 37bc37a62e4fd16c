// Builds `dist`: types by tsc, code by esbuild, and a check that the client stays small. `NODE_PATH` may have the tools.

import { execFileSync } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const MAXIMUM_GZIP_BYTES = 8_000;
const here = dirname(fileURLToPath(import.meta.url));
const require = createRequire(import.meta.url);
const places = { paths: [here, ...(process.env.NODE_PATH ?? "").split(":").filter(Boolean)] };
const typescript = dirname(require.resolve("typescript/package.json", places));
const types = dirname(dirname(require.resolve("@types/node/package.json", places)));
const { buildSync } = require(require.resolve("esbuild", places));

rmSync(join(here, "dist"), { recursive: true, force: true });
try {
  execFileSync(process.execPath, [join(typescript, "lib", "tsc.js"), "--project", here, "--emitDeclarationOnly", "--typeRoots", types], {
    stdio: "inherit",
  });
} catch {
  process.exit(1);
}
buildSync({
  absWorkingDir: here,
  entryPoints: ["src/index.ts", "src/http2.ts"],
  outdir: "dist",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  external: ["node:*"],
  logLevel: "warning",
});
const size = gzipSync(readFileSync(join(here, "dist", "index.js")), { level: 9 }).length;
console.log(`dist/index.js: ${size} bytes with gzip, at most ${MAXIMUM_GZIP_BYTES}`);
if (size > MAXIMUM_GZIP_BYTES) {
  console.error("the client is too large");
  process.exit(1);
}
