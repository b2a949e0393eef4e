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

const parameters = { type: "object", properties: { town: { type: "string" } } };
const tools = [{ name: "weather", description: "Of a town.", parameters }];
const helps = agentOf("helps", [{ id: "1", role: "user", content: "Hello" }]);
await helps.runAgent({ tools });
const [call] = helps.messages.at(-1).toolCalls;
const { town } = JSON.parse(call.function.arguments);
helps.addMessage({ id: "2", role: "tool", toolCallId: call.id, content: `sunny in ${town}` });
await helps.runAgent({ tools });

const shares = agentOf("shares", [{ id: "1", role: "user", content: "Hello" }]);
shares.setState({ a: 1 });
await shares.runAgent({ context: [{ description: "The open order", value: "17" }] });
const shared = [JSON.parse(shares.messages.at(-1).content), shares.state];

const failed = await agentOf("none").runAgent().then(() => "", (error) => String(error));
console.log(
  JSON.stringify({
    said,
    waits: interrupt.reason,
    result: finished.result,
    called: helps.messages.at(-1).content,
    shared,
    failed: failed.match(/404/)?.[0] ?? failed,
  }),
);
