// Pictures of the page for the documentation: each tab on a desktop or a telephone, in light and dark.
'use strict'

const fs = require('node:fs')
const path = require('node:path')

const DESKTOP = { width: 1200, height: 760, deviceScaleFactor: 1 }
// Name, tab, thing in it, screen, theme; height where it is another, and what is at the top.
const PICTURES = [
  ['messages', 'messages', null, 'desktop', 'light'],
  ['clients', 'clients', null, 'desktop', 'light'],
  ['device', 'clients', 'press-2', 'desktop', 'dark', 1140],
  ['queue', 'queues', 'orders', 'desktop', 'light'],
  ['topics', 'topics', null, 'desktop', 'light'],
  ['rules', 'rules', null, 'desktop', 'dark'],
  ['store', 'store', null, 'desktop', 'light'],
  ['log', 'log', null, 'desktop', 'dark'],
  ['telephone-first', 'messages', 'first', 'telephone', 'light'],
  ['telephone-messages', 'messages', null, 'telephone', 'dark', null, '#chart-section'],
  ['telephone-clients', 'clients', null, 'telephone', 'light'],
  ['telephone-device', 'clients', 'press-2', 'telephone', 'dark', null, '#path-chart'],
  ['telephone-rules', 'rules', null, 'telephone', 'light']
]
const LARGEST_BYTES = 150_000

async function take (plant, browser, { open, login, until, labelled, load, folder, telephone }) {
  const into = process.env.STERNA_PICTURES || path.join(folder, 'pictures')
  fs.mkdirSync(into, { recursive: true })
  for (const screen of ['desktop', 'telephone']) {
    const page = await load(browser, plant.page)
    page.setDefaultTimeout(10_000)
    await page.setViewport(screen === 'desktop' ? DESKTOP : { ...telephone, deviceScaleFactor: 1.5 })
    await page.reload()
    await until('the role', async () => (await page.$eval('#credentials-open', (one) => one.textContent)) !== 'Log in')
    await login(page, 'oli')
    for (const [name, tab, thing, where, theme, height, top] of PICTURES.filter((picture) => picture[3] === screen)) {
      if (screen === 'desktop') await page.setViewport({ ...DESKTOP, height: height ?? DESKTOP.height })
      await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: theme }])
      await open(page, tab, tab === 'queues' ? thing : '')
      await prepare(page, tab, thing, { until, labelled, plant })
      // Nothing is under the pointer, nor has the focus.
      await page.mouse.move(0, 0)
      await page.evaluate((top) => {
        document.activeElement?.blur()
        scrollTo(0, 0)
        document.querySelector(top)?.scrollIntoView()
      }, top ?? 'header')
      const file = path.join(into, `${name}.png`)
      await page.screenshot({ path: file })
      const { size } = fs.statSync(file)
      if (size < 5_000 || size > LARGEST_BYTES) throw new Error(`${name}.png has ${size} bytes (${where})`)
    }
    await page.close()
  }
}

// What a picture is to show.
async function prepare (page, tab, thing, { until, labelled, plant }) {
  const seconds = (s) => new Promise((resolve) => setTimeout(resolve, s * 1000))
  if (tab === 'messages' && thing !== 'first') {
    await page.evaluate(() => document.getElementById('first-subscribe').click())
    await until('charts', async () => (await page.$$('#chart text.kind')).length >= 3)
    await seconds(2.5)
  } else if (tab === 'clients') {
    await until('clients', async () => (await page.$$('#clients-table tbody tr')).length > 4)
    if (thing) {
      await (await labelled(page, '#clients-table', thing)).click()
      await until('its charts, and a move', async () =>
        (await page.$$('#path-chart polyline')).length >= 5 && await page.$('#path-chart .mark') !== null)
      await seconds(3)
    }
  } else if (tab === 'queues') {
    await until('messages', async () => (await page.$$('#queue-messages details')).length > 2)
  } else if (tab === 'rules') {
    await page.evaluate(() => {
      document.getElementById('explain-user').value = 'eve'
      document.getElementById('explain-topic').value = 'plant/press-1/command'
    })
    await (await labelled(page, '#explain-form', 'Explain')).click()
    await until('why', async () => (await page.$('#rules-list [aria-current]')) !== null)
  } else if (tab === 'log') {
    await until('it is live', async () => (await page.$eval('#log-state', (one) => one.textContent)) === 'live')
    for (const given of [['-t', 'office/door', '-q', '1', '-i', 'intruder'], ['-t', 'plant/x', '-i', 'burglar', '-u', 'oli', '-P', 'guessed'], ['-t', 'plant/shift', '-i', 'tablet-7']]) {
      try { plant.once('pub', plant.urls.mqtt, '-m', 'open', ...given) } catch {}
    }
    await until('events', async () => (await page.$$('#log-events li')).length >= 4)
  } else {
    await seconds(0.7)
  }
}

module.exports = { take }
