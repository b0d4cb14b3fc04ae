// node --test late/late.test.ts
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { Client, Refused } from './client.ts'
import { consume, Outcome, type Handler, type Settings } from './consumer.ts'
import { parse, stringify } from './json.ts'

type Body = Record<string, unknown>
/** A status and a body. A status of 0 ends the connection without an answer. */
type Reply = [number, string]

const STALE: Reply = [409, '{"error": "stale_receipt", "message": "stale receipt"}']

/** Answer the n-th request of a word with its n-th reply, and with the last one ever after. */
async function serve(t: TestContext, replies: Record<string, Reply[]>) {
  const bodies: Record<string, Body[]> = {}
  const waiting: Record<string, () => void> = {}
  const server = createServer(async (request, response) => {
    let text = ''
    for await (const part of request) text += part
    const word = request.url?.split('/').at(-1) ?? ''
    const sent = bodies[word] ??= []
    sent.push(JSON.parse(text) as Body)
    const list = replies[word] ?? [[404, '{}'] satisfies Reply]
    const [status, said] = list[Math.min(sent.length, list.length) - 1] as Reply
    waiting[word]?.()
    if (status === 0) request.socket.destroy()
    else response.writeHead(status).end(said)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => { server.closeAllConnections(); server.close() })
  const { port } = server.address() as AddressInfo
  const told: string[] = []
  return {
    client: new Client(`http://127.0.0.1:${port}/`, { pauseMs: 1, tell: (text) => told.push(text) }),
    told,
    of: (word: string) => bodies[word] ?? [],
    first: (word: string) => new Promise<void>((resolve) => { waiting[word] = resolve }),
  }
}

function circular(): Record<string, unknown> {
  const value: Record<string, unknown> = {}
  value['self'] = value
  return value
}

/** Return a port that nobody listens on. */
async function closedPort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => { server.close(resolve) })
  return port
}

/** Give one task to a consumer, and stop it when `until` has had a request. */
async function run(
  t: TestContext, until: string, handler: Handler | undefined, more: Partial<Settings> = {}, ack: Reply[] = [[204, '']],
) {
  const task = '{"task_id": "t", "name": "work", "attempt": 1, "receipt": "r", "payload": {}}'
  const server = await serve(t, {
    receive: [[200, `{"tasks": [${task}]}`], [200, '{"tasks": []}']],
    ack,
    nack: [[0, ''], STALE],
    extend: [[200, '{}']],
  })
  const stop = new AbortController()
  const handlers = handler ? { work: handler } : {}
  const seen = server.first(until)
  const end = consume({ client: server.client, queue: 'q', handlers, graceS: 0, ...more }, stop.signal)
  await seen
  stop.abort()
  await end
  return server
}

test('a put is repeated with the same key', async (t) => {
  const server = await serve(t, {
    tasks: [[503, 'not even JSON'], [0, ''], [200, '{"task_id": "t", "created": false}']],
  })
  assert.deepEqual(await server.client.put('q', { name: 'charge' }), { task_id: 't', created: false })
  const keys = server.of('tasks').map((body) => body['unique_key'])
  assert.equal(keys.length, 3)
  assert.ok(keys[0])
  assert.equal(new Set(keys).size, 1)
  assert.equal(server.of('tasks')[2]?.['unique_for_s'], 3600, 'its task may have ended before the repeat')
})

test('a refusal is not repeated', async (t) => {
  const server = await serve(t, { tasks: [[400, '{"error": "invalid_task", "message": "no name"}']], ack: [STALE] })
  await assert.rejects(server.client.put('q', { name: '' }), new Refused(400, 'invalid_task', 'no name'))
  await assert.rejects(server.client.ack({ receipt: 'r' }), (error: Refused) => error.isStale)
  assert.equal(server.of('tasks').length + server.of('ack').length, 2)
})

test('a request ends with its signal', async (t) => {
  const server = await serve(t, { ack: [[503, '{}']] })
  await assert.rejects(server.client.ack({ receipt: 'r' }, AbortSignal.timeout(50)), { name: /AbortError|TimeoutError/ })
})

test('what no other try would change is thrown at once', async (t) => {
  for (const url of ['http//127.0.0.1:7280', '127.0.0.1:7280', 'ftp://127.0.0.1', '']) {
    assert.throws(() => new Client(url), /not the URL of a server/)
  }
  assert.throws(() => new Client('http://127.0.0.1', { token: 'sec\nret' }), (error: Error) => !/sec/.test(error.message))
  await assert.rejects(new Client('http://127.0.0.1:1').put('q', { name: 'charge' }), /bad port/)
  const server = await serve(t, {})
  await assert.rejects(server.client.put('q', { name: 'charge', payload: circular() }), /circular/)
})

test('the last error is told when patience ends', async () => {
  const told: string[] = []
  const client = new Client(`http://127.0.0.1:${await closedPort()}`, { pauseMs: 1, tell: (text) => told.push(text) })
  const end = client.put('q', { name: 'charge' }, AbortSignal.timeout(300))
  await assert.rejects(end, { name: 'TimeoutError', message: /the last try failed: .*ECONNREFUSED/ })
  assert.equal(told.length, 1, 'it is told once that nothing answers')
  assert.match(told[0] ?? '', /no answer from http.*ECONNREFUSED/)
})

test('a server that answers again is told once, and a single lost answer is not', async (t) => {
  const done: Reply = [200, '{"task_id": "t", "created": true}']
  const server = await serve(t, { tasks: [[0, ''], done, [503, '{}'], [200, '<html>'], [503, '{}'], done, [429, '{}'], [429, '{}'], done] })
  await server.client.put('q', { name: 'charge' })
  assert.deepEqual(server.told, [])
  await server.client.put('q', { name: 'charge' })
  const [away, back, ...more] = server.told
  assert.match(away ?? '', /no answer from .*: the answer is not from late/)
  assert.match(back ?? '', /answers again/)
  await server.client.put('q', { name: 'charge' })
  assert.deepEqual(more, [])
  assert.equal(server.told.length, 2, '429 is an answer')
})

test('a Node that cannot keep integers is refused at the start', () => {
  const words = ['--import', 'data:text/javascript,delete JSON.rawJSON', `${import.meta.dirname}/json.ts`]
  const { status, stderr } = spawnSync(process.execPath, words, { encoding: 'utf8' })
  assert.notEqual(status, 0)
  assert.match(stderr, /needs Node 22\.18 or newer, and this is v/)
})

test('what a handler returns is the result', async (t) => {
  const server = await run(t, 'ack', async () => 7)
  assert.deepEqual(server.of('ack'), [{ receipt: 'r', result: 7 }])
})

test('what a handler throws is the outcome, and is sent again when the answer is lost', async (t) => {
  const cases: [Error, Body][] = [
    [new Error('no luck'), { reason: 'Error: no luck' }],
    [new Outcome('retry', { after_s: 0, reason: 'soon' }), { outcome: 'retry', after_s: 0, reason: 'soon' }],
    [new Outcome('discard'), { outcome: 'discard' }],
    [new Outcome('fail', { reason: 'x'.repeat(5_000) }), { outcome: 'fail', reason: 'x'.repeat(4_096) }],
  ]
  for (const [error, said] of cases) {
    const server = await run(t, 'nack', async () => { throw error })
    assert.deepEqual(server.of('nack'), [{ receipt: 'r', ...said }, { receipt: 'r', ...said }])
    assert.deepEqual(server.of('ack'), [])
  }
})

test('a result that is no JSON, or that the server refuses, is a failed attempt', async (t) => {
  const tooLarge: Reply = [413, '{"error": "payload_too_large", "message": "300000 bytes"}']
  const cases: [Handler, RegExp, number][] = [
    [async () => circular(), /circular/, 0],
    [async () => 'x', /413 payload_too_large: 300000 bytes/, 1],
    [() => Promise.reject(), /undefined/, 0],
  ]
  for (const [handler, reason, acks] of cases) {
    const server = await run(t, 'nack', handler, {}, [tooLarge])
    assert.match(String(server.of('nack')[0]?.['reason']), reason)
    assert.equal(server.of('ack').length, acks)
  }
})

test('an unknown task is for others', async (t) => {
  const server = await run(t, 'nack', undefined)
  assert.equal(server.of('nack')[0]?.['outcome'], 'not_capable')
})

test('a long task is extended, and given back in the end', async (t) => {
  const ended = Promise.withResolvers<void>()
  const server = await run(t, 'extend', (_, signal) => new Promise((_, reject) => {
    signal.addEventListener('abort', () => { ended.resolve(); reject(signal.reason) })
  }), { visibilityS: 0.1 })
  assert.deepEqual(server.of('nack').at(-1), {
    receipt: 'r', outcome: 'snooze', after_s: 0, reason: 'the consumer stops',
  })
  await ended.promise
})

test('a consumer that is refused ends', async (t) => {
  const server = await serve(t, { receive: [[403, '{"error": "forbidden", "message": "no"}']] })
  const settings = { client: server.client, queue: 'q', handlers: {}, concurrency: 3 }
  await assert.rejects(consume(settings, new AbortController().signal), new Refused(403, 'forbidden', 'no'))
})

test('integers stay what they are', () => {
  const text = '{"a":[9007199254740993,-9223372036854775808,1,0.1,1.5e+300]}'
  assert.equal(stringify(parse(text)), text)
})
