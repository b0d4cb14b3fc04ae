// A service in Node that executes tasks of late over gRPC: late.GrpcTarget("node", ["127.0.0.1:7101"]).
//
//   npm install
//   LATE_PROTO=../../proto PORT=7101 node grpc-handler.mjs
//
// LATE_PROTO is the folder that has late/v1/handler.proto. With LATE_TOKEN in the environment only a
// caller with that token is served: GrpcTarget(..., token="env:NODE_TOKEN"). It listens on this machine
// alone; another address takes TLS, by ServerCredentials.createSsl.
//
// An answer says how the attempt ended: nothing for done, else one of `done` (with a result), `retry`,
// `snooze`, `discard`, `fail` and `not_capable`. An error's status says the rest (handler.proto).
import { timingSafeEqual } from "node:crypto";
import { realpathSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

// What this service can do: by the task's name, with the task's arguments.
const handlers = {
  async greet({ name }, task) {
    console.log(JSON.stringify({ greeted: name, attempt: task.attempt, key: task.key }));
  },
  async total({ prices }) {
    return { done: { result: Buffer.from(JSON.stringify(prices.reduce((sum, one) => sum + one, 0))) } };
  },
  async flaky({ until_attempt }, task) {
    if (task.attempt < until_attempt) {
      return { retry: { after: { nanos: 50_000_000 }, reason: "not yet" } };
    }
    console.log(JSON.stringify({ flaky: "done", attempt: task.attempt, key: task.key }));
  },
  async broken() {
    throw new Error("this one always fails");
  },
};

// The standard health service: an endpoint that says NOT_SERVING gets no more tasks.
const [SERVING, NOT_SERVING] = [1, 2];
const HEALTH = {
  nested: {
    grpc: { nested: { health: { nested: { v1: { nested: {
      Ask: { fields: { service: { type: "string", id: 1 } } },
      Answer: { fields: { status: { type: "int32", id: 1 } } },
      Health: { methods: { Check: { requestType: "Ask", responseType: "Answer" } } },
    } } } } } },
  },
};

function refused(code, details) {
  return Object.assign(new Error(details), { code, details });
}

function admits(metadata, token) {
  if (!token) return true;
  const wanted = Buffer.from(`Bearer ${token}`);
  const given = Buffer.from(String(metadata.get("authorization")[0] ?? ""));
  return given.length === wanted.length && timingSafeEqual(given, wanted);
}

// One attempt: the answer, or an error with a status code.
async function execute({ request, metadata }, token) {
  const { task, idempotency_key } = request;
  if (!admits(metadata, token)) throw refused(grpc.status.UNAUTHENTICATED, "not this token");
  if (!Object.hasOwn(handlers, task.name)) return { not_capable: { reason: task.name } };
  let data;
  try {
    data = JSON.parse(task.payload.toString());
  } catch {
    throw refused(grpc.status.INVALID_ARGUMENT, "the payload is not JSON");
  }
  // The key is the same for every attempt of a task: what was done under it need not be done again.
  return (await handlers[task.name](data, { ...task, key: idempotency_key })) ?? { done: {} };
}

export function serve(protos, port, { host = "127.0.0.1", token } = {}) {
  const options = { keepCase: true, includeDirs: [protos] };
  const made = loader.loadSync("late/v1/handler.proto", options);
  const late = grpc.loadPackageDefinition(made).late.v1;
  const health = grpc.loadPackageDefinition(loader.fromJSON(HEALTH)).grpc.health.v1;
  const server = new grpc.Server();
  let status = SERVING;
  server.addService(health.Health.service, { Check: (_, answer) => answer(null, { status }) });
  server.addService(late.Handler.service, {
    Execute: (call, answer) => execute(call, token).then(
      (ended) => answer(null, ended),
      (error) => answer(error.code ? error : refused(grpc.status.UNKNOWN, String(error.message))),
    ),
  });
  // What runs may end; nothing new comes, for the callers see NOT_SERVING within two seconds.
  process.once("SIGTERM", () => {
    status = NOT_SERVING;
    setTimeout(() => server.tryShutdown(() => process.exit(0)), 3_000);
  });
  return new Promise((resolve, reject) => {
    server.bindAsync(`${host}:${port}`, grpc.ServerCredentials.createInsecure(), (error, bound) => {
      if (error) return reject(error);
      console.log(JSON.stringify({ port: bound }));
      resolve(server);
    });
  });
}

if (import.meta.url === pathToFileURL(realpathSync(process.argv[1])).href) {
  const protos = process.env.LATE_PROTO ?? fileURLToPath(new URL("../../proto", import.meta.url));
  const port = Number(process.env.PORT ?? 7101);
  serve(protos, port, { token: process.env.LATE_TOKEN }).catch((error) => {
    console.error(`cannot serve on port ${port}: ${error.message}`);
    process.exit(1);
  });
}
