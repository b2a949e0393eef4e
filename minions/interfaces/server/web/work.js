// Who works in this project: workers, queues and what waits in them, schedules.

import { enc, onChange, poll, post } from "./api.js";
import { action, between, chip, count, duration, empty, fill, h, note, plural, shortId, tag, time } from "./dom.js";
import { Part, cell, main, num, state } from "./list.js";

const EVERY_MS = 5_000;

export async function showWork({ root, signal }) {
	const queues = new Part({
		title: "Queues", path: "/queues", name: "queues", key: (each) => each.name, row: queueRow,
		heads: [["Queue"], ["State"], ["Waiting", "num"], ["Delayed", "num"], ["Executed", "num"], ["Workers", "num"], ["Longest wait"], ["Limits"]],
		none: empty("No queues", h("p", "The first queued run makes one: ", h("code", "minions run RECIPE --detach"), ".")),
	});
	const workers = new Part({
		title: "Workers", path: "/workers", name: "workers", key: (each) => each.name, row: workerRow,
		heads: [["Worker"], ["State"], ["Runs", "num"], ["Queues"], ["Version"], ["Started"], ["Last seen"], ["Lacks"]],
		none: empty("No workers", h("p", "Queued runs wait for one: ", h("code", "minions worker --db …"), ". Runs that are started here are executed by the server.")),
	});
	const waiting = new Part({
		title: "What waits", path: "/queues/runs", name: "runs", look: "queued", key: (each) => each.run_id, row: waitingRow,
		heads: [["Recipe"], ["Queue"], ["Why"], ["Since"], ["Run"]],
		none: empty("Nothing waits in a queue"),
	});
	const parts = [queues, workers, waiting];
	fill(root, h("h1", "Workers and queues"), parts.map(({ el }) => el));
	const load = () => Promise.all(parts.map((each) => each.load(signal)));
	await load();
	poll(EVERY_MS, signal, load);
}

export async function showSchedules({ root, signal }) {
	const list = new Part({
		title: "Schedules", path: "/schedules", name: "schedules", key: (each) => each.name, row: (each) => scheduleRow(each, () => list.load(signal)),
		heads: [["Schedule"], ["State"], ["When"], ["Next"], ["Last run"], ["Left out"], ["Act"]],
		none: empty("No schedules", h("p", "A recipe with ", h("code", "schedule:"), " gets one: ", h("code", "minions schedules add RECIPE"), ". Workers run it when it is due.")),
	});
	list.el.querySelector("h2").classList.add("away");
	fill(root, h("h1", "Schedules"), list.el);
	await list.load(signal);
	poll(EVERY_MS, signal, () => list.load(signal));
	onChange("runs", signal, () => list.load(signal));
}

function scheduleRow(each, onSet) {
	const isDamaged = each.cron === null, word = each.is_paused ? "resume" : "pause";
	const look = isDamaged ? tag("bad", "damaged") : each.problem ? tag("bad", "not carried out") : each.is_paused ? tag("stop", "paused") : each.next.length ? tag("good", "active") : tag("gone", "never due");
	const set = async () => {
		await post(`/schedules/${enc(each.name)}/${word}`);
		note(each.is_paused ? `${each.name} is active again.` : `${each.name} is paused.`, "good");
		await onSet();
		document.querySelector(`[data-schedule="${CSS.escape(each.name)}"]`)?.focus(); // the row is another one now
	};
	const [first, ...later] = each.next;
	return h("tr", main("Schedule", h("span.strong", each.name), each.recipe && each.recipe !== each.name ? h("div.hint", each.recipe) : null),
		state("State", look, each.problem ? h("div.hint", each.problem) : null),
		cell("When", isDamaged ? "–" : [h("code", each.cron), h("div.hint", each.timezone)]),
		cell("Next", first ? [time(first), later.map((at) => h("div.hint", time(at)))] : "–", each.waiting.length ? h("div.hint", plural(each.waiting.length, "due time waits", "due times wait")) : null),
		cell("Last run", each.last_run ? h("a.chip-link", { href: `#/runs/${enc(each.last_run)}` }, chip(each.last_status)) : "–"),
		cell("Left out", each.skipped ? [time(each.skipped), h("div.hint", each.reason)] : "–"),
		cell("Act", isDamaged ? null : action(each.is_paused ? "Resume" : "Pause", set, { needs: "admin", data: { schedule: each.name }, "aria-label": `${each.is_paused ? "Resume" : "Pause"} ${each.name}` })));
}

const or = (value, otherwise = "–") => (value === null || value === "" ? otherwise : value);

function queueRow(each) {
	const waits = each.waiting + each.delayed, more = each.is_partial ? "+" : "";
	const look = each.paused ? tag("stop", "paused") : waits && !each.workers ? tag("bad", "no worker") : waits ? tag("wait", "waits") : tag("good", "empty");
	const limits = [
		each.concurrency !== null && `at most ${count(each.concurrency)}`,
		each.per_worker !== null && `${count(each.per_worker)} at each worker`,
		each.rate && `${count(each.rate.starts)} per ${each.rate.period_s} s`,
	].filter(Boolean);
	return h("tr", main("Queue", h("span.strong", each.name)), state("State", look, each.paused ? h("div.hint", each.paused) : null),
		num("Waiting", count(each.waiting) + more), num("Delayed", count(each.delayed) + more), num("Executed", count(each.taken)), num("Workers", count(each.workers)),
		cell("Longest wait", each.oldest_at ? duration(between(each.oldest_at)) : "–"),
		cell("Limits", limits.join(", ") || (each.has_limits ? "none" : "none in an SQLite file")));
}

function workerRow(each) {
	const load = each.taken === null ? "–" : each.slots === null ? count(each.taken) : `${count(each.taken)} of ${count(each.slots)}`;
	return h("tr", main("Worker", h("code", each.name)), state("State", !each.is_alive ? tag("gone", "gone") : each.problem ? tag("bad", "executes nothing") : tag("good", "alive")),
		num("Runs", load), cell("Queues", each.queues.join(", ")), cell("Version", or(each.version, "not known")),
		cell("Started", each.started_at ? [time(each.started_at), h("div.hint", duration(between(each.started_at)))] : "–"), cell("Last seen", each.seen_at ? time(each.seen_at) : "–"),
		cell("Lacks", each.lacks.length ? h("ul.plain", each.lacks.map((part) => h("li", part))) : "–"));
}

function waitingRow(each) {
	return h("tr", main("Recipe", h("a.strong", { href: `#/runs/${enc(each.run_id)}` }, each.recipe)), cell("Queue", each.queue),
		cell("Why", each.lacks.length ? tag("bad", each.reason) : each.reason), cell("Since", time(each.since), h("div.hint", duration(between(each.since)))),
		cell("Run", h("code", { title: each.run_id }, shortId(each.run_id))));
}
