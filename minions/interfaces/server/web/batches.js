// Batches: one row for each, and the runs of one.

import { go } from "./address.js";
import { enc, onChange } from "./api.js";
import { between, changed, chip, cost, count, duration, empty, fill, h, plural, shortId, time } from "./dom.js";
import { Part, cell, choice, main, num, offer, state } from "./list.js";

const STATES = [["failed", "failed"], ["running", "running"], ["queued", "queued"], ["needs_decision", "needs a decision"], ["interrupted", "interrupted"], ["completed", "completed"], ["partial", "partial"], ["limit_reached", "limit reached"], ["cancelled", "cancelled"]];
const usd = (each) => (each.cost_usd ? cost({ total_tokens: 1, cost_usd: each.cost_usd }) : each.tokens ? "none known" : "–");

export async function showBatches(context) {
	return context.path[1] ? showBatch(context) : showAll(context);
}

async function showAll({ root, signal }) {
	const list = new Part({
		title: "Batches", path: "/batches", name: "batches", key: (each) => each.id, row: batchRow,
		heads: [["Batch"], ["State"], ["Progress"], ["Failed", "num"], ["Tokens", "num"], ["Cost", "num"], ["Began"]],
		none: empty("No batches", h("p", "A recipe is run once for each line of a file with ", h("code", "minions batch RECIPE items.jsonl"), ".")),
	});
	list.el.querySelector("h2").classList.add("away");
	fill(root, h("h1", "Batches"), list.el);
	await list.load(signal);
	onChange("runs", signal, () => list.load(signal));
}

/** What most describes the whole: what somebody has to do stands before what goes on by itself. */
function stateOf({ states, ended, begun, lines }) {
	if (states.needs_decision) return "needs_decision";
	if (states.running) return "running";
	if (states.queued) return "queued";
	if (states.interrupted || begun < lines) return "interrupted";
	return states.failed || states.partial || states.limit_reached || ended < lines ? "partial" : "completed";
}

function progress({ ended, lines }) {
	const words = `${count(ended)} of ${count(lines)} ended`;
	return [h("meter", { min: 0, max: Math.max(1, lines), value: Math.min(ended, lines), "aria-label": words }), h("div.hint", words)];
}

function batchRow(each) {
	return h("tr", main("Batch", h("a.strong", { href: `#/batches/${enc(each.id)}` }, each.title), h("div.hint", each.recipe)),
		state("State", chip(stateOf(each))), cell("Progress", progress(each)), num("Failed", count(each.failed)),
		num("Tokens", count(each.tokens)), num("Cost", usd(each)), cell("Began", time(each.began_at)));
}

async function showBatch({ root, path, query, signal }) {
	const id = path[1], facts = h("dl.facts"), title = h("h1", "Batch"), box = h("span.status-box", { role: "status" }), owner = {};
	const control = choice("Status", "Any status", STATES);
	control.addEventListener("change", () => go(`/batches/${enc(id)}${control.value ? `?status=${control.value}` : ""}`));
	const fact = (name, ...content) => h("div", h("dt", name), h("dd", content));
	const paint = (batch) => {
		if (!changed(owner, "batch", batch)) return;
		fill(title, batch.title, " ", box);
		fill(box, chip(stateOf(batch)));
		document.title = `${batch.title} · Minions`;
		fill(facts,
			fact("Recipe", h("a", { href: `#/runs?recipe=${enc(batch.recipe)}` }, batch.recipe)), fact("Lines", count(batch.lines)),
			fact("Progress", progress(batch)), fact("Failed", count(batch.failed)), fact("Tokens", count(batch.tokens)), fact("Cost", usd(batch)), fact("Began", time(batch.began_at)),
			batch.begun < batch.lines && fact("Not begun", plural(batch.lines - batch.begun, "line")));
	};
	const list = new Part({
		title: "Runs", path: "", name: "items", look: "items", key: (each) => each.run_id, row: itemRow, onReply: ({ batch }) => paint(batch),
		heads: [["Line", "num"], ["Status"], ["Inputs"], ["Started"], ["Duration", "num"], ["Tokens", "num"], ["Cost", "num"], ["Run"]],
		none: empty("No runs with this status"),
	});
	fill(root, title, h("section.panel", facts), h("div.head", h("p.muted", "The runs that started last stand first."), h("div.row.tools", control)), list.el);
	const take = async (asked) => {
		const status = asked.get("status") ?? "";
		offer(control, status ? [[status, status]] : []).value = status;
		list.path = `/batches/${enc(id)}${status ? `?status=${enc(status)}` : ""}`;
		list.page = 0;
		await list.load(signal);
	};
	await take(query);
	onChange("runs", signal, () => list.load(signal));
	return (next) => take(next).catch(() => {}); // another view came
}

function itemRow(each) {
	return h("tr", num("Line", each.line === null ? "–" : count(each.line + 1)), state("Status", chip(each.status)),
		h("td.about", { data: { label: "Inputs" }, title: each.about }, each.about ?? each.problem ?? h("span.muted", "–")), cell("Started", time(each.started_at)),
		num("Duration", each.finished_at ? duration(between(each.started_at, each.finished_at)) : "–"), num("Tokens", count(each.usage.total_tokens)), num("Cost", cost(each.usage)),
		main("Run", h("a", { href: `#/runs/${enc(each.run_id)}`, title: each.run_id }, h("code", shortId(each.run_id)))));
}
