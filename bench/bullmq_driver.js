// BullMQ on node, default job options: finished jobs and their results are kept.
// Without arguments it is the driver and speaks the line protocol of driver.py; `worker N` runs N worker processes.
"use strict";
const cluster = require("node:cluster");
const fs = require("node:fs");
const readline = require("node:readline");
const { FlowProducer, Queue, QueueEvents, Worker } = require("bullmq");

const CONCURRENCY = 50;
const BULK_SIZE = 1000;
const RESULT_TIMEOUT_MS = 10_000;
const PAUSE_MS = 3;
const MAP_TIMEOUT_MS = 200_000;
const FLOWS_PER_CALL = 50;

// A job is done when its children are: the innermost one begins.
function chain(steps) {
  let job = { name: "noop", queueName: "bench", data: {} };
  for (let i = 1; i < steps; i++) job = { name: "noop", queueName: "bench", data: {}, children: [job] };
  return job;
}

const url = new URL(process.env.BENCH_REDIS_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };

function work() {
  const effects = fs.openSync(process.env.BENCH_EFFECTS, "a");
  const noop = async (job) => (job.name === "gather" ? 1 : fs.writeSync(effects, "."));
  const worker = new Worker("bench", noop, { connection, concurrency: CONCURRENCY });
  worker.on("error", (error) => console.error(error));
  process.on("SIGTERM", () => worker.close().then(() => process.exit(0)));
}

async function drive() {
  const queue = new Queue("bench", { connection });
  const events = new QueueEvents("bench", { connection });
  const flows = new FlowProducer({ connection });
  await Promise.all([queue.waitUntilReady(), events.waitUntilReady()]);
  const verbs = {
    worker_command: (processes) => [process.execPath, __filename, "worker", String(processes)],
    async enqueue_one(n) {
      for (let i = 0; i < n; i++) await queue.add("noop", {});
    },
    async enqueue_bulk(n) {
      for (let left = n; left > 0; left -= BULK_SIZE) {
        await queue.addBulk(Array.from({ length: Math.min(BULK_SIZE, left) }, () => ({ name: "noop", data: {} })));
      }
    },
    async chains(n) {
      for (let left = n; left > 0; left -= FLOWS_PER_CALL) {
        await flows.addBulk(Array.from({ length: Math.min(FLOWS_PER_CALL, left) }, () => chain(10)));
      }
    },
    // The parent ends without reading what its children gave.
    async scatter(n) {
      const children = Array.from({ length: n }, () => ({ name: "noop", queueName: "bench", data: {} }));
      const flow = await flows.add({ name: "gather", queueName: "bench", data: {}, children });
      await flow.job.waitUntilFinished(events, MAP_TIMEOUT_MS);
    },
    async latency(n) {
      const samples = [];
      for (let i = 0; i < n; i++) {
        await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
        const start = performance.now();
        const job = await queue.add("noop", {});
        await job.waitUntilFinished(events, RESULT_TIMEOUT_MS);
        samples.push(performance.now() - start);
      }
      return samples;
    },
  };
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, ...args] = JSON.parse(line);
    const reply = await Promise.resolve()
      .then(() => verbs[verb](...args))
      .then((value) => ({ value: value ?? null }), (error) => ({ error: String(error) }));
    process.stdout.write(JSON.stringify(reply) + "\n");
  }
  process.exit(0);
}

const [role, processes] = process.argv.slice(2);
if (role !== "worker") {
  drive();
} else if (cluster.isPrimary && processes !== "1") {
  for (let i = 0; i < Number(processes); i++) cluster.fork();
} else {
  work();
}
