// A producer: LATE_URL=http://127.0.0.1:7280 node producer.ts payments charge '{"trip": 7}' trip-7
//
// With a unique key the task is there once, however often it is put.
import { Client, type Put } from './late/client.ts'
import { parse } from './late/json.ts'

const PATIENCE_MS = 30_000

const [queue, name, payload = '{}', uniqueKey] = process.argv.slice(2)
if (!queue || !name) {
  console.error('usage: node producer.ts QUEUE NAME [PAYLOAD-JSON [UNIQUE-KEY]]')
  process.exit(2)
}
try {
  const task: Put = { name, payload: parse(payload) as Record<string, unknown> }
  if (uniqueKey) task.unique_key = uniqueKey
  const client = new Client(process.env.LATE_URL ?? 'http://127.0.0.1:7280', { token: process.env.LATE_TOKEN })
  console.log(JSON.stringify(await client.put(queue, task, AbortSignal.timeout(PATIENCE_MS))))
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error))
  process.exit(1)
}
