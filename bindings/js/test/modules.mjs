// The client's own modules, which the package does not show: compiled into `build`.

import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const places = { paths: [root, ...(process.env.NODE_PATH ?? "").split(":").filter(Boolean)] };
const require = createRequire(import.meta.url);

/** A file of a package of the tools. */
export function tool(name) {
  return require.resolve(name, places);
}

/** Runs tsc; throws what it says. */
export function tsc(...given) {
  const types = dirname(dirname(tool("@types/node/package.json")));
  try {
    execFileSync(process.execPath, [tool("typescript/lib/tsc.js"), "--typeRoots", types, ...given], { encoding: "utf8", cwd: root });
  } catch (error) {
    throw new Error(error.stdout || error.message);
  }
}

export const folder = root;

export async function modules(name) {
  const out = join(root, "build", name);
  tsc("--project", root, "--declaration", "false", "--outDir", out);
  return (module) => import(pathToFileURL(join(out, `${module}.js`)));
}
