// What differs between a plan that failed and the one that takes its place.

import { h, plural, tag } from "./dom.js";

/** Of each change its shape, and whose colours it has. */
const CHANGES = { kept: ["open", "open"], done: ["good", "good"], added: ["plus", "run"], removed: ["gone", "gone"], changed: ["tilde", "wait"] };
const ENDS = { completed: "it had completed", failed: "it failed", skipped: "it was skipped" };
const UNTOLD = new Set(["id", "name"]); // each plan has a name of its own

/** The diff as the server sends it: a row for each step, the keys that differ below it. */
export function planDiff(diff) {
	const own = (diff.changes ?? []).filter(({ key }) => !UNTOLD.has(key)), steps = diff.steps ?? [];
	const counts = Object.keys(CHANGES).map((change) => [change, steps.filter((each) => each.change === change).length]).filter(([, n]) => n);
	return h("section.plan-diff", { "aria-label": "What differs from the plan before" },
		h("p.muted", `${plural(steps.length, "step")}: ${counts.map(([change, n]) => `${n} ${change}`).join(", ")}`),
		own.length > 0 && keys(own),
		h("ul.plain", steps.map(stepRow)));
}

function stepRow({ id, type, change, status, changes, step }) {
	const end = change === "done" ? null : ENDS[status], [mark, look] = CHANGES[change] ?? ["open", "open"];
	return h("li", { data: { change } },
		h("div.row", tag(mark, change, look), h("code.strong", id), h("span.muted", type, end ? `, ${end}` : "")),
		(changes ?? []).length > 0 && keys(changes),
		step && keys(Object.entries(step).filter(([key]) => key !== "id" && key !== "type").map(([key, after]) => ({ key, before: null, after })), false));
}

const keys = (changes, isMarked = true) => h("dl", changes.map(({ key, before, after }) => [
	h("dt", key),
	h("dd", before === null ? null : h("del", words(before)), after === null ? null : h(isMarked ? "ins" : "span", words(after))),
]));

const words = (value) => (Array.isArray(value) ? value.join(", ") : String(value));
