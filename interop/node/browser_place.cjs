// A broker of the browser suite's own, with a certificate that a page may pin by its hash, and Chromium.
'use strict'

const { execFileSync, spawn } = require('node:child_process')
const { createHash, X509Certificate } = require('node:crypto')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')

const PATIENCE_MS = 15_000
const INTEROP = path.join(__dirname, '..')

// The first program of these names that is on the search path.
function program (...names) {
  for (const folder of (process.env.PATH || '').split(':')) {
    for (const name of names) {
      const found = path.join(folder, name)
      if (fs.existsSync(found)) return found
    }
  }
  return null
}

// W3C WebTransport, `serverCertificateHashes`: ECDSA on P-256, and valid for less than two weeks.
function makeCertificate (folder) {
  const [key, certificate] = [path.join(folder, 'key.pem'), path.join(folder, 'certificate.pem')]
  execFileSync('openssl', [
    'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '13', '-subj', '/CN=localhost',
    '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1', '-keyout', key, '-out', certificate
  ], { stdio: ['ignore', 'ignore', 'pipe'] })
  const read = new X509Certificate(fs.readFileSync(certificate))
  const spki = createHash('sha256').update(read.publicKey.export({ type: 'spki', format: 'der' })).digest('base64')
  return { key, certificate, hash: [...createHash('sha256').update(read.raw).digest()], spki }
}

const LISTENERS = `
[[listener]]
url = "http://localhost:0"
anonymous = true

[[listener]]
url = "https://localhost:0"
anonymous = true

[[listener]]
url = "h3://localhost:0"
anonymous = true

[[listener]]
url = "mqtt://127.0.0.1:0"
anonymous = true

[[listener]]
url = "https://localhost:0"

[[listener]]
url = "h3://localhost:0"
`

// The broker of the steps for the page and WebTransport.
async function startBroker (folder) {
  return serve(folder, LISTENERS, `[http]
# The page that opens WebTransport comes from a listener without encryption: another origin.
cors_origins = ["*"]
heartbeat_interval_s = 1

[authentication]
password_file = "${path.join(INTEROP, 'certificates', 'users')}"

[passwords]
# The users' file is part of the repository.
iterations = 0

[[authorization.rule]]
effect = "deny"
topics = ["iop/denied/#"]
`)
}

// A broker with a certificate that is a few seconds old, and with these settings.
async function serve (folder, listeners, settings) {
  const certificate = makeCertificate(folder)
  const ready = path.join(folder, 'ready.json')
  const config = path.join(folder, 'sterna.toml')
  fs.writeFileSync(config, `shards = 2
${listeners}
[tls]
certificate = "${certificate.certificate}"
key = "${certificate.key}"

${settings}`)
  const log = fs.openSync(path.join(folder, 'log'), 'w')
  const child = spawn(process.env.STERNA_BIN, ['serve', '--config', config, '--ready-file', ready, '--data-dir', path.join(folder, 'data')],
    { stdio: ['ignore', log, log], env: Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('STERNA_'))) })
  const until = Date.now() + PATIENCE_MS
  let said = null
  while (!said) {
    if (child.exitCode !== null || Date.now() > until) {
      child.kill()
      throw new Error(`the broker is not ready: ${fs.readFileSync(path.join(folder, 'log'), 'utf8').slice(-600)}`)
    }
    await new Promise((resolve) => setTimeout(resolve, 30))
    try {
      said = JSON.parse(fs.readFileSync(ready, 'utf8'))
    } catch {}
  }
  const ports = {}
  for (const { url } of said.listeners) {
    const { protocol, port } = new URL(url.replace(/^([\w+]+):/, (_, scheme) => `x-${scheme}:`))
    ;(ports[protocol.slice(2, -1)] ??= []).push(Number(port))
  }
  return { child, ports, ...certificate }
}

async function startBrowser (puppeteer, executablePath, folder, more) {
  return puppeteer.launch({
    executablePath,
    headless: true,
    // Chromium's own sandbox needs what containers lack; it opens nothing but brokers of these tests.
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-proxy-server',
      '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run',
      '--host-resolver-rules=MAP * 127.0.0.1', ...more],
    userDataDir: fs.mkdtempSync(path.join(folder, 'profile-'))
  })
}

function temporaryFolder () {
  return fs.mkdtempSync(path.join(os.tmpdir(), 'sterna-browser-'))
}

module.exports = { makeCertificate, program, serve, startBroker, startBrowser, temporaryFolder }
