// What the compiler has to accept and to refuse; nothing here is executed.
import {
  MinionsClient,
  type DecisionRequest,
  type RunEvent,
  type RunRequest,
  type RunView,
} from "../src/index.js";

declare const client: MinionsClient;

export const stored: RunRequest = { recipe: "shop", inputs: { article: "tea" } };
export const brought: RunRequest = { recipe_text: "id: shop" };
// @ts-expect-error: neither a stored recipe nor a text
export const neither: RunRequest = { inputs: {} };
// @ts-expect-error: both
export const both: RunRequest = { recipe: "shop", recipe_text: "id: shop" };

export const approval: DecisionRequest = { decision: "approve", digest: "64a1" };
// @ts-expect-error: an approval names what it is about
export const blind: DecisionRequest = { decision: "approve" };
// @ts-expect-error: no such decision
export const unknown: DecisionRequest = { decision: "accept", digest: "64a1" };

export function describe(event: RunEvent): string | undefined {
  switch (event.type) {
    case "step_delta":
      return event.delta.content;
    case "run_completed":
      return event.status;
    case "run_started":
      // @ts-expect-error: the first event has no piece of an answer
      return event.delta;
    default:
      return event.run_id;
  }
}

export async function use(): Promise<RunView> {
  await client.getRunStep("run_1", { address: "judge" });
  // @ts-expect-error: of which step?
  await client.getRunStep("run_1", {});
  // @ts-expect-error: no such state
  await client.listRuns({ status: "done" });
  for await (const event of client.sendMessage("ses_1", { content: "Hi" })) {
    describe(event);
  }
  return client.run({ recipe: "shop" }, { decide: (waiting) => (waiting.digest ? approval : undefined) });
}
