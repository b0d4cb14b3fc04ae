// pg-boss: four workers of whole batches that fetch on while batches are full, and NOTIFY for queues that
// are idle, both as the documentation of its options describes them; jobs of a transaction through
// the option `db`, as its page on jobs says.

import pg from 'pg'
import { PgBoss } from 'pg-boss'
import {
  BUSINESS, URL, connected, main, marks, payload, transaction, update, versionOf
} from './common.mjs'

const QUEUES = ['nothing', 'stamp', 'update']
const POOL = 20
const WORK = { localConcurrency: 4, batchSize: 5000, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }

async function started (options = {}) {
  const boss = new PgBoss({ connectionString: URL, ...options })
  boss.on('error', (error) => console.error(error))
  await boss.start()
  return boss
}

class Client {
  constructor (boss, client) {
    this.boss = boss
    this.client = client
    this.db = { executeSql: (text, values) => client.query(text, values) }
  }

  async bulk (numbers, task) {
    await this.boss.insert(task, numbers.map((n) => ({ data: payload(n) })))
  }

  async single (number, task) {
    await transaction(this.client, async (client) => {
      await client.query(BUSINESS, [number])
      await this.boss.send(task, payload(number), { db: this.db })
    })
  }

  async close () {
    await this.boss.stop({ graceful: false })
    await this.client.end()
  }
}

await main({
  versions: () => ({ 'pg-boss': versionOf('pg-boss'), pg: versionOf('pg') }),
  async prepare () {
    const boss = await started({ supervise: false, schedule: false })
    for (const name of QUEUES) await boss.createQueue(name, { notify: true })
    await boss.stop({ graceful: false })
  },
  async client () {
    // A producer neither supervises nor schedules: its workers do.
    const options = { supervise: false, schedule: false, migrate: false }
    return new Client(await started(options), await connected())
  },
  async work () {
    const boss = await started({ useListenNotify: true })
    await boss.work('nothing', WORK, async (jobs) => jobs.forEach(() => marks.nothing()))
    await boss.work('stamp', WORK, async (jobs) => jobs.forEach((job) => marks.stamp(job.data.n)))
    const pool = new pg.Pool({ connectionString: URL, max: POOL })
    const pay = (job) => {
      marks.nothing()
      return pool.query(update(job.data.n))
    }
    await boss.work('update', WORK, (jobs) => Promise.all(jobs.map(pay)))
    return () => boss.stop()
  }
})
