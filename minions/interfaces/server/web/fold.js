// A run as its events amount to it. No page elements here.

import { now } from "./api.js";

/** Without items and inner steps: which step of the recipe's picture it belongs to. */
export const outermost = (id) => id.split("/")[0].replace(/\[\d+\]$/, "");

/** The step and the index of an item's address `each[3]`, or null. */
export function itemOf(address) {
	const found = /^(.+)\[(\d+)\]$/.exec(address);
	return found && { step: found[1], index: Number(found[2]) };
}

/** Whether a wait for a server is still to end: a call that began says nothing of it. */
export const isAhead = (wait) => Boolean(wait) && Date.parse(wait.until) > now();

const settled = (event) => (event.error?.code === "needs-decision" ? "waiting" : event.status);

export class RunFold {
	constructor() {
		this.since = now();
		this.status = null;
		this.isOver = false;
		this.steps = new Map();
		this.limit = null;
		this.error = null;
		this.starts = 0;
	}

	step(id) {
		let step = this.steps.get(id);
		if (!step) {
			step = { id, status: "pending", spans: [], items: new Map(), total: null, hasEnded: false, tools: new Map(), retries: [], serverWait: null, live: "", liveTools: [], hasGap: false, attempts: 0 };
			this.steps.set(id, step);
		}
		return step;
	}

	/** A step, or an item of a loop as if it were one; null where nothing is known of it. */
	find(address) {
		const known = this.steps.get(address), item = !known && itemOf(address);
		if (!item) return known ?? null;
		const found = this.steps.get(item.step)?.items.get(item.index);
		if (!found) return null;
		const blank = { spans: [], items: new Map(), total: null, tools: new Map(), retries: [], serverWait: null, live: "", liveTools: [], hasGap: false, attempts: 0 };
		const span = { start: found.start, end: found.end ?? null, status: found.status };
		return { ...blank, ...found, id: address, isItem: true, spans: found.start ? [span] : [] };
	}

	/** How far a loop has come: `{total, ended, failed, usage}`; null of a step that is no loop. */
	totalsOf(step) {
		if (!step.items.size && step.total === null) return null;
		if (step.totals) return step.totals;
		const totals = { total: step.total, ended: 0, failed: 0, usage: noUsage() };
		for (const { status, usage } of step.items.values()) {
			if (status !== "completed" && status !== "failed") continue;
			totals.ended += 1;
			if (status === "failed") totals.failed += 1;
			addUsage(totals.usage, usage);
		}
		step.totals = totals;
		return totals;
	}

	/** The order of the picture first, then as they came. */
	ordered(ids) {
		for (const id of ids) this.step(id);
		const place = new Map(ids.map((id, at) => [id, at]));
		const last = ids.length;
		return [...this.steps.values()]
			.map((step, at) => ({ step, at, root: place.get(outermost(step.id)) ?? last, depth: step.id.split("/").length - 1 }))
			.sort((a, b) => a.root - b.root || a.at - b.at && (a.depth === 0 ? -1 : b.depth === 0 ? 1 : a.at - b.at));
	}

	/** Pieces that are not stored may have been missed. */
	gap() {
		for (const step of this.steps.values()) {
			if (step.status !== "running") continue;
			step.hasGap = true;
			step.live = "";
			step.liveTools = [];
		}
	}

	apply(event) {
		const take = this[`on_${event.type}`];
		if (take) take.call(this, event);
	}

	on_run_started(event) {
		this.starts += 1;
		this.status = event.status; // queued, or running
		this.isOver = false;
		this.error = null;
		this.limit = null;
		this.model = event.model_name;
		this.recipe = event.recipe;
		this.query = event.data?.query;
		for (const step of this.steps.values()) step.hasEnded = false; // a retry may run single items of a loop that completed
		for (const step of this.steps.values()) if (step.status === "running") this.close(step, event.timestamp, "interrupted");
	}

	close(step, at, status) {
		step.status = status;
		step.serverWait = null;
		step.live = "";
		step.liveTools = [];
		step.hasGap = false;
		const span = step.spans.at(-1);
		if (span && !span.end) [span.end, span.status] = [at, status];
	}

	on_step_started(event) {
		const step = this.step(event.step_id);
		step.totals = null;
		if (event.index !== undefined) {
			step.items.set(event.index, { status: "running", start: event.timestamp });
			if (step.status !== "running") this.open(step, event.timestamp);
			return;
		}
		if (step.hasEnded) step.items = new Map(); // a further visit, in which all items run
		step.hasEnded = false;
		step.total = event.total ?? null;
		this.open(step, event.timestamp);
	}

	open(step, at) {
		if (step.status === "running") return;
		step.status = "running";
		step.live = "";
		step.hasGap = Date.parse(at) < this.since - 1500; // its first words came before anybody listened here
		step.error = step.reason = undefined;
		step.spans.push({ start: at, end: null, status: "running" });
	}

	on_step_delta(event) {
		const step = this.step(event.step_id), { content, tool_calls: calls } = event.delta;
		step.serverWait = null;
		if (step.items.size) return; // pieces do not say which item they belong to
		if (content) step.live += content;
		for (const call of calls ?? []) {
			const at = call.index ?? 0, known = (step.liveTools[at] ??= { name: "", arguments: "" });
			known.name += call.function?.name ?? "";
			known.arguments += call.function?.arguments ?? "";
		}
	}

	on_step_completed(event) {
		const step = this.step(event.step_id);
		if (event.snapshot.role !== "assistant") return;
		step.serverWait = null;
		step.live = "";
		step.liveTools = [];
		step.hasGap = false;
	}

	on_tool_started(event) {
		this.step(event.step_id).tools.set(event.call_id, { id: event.call_id, name: event.tool, arguments: event.arguments, start: event.timestamp });
	}

	on_tool_finished(event) {
		const tools = this.step(event.step_id).tools;
		tools.set(event.call_id, { ...(tools.get(event.call_id) ?? { id: event.call_id, name: event.tool }), isOver: true, duration: event.duration_ms, error: event.error });
	}

	on_server_wait(event) {
		this.step(event.step_id).serverWait = { server: event.server, until: event.until };
	}

	on_retrying(event) {
		this.step(event.step_id).retries.push(event);
	}

	on_step_finished(event) {
		const step = this.step(event.step_id), status = settled(event);
		step.totals = null;
		if (event.index !== undefined) {
			step.items.set(event.index, {
				...step.items.get(event.index), status, end: event.timestamp, error: event.error, reason: event.reason, usage: event.usage, duration: event.duration_ms,
				attempts: event.attempts, modelCalls: event.model_calls, toolCalls: event.tool_calls,
			});
			return;
		}
		step.hasEnded = true;
		if (!step.spans.length || step.spans.at(-1).end) {
			const start = new Date(new Date(event.timestamp) - event.duration_ms).toISOString();
			if (status !== "skipped") step.spans.push({ start, end: event.timestamp, status });
		}
		this.close(step, event.timestamp, status);
		Object.assign(step, {
			reason: event.reason, error: event.error, usage: event.usage, duration: event.duration_ms, attempts: event.attempts,
			modelCalls: event.model_calls, toolCalls: event.tool_calls, cachedFrom: event.cached_from, pinnedFrom: event.pinned_from,
		});
	}

	on_waiting(event) {
		const step = this.step(event.step_id);
		if (step.status === "running") step.status = "waiting";
	}

	on_limit_reached(event) {
		this.limit = event.message;
	}

	on_run_completed(event) {
		this.end(event);
	}

	on_run_waiting(event) {
		this.end(event);
	}

	on_run_failed(event) {
		this.end(event);
		this.error = event.data?.error;
	}

	end(event) {
		this.status = event.status;
		this.isOver = true;
		this.endedAt = event.timestamp;
		this.usage = event.data?.metrics;
		for (const step of this.steps.values()) {
			if (step.status === "running") this.close(step, event.timestamp, "interrupted");
		}
	}

	/** Of what has ended; an unknown part makes the sum unknown. */
	usageSoFar() {
		const sum = noUsage();
		for (const step of this.steps.values()) {
			if (step.id.includes("/")) continue;
			addUsage(sum, step.usage && step.status !== "running" ? step.usage : this.totalsOf(step)?.usage);
		}
		return sum;
	}
}

const PLANNING = new Set(["found", "found_files", "notes", "draft", "draft_text", "check", "mended", "mended_text", "second_check"]);

/** To which step of a plan an inner step belongs: `write__changes` to `write`, those that made the plan to `planning`. */
function planStepOf(inner) {
	const first = inner.split("/")[0].replace(/\[\d+\]$/, "");
	return PLANNING.has(first) ? "planning" : first.split("__")[0];
}

/**
 * The rows of `ordered` with the inner steps of plans as one row for each step of the plan. `isPlan(id)`: whether the
 * outermost step of that id is one. What such a row says is what its steps came to: a test that failed and passes after a repair has passed.
 */
export function byPlanSteps(rows, isPlan) {
	const groups = new Map(), found = [];
	for (const row of rows) {
		const root = outermost(row.step.id);
		if (!row.depth || !isPlan(root)) {
			found.push(row);
			continue;
		}
		const name = planStepOf(row.step.id.split("/").slice(1).join("/")), key = `${root}/${name}`;
		if (!groups.has(key)) {
			groups.set(key, { step: null, depth: 1, name, members: [] });
			found.push(groups.get(key));
		}
		groups.get(key).members.push(row.step);
	}
	for (const group of groups.values()) group.step = summed(group.name, group.members);
	return found;
}

function summed(name, members) {
	const main = members.find(({ id }) => id.endsWith(`/${name}`)) ?? members[0];
	const ends = (step) => step.spans.at(-1)?.end ?? "";
	const active = members.filter(({ status }) => status === "running" || status === "waiting");
	const done = members.filter(({ status }) => status !== "skipped" && status !== "pending");
	const last = active.at(-1) ?? done.toSorted((a, b) => ends(a).localeCompare(ends(b))).at(-1);
	const spans = members.flatMap((step) => step.spans).toSorted((a, b) => a.start.localeCompare(b.start));
	const known = done.filter(({ duration }) => duration !== undefined);
	return {
		...main, status: last?.status ?? main.status, spans, items: new Map(), total: null, totals: null,
		duration: known.length ? known.reduce((sum, { duration }) => sum + duration, 0) : undefined,
	};
}

const COUNTS = ["input_tokens", "output_tokens", "cached_tokens", "total_tokens"];
const noUsage = () => ({ input_tokens: 0, output_tokens: 0, cached_tokens: 0, total_tokens: 0, cost_usd: null });

/** An unknown cost of some tokens makes the sum unknown for good. */
function addUsage(sum, usage) {
	if (!usage?.total_tokens) return;
	const isFirst = sum.total_tokens === 0;
	for (const name of COUNTS) sum[name] += usage[name] ?? 0;
	const isKnown = typeof usage.cost_usd === "number" && (isFirst || sum.cost_usd !== null);
	sum.cost_usd = isKnown ? (sum.cost_usd ?? 0) + usage.cost_usd : null;
}

/**
 * Time as a place from 0 to 1, where pauses in which nothing ran take little room.
 * `spans`: [{start, end}] in ms. Gives {at(ms), breaks: [{from, to, ms}], total}.
 */
export function timeline(spans) {
	const sorted = spans.toSorted((a, b) => a.start - b.start);
	const parts = [];
	for (const { start, end } of sorted) {
		const last = parts.at(-1);
		if (last && start <= last.end) last.end = Math.max(last.end, end);
		else parts.push({ start, end });
	}
	const busy = parts.reduce((sum, part) => sum + part.end - part.start, 0) || 1;
	const small = Math.max(1000, busy * 0.3), pause = busy * 0.06;
	const marks = [];
	let place = 0;
	parts.forEach((part, at) => {
		const gap = at ? part.start - parts[at - 1].end : 0;
		const isLong = gap > small;
		if (isLong) marks.push({ from: place, to: place + pause, ms: gap });
		place += isLong ? pause : gap;
		part.place = place;
		place += part.end - part.start;
	});
	const total = place || 1;
	const at = (ms) => {
		let before = parts[0];
		for (const part of parts) if (part.start <= ms) before = part;
		if (!before) return 0;
		const next = parts[parts.indexOf(before) + 1];
		const free = before.place + (ms - before.start);
		return Math.min(1, Math.max(0, (next ? Math.min(free, next.place) : free) / total));
	};
	return { at, total, breaks: marks.map((mark) => ({ from: mark.from / total, to: mark.to / total, ms: mark.ms })) };
}
