// What runs wait for, and what somebody says of it.

import { connection, enc, get, poll, post } from "./api.js";
import { Rows, action, code, empty, fill, h, loading, note, problem, tag } from "./dom.js";
import { Field } from "./form.js";

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
	return h("article.panel.decision", { "aria-label": isCall ? `Approval of ${waiting.tool}` : "Question" },
		h("header.row", tag("wait", isCall ? "approval" : "question"),
			h("h2", isCall ? ["May ", h("code", waiting.tool), " be called?"] : waiting.question ?? waiting.words)),
		h("p.muted", isInline ? null : [h("a", { href: `#/runs/${enc(waiting.run_id)}`, text: waiting.recipe }), ", "], "step ", h("a", { href: `#/runs/${enc(waiting.run_id)}?step=${enc(waiting.step_id)}` }, h("code", waiting.step_id))),
		isCall ? callPart(waiting, decide) : answerPart(waiting, decide), said);
}

function callPart(waiting, decide) {
	const body = (decision) => ({ decision, digest: waiting.digest });
	return [
		h("h3", "Arguments"), code(waiting.arguments ?? "{}", "Arguments"),
		h("p.hint", "The decision is about exactly these arguments: digest ", h("code", { title: waiting.digest, text: (waiting.digest ?? "").slice(0, 12) }), "."),
		h("div.row",
			action("Approve", decide(body("approve"), "Approved; the run goes on."), { class: "primary" }),
			action("Reject", decide(body("reject"), "Rejected; the run goes on without the call."), { class: "danger" })),
	];
}

function answerPart(waiting, decide) {
	const field = new Field({ name: "answer", schema: waiting.form ?? { type: "string" }, required: true }, "Your answer");
	if (waiting.default !== null && waiting.default !== undefined) field.input.value = typeof waiting.default === "string" && field.kind === "text" ? waiting.default : JSON.stringify(waiting.default);
	const send = async () => {
		const { value, problem: wrong } = field.read();
		field.say(wrong ?? null);
		if (wrong) field.input.focus();
		else await decide({ decision: "answer", value }, "Answered; the run goes on.")();
	};
	const button = action("Answer", send, { class: "primary" });
	return h("form", { novalidate: true, onsubmit: (event) => (event.preventDefault(), button.click()) }, field.el, h("div.row", button));
}
