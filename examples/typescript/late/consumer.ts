// The loop of a consumer: it takes tasks, keeps them while they run, and answers.
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, Refused, type Nack, type Pulled } from './client.ts'
import { stringify } from './json.ts'

/**
 * What does one task. A value that it returns is the task's result, an error is a failed attempt, and
 * an `Outcome` that it throws says what is to become of the task. The signal tells that the task is no
 * longer this consumer's.
 */
export type Handler = (task: Pulled, signal: AbortSignal) => Promise<unknown>

type Answer = Omit<Nack, 'receipt'>
/** How an attempt ended. */
type End = { result?: unknown } | { error: unknown }

/** An end of an attempt other than done: `new Outcome('retry', { after_s: 30, reason: 'busy' })`. */
export class Outcome extends Error {
  readonly answer: Answer

  constructor(outcome: NonNullable<Nack['outcome']>, more: Omit<Answer, 'outcome'> = {}) {
    super(more.reason ?? outcome)
    this.answer = { outcome, ...more }
  }
}

export interface Settings {
  client: Client
  queue: string
  handlers: Record<string, Handler>
  /** What tells this consumer from others: the server gives what it cannot do to those. */
  name?: string | undefined
  /** The most tasks at a time. */
  concurrency?: number
  /** How long a task may stay without a word. */
  visibilityS?: number
  /** How long running tasks may go on after `signal`. */
  graceS?: number
}

const WAIT_S = 20
const ANSWER_MS = 30_000
const REASON_MAX = 4_096

/**
 * Work until `signal`. Then nothing more is taken, running tasks may end within `graceS`, and the
 * others are given back. Throws `Refused` if the server refuses this consumer.
 */
export async function consume(settings: Settings, signal: AbortSignal): Promise<void> {
  const { concurrency = 1, graceS = 20 } = settings
  const broken = new AbortController()
  const stop = AbortSignal.any([signal, broken.signal])
  const hurry = new AbortController()
  stop.addEventListener('abort', () => setTimeout(() => hurry.abort(), 1_000 * graceS).unref(), { once: true })
  const loops = Array.from({ length: concurrency }, () => take(settings, stop, hurry.signal).catch((error) => {
    broken.abort()
    throw error
  }))
  const ends = await Promise.allSettled(loops)
  for (const end of ends) if (end.status === 'rejected') throw end.reason
}

async function take(settings: Settings, stop: AbortSignal, hurry: AbortSignal): Promise<void> {
  const { client, queue, name = '', visibilityS = 30 } = settings
  while (!stop.aborted) {
    let tasks: Pulled[] = []
    try {
      tasks = await client.receive(queue, { consumer: name, wait_s: WAIT_S, visibility_s: visibilityS }, stop)
    } catch (error) {
      if (!stop.aborted) throw error
    }
    for (const task of tasks) await work(settings, task, hurry)
  }
}

/** Work on one task, extend its visibility meanwhile, and answer at the end. */
async function work(settings: Settings, task: Pulled, hurry: AbortSignal): Promise<void> {
  const { client, handlers, visibilityS = 30 } = settings
  const handler = Object.hasOwn(handlers, task.name) ? handlers[task.name] : undefined
  if (!handler) return answer(client, task, { error: new Outcome('not_capable', { reason: task.name }) })
  const over = new AbortController()
  const attempt = ended(handler, task, over.signal)
  try {
    for (;;) {
      const next = await Promise.race([attempt, tick(visibilityS / 3, hurry, over.signal)])
      if (typeof next === 'object') return await answer(client, task, next)
      if (next === 'hurry') {
        return await answer(client, task, { error: new Outcome('snooze', { after_s: 0, reason: 'the consumer stops' }) })
      }
      if (!await extended(client, task, visibilityS)) return console.error(`task ${task.task_id} is no longer ours`)
    }
  } finally {
    over.abort()
  }
}

/** Run the handler. A result that is no JSON is a failure of the attempt, as an error is. */
async function ended(handler: Handler, task: Pulled, signal: AbortSignal): Promise<End> {
  try {
    const result = await handler(task, signal)
    stringify({ result })
    return { result }
  } catch (error) {
    return { error }
  }
}

/** Wait for the next extension, or for the end of the consumer's patience. */
async function tick(seconds: number, hurry: AbortSignal, over: AbortSignal): Promise<'extend' | 'hurry'> {
  try {
    await sleep(1_000 * seconds, undefined, { signal: AbortSignal.any([hurry, over]) })
    return 'extend'
  } catch {
    return 'hurry'
  }
}

/** Ask for more time; false if the task is somebody else's now. */
async function extended(client: Client, task: Pulled, visibilityS: number): Promise<boolean> {
  const limit = AbortSignal.timeout(Math.ceil(1_000 * visibilityS / 3))
  try {
    await client.extend({ receipt: task.receipt, visibility_s: visibilityS }, limit)
  } catch (error) {
    if (error instanceof Refused && error.isStale) return false
    console.error(`task ${task.task_id}: not extended: ${error}`)
  }
  return true
}

/**
 * Tell the server how the attempt ended. That the receipt is stale is no error: either an answer
 * before this one was lost on its way back, or another consumer has the task. A result that the
 * server refuses, as one that is too large, is a failure of the attempt.
 */
async function answer(client: Client, task: Pulled, end: End): Promise<void> {
  const limit = AbortSignal.timeout(ANSWER_MS)
  try {
    await sent(client, task, end, limit)
  } catch (failed) {
    if (failed instanceof Refused && failed.isStale) return
    if (failed instanceof Refused && !('error' in end)) return answer(client, task, { error: failed })
    console.error(`task ${task.task_id}: the answer is lost, and it will come again: ${failed}`)
  }
}

async function sent(client: Client, { receipt }: Pulled, end: End, limit: AbortSignal): Promise<void> {
  if (!('error' in end)) {
    return client.ack(end.result === undefined ? { receipt } : { receipt, result: end.result }, limit)
  }
  const { error } = end
  const said: Answer = error instanceof Outcome ? error.answer : { reason: String(error) }
  const reason = said.reason == null ? {} : { reason: said.reason.slice(0, REASON_MAX) }
  return client.nack({ receipt, ...said, ...reason }, limit)
}
