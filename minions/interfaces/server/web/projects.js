// All projects of a server: which there are, what waits for a decision in them, their newest runs and sessions.

import { enc, poll } from "./api.js";
import { between, chip, duration, empty, fill, h, shortId, tag, time } from "./dom.js";
import { Part, cell, main, state } from "./list.js";

const EVERY_MS = 10_000;

export async function showProjects({ root, signal }) {
	const projects = new Part({
		title: "Projects", path: "/projects", name: "projects", size: 0, key: (each) => each.name, row: projectRow,
		heads: [["Project"], ["State"], ["Database"]], none: empty("No projects"),
	});
	const decisions = new Part({
		title: "Decisions", path: "/projects/approvals", name: "approvals", look: "decisions", turns: false, key: ({ project, approval }) => `${project}/${approval.id}`, row: decisionRow,
		heads: [["Recipe"], ["Project"], ["What"], ["Asked"]], none: empty("Nothing waits for a decision"),
	});
	const runs = new Part({
		title: "Runs", path: "/projects/runs", name: "runs", key: (each) => `${each.project}/${each.run_id}`, row: runRow,
		heads: [["Recipe"], ["Project"], ["State"], ["Started"], ["Run"]], none: empty("No runs yet"),
	});
	const sessions = new Part({
		title: "Sessions", path: "/projects/sessions", name: "sessions", key: (each) => `${each.project}/${each.session_id}`, row: sessionRow,
		heads: [["Session"], ["Project"], ["Recipe"], ["Updated"]], none: empty("No sessions yet"),
	});
	const parts = [projects, decisions, runs, sessions];
	fill(root, h("h1", "All projects"), parts.map(({ el }) => el));
	const load = () => Promise.all(parts.map((each) => each.load(signal)));
	await load();
	poll(EVERY_MS, signal, load);
}

/** The page of the project in which that address of its API is. */
const pageOf = (url, place) => `${url.slice(0, url.indexOf("/api/v1/") + 1)}#${place}`;

function projectRow(each) {
	return h("tr", main("Project", h("a.strong", { href: each.url }, each.name), each.is_default ? h("div.hint", "the default one") : null),
		state("State", each.is_reachable ? tag("good", "reachable") : tag("bad", "not reachable"), each.problem ? h("div.hint", each.problem) : null),
		cell("Database", h("code", each.database)));
}

function decisionRow({ project, approval, url }) {
	return h("tr", main("Recipe", h("a.strong", { href: pageOf(url, "/inbox") }, approval.recipe)), cell("Project", project),
		cell("What", approval.words), cell("Asked", time(approval.asked_at), h("div.hint", duration(between(approval.asked_at)))));
}

function runRow(each) {
	return h("tr", main("Recipe", h("a.strong", { href: pageOf(each.url, `/runs/${enc(each.run_id)}`) }, each.recipe)), cell("Project", each.project),
		state("State", chip(each.status)), cell("Started", time(each.started_at)), cell("Run", h("code", { title: each.run_id }, shortId(each.run_id))));
}

function sessionRow(each) {
	return h("tr", main("Session", h("a.strong", { href: pageOf(each.url, `/sessions/${enc(each.session_id)}`) }, each.name ?? shortId(each.session_id))),
		cell("Project", each.project), cell("Recipe", each.recipe ?? "–"), cell("Updated", time(each.updated_at)));
}
