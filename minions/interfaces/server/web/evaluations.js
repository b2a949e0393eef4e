// Evaluations: what each variant reached, and case by case.

import { go } from "./address.js";
import { enc } from "./api.js";
import { changed, cost, count, duration, empty, fill, h, plural, tag, time } from "./dom.js";
import { Part, cell, choice, main, num, offer, state } from "./list.js";

const SHOWN = [["failed", "Not passed"], ["different", "Where variants differ"]];
const percent = (share) => `${Math.round(share * 1000) / 10} %`;
const usd = (each) => (each.cost_usd === null ? (each.tokens ? "not known" : "–") : cost({ total_tokens: 1, cost_usd: each.cost_usd }));

export async function showEvaluations(context) {
	return context.path[1] ? showEvaluation(context) : showAll(context);
}

async function showAll({ root, signal }) {
	const list = new Part({
		title: "Evaluations", path: "/evaluations", name: "evaluations", key: (each) => each.id, row: evaluationRow,
		heads: [["Evaluation"], ["State"], ["Pass rates"], ["Cases", "num"], ["Ended"]],
		none: empty("No evaluations", h("p", "Cases with known answers are asked and scored with ", h("code", "minions eval RECIPE cases.jsonl"), ".")),
	});
	list.el.querySelector("h2").classList.add("away");
	fill(root, h("h1", "Evaluations"), list.el);
	await list.load(signal);
}

function stateOf({ stopped, is_passed: passed, at_least: wanted }) {
	if (stopped !== null) return tag("stop", "stopped", "stop", stopped);
	if (wanted === null) return tag("good", "ended");
	return passed ? tag("good", "passed") : tag("bad", "not passed");
}

/** A rate as words, and where its interval lies between 0 and 1. */
function rate({ pass_rate: value, low, high }) {
	if (value === null) return h("span.muted", "nothing counts");
	const words = `${percent(value)} (${percent(low)} to ${percent(high)})`;
	const span = h("span.span"), point = h("span.point");
	Object.assign(span.style, { left: `${low * 100}%`, width: `${Math.max(0.5, (high - low) * 100)}%` });
	point.style.left = `${value * 100}%`;
	return [h("div.interval", { "aria-hidden": "true" }, span, point), h("div.hint", words)];
}

function evaluationRow(each) {
	return h("tr", main("Evaluation", h("a.strong", { href: `#/evaluations/${enc(each.id)}` }, each.title)), state("State", stateOf(each)),
		cell("Pass rates", each.variants.map((one) => h("div.variant", h("span", one.label), rate(one)))),
		num("Cases", count(each.case_count)), cell("Ended", time(each.ended_at)));
}

async function showEvaluation({ root, path, query, signal }) {
	const id = path[1], title = h("h1", "Evaluation"), box = h("span.status-box", { role: "status" }), owner = {};
	const variants = h("tbody"), others = h("div.stack"), note = h("p.muted");
	let found = null;
	const control = choice("Cases", "All cases", SHOWN);
	control.addEventListener("change", () => go(`/evaluations/${enc(id)}${control.value ? `?show=${control.value}` : ""}`));
	const paint = (evaluation) => {
		found = evaluation;
		if (!changed(owner, "evaluation", evaluation)) return;
		fill(title, evaluation.title, " ", box);
		fill(box, stateOf(evaluation));
		document.title = `${evaluation.title} · Minions`;
		fill(variants, evaluation.variants.map((each) => h("tr", main("Variant", h("span.strong", each.label)), cell("Pass rate", rate(each)),
			cell("Scorers", Object.entries(each.scorers).map(([name, share]) => h("div", h("span", name, " "), h("span.muted", percent(share))))),
			num("No output", count(each.failed)), num("Tokens", count(each.tokens)), num("Cost", usd(each)), num("Median", each.median_ms === null ? "–" : duration(each.median_ms)))));
		fill(others, evaluation.comparisons.map(comparison), evaluation.stopped && h("p", "Stopped: ", evaluation.stopped));
		note.textContent = `${plural(evaluation.case_count, "case")}, each asked ${evaluation.samples === 1 ? "once" : `${count(evaluation.samples)} times`}${evaluation.at_least === null ? "" : `; wanted: ${percent(evaluation.at_least)}`}`;
	};
	const list = new Part({
		title: "Cases", path: "", name: "cases", look: "cases", key: (each) => each.name, row: (each) => caseRow(each, found), onReply: ({ evaluation }) => paint(evaluation),
		heads: [["Case"], ["Answers"], ["Compare"]],
		none: empty("No such cases"),
	});
	fill(root, title, note, h("table.list.cards.variants", h("caption.away", "Variants"), h("thead", h("tr", [["Variant"], ["Pass rate"], ["Scorers"], ["No output", "num"], ["Tokens", "num"], ["Cost", "num"], ["Median", "num"]].map(([word, side]) => h("th", { scope: "col", class: side ?? null, text: word })))), variants),
		others, h("div.head", h("p.muted", "What the first answer that did not pass missed. Its run says why."), h("div.row.tools", control)), list.el);
	const take = async (asked) => {
		const show = asked.get("show") ?? "";
		offer(control, show ? [[show, show]] : []).value = show;
		list.path = `/evaluations/${enc(id)}${show ? `?show=${enc(show)}` : ""}`;
		list.page = 0;
		await list.load(signal);
	};
	await take(query);
	return (next) => take(next).catch(() => {}); // another view came
}

function comparison(each) {
	const sign = each.difference < 0 ? "−" : "+", points = (value) => `${value < 0 ? "−" : "+"}${Math.abs(Math.round(value * 1000) / 10)}`;
	const clear = each.p < 0.05 ? "chance explains it with less than 5 %" : "it may be chance";
	return h("p", h("span.strong", each.label), ` ${sign}${Math.abs(Math.round(each.difference * 1000) / 10)} points (${points(each.low)} to ${points(each.high)}), ${count(each.better)} cases better, ${count(each.worse)} worse: ${clear}.`);
}

function caseRow(each, { variants }) {
	const runs = each.answers.map(({ run_id: id }) => id).filter(Boolean);
	const answers = each.answers.map((answer, at) => {
		const look = answer.passed === null ? tag("gone", "does not count") : answer.passed === 1 ? tag("good", "passed") : answer.passed === 0 ? tag("bad", "not passed") : tag("wait", percent(answer.passed));
		const linked = answer.run_id ? h("a.chip-link", { href: `#/runs/${enc(answer.run_id)}` }, look) : look;
		return h("div.variant", h("span", variants[at].label), linked, answer.reason ? h("div.hint", answer.reason) : null);
	});
	const both = runs.length > 1 ? h("a", { href: `#/compare?a=${enc(runs[0])}&b=${enc(runs[1])}` }, "Compare") : "–";
	return h("tr", main("Case", each.name), cell("Answers", answers), cell("Compare", both));
}
