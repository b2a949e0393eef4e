// Lets a recipe call tools through Vercel's AI SDK, and prints what came of it as JSON.
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const [baseURL, apiKey] = process.argv.slice(2);
const compatible = createOpenAICompatible({ name: "minions", baseURL, apiKey });
const openai = createOpenAI({ baseURL, apiKey });
const parameters = { type: "object", properties: { town: { type: "string" } }, required: ["town"] };
const weather = tool({
  description: "Of a town.",
  inputSchema: jsonSchema(parameters),
  execute: async ({ town }) => `sunny in ${town}`,
});
const models = { compatible: compatible("helps"), chat: openai.chat("helps"), responses: openai.responses("helps") };
const said = {};
for (const [name, model] of Object.entries(models)) {
  const asked = { model, prompt: "hello", tools: { weather }, stopWhen: stepCountIs(5) };
  const whole = await generateText(asked);
  let streamed = "";
  for await (const piece of streamText(asked).textStream) streamed += piece;
  said[name] = [whole.text, streamed];
}
console.log(JSON.stringify(said));
