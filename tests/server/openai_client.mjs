// Asks a server with OpenAI's client, and prints what came of it as JSON.
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey });
const model = "chat";
const hello = [{ role: "user", content: "one two" }];
const failureOf = (promise) => promise.then(() => null, (error) => error);

const models = [];
for await (const each of client.models.list()) models.push(each.id);
const whole = await client.chat.completions.create({
  model,
  messages: [
    { role: "user", content: "one" },
    { role: "assistant", content: "1" },
    { role: "user", content: "two" },
  ],
});
const pieces = [];
for await (const each of await client.chat.completions.create({ model, messages: hello, stream: true }))
  pieces.push(each.choices[0].delta.content ?? null);
const first = await client.responses.create({ model, input: "one" });
const second = await client.responses.create({
  model,
  input: "two",
  previous_response_id: first.id,
});
const streamed = await client.responses.stream({ model, input: "one two" }).finalResponse();
const unknown = await failureOf(client.models.retrieve("none"));
const tools = [{ type: "function", function: { name: "f", parameters: {} } }];
const refused = await failureOf(client.chat.completions.create({ model, messages: hello, tools }));
const failed = await failureOf(client.chat.completions.create({ model: "fails", messages: hello }));
const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "Of a town.",
    parameters: { type: "object", properties: { town: { type: "string" } }, required: ["town"] },
    parse: JSON.parse,
    function: ({ town }) => `sunny in ${town}`,
  },
};
const called = [];
for (const stream of [false, true])
  called.push(await client.chat.completions.runTools({ model: "helps", messages: hello, tools: [weather], stream }).finalContent());
console.log(
  JSON.stringify({
    models,
    whole: whole.choices[0].message.content,
    pieces: pieces.join(""),
    response: second.output_text,
    streamed: streamed.output_text,
    called,
    refusals: [
      `${unknown.constructor.name} ${unknown.status} ${unknown.code}`,
      `${refused.constructor.name} ${refused.status} ${refused.param}`,
    ],
    failed: `${failed.constructor.name} ${failed.status}`,
  }),
);
