// Steps of the browser suite: the tabs of the page on the admin listener, for each role, by mouse, keyboard and finger.
'use strict'

const pictures = require('./browser_pictures.cjs')
const { PASSWORD } = require('./browser_plant.cjs')

const TABS = ['messages', 'clients', 'queues', 'topics', 'rules', 'store', 'log']
const TELEPHONE = { width: 360, height: 640, isMobile: true, hasTouch: true, deviceScaleFactor: 2 }
const FINGER = 44

async function steps (plant, browser, { step, expect, until, load, text, fill, folder }) {
  const clean = (page) => expect(!page.complaints.length, `the browser complains: ${page.complaints.join('; ')}`)
  const open = async (page, tab, argument = '') => {
    await page.evaluate((hash) => { location.hash = hash }, `/${tab}${argument && `/${encodeURIComponent(argument)}`}`)
    await until(`tab ${tab}`, () => page.$eval(`#panel-${tab}`, (panel) => !panel.hidden))
  }
  const login = async (page, user) => {
    await page.click('#credentials-open')
    await page.click('input[value=basic]')
    await fill(page, '#user', user)
    await fill(page, '#password', PASSWORD)
    await page.click('#credentials-form .primary')
    await until(`${user} is logged in`, async () => (await text(page, '#credentials-open')).startsWith(`${user} (`))
  }
  const says = (page, selector, wanted) => until(`${selector} says ${wanted}`, async () => {
    const said = await page.$(selector) ? await text(page, selector) : ''
    return wanted instanceof RegExp ? wanted.test(said) : said.includes(wanted)
  })
  const names = (page) => page.$$eval('#clients-table td.name a', (links) => links.map((link) => link.textContent))
  const press = async (page, selector) => { await page.$eval(selector, (element) => element.click()) }
  const labelled = async (page, scope, label) => {
    const found = await page.evaluateHandle((scope, label) =>
      [...document.querySelectorAll(`${scope} button, ${scope} a`)].find((one) => one.textContent.trim() === label) ?? null, scope, label)
    const element = found.asElement()
    expect(element, `there is no ${label} in ${scope}`)
    return element
  }

  const page = await load(browser, plant.page)
  await step('dashboard/viewer', async () => {
    await says(page, '#credentials-open', 'Log in (viewer)')
    await says(page, '#messages-notice', 'needs the role operator')
    expect(await page.$eval('#messages-notice a', (link) => link.href) === plant.publicPage, 'it does not lead to the public page')
    for (const tab of ['topics', 'log']) {
      await open(page, tab)
      await says(page, `#${tab}-notice`, 'needs the role operator')
      expect(await page.$eval(`#${tab}-tools`, (tools) => tools.hidden), `${tab} shows what a viewer may not do`)
    }
    await open(page, 'queues', 'orders')
    await says(page, '#queue-messages', 'needs the role operator')
    expect(await page.$eval('#queue-tools', (tools) => tools.hidden), 'a viewer sees the tools of a queue')
    await open(page, 'store')
    await says(page, '#orders', 'need the role admin')
    clean(page)
  })
  await step('dashboard/login', async () => {
    await page.click('#credentials-open')
    await page.click('input[value=basic]')
    await fill(page, '#user', 'oli')
    await fill(page, '#password', 'wrong')
    await page.click('#credentials-form .primary')
    await open(page, 'clients')
    await says(page, '#clients-notice', '401')
    await login(page, 'oli')
    await says(page, '#credentials-open', 'oli (operator)')
    expect(await text(page, '#clients-notice') === '', 'the refusal stays')
    clean(page)
  })

  await step('dashboard/clients', async () => {
    await open(page, 'clients')
    await until('clients of three protocols', async () => {
      const all = await text(page, '#clients-table')
      return ['press-1', 'press-2', 'oven', 'MQTT 5.0 · TCP', 'MQTT 5.0 · QUIC', 'AMQP', 'HTTP'].every((part) => all.includes(part))
    })
    await page.select('#clients-sort', 'name')
    await until('they are in the order of names', async () => {
      const all = (await names(page)).filter((name) => !name.startsWith('('))
      return all.length > 4 && JSON.stringify(all) === JSON.stringify([...all].sort((a, b) => a.localeCompare(b, 'en', { numeric: true })))
    })
    // By bytes the order is that of the numbers that the API tells.
    await (await labelled(page, '#clients-table', 'Bytes')).click()
    expect(await page.$eval('#clients-sort', (select) => select.value) === 'bytes', 'the button does not sort')
    expect(await page.$eval('#clients-table th:last-child', (head) => head.getAttribute('aria-sort')) === 'descending', 'no aria-sort')
    const numbers = await page.$$eval('#clients-table td:last-child', (cells) => cells.map((cell) => {
      const [number, unit] = cell.textContent.split(' ')
      return Number(number) * { B: 1, KB: 1e3, MB: 1e6 }[unit]
    }))
    expect(numbers.length > 4 && numbers.every((number, at) => at === 0 || number <= numbers[at - 1]), `by bytes: ${numbers}`)
    await fill(page, '#clients-search', 'press-2')
    await until('two are found', async () => (await names(page)).length === 2)
    await page.$eval('#clients-search', (search) => { search.value = ''; search.dispatchEvent(new Event('input')) })
    clean(page)
  })
  await step('dashboard/device', async () => {
    await open(page, 'clients')
    await until('scada is there', async () => (await names(page)).includes('scada'))
    await (await labelled(page, '#clients-table', 'scada')).click()
    await says(page, '#client-page h2', 'scada')
    for (const part of ['early data', 'migrations', 'round trip', 'congestion window', 'waiting', 'connected', 'messages out']) await says(page, '#client-page .facts', part)
    await says(page, '#client-page', 'plant/# QoS 1')
    await until('charts of round trip, losses, queue, bytes and messages', async () => (await page.$$('#path-chart polyline')).length === 6)
    const kinds = await page.$$eval('#path-chart text.kind', (all) => all.map((one) => one.textContent))
    expect(kinds.join() === 'round trip, ms,lost packets,queue, messages,bytes per second,messages/s', `charts ${kinds}`)
    clean(page)
  })
  await step('dashboard/migrations', async () => {
    await open(page, 'clients')
    await until('press-2 is there', async () => (await names(page)).includes('press-2'))
    await (await labelled(page, '#clients-table', 'press-2')).click()
    await says(page, '#client-page ol', /moved from 127\.0\.0\.1:\d+ to 127\.0\.0\.1:\d+/)
    await until('the move is marked', async () => await page.$('#path-chart .mark') !== null)
    clean(page)
  })
  await step('dashboard/disconnect', async () => {
    const victim = plant.start('sub', plant.urls.mqtt, '-i', 'victim', '-t', 'plant/none')
    await open(page, 'clients')
    await until('the victim is there', async () => (await names(page)).includes('victim'))
    await (await labelled(page, '#clients-table', 'victim')).click()
    await says(page, '#client-page .tools', 'Disconnect')
    await (await labelled(page, '#client-page', 'Disconnect')).click()
    expect(!/ended|disconnected/.test(await text(page, '#client-page output')), 'the first press does it')
    await (await labelled(page, '#client-page', 'Really disconnect?')).click()
    await says(page, '#client-page output', /disconnected|ended/)
    await until('the client is told', () => victim.exitCode !== null || /0x98|administrative/i.test(victim.trouble))
    clean(page)
  })

  await step('dashboard/queues', async () => {
    await open(page, 'queues')
    await until('both queues', async () => /orders.*rejects/s.test(await text(page, '#queues-table')))
    await (await labelled(page, '#queues-table', 'orders')).click()
    await until('three messages', async () => (await page.$$('#queue-messages details')).length === 3)
    await says(page, '#queue-messages .payload', '"article": 4711')
    await says(page, '#queue-facts', 'rejects')
    clean(page)
  })
  await step('dashboard/move-and-purge', async () => {
    await open(page, 'queues', 'rejects')
    await until('a dead letter', async () => (await page.$$('#queue-messages details')).length === 1)
    await page.select('#queue-tools select', 'orders')
    await (await labelled(page, '#queue-tools', 'Move all')).click()
    await says(page, '#queue-result', '1 moved to orders, 0 left')
    await open(page, 'queues', 'orders')
    await until('four messages', async () => (await page.$$('#queue-messages details')).length === 4)
    plant.publish('queue/rejects', 'to be purged')
    await open(page, 'queues', 'rejects')
    await until('one to be purged', async () => (await page.$$('#queue-messages details')).length === 1)
    await (await labelled(page, '#queue-tools', 'Purge')).click()
    await (await labelled(page, '#queue-tools', 'Really remove all?')).click()
    await says(page, '#queue-result', '1 removed, 0 left')
    await says(page, '#queue-messages', 'Nothing waits')
    clean(page)
  })

  await step('dashboard/topics', async () => {
    await open(page, 'topics')
    await says(page, '#topics-count', '5 retained messages')
    const levels = await page.$$eval('#topics-tree > li > details > ul > li > details > summary .level', (all) => all.map((one) => one.textContent))
    expect(levels.join() === 'oven,press-1,press-2,shift', `levels ${levels}`)
    await fill(page, '#topics-filter', 'plant/+/firmware')
    await (await labelled(page, '#topics-form', 'Look')).click()
    await says(page, '#topics-count', '3 retained messages')
    plant.publish('plant/old/firmware', '<b>0.1</b>', '-r')
    await fill(page, '#topics-filter', 'plant/old/#')
    await (await labelled(page, '#topics-form', 'Look')).click()
    await says(page, '#topics-tree', '<b>0.1</b>')
    const leaf = await page.$$('#topics-tree summary')
    await leaf.at(-1).click()
    await says(page, '#topics-tree', 'Delete')
    await (await labelled(page, '#topics-tree', 'Who reads it?')).click()
    await says(page, '#topics-tree', /scada by plant\/#/)
    await (await labelled(page, '#topics-tree', 'Delete')).click()
    await (await labelled(page, '#topics-tree', 'Really delete it?')).click()
    await says(page, '#topics-tree output', 'deleted')
    await (await labelled(page, '#topics-form', 'Look')).click()
    await says(page, '#topics-count', '0 retained messages')
    clean(page)
  })

  await step('dashboard/rules', async () => {
    await open(page, 'rules')
    await until('all rules, and what holds without one', async () => (await page.$$('#rules-list li')).length === 4)
    for (const [user, action, topic, wanted, rule] of [
      ['eve', 'publish', 'plant/press-1/command', 'Refused: rule 1 decides', '1'],
      ['', 'publish', 'plant/press 1/command', 'Allowed: rule 2 decides', '2'],
      ['', 'publish', 'plant/press-1/command', 'Allowed: rule 2 decides', '2'],
      ['', 'subscribe', 'plant/#', 'Allowed: rule 2 decides', '2'],
      ['ann', 'publish', 'elsewhere', 'Allowed: no rule matches', 'default']
    ]) {
      await fill(page, '#explain-user', user)
      await page.select('#explain-action', action)
      await fill(page, '#explain-topic', topic)
      await (await labelled(page, '#explain-form', 'Explain')).click()
      await says(page, '#explain-result', wanted)
      const pointed = await page.$$eval('#rules-list [aria-current]', (items) => items.map((item) => item.dataset.rule))
      expect(pointed.join() === rule, `${user} ${topic}: the page points at ${pointed}`)
    }
    await fill(page, '#explain-topic', 'wrong/#')
    await (await labelled(page, '#explain-form', 'Explain')).click()
    await says(page, '#explain-result', '400')
    clean(page)
  })

  await step('dashboard/store', async () => {
    await open(page, 'store')
    for (const part of ['log', 'segment', 'syncs', 'failures']) await says(page, '#store-facts', part)
    await says(page, '#memory-kinds', /KB|MB/)
    await says(page, '#certificates', 'in 12 days')
    await login(page, 'ann')
    await says(page, '#orders', 'Reload the configuration')
    await (await labelled(page, '#orders', 'Reload the configuration')).click()
    await says(page, '#orders-result', /^reloaded/)
    await login(page, 'oli')
    clean(page)
  })

  await step('dashboard/log', async () => {
    await open(page, 'log')
    await says(page, '#log-state', 'live')
    const guess = () => plant.once('pub', plant.urls.mqtt, '-t', 'plant/x', '-m', 'x', '-i', 'burglar', '-u', 'oli', '-P', 'guessed')
    try { guess() } catch {}
    await says(page, '#log-events', 'burglar')
    const refused = await page.$eval('#log-events .bad', (item) => item.textContent)
    expect(refused.includes('login refused') && refused.includes('oli'), `the log has ${refused}`)
    try { plant.publish('office/door', 'open', '-i', 'intruder') } catch {}
    await says(page, '#log-events', 'office/door')
    await press(page, '#log-clear')
    await fill(page, '#log-client', 'scada')
    await (await labelled(page, '#log-form', 'Watch')).click()
    await says(page, '#log-subject', 'messages of scada')
    for (const event of ['queued', 'sent', 'acknowledged']) await says(page, '#log-events', event)
    await fill(page, '#log-client', '')
    await fill(page, '#log-topic', 'plant/gate/#')
    await (await labelled(page, '#log-form', 'Watch')).click()
    await says(page, '#log-events', 'plant/gate/count')
    await fill(page, '#log-topic', 'plant/press 9/#')
    await (await labelled(page, '#log-form', 'Watch')).click()
    await until('the trace of a name with a space', async () => {
      plant.publish('plant/press 9/state', 'on')
      return (await text(page, '#log-events')).includes('plant/press 9/state')
    })
    expect(!(await text(page, '#log-events')).includes('press-1/temperature'), 'the trace has other topics')
    clean(page)
  })

  await step('dashboard/messages', async () => {
    await open(page, 'messages')
    expect(await page.$eval('#first-subscribe', (one) => one.checkVisibility()), 'the first sight has no button')
    await says(page, '#examples', 'mosquitto_pub -h localhost -p')
    await page.click('#first-subscribe')
    await until('retained and live messages', async () => {
      const all = await text(page, '#messages')
      return ['plant/press-1/firmware', 'retained', 'plant/press-1/temperature', 'plant/gate/count'].every((part) => all.includes(part))
    })
    await until('a chart for each kind of number', async () => (await page.$$('#chart text.kind')).length >= 3)
    const kinds = await page.$$eval('#chart text.kind', (all) => all.map((one) => one.textContent))
    expect(['temperature', 'strokes', 'count'].every((kind) => kinds.includes(kind)), `charts ${kinds}`)
    await fill(page, '#topic', 'plant/shift')
    await fill(page, '#payload', 'late')
    await page.click('#publish-button')
    await says(page, '#publish-result', 'published to plant/shift')
    await says(page, '#messages', 'late')
    await fill(page, '#topic', 'plant/press-1/command')
    await page.click('#publish-button')
    await says(page, '#publish-result', '403')
    clean(page)
  })

  await step('dashboard/keyboard', async () => {
    await open(page, 'messages')
    await page.focus('#tab-messages')
    for (const tab of [...TABS.slice(1), 'messages']) {
      await page.keyboard.press('ArrowRight')
      await until(`arrow to ${tab}`, () => page.$eval(`#tab-${tab}`, (one) =>
        document.activeElement === one && one.getAttribute('aria-selected') === 'true' && one.tabIndex === 0))
    }
    await page.keyboard.press('End')
    await until('the last tab', () => page.$eval('#tab-log', (one) => one.getAttribute('aria-selected') === 'true'))
    const tree = await page.accessibility.snapshot()
    const flat = (node) => [node, ...(node.children ?? []).flatMap(flat)]
    const all = flat(tree)
    expect(all.filter((node) => node.role === 'tab').length === TABS.length, 'tabs are no tabs')
    expect(all.filter((node) => node.role === 'tab' && node.selected).length === 1, 'not one tab is selected')
    const nameless = all.filter((node) => ['button', 'textbox', 'combobox', 'link', 'checkbox'].includes(node.role) && !node.name)
    expect(!nameless.length, `without a name: ${nameless.map((node) => node.role)}`)
  })

  await step('dashboard/foreign-pages', async () => {
    // A page of another origin (another port is one) sees nothing, and changes nothing.
    const foreign = await load(browser, `${plant.publicPage}v1/openapi.json`)
    const got = await foreign.evaluate(async (target) => {
      const attempts = [['GET', 'admin/v1/me'], ['GET', 'admin/v1/clients'], ['POST', 'admin/v1/drain'], ['DELETE', 'admin/v1/retained/plant/shift']]
      const done = []
      for (const [method, path] of attempts) {
        for (const mode of ['cors', 'no-cors']) {
          try {
            const answer = await fetch(target + path, { method, mode, headers: mode === 'cors' ? { 'Content-Type': 'application/json' } : {} })
            done.push(answer.type === 'opaque' ? 'opaque' : String(answer.status))
          } catch { done.push('refused') }
        }
      }
      return done
    }, plant.page)
    expect(got.every((one) => one === 'refused' || one === 'opaque'), `a foreign page gets ${got}`)
    await page.bringToFront()
    await open(page, 'topics')
    await fill(page, '#topics-filter', 'plant/shift')
    await (await labelled(page, '#topics-form', 'Look')).click()
    await says(page, '#topics-count', '1 retained message')
    await foreign.bringToFront()
    // By a name that resolves to this host, nothing is served.
    const rebound = await foreign.goto(plant.page.replace('localhost', 'evil.example'))
    expect(rebound.status() === 421, `a rebound name gets ${rebound.status()}`)
    // Nor may it be framed.
    const policy = (await foreign.goto(plant.page)).headers()['content-security-policy']
    expect(/frame-ancestors 'none'/.test(policy) && !/unsafe/.test(policy), `policy ${policy}`)
    await foreign.close()
  })

  await step('dashboard/public-listener', async () => {
    const other = await load(browser, plant.publicPage)
    await open(other, 'clients')
    await says(other, '#clients-notice', 'This listener has messages only')
    await open(other, 'messages')
    await other.click('#first-subscribe')
    await until('messages', async () => (await text(other, '#messages')).includes('plant/press-1'))
    clean(other)
    await other.close()
  })
  await page.close()

  await step('dashboard/telephone', async () => {
    const small = await load(browser, plant.page)
    await small.setViewport(TELEPHONE)
    await small.reload()
    await until('the role', async () => (await text(small, '#credentials-open')) !== 'Log in')
    await login(small, 'oli')
    await small.evaluate(() => document.getElementById('first-subscribe').click())
    const stops = [['messages'], ['clients'], ['clients', 'scada'], ['queues'], ['queues', 'orders'], ['topics'], ['rules'], ['store'], ['log']]
    const faults = []
    for (const [tab, name] of stops) {
      await open(small, tab, tab === 'queues' ? name : '')
      if (tab === 'clients') {
        await until('clients', async () => (await names(small)).includes('scada'))
        if (name) await (await labelled(small, '#clients-table', name)).click()
      }
      await until(`content of ${tab}`, () => small.$eval(`#panel-${tab}`, (panel) => panel.textContent.trim().length > 60 && panel.scrollHeight > 150))
      await new Promise((resolve) => setTimeout(resolve, 600))
      faults.push(...(await small.evaluate(unfit, FINGER)).map((fault) => `${tab} ${name ?? ''}: ${fault}`))
    }
    expect(!faults.length, `${faults.length} faults: ${faults.slice(0, 6).join('; ')}`)
    clean(small)
    await small.close()
  })

  await step('dashboard/unreachable', async () => {
    const other = await load(browser, plant.page)
    await login(other, 'oli')
    await other.click('#first-subscribe')
    await until('it watches', async () => (await other.$eval('#state', (state) => state.dataset.state)) === 'open')
    await open(other, 'clients')
    await until('clients', async () => (await names(other)).length > 3)
    await other.setOfflineMode(true)
    await says(other, '#clients-notice', /^broker unreachable, next try in \d+ s$/)
    await other.setOfflineMode(false)
    await until('it is back by itself', async () => (await text(other, '#clients-notice')) === '')
    await other.close()
  })

  await step('dashboard/pictures', () => pictures.take(plant, browser, { open, login, until, labelled, load, folder, telephone: TELEPHONE }))
}

// In the page: what does not fit a telephone, or a finger.
function unfit (finger) {
  const faults = []
  const width = document.documentElement.clientWidth
  if (document.documentElement.scrollWidth > width) faults.push(`${document.documentElement.scrollWidth} pixels wide of ${width}`)
  for (const one of document.querySelectorAll('a[href], button, input, select, textarea, summary')) {
    if (!one.checkVisibility()) continue
    const touched = one.matches('[type=checkbox], [type=radio]') ? one.closest('label') : one
    const { width: wide, height: high, right } = touched.getBoundingClientRect()
    const name = one.id || one.textContent.slice(0, 30)
    if (high < finger - 0.5 || wide < finger - 0.5) faults.push(`${one.localName} ${name} is ${Math.round(wide)} by ${Math.round(high)}`)
    if (right > width + 0.5) faults.push(`${one.localName} ${name} ends at ${Math.round(right)}`)
  }
  for (const text of document.querySelectorAll('svg text')) {
    if (!text.checkVisibility()) continue
    const { left, right } = text.getBoundingClientRect()
    if (left < 0 || right > width) faults.push(`text ${text.textContent} from ${Math.round(left)} to ${Math.round(right)}`)
  }
  return faults
}

module.exports = { steps }
