// A producer in Node, with nothing but what Node brings (18 or newer):
//
//   late serve --url sqlite:///queue.db --pull payments
//   LATE_URL=http://127.0.0.1:7280 node producer.mjs payments charge '{"trip": 7}' trip-7
//
// Its heart is `put`, which can be called again after any failure: with a unique key the task is
// there once, however often it was put.

import { realpathSync } from 'node:fs'
import { pathToFileURL } from 'node:url'

const PATIENCE_MS = 10_000
const TRIES = 6

export class Refused extends Error {
  constructor(status, word, message) {
    super(`${status} ${word}: ${message}`)
    this.status = status
    this.word = word
  }
}

// A proxy's page is no JSON.
function refusal(status, text) {
  try {
    const { error, message } = JSON.parse(text)
    return new Refused(status, error, message)
  } catch {
    return new Refused(status, 'no_word', 'the answer is not from late')
  }
}

/**
 * Enqueue one task.
 * @param {string} server such as http://127.0.0.1:7280
 * @param {string} queue
 * @param {{name: string, payload?: object, delay_s?: number, unique_key?: string}} task more fields
 *   in docs/http.md
 * @param {{token?: string}} options
 * @returns {Promise<{task_id: string, created: boolean}>}
 */
export async function put(server, queue, task, { token } = {}) {
  // Without a key of its own a repeat after a lost answer would be a second task. A key lives as
  // long as its task, and that may have ended before the repeat: so it stays taken for an hour.
  const own = task.unique_key ? {} : { unique_key: crypto.randomUUID(), unique_for_s: 3600 }
  const body = JSON.stringify({ ...own, ...task })
  const url = new URL(`${server.replace(/\/+$/, '')}/v1/queues/${encodeURIComponent(queue)}/tasks`)
  const headers = { 'content-type': 'application/json' }
  if (token) headers.authorization = `Bearer ${token}`
  for (let attempt = 1; ; attempt += 1) {
    let pause = Math.random() * 100 * 2 ** attempt
    try {
      const answer = await fetch(url, { method: 'POST', headers, body, signal: AbortSignal.timeout(PATIENCE_MS) })
      const text = await answer.text()
      if (answer.ok) return JSON.parse(text)
      const passing = answer.status === 429 || answer.status >= 500
      if (!passing || attempt === TRIES) throw refusal(answer.status, text)
      pause += 1_000 * Number(answer.headers.get('retry-after') ?? 0)
    } catch (error) {
      // Of the errors of `fetch`, those of the network have a code. No other try mends the rest.
      const lasting = error instanceof TypeError && !error.cause?.code
      if (error instanceof Refused || lasting || attempt === TRIES) throw error
    }
    await new Promise(resolve => setTimeout(resolve, pause))
  }
}

if (import.meta.url === pathToFileURL(realpathSync(process.argv[1])).href) {
  const [queue, name, payload = '{}', uniqueKey] = process.argv.slice(2)
  if (!queue || !name) {
    console.error('usage: node producer.mjs QUEUE NAME [PAYLOAD-JSON [UNIQUE-KEY]]')
    process.exit(2)
  }
  try {
    const task = { name, payload: JSON.parse(payload) }
    if (uniqueKey) task.unique_key = uniqueKey
    const server = process.env.LATE_URL ?? 'http://127.0.0.1:7280'
    console.log(JSON.stringify(await put(server, queue, task, { token: process.env.LATE_TOKEN })))
  } catch (error) {
    // What `fetch` says by itself is only that it failed.
    const cause = error.cause ? `: ${error.cause.message || error.cause.code}` : ''
    console.error(`${error.message}${cause}`)
    process.exit(1)
  }
}
