// Steps of the browser suite: WebTransport from a page that pins the certificate by its hash, against docs/http.md.
'use strict'

const fs = require('node:fs')
const path = require('node:path')

async function steps (broker, browser, { step, expect, run, load }) {
  const { http: [http], h3: [h3], mqtt: [mqtt] } = broker.ports
  const root = `iop/wt-${process.pid}`
  const at = (what) => `https://localhost:${h3}/v1/topics${what}`
  // `localhost` is a secure context without TLS; this resource has no policy that would forbid the connection.
  const page = await load(browser, `http://localhost:${http}/v1/openapi.json`)
  await page.evaluate(fs.readFileSync(path.join(__dirname, 'webtransport_page.js'), 'utf8'))
  const hash = broker.hash
  const within = (doing, given = {}) => page.evaluate(doing, { hash, root, ...given })
  const mosquitto = (...more) => run('mosquitto_pub', ['-h', '127.0.0.1', '-p', String(mqtt), '-V', 'mqttv5', ...more])
  const same = (got, wanted, what) =>
    expect(JSON.stringify(got) === JSON.stringify(wanted), `${what}: got ${JSON.stringify(got)}, expected ${JSON.stringify(wanted)}`)

  await step('webtransport/subscribe', async () => {
    const url = at(`/${root}/s?qos=2`)
    await within(async ({ url, hash }) => { globalThis.one = await wt.open(url, hash) }, { url })
    await mosquitto('-t', `${root}/s`, '-m', 'from MQTT', '-q', '2', '-D', 'publish', 'content-type', 'a/b')
    const got = await within(async () => {
      const first = await one.messages.next()
      return { ...first, streams: one.streams }
    })
    same([got.topic, got.payload, got.qos, got.streams], [`${root}/s`, 'from MQTT', 2, 1], 'message')
    expect(got.id > 0, `id ${got.id}`)
    // Content Type, as MQTT writes it.
    same(got.properties, [3, 0, 3, ...Buffer.from('a/b')], 'properties')
  })
  await step('webtransport/datagrams', async () => {
    await mosquitto('-t', `${root}/s`, '-m', 'small', '-q', '0')
    const got = await within(async () => one.datagrams.next())
    same([got.topic, got.payload, got.qos, got.id], [`${root}/s`, 'small', 0, 0], 'datagram')
    const large = 'x'.repeat(5000)
    await mosquitto('-t', `${root}/s`, '-m', large, '-q', '0')
    const other = await within(async () => one.messages.next())
    same([other.payload.length, other.qos], [5000, 0], 'what is too large for a datagram')
  })
  await step('webtransport/heartbeat', async () => {
    const beats = await within(async () => {
      await new Promise((resolve) => setTimeout(resolve, 1600))
      return one.heartbeats
    })
    expect(beats > 0, 'no heartbeat in 1.6 s')
  })
  await step('webtransport/publish', async () => {
    const got = await within(async ({ url, hash, root }) => {
      const publisher = await wt.open(url, hash)
      await wt.oneWay(publisher, [{ flags: 1, topic: `${root}/s`, payload: 'one way' }, { flags: 1, topic: `${root}/s`, payload: 'and again' }])
      const got = [(await one.messages.next()).payload, (await one.messages.next()).payload]
      const both = await wt.exchange(publisher)
      await both.write({ id: 7, flags: 1, topic: `${root}/s`, payload: 'both ways', properties: [1, 1] })
      await both.write({ id: 8, flags: 2, topic: `${root}/+`, payload: 'no topic' })
      await both.write({ id: 9, flags: 1, topic: 'iop/denied/a', payload: 'no' })
      const answers = [await both.answers.next(), await both.answers.next(), await both.answers.next()]
      const message = await one.messages.next()
      await wt.datagram(publisher, { topic: `${root}/s`, payload: 'datagram' })
      const datagram = await one.datagrams.next()
      publisher.transport.close()
      return { got, answers, both: [message.payload, message.qos, message.properties], datagram: [datagram.payload, datagram.qos] }
    }, { url: at('') })
    same(got.got, ['one way', 'and again'], 'what came on a unidirectional stream')
    same(got.answers, [{ id: 7, status: 204 }, { id: 8, status: 400 }, { id: 9, status: 403 }], 'answers')
    same(got.both, ['both ways', 1, [1, 1]], 'what came on a bidirectional stream')
    same(got.datagram, ['datagram', 0], 'what came in a datagram')
  })
  await step('webtransport/to-mqtt', async () => {
    const heard = run('mosquitto_sub', ['-h', '127.0.0.1', '-p', String(mqtt), '-V', 'mqttv5', '-q', '1', '-C', '1', '-W', '8', '-t', `${root}/m`, '-F', '%j'])
    await new Promise((resolve) => setTimeout(resolve, 300))
    await within(async ({ root }) => {
      const both = await wt.exchange(one)
      await both.write({ id: 1, flags: 1, topic: `${root}/m`, payload: 'from the browser', properties: [3, 0, 3, 97, 47, 98] })
      return both.answers.next()
    })
    const { stdout } = await heard
    const got = JSON.parse(stdout)
    same([got.payload, got.qos, got.properties['content-type']], ['from the browser', 1, 'a/b'], 'what MQTT got')
  })
  await step('webtransport/session', async () => {
    const url = at(`/${root}/d?session=wt-${process.pid}`)
    await within(async ({ url, hash }) => {
      const first = await wt.open(url, hash)
      first.transport.close()
    }, { url })
    for (const number of ['1', '2', '3']) await mosquitto('-t', `${root}/d`, '-m', number, '-q', '1')
    const got = await within(async ({ url, hash }) => {
      const second = await wt.open(url, hash)
      const messages = [await second.messages.next(), await second.messages.next(), await second.messages.next()]
      const both = await wt.exchange(second)
      await both.write({ id: messages[1].id, flags: 0x80 })
      // An acknowledgement has no answer; what is published after it has one.
      await both.write({ id: messages[2].id + 1, flags: 1, topic: 'x', payload: '' })
      await both.answers.next()
      second.transport.close()
      await new Promise((resolve) => setTimeout(resolve, 300))
      const third = await wt.open(url, hash)
      const last = await third.messages.next()
      const quiet = await third.messages.quiet(0.3)
      third.transport.close()
      return { payloads: messages.map((each) => each.payload), last: [last.payload, last.redelivered], quiet }
    }, { url })
    same(got.payloads, ['1', '2', '3'], 'what waited')
    same([got.last, got.quiet], [['3', true], true], 'what comes again where the second was acknowledged')
  })
  await step('webtransport/refused', async () => {
    const outcome = await within(async ({ urls, hash }) => {
      const found = []
      for (const url of urls) {
        found.push(await wt.open(url, hash).then(() => 'opened', () => 'refused'))
      }
      return found
    }, { urls: [at('/iop/denied/%23'), at('/a%23'), at('/a?qos=7'), `https://localhost:${h3}/v2`] })
    same(outcome, ['refused', 'refused', 'refused', 'refused'], 'forbidden, no filter, no level, nothing')
  })
  await step('webtransport/another-certificate', async () => {
    const outcome = await within(async ({ url, hash }) => {
      const other = [...hash]
      other[0] ^= 1
      return wt.open(url, other).then(() => 'opened', () => 'refused')
    }, { url: at(`/${root}/s`) })
    same(outcome, 'refused', 'with the hash of another certificate')
  })
  await step('webtransport/nothing-went-wrong', async () => {
    same(await within(async () => one.errors), [], 'errors of the session that was open all the time')
    same(page.complaints.filter((each) => !/Failed to establish a connection/.test(each)), [], 'complaints of the browser')
  })
  await page.close()
}

module.exports = { steps }
