// graphile-worker, with the configuration that its page on performance shows its best numbers
// with: 24 jobs at once, a local queue, here of 2,000, and completions in batches. Jobs of a transaction go in through
// the SQL function `add_job`, as its page on adding jobs through SQL says.

import { makeWorkerUtils, run } from 'graphile-worker'
import {
  BUSINESS, URL, connected, failsFirst, isDelayed, main, marks, mixed, payload, transaction, update,
  versionOf
} from './common.mjs'

const preset = {
  worker: {
    connectionString: URL,
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 2000 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0
  }
}

// What a job of the mix asks for: a named queue for its key, a job key for its unique one.
function asked (n, start) {
  const { delay, key, priority, unique } = mixed(n)
  return {
    priority,
    jobKey: unique,
    queueName: key,
    runAt: delay === undefined ? undefined : new Date((start + delay) * 1000)
  }
}

class Client {
  constructor (utils, client) {
    this.utils = utils
    this.client = client
  }

  async bulk (numbers, task, start) {
    const options = task === 'mixed' ? (n) => asked(n, start) : () => ({})
    await this.utils.addJobs(
      numbers.map((n) => ({ identifier: task, payload: payload(n), ...options(n) }))
    )
  }

  async single (number, task) {
    await transaction(this.client, async (client) => {
      await client.query(BUSINESS, [number])
      await client.query(
        'select graphile_worker.add_job($1, $2::json)', [task, JSON.stringify(payload(number))]
      )
    })
  }

  async close () {
    await this.utils.release()
    await this.client.end()
  }
}

await main({
  versions: () => ({ 'graphile-worker': versionOf('graphile-worker'), pg: versionOf('pg') }),
  async prepare () {
    const utils = await makeWorkerUtils({ preset })
    await utils.migrate()
    await utils.release()
  },
  async client () {
    return new Client(await makeWorkerUtils({ preset }), await connected())
  },
  async work () {
    const runner = await run({
      preset,
      noHandleSignals: true,
      taskList: {
        nothing: async () => marks.nothing(),
        stamp: async ({ n }) => marks.stamp(n),
        update: async ({ n }, helpers) => {
          marks.nothing()
          await helpers.query(update(n))
        },
        mixed: async ({ n }, { job }) => {
          marks.nothing()
          if (job.attempts > 1) return
          if (isDelayed(n)) marks.stamp(n)
          if (failsFirst(n)) throw new Error('as it was told to')
        }
      }
    })
    return () => runner.stop()
  }
})
