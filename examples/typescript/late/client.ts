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
// A single lost connection is nothing to tell: the next try comes at once.
const TRIES_UNTOLD = 1

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

/** No answer came before the signal ended the request. Its name is that of the signal's reason. */
export class NoAnswer extends Error {
  constructor(reason: unknown, last: string) {
    const { name = 'AbortError', message = String(reason) } = reason instanceof Error ? reason : {}
    super(`${message}; the last try failed: ${last}`, { cause: reason })
    this.name = name
  }
}

export interface Options {
  token?: string | undefined
  /** The pause before the second try, which doubles up to 5 s. */
  pauseMs?: number
  /** Is told once when the server does not answer, and once when it answers again. */
  tell?: (text: string) => void
}

export class Client {
  readonly #url: string
  readonly #headers: Record<string, string>
  readonly #pauseMs: number
  readonly #tell: (text: string) => void
  #isAway = false

  constructor(url: string, { token, pauseMs = 100, tell = console.error }: Options = {}) {
    const { protocol } = URL.canParse(url) ? new URL(url) : { protocol: '' }
    if (!/^https?:$/.test(protocol)) throw new TypeError(`not the URL of a server, as http://127.0.0.1:7280 is: ${url}`)
    this.#url = url.replace(/\/+$/, '')
    this.#headers = { 'content-type': 'application/json' }
    // `fetch` would repeat a token that it refuses in its error.
    if (token && /[^\x21-\x7e]/.test(token)) throw new TypeError('the token has characters that no token has')
    if (token) this.#headers['authorization'] = `Bearer ${token}`
    this.#pauseMs = pauseMs
    this.#tell = tell
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
   * What no other try would change is thrown at once: a refusal, or a body that is no JSON.
   */
  async #again<T>(method: string, path: string, body: unknown, signal?: AbortSignal): Promise<T> {
    const text = body === undefined ? undefined : stringify(body)
    let last = ''
    for (let tried = 0; ; tried += 1) {
      let [afterMs, isAnswered] = [0, false]
      try {
        const answer = await this.#once(method, path, text, signal)
        isAnswered = answer.status < 500
        if (isAnswered) this.#back()
        if (answer.ok) return answer.found as T
        const refused = refusal(answer.status, answer.found)
        if (isAnswered && answer.status !== 429) throw refused
        afterMs = answer.afterMs
        last = refused.message
      } catch (error) {
        if (error instanceof Refused) throw error
        if (!mayHeal(error)) throw new Error(said(error), { cause: error })
        if (!signal?.aborted) last = said(error)
      }
      if (last && !isAnswered && tried >= TRIES_UNTOLD) this.#away(last)
      const pauseMs = Math.min(this.#pauseMs * 2 ** tried, PAUSE_MS_MAX)
      try {
        await sleep(afterMs + Math.random() * pauseMs, undefined, signal ? { signal } : {})
      } catch {
        throw last ? new NoAnswer(signal?.reason, last) : signal?.reason
      }
    }
  }

  #away(why: string): void {
    if (!this.#isAway) this.#tell(`no answer from ${this.#url}, trying again until there is one: ${why}`)
    this.#isAway = true
  }

  #back(): void {
    if (this.#isAway) this.#tell(`${this.#url} answers again`)
    this.#isAway = false
  }

  async #once(method: string, path: string, body: string | undefined, signal?: AbortSignal) {
    const limit = AbortSignal.timeout(REQUEST_MS)
    const answer = await fetch(`${this.#url}/v1/${path}`, {
      method,
      headers: this.#headers,
      ...(body === undefined ? {} : { body }),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    })
    const text = await answer.text()
    let found: unknown = {}
    try {
      if (text) found = parse(text)
    } catch (error) {
      // A proxy's page says nothing about the task.
      if (answer.ok) throw new Error('the answer is not from late', { cause: error })
    }
    const { ok, status } = answer
    return { ok, status, found, afterMs: 1_000 * Number(answer.headers.get('retry-after') ?? 0) }
  }
}

function refusal(status: number, found: unknown): Refused {
  const { error = 'no_word', message = 'the answer is not from late' } = found as Partial<Schemas['Error']>
  return new Refused(status, error, message)
}

/** Tell whether another try may succeed. Of the errors of `fetch`, those of the network have a code. */
function mayHeal(error: unknown): boolean {
  if (!(error instanceof TypeError)) return true
  const code: unknown = (error.cause as { code?: unknown } | undefined)?.code
  return typeof code === 'string' && !code.startsWith('ERR_INVALID')
}

/** Return what went wrong. What `fetch` says by itself is only that it failed. */
function said(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const cause = error.cause as { message?: string, code?: string } | undefined
  return [error.message, cause?.message || cause?.code].filter(Boolean).join(': ')
}
