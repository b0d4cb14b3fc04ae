// A client of `late serve` over HTTP: `fetch`, and the types that are made from the server's document.
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { parse, stringify } from './json.ts'
import type { components, operations } from './schema.d.ts'

type Schemas = components['schemas']
export type Put = Schemas['Put']
export type Accepted = Schemas['Accepted']
export type Receive = Schemas['Receive']
export type Pulled = Schemas['Pulled']
export type Ack = Schemas['Ack']
export type Nack = Schemas['Nack']
export type Extend = Schemas['Extend']
export type TaskResult = Schemas['TaskResult']
type Extended = operations['extend']['responses'][200]['content']['application/json']

// Longer than any request waits: a connection may be dead without a word of it.
const REQUEST_MS = 90_000
const PAUSE_MS_MAX = 5_000

/** An answer that another try would not change. */
export class Refused extends Error {
  readonly status: number
  readonly word: string

  constructor(status: number, word: string, message: string) {
    super(`${status} ${word}: ${message}`)
    this.status = status
    this.word = word
  }

  /** Tell whether the receipt is of no use any more: too late, or answered before. */
  get isStale(): boolean {
    return this.word === 'stale_receipt'
  }
}

export class Client {
  readonly #url: string
  readonly #headers: Record<string, string>
  readonly #pauseMs: number

  constructor(url: string, { token, pauseMs = 100 }: { token?: string | undefined, pauseMs?: number } = {}) {
    this.#url = url
    this.#headers = { 'content-type': 'application/json' }
    if (token) this.#headers['authorization'] = `Bearer ${token}`
    this.#pauseMs = pauseMs
  }

  /**
   * Enqueue one task. Without a key of its own, a repeat after a lost answer would be a second task.
   * A key lives as long as its task, and that may have ended before the repeat: so it stays taken for
   * an hour. Beside a key of yours, set `unique_for_s` for the same reason.
   */
  put(queue: string, task: Put, signal?: AbortSignal): Promise<Accepted> {
    const own = task.unique_key ? {} : { unique_key: randomUUID(), unique_for_s: 3600 }
    const body = { ...own, ...task }
    return this.#again('POST', `queues/${encodeURIComponent(queue)}/tasks`, body, signal)
  }

  /** Take tasks, and wait for one as long as `asked` says. */
  async receive(queue: string, asked: Receive, signal?: AbortSignal): Promise<Pulled[]> {
    const path = `queues/${encodeURIComponent(queue)}/receive`
    const answer = await this.#again<{ tasks: Pulled[] }>('POST', path, asked, signal)
    return answer.tasks
  }

  /** Say that a task is done. */
  ack(body: Ack, signal?: AbortSignal): Promise<void> {
    return this.#again('POST', 'ack', body, signal)
  }

  /** Say that a task is not done, and what is to become of it. */
  nack(body: Nack, signal?: AbortSignal): Promise<void> {
    return this.#again('POST', 'nack', body, signal)
  }

  /** Say that a task is still worked on. */
  extend(body: Extend, signal?: AbortSignal): Promise<Extended> {
    return this.#again('POST', 'extend', body, signal)
  }

  /** Tell how a task ended. Without an outcome it has not ended within the wait. */
  result(taskId: string, waitS = 0, signal?: AbortSignal): Promise<TaskResult> {
    return this.#again('GET', `tasks/${encodeURIComponent(taskId)}/result?wait_s=${waitS}`, undefined, signal)
  }

  /**
   * Send a request until it is answered, or the signal ends it. Every request of this client may be
   * repeated: a unique key makes one task of two puts, and a second answer for a receipt is refused.
   */
  async #again<T>(method: string, path: string, body: unknown, signal?: AbortSignal): Promise<T> {
    for (let pauseMs = this.#pauseMs; ; pauseMs = Math.min(2 * pauseMs, PAUSE_MS_MAX)) {
      let afterMs = 0
      try {
        const answer = await this.#once(method, path, body, signal)
        if (answer.ok) return answer.found as T
        const { error = 'no_word', message = 'the answer is not from late' } = answer.found as Partial<Schemas['Error']>
        if (answer.status !== 429 && answer.status < 500) throw new Refused(answer.status, error, message)
        afterMs = answer.afterMs
      } catch (error) {
        if (error instanceof Refused || signal?.aborted) throw error
      }
      await sleep(afterMs + Math.random() * pauseMs, undefined, signal ? { signal } : {})
    }
  }

  async #once(method: string, path: string, body: unknown, signal?: AbortSignal) {
    const limit = AbortSignal.timeout(REQUEST_MS)
    const answer = await fetch(`${this.#url}/v1/${path}`, {
      method,
      headers: this.#headers,
      ...(body === undefined ? {} : { body: stringify(body) }),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    })
    const text = await answer.text()
    let found: unknown = {}
    try {
      if (text) found = parse(text)
    } catch (error) {
      // A proxy's page says nothing about the task.
      if (answer.ok) throw error
    }
    const { ok, status } = answer
    return { ok, status, found, afterMs: 1_000 * Number(answer.headers.get('retry-after') ?? 0) }
  }
}
