// Against a server at MINIONS_URL with the token MINIONS_TOKEN, that has the recipes `asks`, `signs` and `chat`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MinionsClient } from "../dist/index.js";

const { MINIONS_URL: url, MINIONS_TOKEN: token } = process.env;
const withServer = { skip: url ? false : "there is no MINIONS_URL" };
const client = url ? new MinionsClient({ url, token }) : undefined;

test("a question of a run is answered, and its output comes back", withServer, async () => {
  const events = [];
  const run = await client.run(
    { recipe: "asks" },
    {
      decide: (waiting) => (waiting.what === "answer" ? { decision: "answer", value: 3 } : undefined),
      onEvent: (event) => events.push(event.type),
    },
  );
  assert.deepEqual([run.status, run.output], ["completed", 3]);
  assert.deepEqual(events.filter((type) => type.startsWith("run_")), [
    "run_started",
    "run_waiting",
    "run_started",
    "run_completed",
  ]);
  const again = [];
  for await (const event of client.follow(run.run_id)) again.push(event.type);
  assert.deepEqual(again, events.filter((type) => type !== "step_delta"));
});

test("a call is approved as it was shown", withServer, async () => {
  const run = await client.run(
    { recipe: "signs" },
    { decide: ({ digest }) => ({ decision: "approve", digest }) },
  );
  assert.equal(run.status, "completed");
});

test("a decision that does not fit is refused with the words of the server", withServer, async () => {
  const run = await client.run({ recipe: "asks" });
  assert.equal(run.status, "needs_decision");
  const [waiting] = run.waiting;
  await assert.rejects(client.decide(waiting.id, { decision: "answer", value: 0 }), { status: 422 });
  await assert.rejects(client.run({ recipe: "ask" }), { code: "recipe-not-found" });
});

test("a turn of a session is streamed", withServer, async () => {
  const session = await client.createSession({ recipe: "chat" });
  const types = [];
  for await (const event of client.sendMessage(session.id, { content: "Hi" })) types.push(event.type);
  assert.deepEqual([types[0], types.at(-1)], ["run_started", "run_completed"]);
  const { steps } = await client.listSteps(session.id);
  assert.deepEqual(steps.map((step) => step.role), ["user", "assistant"]);
});

test("lists, texts and pictures are read as what they are", withServer, async () => {
  const { recipes } = await client.listRecipes({ limit: 2 });
  assert.equal(recipes.length, 2);
  assert.match(await client.drawRecipe("asks", { format: "mermaid" }), /^(graph|flowchart)/);
  assert.equal(typeof (await client.drawRecipe("asks")), "object");
  const { runs } = await client.listRuns({ recipe: "asks", status: "completed" });
  assert.ok(runs.length >= 1);
  const lines = (await client.getRunJournal(runs[0].run_id)).trim().split("\n");
  assert.ok(lines.every((line) => typeof JSON.parse(line) === "object"));
});
