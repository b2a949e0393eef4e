// Runs agents with AG-UI's client, which checks the order of events, and prints what came of it.
import { HttpAgent } from "@ag-ui/client";

const [root, token] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${token}` };
const agentOf = (name, messages = []) =>
  new HttpAgent({ url: `${root}/${name}/ag-ui`, headers, threadId: `thread of ${name}`, initialMessages: messages });

const chat = agentOf("chat", [{ id: "1", role: "user", content: "Hello" }]);
await chat.runAgent();
const said = chat.messages.map((each) => `${each.role}: ${each.content}`);

const signs = agentOf("signs");
let finished = null;
const subscriber = { onRunFinishedEvent: ({ event }) => void (finished = event) };
await signs.runAgent({}, subscriber);
const [interrupt] = finished.outcome.interrupts;
const answer = { interruptId: interrupt.id, status: "resolved", payload: { approved: true } };
await signs.runAgent({ resume: [answer] }, subscriber);

const failed = await agentOf("none").runAgent().then(() => "", (error) => String(error));
console.log(
  JSON.stringify({
    said,
    waits: interrupt.reason,
    result: finished.result,
    failed: failed.match(/404/)?.[0] ?? failed,
  }),
);
