// rhea (npm) as a driver of the AMQP scenario: JSON lines in, JSON lines out (../README.md).
'use strict'

const fs = require('node:fs')
const path = require('node:path')
const readline = require('node:readline')

const modules = process.env.STERNA_BUILD ? [path.join(process.env.STERNA_BUILD, 'node')] : []
const places = { paths: [...modules, __dirname, ...(process.env.NODE_PATH || '').split(':')] }
const found = require.resolve('rhea', places)
const rhea = require(found)
const WebSocket = require(require.resolve('ws', places))
const { version } = JSON.parse(fs.readFileSync(path.join(found.replace(/node_modules\/rhea\/.*/, 'node_modules/rhea/'), 'package.json')))
const { decode, encode, toMessage, fromBytes } = require('./rhea_values.cjs')(rhea)

const SETTLE_SENDER = { unsettled: 0, settled: 1, mixed: 2 }
const SETTLE_RECEIVER = { first: 0, second: 1 }

// The library shows messages without their types; its reader knows them, so both read what has arrived.
const shown = rhea.message.decode
rhea.message.decode = (raw) => {
  shown(raw)
  return fromBytes(raw)
}

const connections = new Map()
const sessions = new Map()
const links = new Map()
const deliveries = new Map()
let deliveryNumber = 0

function out (line) {
  process.stdout.write(JSON.stringify(line) + '\n')
}

function told (error) {
  return { condition: error?.condition ?? null, description: error?.description ?? error?.message ?? null }
}

function answer (holder, key, ok) {
  const n = holder.waiting[key]
  if (n === undefined) return false
  delete holder.waiting[key]
  out({ n, ok })
  return true
}

function refuse (holder, key, error, more) {
  const n = holder.waiting[key]
  if (n === undefined) return false
  delete holder.waiting[key]
  out({ n, error: String(error?.description ?? error?.message ?? 'refused'), condition: error?.condition ?? null, ...more })
  return true
}

function connect (r) {
  // A container of its own: its name is the container-id, and nothing is shared.
  const container = rhea.create_container({ id: r.container })
  const options = { container_id: r.container, host: r.host, port: r.port, hostname: r.host, reconnect: false, servername: r.host }
  if (r.transport === 'tls' || r.transport === 'wss') options.ca = fs.readFileSync(r.ca)
  if (r.transport === 'tls') options.transport = 'tls'
  if (r.cert) {
    options.cert = fs.readFileSync(r.cert)
    options.key = fs.readFileSync(r.key)
  }
  if (r.sasl === 'ANONYMOUS') options.username = 'anonymous'
  else if (r.sasl === 'EXTERNAL') options.enable_sasl_external = true
  else if (r.sasl === 'PLAIN') Object.assign(options, { username: r.user, password: r.password })
  if (r.max_frame) options.max_frame_size = r.max_frame
  if (r.idle_s) options.idle_time_out = r.idle_s * 1000
  if (r.transport === 'ws' || r.transport === 'wss') {
    const open = rhea.websocket_connect(WebSocket)
    options.connection_details = open(`${r.transport}://${r.host}:${r.port}${r.path}`, ['amqp'], { ca: options.ca })
  }
  const state = { c: r.c, waiting: { connect: r.n }, told: false }
  const connection = container.create_connection(options)
  state.connection = connection
  connections.set(r.c, state)
  const lost = (error, sasl) => {
    if (refuse(state, 'connect', error, { sasl })) return
    if (!state.told && !answer(state, 'close', {})) {
      state.told = true
      out({ event: 'closed', c: r.c, ...told(error) })
    }
  }
  container.on('error', (error) => lost(error, false))
  connection.on('connection_open', () => answer(state, 'connect', {
    container: connection.container_id, max_frame: connection.max_frame_size, channel_max: connection.channel_max,
    properties: Object.entries(connection.properties || {}).map(([key, value]) => [['symbol', key], ['string', String(value)]]),
    capabilities: [connection.offered_capabilities ?? []].flat()
  }))
  connection.on('connection_error', (context) => lost(context.error ?? connection.error, context.error?.condition === 'amqp:unauthorized-access' && !connection.is_remote_open()))
  connection.on('connection_close', () => { if (!answer(state, 'close', {})) lost(connection.error) })
  connection.on('disconnected', (context) => lost(context.error))
  connection.connect()
}

function session (r) {
  const one = connections.get(r.c).connection.create_session()
  const state = { s: r.s, session: one, waiting: { session: r.n } }
  sessions.set(r.s, state)
  one.on('session_open', () => answer(state, 'session', {}))
  one.on('session_error', () => {})
  one.on('session_close', () => {
    if (!answer(state, 'end', {})) out({ event: 'ended', s: r.s, ...told(one.error) })
  })
  one.begin()
}

function terminus (said) {
  const made = {}
  if (said.address !== undefined && said.address !== null) made.address = said.address
  if (said.dynamic) made.dynamic = true
  if (said.durable !== undefined) made.durable = said.durable
  if (said.expiry !== undefined) made.expiry_policy = said.expiry
  if (said.timeout !== undefined) made.timeout = said.timeout
  if (said.capabilities) made.capabilities = said.capabilities
  if (said.distribution) made.distribution_mode = said.distribution
  if (said.filters) made.filter = Object.fromEntries(Object.entries(said.filters).map(([name, value]) => [name, decode(value)]))
  return made
}

function attach (r, sends) {
  const options = {
    name: r.name,
    source: sends ? { address: r.name } : terminus(r.source),
    target: sends ? terminus(r.target) : {},
    snd_settle_mode: SETTLE_SENDER[r.snd || 'mixed'],
    rcv_settle_mode: SETTLE_RECEIVER[r.rcv || 'first'],
    autosettle: false,
    autoaccept: false,
    treat_modified_as_released: false,
    credit_window: 0
  }
  const { session } = sessions.get(r.s)
  const link = sends ? session.open_sender(options) : session.open_receiver(options)
  const state = { l: r.l, link, second: r.rcv === 'second', waiting: { attach: r.n }, unsent: [], pending: new Map() }
  links.set(r.l, state)
  const role = sends ? 'sender' : 'receiver'
  link.on(`${role}_open`, () => {
    const other = sends ? link.target : link.source
    if (!other || other.value === null) return // a detach says why
    const filters = {}
    const granted = sends ? undefined : link.remote.attach.source.value[7]
    if (granted?.value) for (let at = 0; at < granted.value.length; at += 2) filters[granted.value[at].value] = encode(granted.value[at + 1])
    answer(state, 'attach', { address: other.address ?? null, filters, max_message: Number(link.max_message_size ?? 0) })
  })
  link.on(`${role}_error`, () => {})
  link.on(`${role}_close`, () => {
    if (refuse(state, 'attach', link.error)) return
    if (!answer(state, 'detach', {})) out({ event: 'detached', l: r.l, closed: Boolean(link.remote.detach.closed), ...told(link.error) })
  })
  if (sends) {
    link.on('sendable', () => push(state))
    for (const outcome of ['accepted', 'rejected', 'released', 'modified', 'settled']) link.on(outcome, (context) => outgoing(state, context.delivery))
  } else {
    if (r.credit) link.add_credit(r.credit)
    link.on('message', (context) => arrived(state, context))
    link.on('receiver_drained', () => { link.drain = false; answer(state, 'drain', {}) })
    link.on('settled', ({ delivery }) => { if (delivery.number !== undefined) { answer(state, `settle${delivery.number}`, {}); delivery.update(true) } })
  }
}

function outcomeOf (delivery) {
  const state = delivery.remote_state
  if (!state) return { state: 'none' }
  const kind = state.constructor.composite_type
  const made = { state: kind }
  if (kind === 'rejected') Object.assign(made, told(state.error))
  if (kind === 'modified') Object.assign(made, { failed: Boolean(state.delivery_failed), undeliverable: Boolean(state.undeliverable_here) })
  return made
}

function outgoing (state, delivery) {
  const entry = state.pending.get(delivery.id)
  if (!entry) return
  state.pending.delete(delivery.id)
  delivery.update(true)
  entry(outcomeOf(delivery))
}

function push (state) {
  while (state.unsent.length && state.link.sendable() && state.pending.size < 1000) {
    const { message, settled, done } = state.unsent.shift()
    const delivery = state.link.send(message)
    if (settled) {
      delivery.settled = true
      done({ state: 'settled' })
    } else {
      state.pending.set(delivery.id, (found) => { done(found); push(state) })
    }
    // The library counts credit when it writes.
    if (state.unsent.length) { setImmediate(() => push(state)); return }
  }
}

function send (r) {
  const state = links.get(r.l)
  state.unsent.push({ message: toMessage(r.m), settled: r.settled, done: (ok) => out({ n: r.n, ok }) })
  push(state)
}

function burst (r) {
  const state = links.get(r.l)
  const states = {}
  let left = r.count
  for (let number = 0; number < r.count; number++) {
    const body = rhea.message.data_section(Buffer.from(String(number).padEnd(r.size)))
    const done = ({ state: outcome }) => {
      states[outcome] = (states[outcome] || 0) + 1
      if (--left === 0) out({ n: r.n, ok: { states } })
    }
    state.unsent.push({ message: { body }, settled: r.settled, done })
  }
  push(state)
}

function arrived (state, { message, delivery }) {
  const d = ++deliveryNumber
  delivery.number = d
  out({ event: 'message', l: state.l, d, settled: Boolean(delivery.remote_settled), m: message })
  if (delivery.remote_settled) delivery.update(true)
  else deliveries.set(d, delivery)
}

function settle (r) {
  const delivery = deliveries.get(r.d)
  const state = [...links.values()].find((one) => one.link === delivery.link)
  deliveries.delete(r.d)
  if (state.second) state.waiting[`settle${r.d}`] = r.n
  if (r.state === 'accepted') delivery.accept()
  else if (r.state === 'released') delivery.release()
  else if (r.state === 'rejected') delivery.reject(r.condition ? { condition: r.condition, description: 'as the step wants' } : undefined)
  else delivery.modified({ delivery_failed: r.failed, undeliverable_here: r.undeliverable })
  if (!state.second) out({ n: r.n, ok: {} })
}

const operations = {
  connect,
  session,
  burst,
  send,
  settle,
  sender: (r) => attach(r, true),
  receiver: (r) => attach(r, false),
  end: (r) => { const state = sessions.get(r.s); state.waiting.end = r.n; state.session.end() },
  close: (r) => { const state = connections.get(r.c); state.waiting.close = r.n; state.connection.close() },
  abort: (r) => {
    const state = connections.get(r.c)
    state.told = true
    const { socket } = state.connection
    if (socket.destroy) socket.destroy()
    else socket.end()
    out({ n: r.n, ok: {} })
  },
  detach: (r) => {
    const state = links.get(r.l)
    state.waiting.detach = r.n
    if (r.closed) state.link.close()
    else state.link.detach()
  },
  credit: (r) => { links.get(r.l).link.add_credit(r.credit); out({ n: r.n, ok: {} }) },
  drain: (r) => {
    const state = links.get(r.l)
    state.waiting.drain = r.n
    state.link.drain_credit()
  }
}

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const request = JSON.parse(line)
  try {
    const operation = operations[request.op]
    if (!operation) out({ n: request.n, cannot: `the driver has no ${request.op}` })
    else operation(request)
  } catch (error) {
    out({ n: request.n, error: `${error.name}: ${error.message}`, condition: null })
  }
}).on('close', () => process.exit(0))

out({
  hello: {
    client: `rhea ${version}`,
    transports: ['tcp', 'tls', 'ws', 'wss'],
    transactions: false,
    cannot: {
      footer: 'the library writes the footer before the body',
      'value-described': 'the library gives a described value the descriptor of its section',
      'sasl-scram': 'the library has no SCRAM',
      'sasl-scram-wrong': 'the library has no SCRAM'
    }
  }
})
