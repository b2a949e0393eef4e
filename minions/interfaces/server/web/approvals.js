// Pending decisions of runs, and how they are made.

import { connection, enc, get, poll, post } from "./api.js";
import { Rows, action, empty, fill, h, loading, note, problem, tag } from "./dom.js";
import { Field } from "./form.js";
import { code } from "./text.js";

export async function showApprovals({ root, signal }) {
	const list = h("div.stack"), rows = new Rows(list), place = h("div", loading("what waits"));
	fill(root, h("div.head", h("h1", "Approvals"), h("p.muted", "Runs that need a person: calls that may be made only with consent, and questions.")), place);
	async function load() {
		const { approvals } = await get("/approvals?limit=200", { signal });
		if (!approvals.length) fill(place, empty("Nothing waits", h("p.muted", "When a step asks for consent or for an answer, it appears here.")));
		else if (list.parentNode !== place) fill(place, list);
		rows.show(approvals, (each) => each.id, JSON.stringify, (each) => decisionCard(each, { onDecided: load }));
	}
	await load();
	poll(3000, signal, load);
}

/** One decision, with all that it is bound to. */
export function decisionCard(waiting, { onDecided, isInline = false }) {
	const said = h("div", { role: "alert" });
	const decide = (body, word) => async () => {
		fill(said);
		try {
			await post(`/approvals/${enc(waiting.id)}`, body);
		} catch (error) {
			fill(said, problem(error));
			if (error.status === 404 || error.status === 409) onDecided();
			return;
		}
		note(word, "good");
		connection.dispatchEvent(new Event("decided"));
		await onDecided();
	};
	const isCall = waiting.what === "approval";
	const parts = { approval: callPart, answer: answerPart, doubt: doubtPart, unreadable: () => null };
	return h("article.panel.decision", { "aria-label": LABELS[waiting.what](waiting) },
		h("header.row", waiting.what === "unreadable" ? tag("bad", "unreadable") : tag("wait", waiting.what === "answer" ? "question" : waiting.what),
			h("h2", isCall ? ["May ", h("code", waiting.tool), " be called?"] : waiting.question ?? waiting.words)),
		h("p.muted", isInline ? null : [h("a", { href: `#/runs/${enc(waiting.run_id)}`, text: waiting.recipe }), ", "], waiting.step_id ? ["step ", h("a", { href: `#/runs/${enc(waiting.run_id)}?step=${enc(waiting.step_id)}` }, h("code", waiting.step_id))] : null),
		parts[waiting.what](waiting, decide), said);
}

const LABELS = {
	approval: (waiting) => `Approval of ${waiting.tool}`,
	answer: () => "Question",
	doubt: (waiting) => `Call of ${waiting.tool} in doubt`,
	unreadable: () => "Unreadable run",
};

function doubtPart(waiting, decide) {
	return [
		h("h3", "Arguments"), code(waiting.arguments ?? "{}", "Arguments"),
		h("p.hint", "Find out whether the call had its effect."),
		h("div.row",
			action("Make it again", decide({ decision: "redo" }, "The call is made again."), { class: "danger" }),
			action("Declare it done", decide({ decision: "done" }, "Declared done; the run is resumed.")),
			action("Declare it failed", decide({ decision: "fail" }, "Declared failed; the run is resumed."))),
	];
}

function callPart(waiting, decide) {
	const body = (decision, more) => ({ decision, digest: waiting.digest, ...more });
	const reason = new Field({ name: "reason", schema: { type: "string" }, required: false }, "Reason of a rejection");
	const reject = () => decide(body("reject", { reason: reason.input.value.trim() || null }), "Rejected; the run is resumed without the call.")();
	return [
		h("h3", "Arguments"), code(waiting.arguments ?? "{}", "Arguments"),
		h("p.hint", "The decision is about exactly these arguments: digest ", h("code", { title: waiting.digest, text: (waiting.digest ?? "").slice(0, 12) }), "."),
		reason.el,
		h("div.row",
			action("Approve", decide(body("approve"), "Approved; the run is resumed."), { class: "primary" }),
			action("Reject", reject, { class: "danger" })),
	];
}

function answerPart(waiting, decide) {
	const field = new Field({ name: "answer", schema: waiting.form ?? { type: "string" }, required: true }, "Your answer");
	if (waiting.default !== null && waiting.default !== undefined) field.input.value = typeof waiting.default === "string" && field.kind === "text" ? waiting.default : JSON.stringify(waiting.default);
	const send = async () => {
		const { value, problem: wrong } = field.read();
		field.say(wrong ?? null);
		if (wrong) field.input.focus();
		else await decide({ decision: "answer", value }, "Answered; the run is resumed.")();
	};
	const button = action("Answer", send, { class: "primary" });
	return h("form", { novalidate: true, onsubmit: (event) => (event.preventDefault(), button.click()) }, field.el, h("div.row", button));
}
