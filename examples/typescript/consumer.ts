// A consumer: LATE_URL=http://127.0.0.1:7280 LATE_QUEUE=payments node consumer.ts
//
// Its handlers are those that `python -m tests.consumers` asks for; yours take their place.
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, type Pulled } from './late/client.ts'
import { consume, Outcome, type Handler } from './late/consumer.ts'

const env = process.env

const handlers: Record<string, Handler> = {
  // It takes as long as it is asked to. A later attempt finds that nothing is left to do.
  async work(task, signal) {
    const { seconds = 0 } = task.payload as { seconds?: number }
    if (task.attempt === 1) await sleep(1_000 * seconds, undefined, { signal })
  },
  async echo(task) {
    return task.payload
  },
  async flaky(task) {
    const { until_attempt, after_s } = task.payload as { until_attempt: number, after_s: number }
    if (task.attempt < until_attempt) throw new Outcome('retry', { after_s, reason: 'not yet' })
  },
  async broken(task) {
    const { reason } = task.payload as { reason: string }
    throw new Outcome('fail', { reason })
  },
}

/** Write a line as an attempt begins, and one as its work is done. */
function told(handler: Handler): Handler {
  const tell = (event: string, task: Pulled) =>
    console.log(JSON.stringify({ [event]: task.task_id, attempt: task.attempt }))
  return async (task, signal) => {
    tell('began', task)
    try {
      return await handler(task, signal)
    } finally {
      tell('ended', task)
    }
  }
}

const stop = new AbortController()
for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, () => stop.abort())
try {
  await consume({
    client: new Client(env.LATE_URL ?? 'http://127.0.0.1:7280', { token: env.LATE_TOKEN }),
    queue: env.LATE_QUEUE ?? 'payments',
    handlers: Object.fromEntries(Object.entries(handlers).map(([name, each]) => [name, told(each)])),
    name: env.LATE_CONSUMER,
    concurrency: 4,
    visibilityS: Number(env.LATE_VISIBILITY_S ?? 30),
    graceS: Number(env.LATE_GRACE_S ?? 20),
  }, stop.signal)
} catch (error) {
  console.error(String(error))
  process.exit(1)
}
// A handler that goes on although its signal says otherwise must not hold up the end.
process.exit(0)
