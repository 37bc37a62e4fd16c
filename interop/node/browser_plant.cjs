// A broker with clients of all three protocols, as the steps of the dashboard want it: devices of a small plant that send
// numbers, a queue that nobody empties, another for its dead letters, rules and users.
'use strict'

const { execFileSync, spawn } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')

const { serve } = require('./browser_place.cjs')

const PASSWORD = 'a password of the plant'
const SEND_MS = 250

const SETTINGS = `
[[listener]]
url = "admin://localhost:0"

[[listener]]
url = "mqtt://127.0.0.1:0"
anonymous = true

[[listener]]
url = "mqtt+quic://localhost:0"
anonymous = true

[[listener]]
url = "amqp://127.0.0.1:0"
anonymous = true

[[listener]]
url = "http://localhost:0"
anonymous = true

[admin]
viewers = ["anonymous"]
operators = ["oli"]

[[amqp.queue]]
name = "orders"
maximum_deliveries = 3
dead_letter = "rejects"

[[amqp.queue]]
name = "rejects"

[authorization]
admins = ["ann"]

[[authorization.group]]
name = "maintenance"
users = ["oli", "eve"]

[[authorization.rule]]
effect = "deny"
actions = ["publish"]
topics = ["plant/+/command"]
groups = ["maintenance"]

[[authorization.rule]]
topics = ["plant/#", "queue/#", "$SYS/#"]

[[authorization.rule]]
effect = "deny"
topics = ["office/#"]
`

const DEVICES = [
  ['press-1', 'mqtt', (n) => [['temperature', (61 + 3 * Math.sin(n / 9)).toFixed(1)], ['strokes', String(18230 + n)]]],
  ['press-2', 'quic', (n) => [['temperature', (58 + 2 * Math.cos(n / 7)).toFixed(1)], ['strokes', String(18190 + n)]]],
  ['oven', 'amqp', (n) => [['state', `{"temperature": ${(63 + Math.sin(n / 5)).toFixed(1)}, "door": "closed"}`]]],
  ['gate', 'http', (n) => [['count', String(120 + Math.floor(n / 3))]]]
]

class Plant {
  static async open (folder) {
    const users = path.join(folder, 'users')
    for (const [at, user] of ['ann', 'oli', 'eve'].entries()) {
      const create = at === 0 ? ['--create'] : []
      execFileSync(process.env.STERNA_BIN, ['passwd', ...create, '--iterations', '4096', '--batch', users, user, PASSWORD],
        { stdio: ['ignore', 'ignore', 'pipe'] })
    }
    const broker = await serve(folder, SETTINGS, `[authentication]\npassword_file = "${users}"\n\n[passwords]\niterations = 0\n`)
    return new Plant(broker, folder)
  }

  constructor (broker, folder) {
    this.broker = broker
    this.folder = folder
    this.children = []
    const { ports } = broker
    this.urls = {
      mqtt: `mqtt://127.0.0.1:${ports.mqtt[0]}`,
      quic: `mqtt+quic://localhost:${ports['mqtt+quic'][0]}`,
      amqp: `amqp://127.0.0.1:${ports.amqp[0]}`,
      http: `http://localhost:${ports.http[0]}`
    }
    this.page = `http://localhost:${ports.admin[0]}/`
    this.publicPage = `http://localhost:${ports.http[0]}/`
  }

  // A program of the command, which is ended with the plant.
  start (...given) {
    const child = spawn(process.env.STERNA_BIN, given, { stdio: ['pipe', 'ignore', 'pipe'], env: environment() })
    child.trouble = ''
    child.stderr.on('data', (text) => { child.trouble += text })
    // A line for one that has just gone is lost, as it should be.
    child.stdin.on('error', () => {})
    this.children.push(child)
    return child
  }

  // Runs a program of the command to its end.
  once (...given) {
    return execFileSync(process.env.STERNA_BIN, given, { stdio: ['ignore', 'pipe', 'pipe'], env: environment(), timeout: 15_000 }).toString()
  }

  publish (topic, payload, ...more) {
    this.once('pub', this.urls.mqtt, '-t', topic, '-m', payload, '-q', '1', ...more)
  }

  // Devices that send, and readers, over each protocol.
  populate () {
    const tls = (kind) => kind === 'quic' ? ['--insecure'] : []
    for (const [device, kind, makes] of DEVICES) {
      for (const [what] of makes(0)) {
        const name = what === 'strokes' ? ['-i', `${device}-counter`] : ['-i', device]
        // A device that changes its network.
        const moves = name[1] === 'press-2' ? ['--rebind-every', '3'] : []
        const child = this.start('pub', this.urls[kind], ...(kind === 'http' ? [] : name), ...tls(kind), ...moves, '-t', `plant/${device}/${what}`, '-l', '-q', '1')
        child.next = (n) => makes(n).find(([each]) => each === what)[1]
      }
    }
    const senders = this.children.filter((child) => child.next)
    let n = 0
    this.timer = setInterval(() => {
      n++
      for (const child of senders) child.stdin.write(`${child.next(n)}\n`)
    }, SEND_MS)
    this.start('sub', this.urls.quic, ...tls('quic'), '-i', 'scada', '-t', 'plant/#', '-q', '1')
    this.start('sub', this.urls.amqp, '-i', 'historian', '-t', 'plant/oven/state')
    this.start('sub', this.urls.http, '-t', 'plant/gate/count')
    for (const order of ['{"article": 4711, "pieces": 12}', '{"article": 4712, "pieces": 3}', '{"article": 815, "pieces": 40}']) {
      this.publish('queue/orders', order)
    }
    this.publish('queue/rejects', '{"article": 0, "pieces": -1}')
    for (const [topic, payload] of [['plant/press-1/firmware', '3.2.1'], ['plant/press-2/firmware', '3.2.0'],
      ['plant/press-1/job', '{"material": "steel", "tool": "A-12", "operator": "eve"}'], ['plant/oven/firmware', '1.9.4'], ['plant/shift', 'early']]) {
      this.publish(topic, payload, '-r')
    }
  }

  // Ends the programs, and the broker.
  close () {
    clearInterval(this.timer)
    for (const child of this.children) child.kill()
    this.broker.child.kill()
  }
}

function environment () {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('STERNA_')))
}

module.exports = { Plant, PASSWORD }
