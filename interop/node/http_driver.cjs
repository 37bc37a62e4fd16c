// Node's http, https, http2 and fetch as a driver of the HTTP scenario: JSON lines in, JSON lines out (../README.md).
'use strict'

const fs = require('node:fs')
const http = require('node:http')
const http2 = require('node:http2')
const https = require('node:https')
const readline = require('node:readline')

const places = new Map()
const streams = new Map()
// Fields that HTTP/2 has in another form, or not at all.
const NOT_IN_2 = new Set(['host', 'connection', 'transfer-encoding', 'keep-alive'])

function out (line) {
  process.stdout.write(JSON.stringify(line) + '\n')
}

function content (asked) {
  return asked.content === null ? null : Buffer.from(asked.content, 'base64')
}

function pairs (raw) {
  const found = []
  for (let i = 0; i < raw.length; i += 2) found.push([raw[i], raw[i + 1]])
  return found
}

// What comes of a response, whatever API it is of.
class Answer {
  constructor (asked, version) {
    this.asked = asked
    this.version = version
    this.headed = false
    this.over = false
    this.pieces = []
  }

  head (status, fields) {
    this.headed = true
    this.ok = { status, fields, version: this.version }
    if (this.asked.stream) out({ n: this.asked.n, ok: this.ok })
  }

  data (piece) {
    if (this.over) return
    if (this.asked.stream) out({ event: 'data', r: this.asked.r, data: Buffer.from(piece).toString('base64') })
    else this.pieces.push(Buffer.from(piece))
  }

  end (error) {
    if (this.over) return
    this.over = true
    streams.delete(this.asked.r)
    if (!this.headed || (error && !this.asked.stream)) out({ n: this.asked.n, error: error ?? 'no response' })
    else if (this.asked.stream) out({ event: 'end', r: this.asked.r, error: error ?? null })
    else out({ n: this.asked.n, ok: { ...this.ok, content: Buffer.concat(this.pieces).toString('base64') } })
  }
}

function byHttp1 (asked, place) {
  const answer = new Answer(asked, '1.1')
  const body = content(asked)
  const fields = {}
  for (const [name, value] of asked.fields) {
    const key = Object.keys(fields).find((each) => each.toLowerCase() === name.toLowerCase())
    if (key) fields[key] = [].concat(fields[key], value)
    else fields[name] = value
  }
  if (body && !Object.keys(fields).some((name) => name.toLowerCase() === 'content-length')) fields['Content-Length'] = body.length
  const request = place.api.request({
    host: place.host, port: place.port, method: asked.method, path: asked.target, headers: fields, agent: place.agent
  })
  request.on('response', (response) => {
    answer.version = response.httpVersion
    answer.head(response.statusCode, pairs(response.rawHeaders))
    response.on('data', (piece) => answer.data(piece))
    response.on('end', () => answer.end())
    response.on('error', (error) => answer.end(String(error.message)))
    response.on('close', () => answer.end(response.complete ? null : 'cut off'))
  })
  request.on('error', (error) => answer.end(String(error.message)))
  streams.set(asked.r, () => request.destroy())
  request.end(body ?? undefined)
}

function byHttp2 (asked, place) {
  const answer = new Answer(asked, '2')
  if (!place.session || place.session.closed || place.session.destroyed) {
    const scheme = place.transport === 'h2' ? 'https' : 'http'
    place.session = http2.connect(`${scheme}://${place.host}:${place.port}`, place.tls)
    place.session.on('error', () => {})
    // The session alone shall not keep the driver alive.
    place.session.unref()
  }
  const fields = { ':method': asked.method, ':path': asked.target }
  for (const [name, value] of asked.fields) {
    const lower = name.toLowerCase()
    if (lower === 'host') fields[':authority'] = value
    else if (!NOT_IN_2.has(lower)) fields[lower] = lower in fields ? [].concat(fields[lower], value) : value
  }
  const body = content(asked)
  if (body && !('content-length' in fields)) fields['content-length'] = body.length
  const stream = place.session.request(fields, { endStream: body === null || body.length === 0 })
  stream.on('response', (headers, flags, raw) => {
    answer.head(headers[':status'], pairs(raw).filter(([name]) => !name.startsWith(':')))
  })
  stream.on('data', (piece) => answer.data(piece))
  stream.on('end', () => answer.end(stream.rstCode ? `reset with ${stream.rstCode}` : null))
  stream.on('error', (error) => answer.end(String(error.message)))
  stream.on('close', () => answer.end(stream.rstCode ? `reset with ${stream.rstCode}` : 'closed'))
  streams.set(asked.r, () => stream.close(http2.constants.NGHTTP2_CANCEL))
  if (body?.length) stream.end(body)
}

// As pages read: fetch, and a reader of its body.
async function byFetch (asked, place) {
  const answer = new Answer(asked, '1.1')
  const abort = new AbortController()
  streams.set(asked.r, () => abort.abort())
  const ask = () => fetch(`http://${place.host}:${place.port}${asked.target}`, {
    method: asked.method, headers: asked.fields, body: content(asked) ?? undefined, signal: abort.signal, redirect: 'manual'
  })
  try {
    // All of them share connections, and one may be closed as it is taken: asked again, as browsers do (RFC 9110, section 9.2.2).
    const response = await ask().catch((error) => {
      if (asked.method === 'GET' && error.cause?.code === 'UND_ERR_SOCKET') return ask()
      throw error
    })
    answer.head(response.status, [...response.headers])
    if (response.body) for await (const piece of response.body) answer.data(piece)
    answer.end()
  } catch (error) {
    answer.end(String(error.cause?.message ?? error.message))
  }
}

function open (asked) {
  const secure = asked.transport === 'h1s' || asked.transport === 'h2'
  const tls = secure ? { ca: fs.readFileSync(asked.ca), servername: asked.host } : {}
  if (asked.cert) Object.assign(tls, { cert: fs.readFileSync(asked.cert), key: fs.readFileSync(asked.key) })
  const api = secure ? https : http
  places.set(asked.c, { ...asked, api, tls, agent: new api.Agent({ ...tls, keepAlive: true }) })
}

function close (asked) {
  const place = places.get(asked.c)
  place?.agent.destroy()
  place?.session?.destroy()
  places.delete(asked.c)
}

const BY = { h1: byHttp1, h1s: byHttp1, h2: byHttp2, h2c: byHttp2, fetch: byFetch }

out({
  hello: {
    client: `Node ${process.versions.node}`,
    transports: Object.keys(BY),
    certificates: true,
    cannot: {
      'fetch/host': 'fetch tells the host itself'
    }
  }
})

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const asked = JSON.parse(line)
  try {
    if (asked.op === 'request') {
      BY[places.get(asked.c).transport](asked, places.get(asked.c))
      return
    }
    if (asked.op === 'open') open(asked)
    else if (asked.op === 'cancel') streams.get(asked.r)?.()
    else if (asked.op === 'close') close(asked)
    else {
      out({ n: asked.n, cannot: `the driver has no ${asked.op}` })
      return
    }
    out({ n: asked.n, ok: {} })
  } catch (error) {
    out({ n: asked.n, error: String(error.message) })
  }
}).on('close', () => process.exit(0))
