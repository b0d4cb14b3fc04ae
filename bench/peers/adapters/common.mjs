// What the adapters for Node.js share: the same commands as common.py, which explains them.

import fs from 'node:fs'
import { performance } from 'node:perf_hooks'
import pg from 'pg'

export const URL = process.env.BENCH_URL ?? ''
export const NOTE = 'x'.repeat(Number(process.env.BENCH_NOTE ?? 100))
export const BUSINESS = "insert into business values ($1, 'order')"
export const update = (n) => `update business set note = 'paid' where id = ${n % 1000}`
const BATCH = 1000
const SEEN_EVERY = 200

// Nanoseconds since 1970, to a few microseconds: `Date.now()` has milliseconds only.
const now = () => BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000)) * 1000n

// The mix of options, number by number: the arithmetic of mix.py, which explains it.
const KEYS = 200
export const failsFirst = (n) => Math.floor(n * 2654435761 / 256) % 20 === 1
export const isDelayed = (n) => n % 10 === 0
export function mixed (n) {
  if (isDelayed(n)) return { delay: 1 + Math.floor(n / 10) % 41 / 10 }
  if (n % 4 === 1) return { key: `k${Math.floor(n / 4) % KEYS}` }
  return { priority: n % 3, unique: `u${n}` }
}

const file = fs.openSync(process.env.BENCH_MARKS ?? '/dev/null', 'a')
let count = 0

export const marks = {
  nothing () {
    count += 1
    if (count === 1) fs.writeSync(file, `first ${now()}\n`)
    if (count % SEEN_EVERY === 0) fs.writeSync(file, `seen ${SEEN_EVERY}\n`)
  },
  stamp (number) {
    fs.writeSync(file, `${number} ${now()}\n`)
  }
}

export const payload = (n) => ({ n, note: NOTE })

export async function connected () {
  const client = new pg.Client({ connectionString: URL })
  await client.connect()
  return client
}

// `run(client)` between begin and commit; a failure ends the program, and with it the connection.
export async function transaction (client, run) {
  await client.query('begin')
  await run(client)
  await client.query('commit')
}

const range = (from, to, step = 1) =>
  Array.from({ length: Math.max(0, Math.ceil((to - from) / step)) }, (_, i) => from + i * step)

async function bulk (adapter, first, total, task = 'nothing', start = 0) {
  const client = await adapter.client()
  const began = performance.now()
  for (let from = first; from < first + total; from += BATCH) {
    await client.bulk(range(from, Math.min(from + BATCH, first + total)), task, Number(start))
  }
  const seconds = (performance.now() - began) / 1000
  await client.close()
  return { seconds }
}

async function single (adapter, total, clients) {
  const all = await Promise.all(range(0, clients).map(() => adapter.client()))
  const began = performance.now()
  await Promise.all(all.map(async (client, first) => {
    for (const number of range(first, total, clients)) await client.single(number, 'nothing')
  }))
  const seconds = (performance.now() - began) / 1000
  await Promise.all(all.map((client) => client.close()))
  return { seconds }
}

async function produce (adapter, rate, seconds, path, task = 'stamp') {
  const clients = Math.max(1, Math.floor(rate / 250))
  const share = rate / clients
  const all = await Promise.all(range(0, clients).map(() => adapter.client()))
  const began = performance.now()
  const committed = await Promise.all(all.map(async (client, first) => {
    const lines = []
    for (let turn = 0; turn < Math.floor(share * seconds); turn += 1) {
      const wait = began + turn / share * 1000 - performance.now()
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait))
      const number = first + turn * clients
      await client.single(number, task)
      lines.push(`${number} ${now()}\n`)
    }
    return lines
  }))
  fs.writeFileSync(path, committed.flat().join(''))
  await Promise.all(all.map((client) => client.close()))
  return {}
}

async function work (adapter) {
  const stopped = new Promise((resolve) => process.once('SIGTERM', resolve))
  const stop = await adapter.work()
  await stopped
  await stop()
  return {}
}

export async function main (adapter) {
  const [command, ...rest] = process.argv.slice(2)
  const commands = {
    prepare: async () => {
      await adapter.prepare()
      return { versions: { ...adapter.versions(), node: process.versions.node } }
    },
    bulk: () => bulk(adapter, Number(rest[0]), Number(rest[1]), ...rest.slice(2)),
    single: () => single(adapter, Number(rest[0]), Number(rest[1])),
    produce: () => produce(adapter, Number(rest[0]), Number(rest[1]), rest[2], rest[3]),
    work: () => work(adapter)
  }
  if (!(command in commands)) throw new Error(`no such command: ${command}`)
  const answer = await commands[command]()
  // Pools of the peers may keep the process alive; what it had to say has been said.
  process.stdout.write(JSON.stringify(answer) + '\n', () => process.exit(0))
}

export const versionOf = (name) =>
  JSON.parse(fs.readFileSync(`node_modules/${name}/package.json`, 'utf8')).version
