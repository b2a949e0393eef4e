// The inbox: pending decisions of runs, and how they are made.

import { go } from "./address.js";
import { enc, get, onChange, post } from "./api.js";
import { Rows, action, callout, count, empty, fill, h, loading, note, isUser, ownName, pretty, problem, tag, time } from "./dom.js";
import { Field, Fields } from "./form.js";
import { choice, offer } from "./list.js";
import { planDiff } from "./plandiff.js";
import { code } from "./text.js";

const PAGE = 50;

const KINDS = [["approval", "approvals"], ["question", "questions"], ["call", "calls of a caller's tool"], ["plan", "plans"], ["budget", "budgets"], ["doubt", "calls in doubt"], ["unreadable", "unreadable runs"]];

export async function showInbox({ root, query, signal }) {
	const list = h("div.stack"), rows = new Rows(list), place = h("div", loading("what waits"));
	const controls = { kind: choice("Kind", "Any kind", KINDS), recipe: choice("Recipe", "Any recipe") };
	const clear = () => h("button", { onclick: () => go("/inbox") }, "Clear the filters");
	const part = h("span.muted", { role: "status" });
	const previous = h("button", { onclick: () => turn(-1) }, "Previous"), next = h("button", { onclick: () => turn(1) }, "Next"), foot = h("div.row", { hidden: true }, previous, next, part);
	let page = 0, values = {};
	fill(root, h("div.head", h("h1", "Inbox"), h("div.row.tools", Object.values(controls))),
		h("p.muted", "What waits for a person: calls that need consent, questions, plans, budgets at their threshold, calls whose effect is not known, results of tools that whoever asked carries out."), place, foot);
	for (const [name, control] of Object.entries(controls)) control.addEventListener("change", () => {
		const { [name]: _, ...rest } = values;
		const kept = new URLSearchParams(control.value ? { ...rest, [name]: control.value } : rest);
		go(`/inbox${kept.size ? `?${kept}` : ""}`);
	});
	async function turn(by) {
		page += by;
		await load();
		window.scrollTo(0, 0);
		root.querySelector(".decision h2")?.focus();
	}
	async function load() {
		const asked = new URLSearchParams({ limit: PAGE, offset: page * PAGE, ...values });
		const { approvals, total } = await get(`/approvals?${asked}`, { signal });
		if (!approvals.length && page > 0) {
			page = Math.max(0, Math.ceil(total / PAGE) - 1);
			await load();
			return;
		}
		foot.hidden = total <= PAGE;
		previous.hidden = page === 0;
		next.hidden = (page + 1) * PAGE >= total;
		part.textContent = `${count(page * PAGE + 1)}–${count(page * PAGE + approvals.length)} of ${count(total)}`;
		if (!approvals.length) fill(place, Object.keys(values).length ? empty("Nothing waits with these filters", clear()) : empty("Nothing waits", h("p.muted", "When a step asks for consent or for an answer, it appears here.")));
		else if (list.parentNode !== place) fill(place, list);
		rows.show(approvals, (each) => each.id, JSON.stringify, (each) => decisionCard(each, { onDecided: load }));
	}
	/** The filters are those of the address. */
	async function take(query, isFirst = false) {
		[page, values] = [0, {}];
		for (const [name, control] of Object.entries(controls)) {
			const value = query.get(name) ?? "";
			if (value) values[name] = value;
			offer(control, value ? [[value, value]] : []).value = value;
		}
		try {
			await load();
		} catch (error) {
			if (error.name === "AbortError" || (isFirst && !error.status)) throw error; // no answer: the page waits for the connection
			fill(place, problem(error), h("p", clear()));
			foot.hidden = true;
		}
	}
	await take(query, true);
	onChange("approvals", signal, load);
	get("/recipes?limit=1000", { signal }).then(({ recipes }) => offer(controls.recipe, recipes.map(({ id }) => [id, id])), () => {}); // only offered
	return (next) => take(next).catch(() => {}); // another view came
}

/** After a decision its button is gone: on with the next one, else at the top of the page. */
function focusNext(card, place) {
	requestAnimationFrame(() => {
		if (document.activeElement !== document.body && document.activeElement !== null && !card.contains(document.activeElement)) return;
		const left = [...document.querySelectorAll(".decision h2")].filter((each) => !card.contains(each));
		const next = left[Math.min(place, left.length - 1)] ?? document.querySelector("main h1");
		if (!next) return;
		next.tabIndex = -1;
		next.focus();
	});
}

/**
 * One decision, with all that it is bound to. `onSend()`: it is about to be sent; `onDecided(isOwn)`: it was made here, or
 * does not wait any more.
 */
export function decisionCard(waiting, { onDecided, onSend = () => {}, isInline = false }) {
	const said = h("div", { role: "alert" }), by = nameField();
	const decide = (body, word) => async () => {
		fill(said);
		const place = [...document.querySelectorAll(".decision")].indexOf(card);
		onSend();
		try {
			await post(`/approvals/${enc(waiting.id)}`, by.value.trim() ? { ...body, by: by.value.trim() } : body);
		} catch (error) {
			fill(said, problem(error));
			if (error.code === "already-decided") note(error.message, "bad"); // the card goes
			if (error.status === 404 || error.status === 409) onDecided(false);
			return;
		}
		note(word, "good");
		await onDecided(true);
		focusNext(card, place);
	};
	const isCall = waiting.what === "approval";
	const plan = planOf(waiting);
	const parts = { approval: callPart, answer: plan ? planPart : answerPart, doubt: doubtPart, unreadable: () => null };
	const card = h("article.panel.decision", { "aria-label": LABELS[waiting.what](waiting) },
		h("header.row", waiting.what === "unreadable" ? tag("bad", "unreadable") : tag("wait", waiting.kind ?? "question"),
			h("h2", { tabindex: "-1" }, isCall ? ["May ", h("code", waiting.tool), " be called?"] : plan ? "Carry out this plan?" : waiting.question ?? waiting.words)),
		h("p.muted", isInline ? null : [h("a", { href: `#/runs/${enc(waiting.run_id)}`, text: waiting.recipe }), ", "], waiting.step_id ? ["step ", h("a", { href: `#/runs/${enc(waiting.run_id)}?step=${enc(waiting.step_id)}` }, h("code", waiting.step_id))] : null, ...sinceWhen(waiting)),
		parts[waiting.what](waiting, decide), waiting.what === "unreadable" ? null : h("label.by", h("span.hint", ownName() === null ? "Your name, for others (optional)" : `Your name is that of your ${isUser() ? "account" : "token"}`), by), said);
	return card;
}

/** Since when it waits, until when, and what its run cost so far. */
function sinceWhen(waiting) {
	return [
		...(waiting.asked_at ? [" · asked ", time(waiting.asked_at)] : []),
		...(waiting.expires_at ? [" · expires ", time(waiting.expires_at)] : []),
		...(waiting.cost_usd ? [` · cost so far $${Number(waiting.cost_usd.toPrecision(4))}`] : []),
	];
}

const NAME = "minions.name";

/** Who decides, as they say; the browser keeps it. */
function nameField() {
	const input = h("input", { name: "by", autocomplete: "off", maxlength: "100", spellcheck: "false" });
	input.value = ownName() ?? localStorage.getItem(NAME) ?? "";
	input.readOnly = ownName() !== null;
	input.addEventListener("change", () => localStorage.setItem(NAME, input.value.trim()));
	return input;
}

/** The text that somebody wrote on the card and did not send; null: none. */
export function unsentText(card) {
	const area = [...card.querySelectorAll("textarea")].find((each) => each.value.trim() && each.value !== each.dataset.before);
	return area?.value ?? null;
}

/** What somebody else decided while the card was shown. `taken`: the note of it; null: it does not wait any more. */
export function decidedByOther({ taken, unsent }) {
	const written = unsent && h("details", h("summary", "What you had written was not sent"), code(unsent, "What you had written"));
	if (!taken) return callout("stop", "This does not wait any more", null, null, written);
	const { by, at, answer } = taken.facts;
	const words = taken.state === "answer" ? shortened(typeof answer === "string" ? answer : JSON.stringify(answer)) : taken.state;
	return callout("stop", "Somebody else decided", null, null, h("p", by ? h("strong", by) : "It was", " decided at ", time(at), ": ", h("code", words)), written);
}

const shortened = (text) => (text.length > 200 ? `${text.slice(0, 200)}…` : text);

const LABELS = {
	approval: (waiting) => `Approval of ${waiting.tool}`,
	answer: (waiting) => (waiting.kind === "call" ? `Result of ${waiting.tool}` : "Question"),
	doubt: (waiting) => `Call of ${waiting.tool} in doubt`,
	unreadable: () => "Unreadable run",
};

function doubtPart(waiting, decide) {
	return [
		h("h3", "Arguments"), code(waiting.arguments ?? "{}", "Arguments"),
		h("p.hint", "Find out whether the call had its effect."),
		h("div.row",
			action("Make it again", decide({ decision: "redo" }, "The call is made again."), { needs: "decide", class: "danger" }),
			action("Declare it done", decide({ decision: "done" }, "Declared done; the run is resumed."), { needs: "decide" }),
			action("Declare it failed", decide({ decision: "fail" }, "Declared failed; the run is resumed."), { needs: "decide" })),
	];
}

function callPart(waiting, decide) {
	const body = (decision, more) => ({ decision, digest: waiting.digest, ...more });
	const reason = new Field({ name: "reason", schema: { type: "string" }, required: false }, "Reason of a rejection");
	const reject = () => decide(body("reject", { reason: reason.input.value.trim() || null }), "Rejected; the run is resumed without the call.")();
	const edited = new ArgumentsEditor(waiting.arguments);
	const approve = action("Approve", async () => {
		const { value, problem: wrong } = edited.read();
		if (wrong) edited.field.input.focus();
		else await decide(value === undefined ? body("approve") : body("approve", { arguments: value }), value === undefined ? "Approved; the run is resumed." : "Approved with the edited arguments; the run is resumed.")();
	}, { needs: "decide", class: "primary" });
	edited.onChange = (isEdited) => (approve.textContent = isEdited ? "Approve as edited" : "Approve");
	return [
		h("h3", "Arguments"), code(waiting.arguments ?? "{}", "Arguments"),
		waiting.filled?.length ? h("p.hint", tag("stop", `Made by a model: ${waiting.filled.join(", ")}`)) : null,
		waiting.words_of?.length ? h("p.hint", tag("stop", `Words in it may be of: ${waiting.words_of.join(", ")}`)) : null, edited.el,
		waiting.who ? h("p.hint", tag("wait", waiting.who)) : null,
		waiting.votes?.length ? h("p.hint", waiting.votes.map((each) => [h("strong", each.by ?? "?"), ` ${each.decision === "approve" ? "approved" : "rejected"} `, time(each.at), ". "])) : null,
		h("p.hint", "The decision is about exactly these arguments: digest ", h("code", { title: waiting.digest, text: (waiting.digest ?? "").slice(0, 12) }), "."),
		reason.el,
		h("div.row",
			approve,
			action("Reject", reject, { needs: "decide", class: "danger" })),
		waiting.kind === "approval" ? classPart(waiting, (like) => decide(body("approve", { all_like: like }), "Approved with all calls like it; the run is resumed.")()) : null,
	];
}

/** Approves later calls, too, of which the chosen arguments are as here; what that covers is shown first. */
function classPart(waiting, send) {
	let args = {};
	try {
		args = JSON.parse(waiting.arguments ?? "{}");
	} catch {
		return null;
	}
	const names = isObject(args) ? Object.keys(args) : [];
	if (!names.length) return null;
	const boxes = names.map((name) => h("input", { type: "checkbox", name }));
	const chosen = () => names.filter((_, at) => boxes[at].checked);
	const shown = h("p.hint", { role: "status" });
	const approve = action("Approve all like this", () => send({ same: chosen() }), { needs: "decide" });
	const show = () => {
		const equal = chosen().map((name) => `${name} = ${JSON.stringify(args[name])}`);
		approve.hidden = !equal.length;
		shown.textContent = equal.length ? `All calls of ${waiting.tool} in step '${waiting.step_id}' with ${equal.join(" and ")}, until the run ends, as long as no other stranger's words may be in them.` : "Choose what has to be the same.";
	};
	for (const box of boxes) box.addEventListener("change", show);
	show();
	return h("details.edit", h("summary", "Approve all like this"), names.map((name, at) => h("label.row", boxes[at], h("code", name))), shown, h("div.row", approve));
}

/** The arguments as JSON that can be changed; what is no JSON object is said as it is typed. */
class ArgumentsEditor {
	constructor(text) {
		this.onChange = () => {};
		this.before = pretty(text ?? "{}");
		this.field = new Field({ name: "arguments", schema: { type: "object" }, required: true }, "Edited arguments");
		this.field.input.value = this.before;
		this.field.input.rows = Math.min(12, this.before.split("\n").length + 1);
		this.field.input.addEventListener("input", () => {
			this.field.say(this.read().problem ?? null);
			this.onChange(this.read().value !== undefined);
		});
		this.el = h("details.edit", h("summary", "Edit the arguments"), h("p.hint", "The tool is called with exactly what stands here."), this.field.el);
		try {
			this.isObject = isObject(JSON.parse(this.before));
		} catch {
			this.isObject = false;
		}
		this.el.hidden = !this.isObject;
	}

	/** {value} where it was changed, {} where it is as before, or {problem}. */
	read() {
		const text = this.field.input.value;
		if (!this.isObject || text === this.before) return {};
		const { value, problem: wrong } = this.field.read();
		if (wrong) return { problem: wrong };
		if (!isObject(value)) return { problem: "Arguments are a JSON object: {\"name\": value}." };
		return JSON.stringify(value) === JSON.stringify(JSON.parse(this.before)) ? {} : { value };
	}
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The plan that a question shows and the notes behind it; null: the question is about something else. */
function planOf(waiting) {
	if (waiting.plan) return { ...waiting.plan, notes: [...waiting.plan.notes, ...waiting.plan.faults].join("\n") };
	const [plan, rest] = (waiting.what === "answer" && waiting.question?.startsWith("PLAN:") ? waiting.question : "").split("\nEND_PLAN");
	if (rest === undefined) return null;
	return { text: `${plan}\nEND_PLAN\n`, notes: rest.trim().split("\n").slice(0, -1).join("\n") };
}

function planPart(waiting, decide) {
	const { text, notes, diff } = planOf(waiting);
	const area = (label, value, rows) => {
		const field = new Field({ name: "text", schema: { type: "string" }, required: true }, label); // a text has lines
		[field.input.value, field.input.rows, field.input.dataset.before] = [value, rows, value];
		return field;
	};
	const edited = area("Edited plan", text, Math.min(24, text.split("\n").length + 1));
	const wish = area("What to do differently", "", 2);
	const said = (word, value) => decide({ decision: "answer", value }, word);
	const send = (field, word) => async () => {
		const value = field.input.value.trim();
		field.say(value ? null : "This must not be empty.");
		if (value) await said(word, value)();
		else field.input.focus();
	};
	return [
		diff ? [planDiff(diff), h("details", h("summary", "The whole plan"), code(text, "Plan"))] : code(text, "Plan"),
		notes ? h("p.hint.lines", { text: notes }) : null,
		h("div.row",
			action("Carry it out", said("The plan is carried out.", "yes"), { needs: "decide", class: "primary" }),
			action("Reject", said("Rejected; nothing was done.", "no"), { needs: "decide", class: "danger" })),
		h("details.edit", h("summary", "Edit the plan"), h("p.hint", "Steps, goals, files and order may be changed. A plan with faults is shown again with them."), edited.el,
			h("div.row", action("Carry it out as edited", send(edited, "The edited plan is carried out."), { needs: "decide" }))),
		h("details.edit", h("summary", "Let it be planned again"), wish.el,
			h("div.row", action("Plan again", send(wish, "It is planned again."), { needs: "decide" }))),
	];
}

/** One field for each value of a form that is an object; null: it is another one. */
function formSpecs(form) {
	const entries = form?.type === "object" ? Object.entries(form.properties ?? {}) : [];
	if (!entries.length || entries.length > 50 || entries.some(([, schema]) => !isObject(schema))) return null;
	return entries.map(([name, schema]) => ({
		name, schema, title: schema.title ?? name, description: schema.description, default: schema.default,
		required: (form.required ?? []).includes(name) && schema.default === undefined,
	}));
}

/** A form, whose answer is an object. */
function formPart(specs, decide, decline) {
	const fields = new Fields(specs);
	const send = async () => {
		const value = fields.read();
		if (value) await decide({ decision: "answer", value }, "Answered; the run is resumed.")();
	};
	const button = action("Answer", send, { needs: "decide", class: "primary" });
	return h("form", { novalidate: true, onsubmit: (event) => (event.preventDefault(), button.click()) }, fields.el, h("div.row", button, decline));
}

/** A call of a tool of whoever began the run: usually that program gives the result. */
function callerPart(waiting, decide, decline) {
	return [
		h("p.hint", "The program that asked carries this out and gives the result. Until then you may give it in its place."),
		h("h3", "Arguments"), code(waiting.arguments ?? "{}", "Arguments"), textPart(waiting, decide, decline, "The result"),
	];
}

function answerPart(waiting, decide) {
	const decline = waiting.can_decline ? action("Decline to answer", decide({ decision: "reject" }, "Declined; the tool is told so."), { needs: "decide", class: "danger" }) : null;
	const specs = formSpecs(waiting.form);
	if (waiting.kind === "call") return callerPart(waiting, decide, decline);
	return specs ? formPart(specs, decide, decline) : textPart(waiting, decide, decline, "Your answer");
}

function textPart(waiting, decide, decline, label) {
	const field = new Field({ name: "answer", schema: waiting.form ?? { type: "string" }, required: true }, label);
	if (waiting.default !== null && waiting.default !== undefined) field.input.value = typeof waiting.default === "string" && field.kind === "text" ? waiting.default : JSON.stringify(waiting.default);
	const send = async () => {
		const { value, problem: wrong } = field.read();
		field.say(wrong ?? null);
		if (wrong) field.input.focus();
		else await decide({ decision: "answer", value }, "Answered; the run is resumed.")();
	};
	const button = action("Answer", send, { needs: "decide", class: "primary" });
	return h("form", { novalidate: true, onsubmit: (event) => (event.preventDefault(), button.click()) }, field.el, h("div.row", button, decline));
}
