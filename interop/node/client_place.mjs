// The package @sterna/client as a stranger gets it, and a broker that can be killed and started again.

import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const PATIENCE_MS = 60_000;
export const INTEROP = path.join(path.dirname(fileURLToPath(import.meta.url)), "..");
export const ROOT = path.join(INTEROP, "..");
export const PACKAGE = path.join(ROOT, "bindings", "js");
export const TOKEN = fs.readFileSync(path.join(INTEROP, "certificates", "token"), "utf8").trim();
export const USER = { user: "interop", password: "a password of Bob's" };

export function temporaryFolder() {
  return fs.mkdtempSync(path.join(os.tmpdir(), "sterna-client-"));
}

/** Builds the package, packs it, and installs it into a folder. Returns what the build says. */
export function installPackage(folder) {
  const built = execFileSync(process.execPath, [path.join(PACKAGE, "build.mjs")], { encoding: "utf8" });
  const packed = execFileSync("npm", ["pack", "--ignore-scripts", "--silent", "--pack-destination", folder], { cwd: PACKAGE, encoding: "utf8" });
  fs.writeFileSync(path.join(folder, "package.json"), JSON.stringify({ name: "stranger", private: true, type: "module" }));
  const tarball = path.join(folder, packed.trim().split("\n").at(-1));
  execFileSync("npm", ["install", "--offline", "--no-audit", "--no-fund", "--silent", tarball], { cwd: folder });
  return built.trim();
}

async function freePorts(count) {
  const servers = await Promise.all(Array.from({ length: count }, async () => {
    const server = net.createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    return server;
  }));
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}

export class Broker {
  #child;
  #config;
  #folder;

  /**
   * A broker whose data outlives it: without TLS for everybody, with TLS for everybody, and for users alone. With a certificate it
   * speaks HTTP/3 as well, and to pages of all origins.
   */
  static async open(folder, certificate) {
    const broker = new Broker();
    broker.#folder = folder;
    const [http, https, asking] = await freePorts(3);
    broker.http = `http://localhost:${http}`;
    broker.https = `https://localhost:${https}`;
    broker.asking = `http://localhost:${asking}`;
    broker.#config = path.join(folder, "sterna.toml");
    fs.writeFileSync(broker.#config, `shards = 2

[[listener]]
url = "http://127.0.0.1:${http}"
anonymous = true

[[listener]]
url = "https://127.0.0.1:${https}"
anonymous = true

[[listener]]
url = "http://127.0.0.1:${asking}"

${certificate ? `[[listener]]
url = "h3://127.0.0.1:${https}"
anonymous = true

[tls]
certificate = "${certificate.certificate}"
key = "${certificate.key}"
` : ""}
[http]
heartbeat_interval_s = 1
${certificate ? 'cors_origins = ["*"]' : ""}

[authentication]
anonymous = false
password_file = "${path.join(INTEROP, "certificates", "users")}"
token_file = "${path.join(INTEROP, "certificates", "tokens")}"

[passwords]
# The users' file is part of the repository.
iterations = 0

[[authorization.rule]]
effect = "deny"
topics = ["denied/#"]
`);
    await broker.start();
    return broker;
  }

  get certificate() {
    return path.join(this.#folder, "data", "development-ca.pem");
  }

  async start() {
    const ready = path.join(this.#folder, "ready.json");
    fs.rmSync(ready, { force: true });
    const log = fs.openSync(path.join(this.#folder, "log"), "a");
    const environment = Object.entries(process.env).filter(([name]) => !name.startsWith("STERNA_"));
    const given = ["serve", "--config", this.#config, "--ready-file", ready, "--data-dir", path.join(this.#folder, "data")];
    this.#child = spawn(process.env.STERNA_BIN, given, { stdio: ["ignore", log, log], env: Object.fromEntries(environment) });
    fs.closeSync(log);
    const until = Date.now() + PATIENCE_MS;
    while (!fs.existsSync(ready)) {
      if (this.#child.exitCode !== null || Date.now() > until) {
        throw new Error(`the broker is not ready: ${fs.readFileSync(path.join(this.#folder, "log"), "utf8").slice(-600)}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  /** Ends it: by SIGKILL nothing is said to anybody. */
  async end(signal) {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = once(this.#child, "exit");
    this.#child.kill(signal);
    await ended;
  }
}

/** Code of a page of the documentation in one language, by the heading above it. */
export function recipes(page, language) {
  const found = [];
  let heading = "";
  let code;
  for (const line of fs.readFileSync(page, "utf8").split("\n")) {
    if (line.startsWith("```")) {
      if (code) found.push({ heading, code: `${code.join("\n")}\n` });
      code = !code && line === `\`\`\`${language}` ? [] : undefined;
    } else if (code) {
      code.push(line);
    } else if (line.startsWith("#")) {
      heading = line.replace(/^#+ /, "");
    }
  }
  return found;
}

/** Checks as lines, in the form of the other suites. */
export class Report {
  #only;
  #count = { ok: 0, failed: 0 };

  constructor(only) {
    this.#only = only;
  }

  say(name, error) {
    this.#count[error ? "failed" : "ok"]++;
    console.log(error ? `not ok ${name}: ${String(error.message ?? error).replace(/\s+/g, " ").slice(0, 600)}` : `ok ${name}`);
  }

  wants(name) {
    return name.includes(this.#only);
  }

  /** Does a check; a limit of time tells a hang from a slow machine. */
  async step(name, doing) {
    if (!this.wants(name)) return;
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error("not done within 120 s")), 120_000);
    });
    try {
      await Promise.race([doing(), late]);
      this.say(name);
    } catch (error) {
      this.say(name, error);
    } finally {
      clearTimeout(timer);
    }
  }

  end() {
    console.log(`# ${this.#count.ok} ok, ${this.#count.failed} not ok, 0 skipped, 0 not applicable`);
    process.exit(this.#count.failed || !this.#count.ok ? 1 : 0);
  }
}
