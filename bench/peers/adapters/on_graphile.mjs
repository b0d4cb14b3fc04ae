// graphile-worker, with the configuration that its page on performance shows its best numbers
// with: 24 jobs at once, a local queue, completions in batches. Jobs of a transaction go in through
// the SQL function `add_job`, as its page on adding jobs through SQL says.

import { makeWorkerUtils, run } from 'graphile-worker'
import { BUSINESS, URL, connected, main, marks, payload, transaction, versionOf } from './common.mjs'

const preset = {
  worker: {
    connectionString: URL,
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0
  }
}

class Client {
  constructor (utils, client) {
    this.utils = utils
    this.client = client
  }

  async bulk (numbers) {
    await this.utils.addJobs(numbers.map((n) => ({ identifier: 'nothing', payload: payload(n) })))
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
        stamp: async ({ n }) => marks.stamp(n)
      }
    })
    return () => runner.stop()
  }
})
