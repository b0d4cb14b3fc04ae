// JSON whose integers stay what they are: one that a number would round is a bigint.

declare global {
  interface JSON {
    rawJSON(text: string): object
    parse(text: string, reviver: (key: string, value: unknown, context: { source?: string }) => unknown): unknown
  }
}

// Without it the first bigint would fail, in the middle of an answer.
if (typeof JSON.rawJSON !== 'function') {
  throw new Error(`late's client needs Node 22.18 or newer, and this is ${process.version}`)
}

const INTEGER = /^-?\d+$/

export function parse(text: string): unknown {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== 'number' || Number.isSafeInteger(value)) return value
    const source = context.source
    return source !== undefined && INTEGER.test(source) ? BigInt(source) : value
  })
}

export function stringify(value: unknown): string {
  return JSON.stringify(value, (_, each) => typeof each === 'bigint' ? JSON.rawJSON(String(each)) : each)
}
