// The page with all its tabs, and WebTransport, in Chromium (headless, by puppeteer-core): `browser.cjs [--only TEXT]`.
//
// Prints lines as the other suites do. It has a broker of its own, because a certificate that a page pins by its hash has to
// be young; `STERNA_BIN` says which program that is.
'use strict'

const { execFile } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')
const { promisify } = require('node:util')

const dashboard = require('./browser_dashboard.cjs')
const { program, startBroker, startBrowser, temporaryFolder } = require('./browser_place.cjs')
const { Plant } = require('./browser_plant.cjs')
const webtransport = require('./browser_webtransport.cjs')

const PATIENCE_MS = 8_000
const run = promisify(execFile)
const only = process.argv[2] === '--only' ? process.argv[3] : ''
const count = { ok: 0, failed: 0, skipped: 0 }

function say (line) {
  process.stdout.write(`${line.replace(/\s+/g, ' ')}\n`)
}

function expect (condition, why) {
  if (!condition) throw new Error(why)
}

async function step (name, doing) {
  if (!name.includes(only)) return
  let timer
  const seconds = name.endsWith('/pictures') || name.endsWith('/telephone') ? 90 : 20
  try {
    await Promise.race([
      doing(),
      new Promise((resolve, reject) => { timer = setTimeout(() => reject(new Error(`not done within ${seconds} s`)), seconds * 1000) })
    ])
    count.ok++
    say(`ok ${name}`)
  } catch (error) {
    count.failed++
    say(`not ok ${name}: ${error.message}`)
  } finally {
    clearTimeout(timer)
  }
}

// The page at a URL, with whatever the browser had to complain of.
async function load (browser, url, width = 1200) {
  const page = await browser.newPage()
  page.complaints = []
  page.on('pageerror', (error) => page.complaints.push(error.message))
  page.on('console', (message) => {
    // A refused request is told on the console, too; what was refused on purpose is checked where it is.
    if (message.type() === 'error' && !/Failed to load resource/.test(message.text())) page.complaints.push(message.text())
  })
  await page.setViewport({ width, height: 900 })
  await page.goto(url)
  page.setDefaultTimeout(PATIENCE_MS)
  return page
}

async function text (page, selector) {
  return page.$eval(selector, (element) => element.textContent)
}

async function fill (page, selector, value) {
  await page.$eval(selector, (element) => { element.value = '' })
  await page.type(selector, value)
}

async function until (what, doing) {
  const end = Date.now() + PATIENCE_MS
  for (;;) {
    if (await doing()) return
    if (Date.now() > end) throw new Error(`${what} within ${PATIENCE_MS / 1000} s`)
    await new Promise((resolve) => setTimeout(resolve, 40))
  }
}

async function subscribe (page, filter) {
  await fill(page, '#filter', filter)
  await page.click('#subscribe-button')
  await until(`subscribed to ${filter}`, async () => (await page.$eval('#state', (state) => state.dataset.state)) === 'open')
}

// What the list shows, the newest first.
async function rows (page) {
  return page.$$eval('#messages li', (items) => items.map((item) => ({
    topic: item.querySelector('.topic')?.textContent,
    payload: item.querySelector('.payload')?.textContent,
    marks: [...item.querySelectorAll('.marks span')].map((mark) => mark.textContent)
  })))
}

async function shows (page, topic, payload) {
  await until(`${topic} with ${payload} is shown`, async () =>
    (await rows(page)).some((row) => row.topic === topic && row.payload === payload))
}

async function publish (page, topic, payload) {
  await fill(page, '#topic', topic)
  await fill(page, '#payload', payload)
  await page.click('#publish-button')
  await until('an answer to what was published', async () => (await text(page, '#publish-result')) !== '')
  return text(page, '#publish-result')
}

async function pageSteps (broker, browser, chosen) {
  const { https: [https, asking], h3: [h3], mqtt: [mqtt] } = broker.ports
  const root = `iop/browser-${process.pid}`
  const mosquitto = (...more) => run('mosquitto_pub', ['-h', '127.0.0.1', '-p', String(mqtt), '-V', 'mqttv5', '-q', '1', ...more])
  const clean = (page) => expect(!page.complaints.length, `the browser complains: ${page.complaints.join('; ')}`)

  for (const [version, port] of [['HTTP/2', https], ['HTTP/3', h3]]) {
    const name = version.replace('TTP/', '').toLowerCase()
    await step(`page/${name}`, async () => {
      const page = await load(browser, `https://localhost:${port}/`)
      await subscribe(page, `${root}/${name}/#`)
      expect((await text(page, '#state-text')).endsWith(version), `the page says: ${await text(page, '#state-text')}`)
      const said = await publish(page, `${root}/${name}/a`, 'from the page')
      expect(/^published/.test(said), `publishing: ${said}`)
      await shows(page, `${root}/${name}/a`, 'from the page')
      await mosquitto('-t', `${root}/${name}/b`, '-m', 'from MQTT')
      await shows(page, `${root}/${name}/b`, 'from MQTT')
      clean(page)
      await page.close()
    })
  }

  const page = await load(browser, `https://localhost:${https}/`)
  await step('page/numbers', async () => {
    await subscribe(page, `${root}/n/#`)
    for (const [topic, payload] of [['t', '21.5'], ['t', '22.5'], ['c', '{"humidity": 40, "deep": {"x": 1}, "name": "y"}'], ['w', 'words']]) {
      await mosquitto('-t', `${root}/n/${topic}`, '-m', payload)
    }
    await shows(page, `${root}/n/w`, 'words')
    await until('three lines in the chart', async () => (await page.$$('#chart polyline')).length === 3)
    const legend = await page.$$eval('#legend button', (each) => each.map((one) => one.textContent))
    expect(legend.join('|') === `${root}/n/t22.5|${root}/n/c humidity40|${root}/n/c deep.x1`, `legend ${legend}`)
    await page.click('#legend button')
    await until('one line less', async () => (await page.$$('#chart polyline')).length === 2)
  })
  await step('page/properties', async () => {
    await mosquitto('-t', `${root}/n/p`, '-m', '{"a": [1, 2]}', '-r', '-D', 'publish', 'content-type', 'application/json',
      '-D', 'publish', 'user-property', 'site', 'Zürich', '-D', 'publish', 'response-topic', 'answers/7')
    await shows(page, `${root}/n/p`, '{"a": [1, 2]}')
    await page.click('#messages li summary')
    await until('details', async () => (await text(page, '#messages li dl')).includes('Zürich'))
    const details = await text(page, '#messages li dl')
    for (const part of ['application/json', 'site', 'answers/7']) expect(details.includes(part), `no ${part} in ${details}`)
    expect((await text(page, '#messages li pre')).includes('\n'), 'JSON is not laid out')
  })
  await step('page/markup-is-text', async () => {
    await mosquitto('-t', `${root}/n/<img src=x onerror=alert(1)>`, '-m', '<b>bold</b><script>alert(1)</script>')
    await shows(page, `${root}/n/<img src=x onerror=alert(1)>`, '<b>bold</b><script>alert(1)</script>')
    expect(await page.$('#messages b, #messages img, #messages script') === null, 'a message became markup')
  })
  await step('page/bytes', async () => {
    const file = path.join(chosen.folder, 'bytes')
    fs.writeFileSync(file, Buffer.from([0, 255, 254]))
    await mosquitto('-t', `${root}/n/bytes`, '-f', file)
    await shows(page, `${root}/n/bytes`, '3 bytes 00 ff fe'.replace('s 0', 's  0'))
  })
  await step('page/retained', async () => {
    await page.click('#subscribe-button')
    await page.click('#clear')
    await subscribe(page, `${root}/n/p`)
    await shows(page, `${root}/n/p`, '{"a": [1, 2]}')
    expect((await rows(page))[0].marks.includes('retained'), 'it is not marked as retained')
  })
  await step('page/goes-on', async () => {
    // Another reader takes the session, so that the page's response ends; it asks again, and misses nothing.
    await page.click('#subscribe-button')
    await page.click('#clear')
    const answered = page.waitForResponse((response) => decodeURIComponent(response.url()).includes(`${root}/g`))
    await subscribe(page, `${root}/g`)
    const session = (await answered).headers()['sterna-session']
    await publish(page, `${root}/g`, '1')
    await shows(page, `${root}/g`, '1')
    const again = page.waitForResponse((response) => decodeURIComponent(response.url()).includes(`session=${session}`))
    await run('curl', ['-sk', '--max-time', '0.3', `https://localhost:${https}/v1/topics/${root}/g?session=${session}`]).catch(() => {})
    await mosquitto('-t', `${root}/g`, '-m', '2')
    await again
    await shows(page, `${root}/g`, '2')
    await publish(page, `${root}/g`, '3')
    await shows(page, `${root}/g`, '3')
    const got = (await rows(page)).map((row) => row.payload).join()
    expect(got === '3,2,1', `the list has ${got}`)
  })
  await step('page/refused', async () => {
    const said = await publish(page, 'iop/denied/a', 'x')
    expect(/^403: /.test(said), `publishing where it is forbidden: ${said}`)
    await page.click('#subscribe-button')
    await fill(page, '#filter', 'iop/denied/#')
    await page.click('#subscribe-button')
    await until('a refusal', async () => (await page.$eval('#state', (state) => state.dataset.state)) === 'failed')
    expect((await text(page, '#subscribe-button')) === 'Subscribe', 'it cannot be tried again')
    clean(page)
  })
  await page.close()

  await step('page/credentials', async () => {
    const other = await load(browser, `https://localhost:${asking}/`)
    await fill(other, '#filter', `${root}/c`)
    await other.click('#subscribe-button')
    await other.waitForSelector('#credentials[open]')
    await other.click('input[value=basic]')
    await other.type('#user', 'interop')
    await other.type('#password', "a password of Bob's")
    await other.click('#credentials-form .primary')
    await other.waitForSelector('#credentials:not([open])')
    await subscribe(other, `${root}/c`)
    await publish(other, `${root}/c`, 'known')
    await shows(other, `${root}/c`, 'known')
    expect((await text(other, '#credentials-open')) === 'interop', 'the page does not say who one is')
    clean(other)
    await other.close()
  })
  await step('page/telephone', async () => {
    const small = await load(browser, `https://localhost:${https}/`, 360)
    await subscribe(small, `${root}/${'a-long-name-'.repeat(12)}/#`)
    await publish(small, `${root}/${'a-long-name-'.repeat(12)}/x`, 'y'.repeat(300))
    await until('a row', async () => (await rows(small)).length === 1)
    const width = await small.evaluate(() => document.documentElement.scrollWidth)
    expect(width <= 360, `the page is ${width} pixels wide where there are 360`)
    clean(small)
    await small.close()
  })
}

async function main () {
  const chromium = program('chromium', 'chromium-browser', 'google-chrome')
  if (!chromium) {
    say('skip browser: chromium is not installed (apt-get install chromium)')
    process.exit(1)
  }
  for (const needed of ['openssl', 'mosquitto_pub', 'curl']) {
    if (!program(needed)) {
      say(`skip browser: ${needed} is not installed`)
      process.exit(1)
    }
  }
  const puppeteer = require(require.resolve('puppeteer-core', { paths: [...(process.env.NODE_PATH || '').split(':'), __dirname] }))
  const folder = temporaryFolder()
  let broker, first, second, plant
  try {
    broker = await startBroker(folder)
    // The one trusts the certificate; the other knows nothing but what pages tell it.
    ;[first, second] = await Promise.all([
      startBrowser(puppeteer, chromium, folder, ['--enable-quic', `--origin-to-force-quic-on=localhost:${broker.ports.h3[0]}`,
        `--ignore-certificate-errors-spki-list=${broker.spki}`]),
      startBrowser(puppeteer, chromium, folder, [])
    ])
    await Promise.all([
      pageSteps(broker, first, { folder }),
      webtransport.steps(broker, second, { step, expect, run, load })
    ])
    const place = path.join(folder, 'plant')
    fs.mkdirSync(place)
    plant = await Plant.open(place)
    plant.populate()
    await dashboard.steps(plant, second, { step, expect, until, load, text, fill, folder })
  } catch (error) {
    count.failed++
    say(`not ok browser: ${error.message}`)
  } finally {
    await Promise.all([first?.close(), second?.close()])
    plant?.close()
    broker?.child.kill()
    fs.rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
  }
  say(`# ${count.ok} ok, ${count.failed} not ok, ${count.skipped} skipped, 0 not applicable`)
  process.exit(count.failed || !count.ok ? 1 : 0)
}

main()
