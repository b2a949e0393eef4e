import assert from "node:assert/strict";
import { test } from "node:test";
import { MinionsClient, MinionsError } from "../dist/index.js";

const ACCEPTED = { run_id: "run_1", session_id: "ses_1", status: "running", links: {} };

/** A client whose requests get these answers, in turn, and what it asked and waited for. */
function clientOf(...answers) {
  const requests = [];
  const waits = [];
  const client = new MinionsClient({
    url: "http://minions.example/base/",
    token: () => "a token",
    fetch: async (url, init) => {
      requests.push({ url: String(url), ...init });
      assert.notEqual(answers.length, 0, `nobody expected ${init.method} ${url}`);
      const answer = answers.shift();
      if (answer instanceof Error) throw answer;
      return answer;
    },
    sleep: async (wait) => void waits.push(wait),
  });
  return { client, requests, waits };
}

function event(type, position, more = {}) {
  const data = { type, run_id: "run_1", session_id: "ses_1", timestamp: "t", position, ...more };
  return `id: ${position}\nevent: ${type}\ndata: ${JSON.stringify(data)}\n\n`;
}

/** A stream of these pieces, which then ends, or breaks where the last one is an error. */
function streamOf(...pieces) {
  const body = new ReadableStream({
    async start(controller) {
      for (const piece of pieces) {
        if (piece instanceof Error) return controller.error(piece);
        controller.enqueue(typeof piece === "string" ? new TextEncoder().encode(piece) : piece);
        await new Promise((done) => setImmediate(done)); // so that what came is read before an error
      }
      controller.close();
    },
  });
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
}

const json = (value, status = 200) => Response.json(value, { status });
const problem = (status, code, headers = {}) =>
  new Response(JSON.stringify({ status, code, detail: "No." }), {
    status,
    headers: { "content-type": "application/problem+json", ...headers },
  });

async function positionsOf(events) {
  const found = [];
  for await (const each of events) found.push(each.position);
  return found;
}

test("an operation sends its path, query, body, key and token", async () => {
  const { client, requests } = clientOf(json(ACCEPTED, 202), json({}));
  const body = { recipe: "shop", inputs: { article: "tea" } };
  assert.deepEqual(await client.startRun(body, { idempotencyKey: "order-1" }), ACCEPTED);
  await client.listRunItems("run/1?", { step: "each one", limit: 5 });
  const [first, second] = requests;
  assert.equal(first.url, "http://minions.example/base/api/v1/runs");
  assert.deepEqual([first.method, JSON.parse(first.body)], ["POST", body]);
  assert.equal(first.headers.get("authorization"), "Bearer a token");
  assert.equal(first.headers.get("idempotency-key"), "order-1");
  assert.equal(
    second.url,
    "http://minions.example/base/api/v1/runs/run%2F1%3F/items?step=each+one&limit=5",
  );
});

test("events are read however their bytes are cut", async () => {
  const text =
    ": a comment\r\n\r\n" +
    event("run_started", 1, { recipe: "größer \u{1F375}" }).replaceAll("\n", "\r\n") +
    'id: 2\r\ndata: {"type": "run_completed",\r\ndata: "status": "completed"}\r\n\r\n';
  const bytes = new TextEncoder().encode(text);
  for (let size = 1; size <= 40; size += 1) {
    const pieces = [];
    for (let at = 0; at < bytes.length; at += size) pieces.push(bytes.subarray(at, at + size));
    const { client } = clientOf(streamOf(...pieces));
    const found = [];
    for await (const each of client.followRun("run_1")) found.push(each);
    assert.deepEqual(
      found.map((each) => [each.type, each.recipe]),
      [["run_started", "größer \u{1F375}"], ["run_completed", undefined]],
      `pieces of ${size}`,
    );
  }
});

test("a stream that is cut is opened again after its last event", async () => {
  const { client, requests, waits } = clientOf(
    streamOf(event("run_started", 1), event("step_started", 2), new TypeError("terminated")),
    new TypeError("fetch failed"),
    problem(503, "no-database", { "retry-after": "5" }),
    streamOf(event("step_completed", 3).slice(0, 30)),
    streamOf(event("step_completed", 3), event("run_completed", 4)),
  );
  assert.deepEqual(await positionsOf(client.follow("run_1")), [1, 2, 3, 4]);
  const after = requests.map((each) => new URL(each.url).searchParams.get("after"));
  assert.deepEqual(after, ["0", "2", "2", "2", "2"]);
  assert.deepEqual(waits, [500, 1_000, 5_000, 4_000]);
});

test("as long as events come a stream may be cut as often as it will", async () => {
  const pieces = Array.from({ length: 20 }, (_, at) => streamOf(event("step_started", at + 1)));
  const { client, waits } = clientOf(...pieces, streamOf(event("run_completed", 21)));
  assert.equal((await positionsOf(client.follow("run_1"))).length, 21);
  assert.ok(waits.every((wait) => wait === 500));
});

test("a run that went on after it had waited is followed to its end", async () => {
  const { client } = clientOf(
    streamOf(event("run_started", 1), event("run_waiting", 2), event("run_started", 3), event("run_completed", 4)),
  );
  assert.deepEqual(await positionsOf(client.follow("run_1")), [1, 2, 3, 4]);
});

test("a reader that has all of a run that has ended gets nothing", async () => {
  const { client } = clientOf(new Response(null, { status: 204 }));
  assert.deepEqual(await positionsOf(client.follow("run_1", { after: 4 })), []);
});

test("a server that stays away, or ends every stream too early, is given up", async () => {
  const away = clientOf(...Array.from({ length: 8 }, () => new TypeError("fetch failed")));
  await assert.rejects(positionsOf(away.client.follow("run_1")), /fetch failed/);
  assert.equal(away.waits.length, 7);
  const early = clientOf(...Array.from({ length: 8 }, () => streamOf(": nothing\n\n")));
  await assert.rejects(positionsOf(early.client.follow("run_1")), { code: "stream-cut" });
});

test("a refusal is an error with the words and the code of the server", async () => {
  const { client, waits } = clientOf(problem(404, "recipe-not-found"));
  await assert.rejects(client.run({ recipe: "te" }), (error) => {
    assert.ok(error instanceof MinionsError);
    assert.equal(error.message, "recipe-not-found: No.");
    assert.deepEqual([error.status, error.code, error.problem.code], [404, "recipe-not-found", "recipe-not-found"]);
    return true;
  });
  assert.deepEqual(waits, []);
});

test("an answer of something before the server is told as that", async () => {
  const { client } = clientOf(new Response("<html>Bad Gateway</html>", { status: 500 }));
  await assert.rejects(client.getSystem(), { status: 500, code: "foreign-answer", problem: undefined });
});

test("data that is no event ends the stream by name", async () => {
  for (const data of ["{", "3", "null", "{}"]) {
    const { client } = clientOf(streamOf(`data: ${data}\n\n`));
    await assert.rejects(positionsOf(client.follow("run_1")), { code: "unreadable-event" });
  }
});

test("a start whose answer was lost is sent again under the same key", async () => {
  const { client, requests } = clientOf(
    new TypeError("fetch failed"),
    json(ACCEPTED, 202),
    streamOf(event("run_started", 1), event("run_completed", 2)),
    json({ status: "completed", output: 3, waiting: [] }),
  );
  assert.equal((await client.run({ recipe: "shop" })).output, 3);
  const keys = requests.slice(0, 2).map((each) => each.headers.get("idempotency-key"));
  assert.equal(keys[0], keys[1]);
  assert.ok(keys[0].length >= 16);
});

test("decisions are made one after another, and that of somebody else counts", async () => {
  const waiting = [{ id: "run_1.a", what: "answer" }, { id: "run_1.b", what: "answer" }];
  const { client, requests } = clientOf(
    json(ACCEPTED, 202),
    streamOf(event("run_started", 1), event("run_waiting", 2)),
    json({ status: "needs_decision", waiting }),
    json(ACCEPTED, 202),
    streamOf(event("run_started", 3), event("run_waiting", 4)),
    json({ status: "needs_decision", waiting: waiting.slice(1) }),
    problem(409, "already-decided"),
    streamOf(event("run_started", 5), event("run_completed", 6)),
    json({ status: "completed", waiting: [] }),
  );
  const events = [];
  const run = await client.run(
    { recipe: "asks" },
    { decide: () => ({ decision: "answer", value: 3 }), onEvent: (each) => events.push(each.position) },
  );
  assert.equal(run.status, "completed");
  assert.deepEqual(events, [1, 2, 3, 4, 5, 6]);
  const decided = requests.filter((each) => each.url.includes("/approvals/"));
  assert.deepEqual(decided.map((each) => each.url.split("/").at(-1)), ["run_1.a", "run_1.b"]);
});

test("a run that waits for what nobody here decides is returned", async () => {
  const { client } = clientOf(
    json(ACCEPTED, 202),
    streamOf(event("run_started", 1), event("run_waiting", 2)),
    json({ status: "needs_decision", waiting: [{ id: "run_1.a" }] }),
  );
  assert.equal((await client.run({ recipe: "asks" }, { decide: () => undefined })).status, "needs_decision");
});

test("a reader that leaves lets go of the connection, and an abort ends the wait", async () => {
  let isLeft = false;
  const body = new ReadableStream({
    start: (controller) => controller.enqueue(new TextEncoder().encode(event("run_started", 1))),
    cancel: () => void (isLeft = true),
  });
  const { client } = clientOf(new Response(body));
  for await (const each of client.follow("run_1")) {
    assert.equal(each.position, 1);
    break;
  }
  assert.ok(isLeft);
  const stopped = clientOf(new TypeError("fetch failed"));
  const signal = AbortSignal.abort();
  await assert.rejects(positionsOf(stopped.client.follow("run_1", { signal })), /fetch failed/);
});

test("an address that is none is refused with what is expected", () => {
  for (const url of ["127.0.0.1:8642", "ftp://minions.example", "http://minions.example/?a=1"]) {
    assert.throws(() => new MinionsClient({ url, token: "a token" }), /expected is an address such as/);
  }
});
