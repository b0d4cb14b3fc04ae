// A service in Node that executes tasks of late: no packages, only what Node brings.
//
//   LATE_SECRET=whsec_... PORT=7100 node handler.mjs
//
// late sends every attempt as a POST, signed as the Standard Webhooks specification says
// (https://www.standardwebhooks.com). Its answer says how the attempt ended:
//   200          done; a JSON body {"result": ...} gives its result, {"outcome": "retry" |
//                "snooze" | "discard" | "fail" | "not_capable", "after_s": 30, "reason": "..."}
//                says otherwise
//   400, 422     failed for good: a dead letter
//   429, 503     too much to do: again later, not before `retry-after`
//   500          failed: again later
import { createHmac, timingSafeEqual } from "node:crypto";
import { realpathSync } from "node:fs";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const BODY_BYTES_MAX = 2 * 1024 * 1024;
const TOLERANCE_S = 300;

// What this service can do: by the task's name, with the task's arguments.
const handlers = {
  async greet({ name }, task) {
    console.log(JSON.stringify({ greeted: name, attempt: task.attempt, key: task.key }));
  },
  async flaky({ until_attempt }, task) {
    if (task.attempt < until_attempt) return { outcome: "retry", after_s: 0.05, reason: "not yet" };
    console.log(JSON.stringify({ flaky: "done", attempt: task.attempt, key: task.key }));
  },
  async broken() {
    throw new Error("this one always fails");
  },
};

// Whether `body` was signed with one of the secrets, and not long ago.
export function verify(headers, body, secrets, nowS = Date.now() / 1000) {
  const id = headers["webhook-id"] ?? "";
  const timestamp = headers["webhook-timestamp"] ?? "";
  if (!id || !/^\d{1,12}$/.test(timestamp)) return false;
  if (Math.abs(nowS - Number(timestamp)) > TOLERANCE_S) return false;
  const given = (headers["webhook-signature"] ?? "").split(" ").slice(0, 16);
  let fits = false;
  for (const secret of secrets) {
    const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
    const mac = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body);
    const wanted = Buffer.from(`v1,${mac.digest("base64")}`);
    for (const text of given) {
      const found = Buffer.from(text);
      if (found.length === wanted.length && timingSafeEqual(found, wanted)) fits = true;
    }
  }
  return fits;
}

async function bodyOf(request) {
  const parts = [];
  let size = 0;
  for await (const part of request) {
    size += part.length;
    if (size > BODY_BYTES_MAX) return null;
    parts.push(part);
  }
  return Buffer.concat(parts);
}

// Status and JSON body for one request.
async function execute(request, secrets) {
  if (request.method !== "POST") return [405, { reason: "POST only" }];
  const body = await bodyOf(request);
  if (body === null) return [413, { reason: "too long" }];
  // Before anything else is done with the body.
  if (!verify(request.headers, body, secrets)) return [401, { reason: "no signature fits" }];
  const { type, data, task } = JSON.parse(body.toString());
  if (!Object.hasOwn(handlers, type)) return [200, { outcome: "not_capable", reason: type }];
  // The same for every attempt of a task: what was done under this key need not be done again.
  const key = request.headers["idempotency-key"];
  return [200, (await handlers[type](data, { ...task, key })) ?? { outcome: "done" }];
}

export function serve(secrets, port, host = "127.0.0.1") {
  const server = createServer(async (request, response) => {
    let [status, text] = [500, ""];
    try {
      const [found, answer] = await execute(request, secrets);
      // A result that is no JSON is a failed attempt too.
      [text, status] = [JSON.stringify(answer), found];
    } catch (error) {
      text = JSON.stringify({ reason: String(error?.message ?? error) });
    }
    response.writeHead(status, { "content-type": "application/json" });
    response.end(text);
  });
  server.listen(port, host, () => console.log(JSON.stringify({ port: server.address().port })));
  process.once("SIGTERM", () => server.close(() => process.exit(0)));
  return server;
}

if (import.meta.url === pathToFileURL(realpathSync(process.argv[1])).href) {
  const secrets = (process.env.LATE_SECRET ?? "").split(" ").filter(Boolean);
  if (secrets.length === 0) {
    console.error("LATE_SECRET is not set: anybody could send tasks");
    process.exit(2);
  }
  const port = Number(process.env.PORT ?? 7100);
  serve(secrets, port).once("error", (error) => {
    console.error(`cannot listen on port ${port}: ${error.message}`);
    process.exit(1);
  });
}
