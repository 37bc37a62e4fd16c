// What a page needs to speak of topics over WebTransport, from docs/http.md alone. It is put into the browser.
'use strict'

globalThis.wt = (() => {
  function toVarint (value) {
    for (const [size, bits, mark] of [[1, 6, 0], [2, 14, 1], [4, 30, 2]]) {
      if (value < 2 ** bits) {
        const bytes = []
        for (let i = size - 1; i >= 0; i--) bytes.push(Math.floor(value / 256 ** i) % 256)
        bytes[0] |= mark << 6
        return bytes
      }
    }
    throw new RangeError(String(value))
  }

  // [value, where it ends], or null where it is not complete.
  function varint (bytes, at) {
    if (at >= bytes.length) return null
    const size = 1 << (bytes[at] >> 6)
    if (at + size > bytes.length) return null
    let value = bytes[at] & 0x3f
    for (let i = 1; i < size; i++) value = value * 256 + bytes[at + i]
    return [value, at + size]
  }

  function text (value) {
    return [...new TextEncoder().encode(value)]
  }

  // A frame without its Length; an acknowledgement ends with its flags.
  function frame ({ id = 0, flags = 0, topic = '', payload = '', properties = [] }) {
    if (flags === 0x80) return [...toVarint(id), flags]
    const name = text(topic)
    return [...toVarint(id), flags, ...toVarint(name.length), ...name, ...toVarint(properties.length), ...properties, ...text(payload)]
  }

  function withLength (bytes) {
    return new Uint8Array([...toVarint(bytes.length), ...bytes])
  }

  function parse (bytes) {
    let [id, at] = varint(bytes, 0)
    const flags = bytes[at++]
    let size
    ;[size, at] = varint(bytes, at)
    const topic = new TextDecoder().decode(bytes.subarray(at, at + size))
    ;[size, at] = varint(bytes, at + size)
    const properties = [...bytes.subarray(at, at + size)]
    return { id, qos: flags & 3, retain: !!(flags & 4), redelivered: !!(flags & 8), topic, properties, payload: new TextDecoder().decode(bytes.subarray(at + size)) }
  }

  // Everything that comes, in order, to be waited for.
  class Inbox {
    constructor () { this.held = []; this.waiting = [] }
    put (value) { this.waiting.length ? this.waiting.shift()(value) : this.held.push(value) }
    next (seconds = 5) {
      if (this.held.length) return Promise.resolve(this.held.shift())
      return new Promise((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error(`nothing came within ${seconds} s`)), seconds * 1000)
        this.waiting.push((value) => { clearTimeout(timer); resolve(value) })
      })
    }

    async quiet (seconds) {
      await new Promise((resolve) => setTimeout(resolve, seconds * 1000))
      return this.held.length === 0
    }
  }

  // Frames of a stream, each to `put`; heartbeats are counted.
  async function read (stream, put, state) {
    let rest = new Uint8Array(0)
    for (const reader = stream.getReader(); ;) {
      const { done, value } = await reader.read()
      if (done) return
      const joined = new Uint8Array(rest.length + value.length)
      joined.set(rest)
      joined.set(value, rest.length)
      rest = joined
      for (;;) {
        const head = varint(rest, 0)
        if (!head || rest.length < head[1] + head[0]) break
        const piece = rest.subarray(head[1], head[1] + head[0])
        rest = rest.slice(head[1] + head[0])
        if (piece.length) put(piece)
        else state.heartbeats++
      }
    }
  }

  async function open (url, hash) {
    const transport = new WebTransport(url, { serverCertificateHashes: [{ algorithm: 'sha-256', value: new Uint8Array(hash) }] })
    const session = { transport, messages: new Inbox(), datagrams: new Inbox(), streams: 0, heartbeats: 0, errors: [] }
    transport.closed.catch(() => {})
    await transport.ready
    const fail = (error) => session.errors.push(String(error))
    ;(async () => {
      for (const reader = transport.incomingUnidirectionalStreams.getReader(); ;) {
        const { done, value } = await reader.read()
        if (done) return
        session.streams++
        read(value, (piece) => session.messages.put(parse(piece)), session).catch(fail)
      }
    })().catch(fail)
    ;(async () => {
      for (const reader = transport.datagrams.readable.getReader(); ;) {
        const { done, value } = await reader.read()
        if (done) return
        session.datagrams.put(parse(value))
      }
    })().catch(fail)
    return session
  }

  // A bidirectional stream of the client, with answers.
  async function exchange (session) {
    const { readable, writable } = await session.transport.createBidirectionalStream()
    const answers = new Inbox()
    read(readable, (piece) => {
      const [id, at] = varint(piece, 0)
      answers.put({ id, status: varint(piece, at)[0] })
    }, session).catch((error) => session.errors.push(String(error)))
    const writer = writable.getWriter()
    return { answers, write: (message) => writer.write(withLength(frame(message))), close: () => writer.close() }
  }

  async function oneWay (session, messages) {
    const writer = (await session.transport.createUnidirectionalStream()).getWriter()
    for (const message of messages) await writer.write(withLength(frame(message)))
    await writer.close()
  }

  async function datagram (session, message) {
    const writer = session.transport.datagrams.writable.getWriter()
    await writer.write(new Uint8Array(frame(message)))
    writer.releaseLock()
  }

  return { open, exchange, oneWay, datagram }
})()
