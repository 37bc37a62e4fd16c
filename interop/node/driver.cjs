// mqtt.js (npm) as a driver of the common scenario: JSON lines in, JSON lines out (../README.md).
'use strict'

const fs = require('node:fs')
const path = require('node:path')
const readline = require('node:readline')

const modules = process.env.STERNA_BUILD ? [path.join(process.env.STERNA_BUILD, 'node')] : []
const found = require.resolve('mqtt', { paths: [...modules, __dirname, ...(process.env.NODE_PATH || '').split(':')] })
const mqtt = require(found)
const { version } = JSON.parse(fs.readFileSync(path.join(found.replace(/node_modules\/mqtt\/.*/, 'node_modules/mqtt/'), 'package.json')))

const SCHEMES = { tcp: 'mqtt', tls: 'mqtts', ws: 'ws', wss: 'wss' }
// Publishes of a burst that wait for their acknowledgement at once; the library does not read the server's
// receive maximum, the application has to keep to it.
const WINDOW = 100

// The library's names of the properties.
const NAMES = {
  payload_format: 'payloadFormatIndicator',
  message_expiry: 'messageExpiryInterval',
  content_type: 'contentType',
  response_topic: 'responseTopic',
  correlation_data: 'correlationData',
  session_expiry: 'sessionExpiryInterval',
  assigned_client_id: 'assignedClientIdentifier',
  server_keep_alive: 'serverKeepAlive',
  will_delay: 'willDelayInterval',
  reason_string: 'reasonString',
  receive_maximum: 'receiveMaximum',
  topic_alias_maximum: 'topicAliasMaximum',
  topic_alias: 'topicAlias',
  maximum_qos: 'maximumQoS',
  retain_available: 'retainAvailable',
  maximum_packet_size: 'maximumPacketSize',
  subscription_identifiers_available: 'subscriptionIdentifiersAvailable',
  shared_subscription_available: 'sharedSubscriptionAvailable'
}
const BOOLEAN = new Set(['payload_format', 'retain_available', 'subscription_identifiers_available', 'shared_subscription_available'])

const clients = new Map()

function out (line) {
  process.stdout.write(JSON.stringify(line) + '\n')
}

function toProperties (values) {
  const made = {}
  for (const [name, value] of Object.entries(values || {})) {
    if (name === 'user_properties') {
      made.userProperties = {}
      for (const [key, item] of value) (made.userProperties[key] ||= []).push(item)
    } else if (name === 'correlation_data') made.correlationData = Buffer.from(value, 'base64')
    else made[NAMES[name]] = BOOLEAN.has(name) ? Boolean(value) : value
  }
  return made
}

function fromProperties (theirs) {
  const made = {}
  for (const [name, key] of Object.entries(NAMES)) {
    if (theirs?.[key] === undefined) continue
    const value = theirs[key]
    made[name] = name === 'correlation_data' ? value.toString('base64') : BOOLEAN.has(name) ? Number(value) : value
  }
  if (theirs?.subscriptionIdentifier !== undefined) made.subscription_identifiers = [theirs.subscriptionIdentifier].flat()
  if (theirs?.userProperties !== undefined) {
    made.user_properties = Object.entries(theirs.userProperties).flatMap(([key, value]) => [value].flat().map((item) => [key, item]))
  }
  return made
}

function connect (request) {
  const five = request.level === 5
  const options = {
    clientId: request.id,
    protocolVersion: request.level,
    protocolId: request.level === 3 ? 'MQIsdp' : 'MQTT',
    clean: request.clean,
    keepalive: request.keep_alive,
    reconnectPeriod: 0,
    connectTimeout: 60000,
    resubscribe: false
  }
  if (request.transport === 'tls' || request.transport === 'wss') options.ca = fs.readFileSync(request.ca)
  if (five) options.properties = toProperties(request.properties)
  if (request.will) {
    const { topic, payload, qos, retain, properties } = request.will
    options.will = { topic, payload: Buffer.from(payload, 'base64'), qos: qos || 0, retain: retain || false }
    if (five) options.will.properties = toProperties(properties)
  }
  const where = request.transport.startsWith('ws') ? request.path : ''
  const client = mqtt.connect(`${SCHEMES[request.transport]}://${request.host}:${request.port}${where}`, options)
  const state = { client, handle: request.client, level: request.level, receiveMaximum: WINDOW }
  clients.set(request.client, state)
  let waiting = request.n
  let reason = null
  let detail = ''
  const refuse = (text, code) => {
    if (waiting === null) return
    out({ n: waiting, error: text, reason: code ?? null })
    waiting = null
  }
  client.on('connect', (packet) => {
    state.receiveMaximum = packet.properties?.receiveMaximum ?? WINDOW
    out({ n: waiting, ok: { session_present: Boolean(packet.sessionPresent), properties: fromProperties(packet.properties) } })
    waiting = null
  })
  client.on('message', (topic, payload, packet) => out({
    event: 'message', client: state.handle, topic, payload: payload.toString('base64'), qos: packet.qos,
    retain: packet.retain, dup: packet.dup, properties: fromProperties(packet.properties)
  }))
  client.on('disconnect', (packet) => { reason = packet.reasonCode ?? 0 })
  client.on('error', (error) => { detail = error.message; refuse(error.message, error.code) })
  client.on('close', () => {
    refuse(`closed before CONNACK ${detail}`)
    out({ event: 'closed', client: state.handle, reason, detail })
    if (!client.disconnecting) client.end(true)
    clients.delete(state.handle)
  })
}

function answer (request, error, value) {
  if (error) out({ n: request.n, error: error.message, reason: typeof error.code === 'number' ? error.code : null })
  else out({ n: request.n, ok: value || {} })
}

function subscribe (state, request) {
  const filters = {}
  for (const one of request.filters) {
    filters[one.filter] = { qos: one.qos, nl: one.no_local, rap: one.retain_as_published, rh: one.retain_handling }
  }
  const options = {}
  if (request.identifier !== null) options.properties = { subscriptionIdentifier: request.identifier }
  state.client.subscribe(filters, options, (error, granted, packet) => answer(request, error, {
    codes: packet?.granted ?? granted?.map((one) => one.qos)
  }))
}

function unsubscribe (state, request) {
  state.client.unsubscribe(request.filters, (error, packet) => answer(request, error, {
    codes: state.level === 5 ? [packet?.reasonCode ?? packet?.granted ?? []].flat() : null
  }))
}

function publish (state, request) {
  const options = { qos: request.qos, retain: request.retain }
  if (state.level === 5) options.properties = toProperties(request.properties)
  state.client.publish(request.topic, Buffer.from(request.payload, 'base64'), options, (error, packet) =>
    answer(request, error, { reason: packet?.reasonCode ?? 0 }))
}

function burst (state, request) {
  const window = Math.min(WINDOW, state.receiveMaximum)
  let next = 0
  let done = 0
  let failed = false
  const more = () => {
    while (next < request.count && next - done < window) {
      state.client.publish(request.topic, String(next++), { qos: request.qos }, (error) => {
        if (failed) return
        if (error) {
          failed = true
          answer(request, error)
        } else if (++done === request.count) answer(request, null)
        else more()
      })
    }
  }
  more()
}

function disconnect (state, request) {
  const options = state.level === 5 ? { reasonCode: request.reason, properties: toProperties(request.properties) } : {}
  state.client.end(false, options, () => answer(request, null))
}

function abort (state, request) {
  state.client.once('close', () => answer(request, null))
  // Below WebSocket, so that it says no goodbye.
  const socket = state.client.stream.socket?._socket ?? state.client.stream
  socket.destroy()
}

const operations = { subscribe, unsubscribe, publish, burst, disconnect, abort }

out({
  hello: {
    client: `mqtt.js ${version}`,
    transports: ['tcp', 'tls', 'ws', 'wss'],
    levels: [4, 5],
    groups_user_properties: true,
    cannot: {
      redelivery: 'acknowledges one message before it reads the next',
      'behind-and-lost': 'acknowledges each message by itself',
      'receive-maximum': 'acknowledges one message before it reads the next'
    }
  }
})
readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const request = JSON.parse(line)
  try {
    if (request.op === 'connect') connect(request)
    else if (!clients.has(request.client)) out({ n: request.n, ...(request.op === 'disconnect' ? { ok: {} } : { error: 'the connection has ended' }) })
    else operations[request.op](clients.get(request.client), request)
  } catch (error) {
    out({ n: request.n, error: error.message })
  }
}).on('close', () => process.exit(0))
